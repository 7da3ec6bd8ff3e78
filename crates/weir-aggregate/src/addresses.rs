use weir_context::{CHUNK, Chunked};
use weir_protocol::Kind;

/// Addresses of the state of each kind, for prefetching without a branch on the kind, which differs from message to message and cannot be
/// predicted. They are hints: an outdated one only costs time.
#[derive(Debug, Default)]
pub(crate) struct StateAddresses {
    of_kind: [KindAddresses; Kind::COUNT],
    /// The half of the state that they belong to.
    half: usize,
}

#[derive(Debug, Default)]
struct KindAddresses {
    /// By chunk.
    addresses: Vec<usize>,
    /// Bytes of an entry.
    size: usize,
}

impl StateAddresses {
    /// Forgets the addresses if they belong to another half.
    #[inline]
    pub fn select_half(&mut self, half: usize) {
        if self.half != half {
            self.half = half;
            for place in &mut self.of_kind {
                place.addresses.clear();
            }
        }
    }

    /// Updates the addresses of a kind if its number of chunks has changed.
    #[inline]
    pub fn update<T: Default>(&mut self, kind: Kind, states: &Chunked<T>) {
        let place = &mut self.of_kind[kind as usize];
        if place.addresses.len() != states.chunk_count() {
            place.addresses.clear();
            place.addresses.extend(states.chunk_addresses());
            place.size = size_of::<T>();
        }
    }

    /// Address of a context's state, or null.
    #[inline(always)]
    pub fn address(&self, kind: Kind, at: usize) -> *const u8 {
        let place = &self.of_kind[kind as usize];
        let chunk = place.addresses.get(at / CHUNK).copied().unwrap_or_default();
        std::ptr::without_provenance(chunk.wrapping_add(at % CHUNK * place.size))
    }
}
