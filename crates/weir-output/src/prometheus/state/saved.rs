//! The next process continues the sums.

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

impl<M: Serialize, S: Serialize> Serialize for FamiliesRef<'_, M, S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        // The format begins with the length, which an iterator over blocks does not know.
        let mut families = serializer.serialize_seq(Some(self.families.len()))?;
        for family in self.families.iter() {
            families.serialize_element(&FamilyRef {
                name: &family.name,
                kind: family.kind as u8,
                renamed: family.renamed.as_deref(),
                kept: &family.kept,
                series: ManySeriesRef {
                    series: &family.series,
                    forms: self.forms,
                    now: self.now,
                },
            })?;
        }
        families.end()
    }
}

impl<S: Serialize> Serialize for ManySeriesRef<'_, S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        serializer.collect_seq(self.series.iter().map(|series| SeriesRef {
            labels: &series.labels,
            age: self.now.saturating_sub(series.seen),
            stamp: series.stamp,
            created: series.created,
            form: saved_key(self.forms.key(series.form)),
            kept: &series.kept,
            value: SavedValue::from(&series.value),
        }))
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
        let families = FamiliesRef {
            families: &self.families,
            forms: &self.forms,
            now: now.saturating_add(self.past),
        };
        let size = postcard::serialize_with_flavor(&families, Size::default()).expect(WRITABLE);
        let mut bytes = head(size);
        bytes.reserve_exact(size);
        postcard::to_extend(&families, bytes).expect(WRITABLE)
    }

    /// Continues the series of another process. `away`: seconds since it saved them. Returns how many found no room. The state must be
    /// empty; after an error it is empty again.
    pub fn restore(&mut self, saved: &[u8], away: Seconds, now: Seconds) -> Result<u64, NoState> {
        let restored = self.try_restore(saved, away, now);
        if restored.is_none() {
            let empty = CumulativeState::new(self.settings.clone(), self.weights, self.bytes_max);
            let counters = self.counters;
            *self = CumulativeState { counters, ..empty };
        }
        restored.ok_or(NoState)
    }

    fn try_restore(&mut self, saved: &[u8], away: Seconds, now: Seconds) -> Option<u64> {
        let read = postcard::take_from_bytes::<Vec<SavedFamily<M, S>>>(saved);
        let (families, rest) = read.ok()?;
        rest.is_empty().then_some(())?;
        let oldest = families
            .iter()
            .flat_map(|family| &family.series)
            .map(|series| series.age)
            .max();
        self.past = oldest.unwrap_or(0).saturating_add(away);
        let now = now.saturating_add(self.past);
        let mut refused = 0;
        for family in families {
            refused += self.restore_family(family, away, now)?;
        }
        self.names_are_stale = true;
        Some(refused)
    }

    fn restore_family(&mut self, saved: SavedFamily<M, S>, away: Seconds, now: Seconds) -> Option<u64> {
        let kind = *Kind::ALL.get(usize::from(saved.kind))?;
        let row = Row {
            context: None,
            name: &saved.name,
            kind,
            host: None,
            timestamp: 0,
            is_timestamped: false,
        };
        let mut refused = 0;
        for series in saved.series {
            let key = self.key(series.form)?;
            let value = series.value.restored()?;
            if matches!(value, Value::Summary(_)) != super::is_compound(kind) {
                return None;
            }
            let seen = now.saturating_sub(series.age.saturating_add(away));
            let Some(Place {
                family, at, is_new, ..
            }) = self.place(&row, key, &series.labels, seen)
            else {
                refused += 1;
                continue;
            };
            is_new.then_some(())?;
            let place = &mut self.families[family];
            if let (None, Some(renamed)) = (&place.renamed, &saved.renamed) {
                self.bytes += renamed.len();
                place.renamed = Some(renamed.as_str().into());
            }
            place.kept = saved.kept.clone();
            let mine = &mut place.series[at];
            self.bytes = self.bytes + value.heap_bytes() - mine.value.heap_bytes();
            (mine.stamp, mine.created) = (series.stamp, series.created);
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
