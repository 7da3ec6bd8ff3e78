//! Replacement of contexts over the schedule's time.

use crate::model::Model;
use crate::profile::Churn;
use crate::rng::Rng;

pub(super) struct Churning {
    how: Churn,
    generations: Vec<u32>,
    rng: Rng,
    replaced: u64,
    pub group: u64,
    /// Order of replacement within one deployment.
    order: Vec<u32>,
    next: usize,
}

impl Churning {
    pub fn new(model: &Model) -> Option<Churning> {
        let (Churn::Trickle { group, .. } | Churn::Deploy { group, .. }) = model.profile.churn else {
            return None;
        };
        let groups = (model.contexts.len() as u64).div_ceil(group) as u32;
        let mut order: Vec<u32> = (0..groups).collect();
        // The same order on every connection: they are clients of one deployment.
        let mut rng = Rng::new(model.seed, "churn", 0);
        rng.shuffle(&mut order);
        Some(Churning {
            how: model.profile.churn.clone(),
            generations: vec![0; groups as usize],
            rng,
            replaced: 0,
            group,
            order,
            next: 0,
        })
    }

    /// Number of replacements of the group.
    pub fn generation(&self, group: u64) -> u32 {
        self.generations[group as usize]
    }

    pub fn contexts_replaced(&self) -> u64 {
        self.replaced * self.group
    }

    /// Replaces the contexts due at a time of the schedule, in seconds.
    pub fn advance(&mut self, time: f64) {
        let due = self.due(time).floor();
        while (self.replaced as f64) < due {
            if self.next == self.order.len() {
                self.rng.shuffle(&mut self.order);
                self.next = 0;
            }
            self.generations[self.order[self.next] as usize] += 1;
            self.next += 1;
            self.replaced += 1;
        }
    }

    fn due(&self, time: f64) -> f64 {
        let groups = self.generations.len() as f64;
        match &self.how {
            Churn::None => 0.0,
            Churn::Trickle { per_second, .. } => per_second * time * groups,
            Churn::Deploy {
                share, within, every, ..
            } => {
                let every = every.0.as_secs_f64();
                let cycle = (time / every).floor();
                let into = ((time - cycle * every) / within.0.as_secs_f64()).min(1.0);
                // The first deployment is after one period, if there is something to replace.
                let per_deployment = (share * groups).round();
                if cycle < 1.0 {
                    0.0
                } else {
                    (cycle - 1.0) * per_deployment + (into * per_deployment).floor()
                }
            }
        }
    }
}
