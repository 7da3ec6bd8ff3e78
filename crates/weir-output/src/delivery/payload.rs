//! One encoded request body on its way.

use bytes::Bytes;

use super::books::{Class, Items};

/// A body with what its transport and the books need to know. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Ascending in order of creation within an endpoint's queue.
    pub id: u64,
    /// The kind of request, as the output's own number, which stays valid on disk: endpoint path, content type, encoding.
    pub route: u16,
    pub class: Class,
    /// Points, events or checks inside.
    pub count: u32,
    /// Unix seconds.
    pub created: i64,
    pub body: Bytes,
}

impl Payload {
    /// Identifies a payload of the output, across restarts and on disk. Two identical payloads made in one second have the same digest.
    pub fn digest(&self) -> u128 {
        let seed = (self.created as u64) << 16 | u64::from(self.route);
        xxhash_rust::xxh3::xxh3_128_with_seed(&self.body, seed)
    }

    pub fn items(&self) -> Items {
        Items::of(self.class, u64::from(self.count))
    }
}
