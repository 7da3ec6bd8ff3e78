//! Finds or makes the series of a row.

use std::borrow::Cow;
use std::sync::Arc;

use hashbrown::HashTable;
use weir_context::ContextKey;
use weir_protocol::Kind;

use super::{CumulativeState, Family, Place, Row, Seconds, SeriesState, Value, is_compound};
use crate::prometheus::forms::{Form, FormKey, Forms};
use crate::prometheus::names::{self, LabelWriter};
use crate::settings::HistogramStyle;

/// The parts that distinguish families.
struct FamilyIdentity<'a> {
    name: Cow<'a, str>,
    kind: Kind,
    /// Of histograms, timings and distributions: it decides the type in Prometheus.
    style: Option<HistogramStyle>,
}

impl<'a> FamilyIdentity<'a> {
    /// Contexts of one name and kind, or with `merge_names` of one name and type in Prometheus.
    fn of(row: &Row<'a>, form: &Form, merge_names: bool) -> Self {
        let style = is_compound(row.kind).then_some(form.style);
        if !merge_names {
            return FamilyIdentity {
                name: row.name.into(),
                kind: row.kind,
                style,
            };
        }
        let mut name = names::base_name(row.name, form.named_as(row.kind));
        if row.kind == Kind::Counter && form.total {
            name.push_str("_total");
        }
        let kind = match row.kind {
            Kind::Counter => Kind::Counter,
            Kind::Gauge | Kind::Set => Kind::Gauge,
            Kind::Histogram | Kind::Timing | Kind::Distribution => Kind::Histogram,
        };
        FamilyIdentity {
            name: name.into(),
            kind,
            style,
        }
    }

    fn is_of<M, S>(&self, family: &Family<M, S>) -> bool {
        family.kind == self.kind
            && self.style.is_none_or(|style| style == family.form.style)
            && *family.name == *self.name
    }

    /// The number of kind and style.
    fn number(&self) -> u64 {
        (self.kind as u64) << 8 | self.style.map_or(0, |style| 1 + style as u64)
    }
}

/// A quarter at a time: most families are small, and doubling a large one would waste memory.
fn more_series(capacity: usize) -> usize {
    capacity / 4 + 1
}

/// Bytes that an insertion allocates: a full table doubles.
fn bytes_to_insert<T>(table: &HashTable<T>) -> usize {
    /// Of the first entries, with what tells the free ones.
    const FIRST_ENTRIES: usize = 4;
    const OF_A_TABLE: usize = 64;
    match table.len() < table.capacity() {
        true => 0,
        false => (2 * table.allocation_size()).max(FIRST_ENTRIES * (size_of::<T>() + 1)) + OF_A_TABLE,
    }
}

impl<M: Default, S: Default> CumulativeState<M, S> {
    /// [`CumulativeState::place`] for a row that is described only if its context is not known.
    pub(super) fn place_row(
        &mut self,
        row: &Row<'_>,
        now: Seconds,
        describe: impl FnOnce(&mut LabelWriter, &mut Forms) -> Option<u32>,
    ) -> Option<Place> {
        if let Some((family, at)) = row.context.and_then(|context| self.of_context.get(context)) {
            return Some(Place {
                family: family as usize,
                at: at as usize,
                is_new: false,
                form: None,
            });
        }
        let mut labels = std::mem::take(&mut self.labels);
        let entry = describe(&mut labels, &mut self.forms);
        let placed = self.place(row, (entry, row.kind), labels.text(), now);
        self.labels = labels;
        // A context with another form than its series is described each time. There are few.
        if let (Some(place), Some(context)) = (&placed, row.context)
            && place.form.is_none()
        {
            self.of_context
                .set(context, (place.family as u32, place.at as u32));
        }
        placed
    }

    /// The series with these labels, which is made if there is none. `None`: there is no memory for it.
    pub(super) fn place(&mut self, row: &Row<'_>, key: FormKey, labels: &str, now: Seconds) -> Option<Place> {
        let form = self.forms.id(&self.settings, key);
        let identity = FamilyIdentity::of(row, self.forms.get(form), self.settings.merge_names);
        let family_hash = self.secret.pair(identity.name.as_bytes(), &[], identity.number());
        let families = &self.families;
        let family = self
            .family_index
            .find(family_hash, |&at| identity.is_of(&families[at as usize]))
            .map(|&at| at as usize);
        let hash = self.secret.pair(labels.as_bytes(), &[], family_hash);
        if let Some(family) = family {
            let found = self.series_index.find(hash, |&(of, at)| {
                of as usize == family && *families[family].series[at as usize].labels == *labels
            });
            if let Some(&(_, at)) = found {
                let of_series = families[family].series[at as usize].form;
                return Some(Place {
                    family,
                    at: at as usize,
                    is_new: false,
                    form: (of_series != form).then_some(form),
                });
            }
        }
        let value = if is_compound(row.kind) {
            Value::Summary(Box::default())
        } else {
            Value::Number(0.0)
        };
        let needed = labels.len() + value.heap_bytes() + self.bytes_to_grow(row.context, family, &identity);
        if self.heap_bytes() + needed > self.bytes_max {
            return None;
        }
        let own = self.forms.get(form).clone();
        let family = match family {
            Some(family) => family,
            None => self.new_family(&identity, own.clone(), family_hash),
        };
        if self.families[family].form.help.is_none() && own.help.is_some() {
            self.families[family].form = own;
        }
        let series = &mut self.families[family].series;
        let capacity = series.capacity();
        if series.len() == capacity {
            series.reserve_exact(more_series(capacity));
        }
        self.bytes +=
            (series.capacity() - capacity) * size_of::<SeriesState<S>>() + labels.len() + value.heap_bytes();
        series.push(SeriesState {
            hash,
            labels: labels.into(),
            seen: now,
            stamp: 0,
            created: 0,
            partition: row.partition,
            form,
            kept: S::default(),
            value,
        });
        let at = series.len() - 1;
        self.series += 1;
        let families = &self.families;
        self.series_index
            .insert_unique(hash, (family as u32, at as u32), |&(family, at)| {
                families[family as usize].series[at as usize].hash
            });
        Some(Place {
            family,
            at,
            is_new: true,
            form: None,
        })
    }

    /// Bytes that the tables allocate for one more series of this metric, beside those that they have: a table that grows is there twice while it
    /// is copied.
    fn bytes_to_grow(
        &self,
        context: Option<ContextKey>,
        family: Option<usize>,
        identity: &FamilyIdentity<'_>,
    ) -> usize {
        let capacity = family.map_or(0, |family| self.families[family].series.capacity());
        let series = match family.map(|family| &self.families[family].series) {
            Some(series) if series.len() < series.capacity() => 0,
            _ => (capacity + more_series(capacity)) * size_of::<SeriesState<S>>(),
        };
        let metric = match family {
            Some(_) => 0,
            None => identity.name.len() + self.families.bytes_to_push() + bytes_to_insert(&self.family_index),
        };
        let of_context = context.map_or(0, |context| self.of_context.bytes_to_set(context));
        series + metric + bytes_to_insert(&self.series_index) + of_context
    }

    fn new_family(&mut self, identity: &FamilyIdentity<'_>, form: Arc<Form>, hash: u64) -> usize {
        self.bytes += identity.name.len();
        self.families.push(Family {
            name: (*identity.name).into(),
            kind: identity.kind,
            renamed: None,
            form,
            series: Vec::new(),
            kept: M::default(),
            hash,
        });
        self.names_are_stale = true;
        let at = self.families.len() - 1;
        let families = &self.families;
        self.family_index
            .insert_unique(hash, at as u32, |&at| families[at as usize].hash);
        at
    }
}
