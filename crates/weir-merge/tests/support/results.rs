//! A log that has results alone, as one output reads it.
#![allow(dead_code)]

use std::convert::Infallible;

use weir_merge::{Assignment, Commit, CommitError, Fetched, Log, Merge, Message, Plan, Settings};
use weir_state::{Bounds, Table};

use super::{Writer, message};

#[derive(Debug, Default)]
pub struct ResultsLog {
    pub partitions: Vec<Vec<Vec<u8>>>,
    sent: Vec<u64>,
    is_assigned: bool,
}

impl ResultsLog {
    pub fn new(partitions: Vec<Vec<Vec<u8>>>) -> Self {
        ResultsLog {
            sent: vec![0; partitions.len()],
            partitions,
            is_assigned: false,
        }
    }

    /// The output has everything.
    pub fn is_delivered(&self) -> bool {
        let ends = self.partitions.iter().map(|results| results.len() as u64);
        ends.eq(self.sent.iter().copied())
    }
}

/// The results of a closed bucket with these series.
pub fn closed(start: i64, table: &Table) -> Vec<Vec<u8>> {
    let settings = Settings {
        bounds: Bounds::NONE,
        memory: 1 << 30,
        ..Settings::default()
    };
    let mut merge = Merge::new(settings, 0);
    let records = Writer::new(1, 1).write(start, table);
    for (offset, bytes) in (0..).zip(records) {
        merge.add(&message(offset, start + 15, &bytes));
    }
    merge.tick((start + 1000) * 1000);
    merge.commit().expect("the bucket has closed").results
}

impl Log for ResultsLog {
    type Error = Infallible;

    fn plan(&mut self) -> Result<Plan, Infallible> {
        Ok(Plan::new(self.partitions.len() as u32))
    }

    fn append(&mut self, _: u32, _: i64, _: &[u8]) -> Result<u64, Infallible> {
        unreachable!("outputs read")
    }

    fn assignments(&mut self) -> Result<Vec<Assignment>, Infallible> {
        let all = match std::mem::replace(&mut self.is_assigned, true) {
            true => 0..0,
            false => 0..self.partitions.len() as u32,
        };
        Ok(all
            .map(|partition| Assignment::Assigned {
                partition,
                generation: 1,
            })
            .collect())
    }

    fn fetch(&mut self, _: u32, _: u64, _: usize) -> Result<Fetched, Infallible> {
        Ok(Fetched {
            messages: Vec::<Message>::new(),
            ..Fetched::default()
        })
    }

    fn committed(&mut self, _: u32) -> Result<Option<(Vec<u8>, u64)>, Infallible> {
        Ok(None)
    }

    fn commit(&mut self, _: u32, _: u64, _: &Commit) -> Result<(), CommitError<Infallible>> {
        unreachable!("outputs read")
    }

    fn results(&mut self, partition: u32, from: u64, most: usize) -> Result<Vec<(u64, Vec<u8>)>, Infallible> {
        let results = &self.partitions[partition as usize];
        let mut bytes = 0;
        let numbered = (from..).zip(results.iter().skip(from as usize));
        let read = numbered.take_while(|(_, result)| {
            let has_room = bytes < most || bytes == 0;
            bytes += result.len();
            has_room
        });
        Ok(read.map(|(number, result)| (number, result.clone())).collect())
    }

    fn results_start(&mut self, _: u32) -> Result<u64, Infallible> {
        Ok(0)
    }

    fn results_sent(&mut self, partition: u32) -> Result<u64, Infallible> {
        Ok(self.sent[partition as usize])
    }

    fn record_results_sent(
        &mut self,
        partition: u32,
        _: u64,
        before: u64,
    ) -> Result<(), CommitError<Infallible>> {
        self.sent[partition as usize] = before;
        Ok(())
    }
}
