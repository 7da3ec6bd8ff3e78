use weir_context::{CHUNK, Chunked};
use weir_protocol::Kind;

/// Where the state of each kind lies, as bare addresses. With them the memory of a context's state can be asked for without a
/// branch on its kind, which differs from message to message and cannot be predicted. They are hints: one that is out of date
/// costs time and nothing else.
#[derive(Debug, Default)]
pub(crate) struct Places {
    of_kind: [Place; Kind::COUNT],
    /// Which half of the state they are of.
    half: usize,
}

#[derive(Debug, Default)]
struct Place {
    /// By chunk.
    addresses: Vec<usize>,
    /// Bytes of an entry.
    size: usize,
}

impl Places {
    /// Forgets the addresses of another half.
    #[inline]
    pub fn turn_to(&mut self, half: usize) {
        if self.half != half {
            self.half = half;
            for place in &mut self.of_kind {
                place.addresses.clear();
            }
        }
    }

    /// Learns where the states of a kind lie, if they have become more or fewer.
    #[inline]
    pub fn learn<T: Default>(&mut self, kind: Kind, states: &Chunked<T>) {
        let place = &mut self.of_kind[kind as usize];
        if place.addresses.len() != states.chunk_count() {
            place.addresses.clear();
            place.addresses.extend(states.chunk_addresses());
            place.size = size_of::<T>();
        }
    }

    /// Where the state of a context lies, or nowhere.
    #[inline(always)]
    pub fn address(&self, kind: Kind, at: usize) -> *const u8 {
        let place = &self.of_kind[kind as usize];
        let chunk = place.addresses.get(at / CHUNK).copied().unwrap_or_default();
        std::ptr::without_provenance(chunk.wrapping_add(at % CHUNK * place.size))
    }
}
