//! The next process continues the sums.

use std::collections::BTreeMap;

use postcard::ser_flavors::Size;
use serde::de::DeserializeOwned;
use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Serialize, Serializer};
use weir_protocol::Kind;

use super::{Blocks, CumulativeState, Family, Place, Row, Seconds, SeriesState, Summary, Value};
use crate::prometheus::forms::{FormKey, Forms};
use crate::prometheus::native::SavedNative;

/// Why writing into memory does not fail.
const WRITABLE: &str = "all lengths are known";

/// A family as [`FamilyRef`] writes it.
#[derive(Deserialize)]
struct SavedFamily<M, S> {
    name: String,
    kind: u8,
    renamed: Option<String>,
    kept: M,
    series: Vec<SavedSeries<S>>,
}

/// The families of a state. They are written one by one, because copies of all of them would take as much memory as the state.
struct FamiliesRef<'a, M, S> {
    families: &'a Blocks<Family<M, S>>,
    forms: &'a Forms,
    now: Seconds,
    /// Family and number of these series alone, ascending.
    only: Option<&'a [(u32, u32)]>,
}

#[derive(Serialize)]
struct FamilyRef<'a, M, S> {
    name: &'a str,
    kind: u8,
    renamed: Option<&'a str>,
    kept: &'a M,
    series: ManySeriesRef<'a, S>,
}

struct ManySeriesRef<'a, S> {
    series: &'a [SeriesState<S>],
    forms: &'a Forms,
    now: Seconds,
    only: Option<&'a [(u32, u32)]>,
}

#[derive(Serialize)]
struct SeriesRef<'a, S> {
    labels: &'a str,
    age: Seconds,
    stamp: u32,
    created: u32,
    form: (Option<u32>, u8),
    kept: &'a S,
    value: SavedValue,
}

impl<'a, M, S> FamiliesRef<'a, M, S> {
    fn one(&self, family: &'a Family<M, S>, only: Option<&'a [(u32, u32)]>) -> FamilyRef<'a, M, S> {
        FamilyRef {
            name: &family.name,
            kind: family.kind as u8,
            renamed: family.renamed.as_deref(),
            kept: &family.kept,
            series: ManySeriesRef {
                series: &family.series,
                forms: self.forms,
                now: self.now,
                only,
            },
        }
    }
}

impl<'a, S> ManySeriesRef<'a, S> {
    fn one(&self, series: &'a SeriesState<S>) -> SeriesRef<'a, S> {
        SeriesRef {
            labels: &series.labels,
            age: self.now.saturating_sub(series.seen),
            stamp: series.stamp,
            created: series.created,
            form: saved_key(self.forms.key(series.form)),
            kept: &series.kept,
            value: SavedValue::from(&series.value),
        }
    }
}

impl<M: Serialize, S: Serialize> Serialize for FamiliesRef<'_, M, S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        // The format begins with the length, which an iterator over blocks does not know.
        let Some(only) = self.only else {
            let mut families = serializer.serialize_seq(Some(self.families.len()))?;
            for family in self.families.iter() {
                families.serialize_element(&self.one(family, None))?;
            }
            return families.end();
        };
        let is_of_one = |a: &(u32, u32), b: &(u32, u32)| a.0 == b.0;
        let mut families = serializer.serialize_seq(Some(only.chunk_by(is_of_one).count()))?;
        for only in only.chunk_by(is_of_one) {
            let family = &self.families[only[0].0 as usize];
            families.serialize_element(&self.one(family, Some(only)))?;
        }
        families.end()
    }
}

impl<S: Serialize> Serialize for ManySeriesRef<'_, S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        let one = |series| self.one(series);
        match self.only {
            None => serializer.collect_seq(self.series.iter().map(one)),
            Some(only) => {
                let series = only.iter().map(|(_, at)| &self.series[*at as usize]);
                serializer.collect_seq(series.map(one))
            }
        }
    }
}

/// A series as [`SeriesRef`] writes it.
#[derive(Deserialize)]
struct SavedSeries<S> {
    labels: String,
    /// Seconds since its last sample.
    age: Seconds,
    stamp: u32,
    created: u32,
    /// Entry of `metrics` and kind, which decide its form.
    form: (Option<u32>, u8),
    kept: S,
    value: SavedValue,
}

#[derive(Serialize, Deserialize)]
enum SavedValue {
    Number(f64),
    Summary {
        weight: f64,
        sum: f64,
        quantiles: Vec<f64>,
        classic: Vec<f64>,
        native: Option<SavedNative>,
    },
}

/// Of saved series.
#[derive(Clone, Copy, Debug, Default)]
pub struct SavedAt {
    /// Seconds since then.
    pub away: Seconds,
    /// Of a fleet's log.
    pub partition: u32,
}

/// Saved series of each partition.
pub type SavedPartitions = Vec<(u32, Vec<u8>)>;

/// Bytes hold no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoState;

impl std::fmt::Display for NoState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the bytes are not the state of such an output")
    }
}

impl From<&Value> for SavedValue {
    fn from(value: &Value) -> Self {
        match value {
            Value::Number(number) => SavedValue::Number(*number),
            Value::Summary(summary) => SavedValue::Summary {
                weight: summary.weight,
                sum: summary.sum,
                quantiles: summary.quantiles.to_vec(),
                classic: summary.classic.to_vec(),
                native: summary.native.as_deref().map(SavedNative::from),
            },
        }
    }
}

impl SavedValue {
    fn restored(self) -> Option<Value> {
        match self {
            SavedValue::Number(number) => number.is_finite().then_some(Value::Number(number)),
            SavedValue::Summary {
                weight,
                sum,
                quantiles,
                classic,
                native,
            } => {
                let native = match native {
                    Some(native) => Some(Box::new(native.restored()?)),
                    None => None,
                };
                let summary = Summary {
                    weight,
                    sum,
                    quantiles: quantiles.into(),
                    classic: classic.into(),
                    native,
                };
                let is_finite = weight.is_finite()
                    && sum.is_finite()
                    && summary.classic.iter().all(|weight| weight.is_finite());
                is_finite.then(|| Value::Summary(Box::new(summary)))
            }
        }
    }
}

impl<M, S> CumulativeState<M, S>
where
    M: Default + Clone + Serialize + DeserializeOwned,
    S: Default + Clone + Serialize + DeserializeOwned,
{
    /// Every series, as [`CumulativeState::restore`] reads it. Counts of rows are not in it.
    pub fn save(&self, now: Seconds) -> Vec<u8> {
        self.save_behind(now, |_| Vec::new())
    }

    /// The same behind what `head` gives for its number of bytes. There is one copy of it, and no more room than it needs.
    pub fn save_behind(&self, now: Seconds, head: impl FnOnce(usize) -> Vec<u8>) -> Vec<u8> {
        self.save_only(None, now, head)
    }

    /// The series of each partition, by partition; each as [`CumulativeState::save_behind`] writes them.
    pub fn save_partitions(&self, now: Seconds, head: impl Fn(usize) -> Vec<u8>) -> SavedPartitions {
        let mut partitions: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for (family, of) in (0..).zip(self.families.iter()) {
            for (at, series) in (0..).zip(&of.series) {
                partitions.entry(series.partition).or_default().push((family, at));
            }
        }
        let partitions = partitions.into_iter();
        let saved = partitions.map(|(partition, only)| (partition, self.save_only(Some(&only), now, &head)));
        saved.collect()
    }

    fn save_only(
        &self,
        only: Option<&[(u32, u32)]>,
        now: Seconds,
        head: impl FnOnce(usize) -> Vec<u8>,
    ) -> Vec<u8> {
        let families = FamiliesRef {
            families: &self.families,
            forms: &self.forms,
            now: now.saturating_add(self.past),
            only,
        };
        let size = postcard::serialize_with_flavor(&families, Size::default()).expect(WRITABLE);
        let mut bytes = head(size);
        bytes.reserve_exact(size);
        postcard::to_extend(&families, bytes).expect(WRITABLE)
    }

    /// Continues the series of another process, or those of another partition. Returns how many found no room. If two partitions have a
    /// series, which one of them has left to the other, the newer one counts. After an error the state is empty.
    pub fn restore(&mut self, saved: &[u8], of: SavedAt, now: Seconds) -> Result<u64, NoState> {
        let restored = self.try_restore(saved, of, now);
        if restored.is_none() {
            let empty = CumulativeState::new(self.settings.clone(), self.weights, self.bytes_max);
            let counters = self.counters;
            *self = CumulativeState { counters, ..empty };
        }
        restored.ok_or(NoState)
    }

    fn try_restore(&mut self, saved: &[u8], of: SavedAt, now: Seconds) -> Option<u64> {
        let read = postcard::take_from_bytes::<Vec<SavedFamily<M, S>>>(saved);
        let (families, rest) = read.ok()?;
        rest.is_empty().then_some(())?;
        let oldest = families
            .iter()
            .flat_map(|family| &family.series)
            .map(|series| series.age)
            .max();
        self.reach_back(oldest.unwrap_or(0).saturating_add(of.away));
        let now = now.saturating_add(self.past);
        let mut refused = 0;
        for family in families {
            refused += self.restore_family(family, of, now)?;
        }
        self.names_are_stale = true;
        Some(refused)
    }

    /// Moves the zero of this state's clock back, so that what came these seconds before that of the process has a time.
    fn reach_back(&mut self, past: Seconds) {
        let Some(more) = past.checked_sub(self.past) else {
            return;
        };
        self.past = past;
        if self.series > 0 {
            self.oldest = self.oldest.saturating_add(more);
        }
        let families = self.families.iter_mut();
        families
            .flat_map(|family| &mut family.series)
            .for_each(|series| series.seen = series.seen.saturating_add(more));
    }

    fn restore_family(&mut self, saved: SavedFamily<M, S>, of: SavedAt, now: Seconds) -> Option<u64> {
        let kind = *Kind::ALL.get(usize::from(saved.kind))?;
        let row = Row {
            context: None,
            name: &saved.name,
            kind,
            host: None,
            timestamp: 0,
            is_timestamped: false,
            partition: of.partition,
        };
        let mut refused = 0;
        for series in saved.series {
            let key = self.key(series.form)?;
            let value = series.value.restored()?;
            if matches!(value, Value::Summary(_)) != super::is_compound(kind) {
                return None;
            }
            let seen = now.saturating_sub(series.age.saturating_add(of.away));
            let Some(Place {
                family, at, is_new, ..
            }) = self.place(&row, key, &series.labels, seen)
            else {
                refused += 1;
                continue;
            };
            let place = &mut self.families[family];
            if !is_new && place.series[at].stamp >= series.stamp {
                continue;
            }
            if let (None, Some(renamed)) = (&place.renamed, &saved.renamed) {
                self.bytes += renamed.len();
                place.renamed = Some(renamed.as_str().into());
            }
            place.kept = saved.kept.clone();
            let mine = &mut place.series[at];
            self.bytes = self.bytes + value.heap_bytes() - mine.value.heap_bytes();
            (mine.stamp, mine.created) = (series.stamp, series.created);
            (mine.seen, mine.partition) = (seen, of.partition);
            (mine.kept, mine.value) = (series.kept, value);
            self.oldest = self.oldest.min(seen);
        }
        Some(refused)
    }

    /// The form of a saved series, if there is one.
    fn key(&self, (entry, kind): (Option<u32>, u8)) -> Option<FormKey> {
        let is_known = entry.is_none_or(|number| self.forms.has_entry(number));
        let kind = *Kind::ALL.get(usize::from(kind))?;
        is_known.then_some((entry, kind))
    }
}

fn saved_key((entry, kind): FormKey) -> (Option<u32>, u8) {
    (entry, kind as u8)
}
