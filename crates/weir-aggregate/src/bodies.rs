//! State that needs heap memory, and the accounting of its bytes.

use weir_context::{Chunked, ContextId, prefetch};
use weir_sketch::Sketch;

use crate::histogram::{HISTOGRAM_SAMPLES_MAX, Histogram};
use crate::member_set::{MemberSet, SetBound};
use crate::timeline::Seconds;

/// Samples that a histogram keeps while bodies exceed their limit. A sketch of usual data takes about as much, so folding earlier would
/// take more memory, not less.
const PRESSED_SAMPLES: usize = 256;

/// Members that a set keeps while bodies exceed their limit: about the size of its estimate, 16 KiB.
const PRESSED_SET: SetBound = SetBound {
    members: 512,
    text: 16 * 1024,
};

/// When memory is very short, a body above this size is squeezed, whatever its kind. A squeezed body is smaller.
const SQUEEZED_BYTES: usize = 1536;

/// Bins of a squeezed sketch.
const SQUEEZED_BINS: usize = 32;

/// Bytes reserved for the body of every context that may have one: a typical body with some tens of samples, so that contexts created
/// during low traffic leave room for their later samples.
const EXPECTED_BYTES: usize = 512;

/// A context's heap memory in a bucket.
pub(crate) trait Body: Default {
    /// Bytes beside the body itself.
    fn heap_bytes(&self) -> usize;

    /// Reduces memory. Returns true if the body was exact and its kind counts the end of exactness.
    fn squeeze(&mut self) -> bool;
}

impl Body for MemberSet {
    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        MemberSet::heap_bytes(self)
    }

    fn squeeze(&mut self) -> bool {
        MemberSet::squeeze(self)
    }
}

impl Body for Histogram {
    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        Histogram::heap_bytes(self)
    }

    fn squeeze(&mut self) -> bool {
        Histogram::squeeze(self, SQUEEZED_BINS)
    }
}

impl Body for Sketch {
    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        Sketch::heap_bytes(self)
    }

    fn squeeze(&mut self) -> bool {
        self.coarsen(SQUEEZED_BINS);
        false
    }
}

/// Bytes of all bodies, counted as they change, and their limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyBytes {
    live: usize,
    /// Bytes when the last bucket closed: the estimate for the next.
    last_bucket: usize,
    /// Above this histograms are folded and sets estimated earlier.
    max: usize,
    /// Above this each body is squeezed.
    squeeze_from: usize,
    squeezed: u64,
}

impl BodyBytes {
    pub fn new(max: usize) -> Self {
        BodyBytes {
            live: 0,
            last_bucket: 0,
            max,
            squeeze_from: max,
            squeezed: 0,
        }
    }

    pub fn set_max(&mut self, max: usize, squeeze_from: usize) {
        (self.max, self.squeeze_from) = (max, squeeze_from);
    }

    /// Number of squeezed bodies.
    pub fn squeezed(&self) -> u64 {
        self.squeezed
    }

    pub fn live(&self) -> usize {
        self.live
    }

    /// Bytes of bodies now, or expected by the end of the bucket.
    pub fn expected(&self, bodies: usize) -> usize {
        self.live.max(self.last_bucket).max(bodies * EXPECTED_BYTES)
    }

    pub fn close_bucket(&mut self) {
        self.last_bucket = self.live;
    }

    /// Samples at which a histogram is folded into a sketch.
    #[inline(always)]
    pub fn samples_max(&self) -> usize {
        if self.live > self.max {
            PRESSED_SAMPLES
        } else {
            HISTOGRAM_SAMPLES_MAX
        }
    }

    /// Size at which a set becomes an estimate.
    #[inline(always)]
    pub fn set_bound(&self) -> SetBound {
        if self.live > self.max {
            PRESSED_SET
        } else {
            SetBound::EXACT
        }
    }

    #[inline(always)]
    fn change(&mut self, before: usize, after: usize) {
        self.live = self.live.wrapping_add(after).wrapping_sub(before);
    }
}

/// Allocated with a bucket's first sample. Moves out with the flush.
#[derive(Default)]
pub(crate) struct Boxed<T> {
    body: Option<Box<T>>,
    seen: Seconds,
}

/// Two copies of a state array: samples go into the open half while the closed one is handed over.
pub(crate) struct Halves<T> {
    pub halves: [Chunked<T>; 2],
}

impl<T: Default> Halves<T> {
    pub fn new() -> Self {
        Halves {
            halves: [Chunked::new(), Chunked::new()],
        }
    }

    pub fn grow_to(&mut self, len: usize) {
        for half in &mut self.halves {
            half.grow_to(len);
        }
    }

    pub fn truncate(&mut self, len: usize) {
        for half in &mut self.halves {
            half.truncate(len);
        }
    }

    /// Prefetches an entry in both halves.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        for half in &self.halves {
            prefetch(half.address(at));
        }
    }

    /// Clears an entry, because another context may get this id.
    pub fn reset(&mut self, at: usize) {
        for half in &mut self.halves {
            if at < half.len() {
                half[at] = T::default();
            }
        }
    }

    /// Bytes of the arrays.
    pub fn heap_bytes(&self) -> usize {
        self.halves.iter().map(Chunked::heap_bytes).sum()
    }
}

impl<T: Body> Halves<Boxed<T>> {
    /// Adds to the body of the open bucket, and makes it with the first sample. Returns true if this sample ended its exactness.
    #[inline(always)]
    pub fn add(
        &mut self,
        (open, id, now): (usize, ContextId, Seconds),
        bytes: &mut BodyBytes,
        add: impl FnOnce(&mut T) -> bool,
    ) -> bool {
        let at = id.0 as usize;
        if at >= self.halves[0].len() {
            self.grow_to(at + 1);
        }
        let state = &mut self.halves[open][at];
        state.seen = now;
        let body = state.body.get_or_insert_with(|| {
            bytes.change(0, size_of::<T>());
            Box::default()
        });
        let before = body.heap_bytes();
        let mut estimated = add(body);
        if bytes.live > bytes.squeeze_from && body.heap_bytes() > SQUEEZED_BYTES {
            estimated |= squeeze(&mut **body, bytes);
        }
        bytes.change(before, body.heap_bytes());
        estimated
    }

    /// Contexts that may have a body.
    pub fn len(&self) -> usize {
        self.halves[0].len()
    }

    /// Takes the body out of the closed half. Also returns when the context was last seen. `None`: it never had state.
    pub fn take(
        &mut self,
        half: usize,
        at: usize,
        has_state: bool,
        bytes: &mut BodyBytes,
    ) -> Option<(Option<Box<T>>, Seconds)> {
        if at >= self.halves[0].len() {
            return None;
        }
        let last_seen = self.halves[0][at].seen.max(self.halves[1][at].seen);
        let body = has_state.then(|| self.halves[half][at].body.take()).flatten();
        forget(body.as_deref(), bytes);
        Some((body, last_seen))
    }

    /// [`Halves::reset`] for a state with a body.
    pub fn reset_body(&mut self, at: usize, bytes: &mut BodyBytes) {
        for half in 0..2 {
            forget(self.body(half, at), bytes);
        }
        self.reset(at);
    }

    /// Puts a body into the open half, for a context without one.
    pub fn put(
        &mut self,
        (open, id, seen): (usize, ContextId, Seconds),
        bytes: &mut BodyBytes,
        body: Option<T>,
    ) {
        let at = id.0 as usize;
        if at >= self.halves[0].len() {
            self.grow_to(at + 1);
        }
        if let Some(body) = &body {
            bytes.change(0, size_of::<T>() + body.heap_bytes());
        }
        self.halves[open][at] = Boxed {
            body: body.map(Box::new),
            seen,
        };
    }

    /// When the context was last seen.
    pub fn seen(&self, at: usize) -> Seconds {
        let [one, other] = &self.halves;
        if at >= one.len() {
            return 0;
        }
        one[at].seen.max(other[at].seen)
    }

    #[inline]
    pub fn body(&self, half: usize, at: usize) -> Option<&T> {
        let states = &self.halves[half];
        (at < states.len()).then(|| states[at].body.as_deref()).flatten()
    }
}

#[cold]
fn squeeze<T: Body>(body: &mut T, bytes: &mut BodyBytes) -> bool {
    bytes.squeezed += 1;
    body.squeeze()
}

fn forget<T: Body>(body: Option<&T>, bytes: &mut BodyBytes) {
    if let Some(body) = body {
        bytes.change(size_of::<T>() + body.heap_bytes(), 0);
    }
}
