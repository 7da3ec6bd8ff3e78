use hashbrown::HashTable;

use super::{SUMMARY_ROWS, TagKeyUsage, Top};
use crate::hash::HashSecret;

/// Distinguished keys. Values of all other keys are counted together.
const KEYS_MAX: usize = 4096;

/// Longer keys are not distinguished.
const KEY_BYTES_MAX: usize = 200;

/// The key of a string that is not a tag.
pub(crate) const NO_KEY: u32 = 0;

/// The key of tags whose keys are not distinguished.
const UNTRACKED: u32 = 1;

#[derive(Default)]
struct TagKeyEntry {
    text: Box<str>,
    hash: u64,
    values: u32,
}

/// Number of live strings that are tags, by tag key. A string counts once, no matter how many contexts use it.
pub(crate) struct TagKeys {
    index: HashTable<u32>,
    /// The first two are [`NO_KEY`] and [`UNTRACKED`].
    entries: Vec<TagKeyEntry>,
    free: Vec<u32>,
    text_bytes: usize,
}

impl TagKeys {
    pub fn new() -> Self {
        TagKeys {
            index: HashTable::new(),
            entries: vec![TagKeyEntry::default(), TagKeyEntry::default()],
            free: Vec::new(),
            text_bytes: 0,
        }
    }

    /// Counts a string that became a tag. Returns its key for [`TagKeys::remove`].
    pub fn add(&mut self, tag: &str, secret: &HashSecret) -> u32 {
        let text = tag
            .bytes()
            .position(|byte| byte == b':')
            .map_or("", |colon| &tag[..colon]);
        let hash = secret.bytes(text.as_bytes());
        let entries = &self.entries;
        let found = self
            .index
            .find(hash, |&id| *entries[id as usize].text == *text)
            .copied();
        let id = match found {
            Some(id) => id,
            None if self.index.len() >= KEYS_MAX || text.len() > KEY_BYTES_MAX => UNTRACKED,
            None => self.insert(text, hash),
        };
        self.entries[id as usize].values += 1;
        id
    }

    fn insert(&mut self, text: &str, hash: u64) -> u32 {
        self.text_bytes += text.len();
        let key = TagKeyEntry {
            text: text.into(),
            hash,
            values: 0,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id as usize] = key;
                id
            }
            None => {
                self.entries.push(key);
                self.entries.len() as u32 - 1
            }
        };
        let entries = &self.entries;
        self.index
            .insert_unique(hash, id, |&id| entries[id as usize].hash);
        id
    }

    /// Counts a removed string that was a tag with this key.
    pub fn remove(&mut self, id: u32) {
        if id == NO_KEY {
            return;
        }
        let key = &mut self.entries[id as usize];
        key.values -= 1;
        if key.values > 0 || id == UNTRACKED {
            return;
        }
        let key = std::mem::take(key);
        self.text_bytes -= key.text.len();
        if let Ok(found) = self.index.find_entry(key.hash, |&other| other == id) {
            found.remove();
        }
        self.free.push(id);
    }

    pub fn values(&self, id: u32) -> usize {
        self.entries[id as usize].values as usize
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Values of the keys that are not distinguished.
    pub fn untracked(&self) -> u64 {
        u64::from(self.entries[UNTRACKED as usize].values)
    }

    /// The keys with the most values.
    pub fn top(&self) -> Vec<TagKeyUsage> {
        let mut top = Top::default();
        for (id, key) in self.entries.iter().enumerate().skip(UNTRACKED as usize + 1) {
            top.offer(u64::from(key.values), id as u32, SUMMARY_ROWS);
        }
        top.take()
            .map(|(values, id)| TagKeyUsage {
                key: self.entries[id as usize].text.clone(),
                values,
            })
            .collect()
    }

    pub fn heap_bytes(&self) -> usize {
        self.text_bytes
            + self.entries.capacity() * size_of::<TagKeyEntry>()
            + self.free.capacity() * 4
            + self.index.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_once_and_released_and_keys_are_bounded() {
        let (mut keys, secret) = (TagKeys::new(), HashSecret::from_random(1, 2));
        let ids: Vec<u32> = ["env:prod", "env:dev", "bare", "a:b:c"]
            .iter()
            .map(|tag| keys.add(tag, &secret))
            .collect();
        let mut top = keys.top();
        top.sort_by(|a, b| a.key.cmp(&b.key));
        let shown: Vec<_> = top.iter().map(|usage| (&*usage.key, usage.values)).collect();
        assert_eq!(shown, [("", 1), ("a", 1), ("env", 2)]);
        for id in ids {
            keys.remove(id);
        }
        assert_eq!((keys.len(), keys.top().len()), (0, 0));
        let many: Vec<u32> = (0..KEYS_MAX + 10)
            .map(|number| keys.add(&format!("k{number}:v"), &secret))
            .collect();
        assert_eq!((keys.len(), keys.untracked()), (KEYS_MAX, 10));
        let long = keys.add(&format!("{}:v", "x".repeat(KEY_BYTES_MAX + 1)), &secret);
        assert_eq!((long, keys.untracked()), (UNTRACKED, 11));
        for id in many {
            keys.remove(id);
        }
        assert_eq!((keys.len(), keys.untracked()), (0, 1));
    }
}
