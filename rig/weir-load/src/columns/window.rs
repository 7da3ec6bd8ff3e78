//! The metrics that one client has collected since its last window ended.

use super::payload::{PayloadBuilder, SeriesType};
use super::sketch::Sketch;
use crate::compose::{DrawnMessage, Observer};
use crate::manifest::Decimal;
use crate::model::{DISTRIBUTION, GAUGE, Model};
use std::collections::HashMap;
use std::sync::Arc;

/// A context as a message has it: of the model, replaced so often, occurring once.
type Identity = (u32, u32, u64);

enum Collected {
    Count(Decimal),
    Gauge(Decimal),
    Distribution(Sketch),
}

/// A part of a window, as it is sent.
pub struct Request {
    pub path: &'static str,
    pub body: Vec<u8>,
    pub series: u64,
}

/// Series in the order of their first messages.
pub struct Window {
    model: Arc<Model>,
    places: HashMap<Identity, usize>,
    series: Vec<(Identity, Collected)>,
    pub messages: u64,
}

impl Observer for Window {
    fn saw(&mut self, drawn: DrawnMessage) {
        let DrawnMessage::Metric {
            context,
            entry,
            generation,
            fresh,
            sequence,
            serial,
            stamped: _,
        } = drawn
        else {
            unreachable!("profiles of anything but metrics are refused");
        };
        self.messages += 1;
        let kind = self.model.contexts[context as usize].kind;
        let identity = (context, generation, fresh);
        let place = *self.places.entry(identity).or_insert_with(|| {
            let collected = match kind {
                GAUGE => Collected::Gauge(Decimal::ZERO),
                DISTRIBUTION => Collected::Distribution(Sketch::default()),
                _ => Collected::Count(Decimal::ZERO),
            };
            self.series.push((identity, collected));
            self.series.len() - 1
        });
        let weight = self.model.entries[kind as usize][entry as usize].weight;
        let values = self.model.drawn_values(kind, entry, sequence, serial);
        for value in values {
            match &mut self.series[place].1 {
                Collected::Count(sum) => sum.micros += value.micros * i128::from(weight),
                Collected::Gauge(last) => *last = value,
                Collected::Distribution(sketch) => sketch.add(value, u64::from(weight)),
            }
        }
    }
}

impl Window {
    pub fn new(model: &Arc<Model>) -> Window {
        Window {
            model: model.clone(),
            places: HashMap::new(),
            series: Vec::new(),
            messages: 0,
        }
    }

    /// The requests of a window that begins at `start` and has `width` seconds. Counts and gauges have requests of their own.
    pub fn requests(self, start: i64, width: u64) -> Vec<Request> {
        let mut requests = Vec::new();
        for of_sketches in [false, true] {
            let path = if of_sketches { "/sketches" } else { "/series" };
            let mut finish = |body: &mut PayloadBuilder| {
                let full = std::mem::replace(body, PayloadBuilder::new(start, width));
                if full.series > 0 {
                    requests.push(Request {
                        path,
                        series: full.series as u64,
                        body: full.finish(),
                    });
                }
            };
            let mut body = PayloadBuilder::new(start, width);
            let all = self.series.iter();
            for (identity, collected) in
                all.filter(|(_, collected)| matches!(collected, Collected::Distribution(_)) == of_sketches)
            {
                if body.is_full() {
                    finish(&mut body);
                }
                let (context, generation, fresh) = *identity;
                let name = self.model.name(&self.model.contexts[context as usize]);
                let tags = self.model.tags_of(context, generation, fresh);
                match collected {
                    Collected::Count(sum) => body.number(name, &tags, SeriesType::Count, *sum),
                    Collected::Gauge(last) => body.number(name, &tags, SeriesType::Gauge, *last),
                    Collected::Distribution(sketch) => body.sketch(name, &tags, sketch),
                }
            }
            finish(&mut body);
        }
        requests
    }
}
