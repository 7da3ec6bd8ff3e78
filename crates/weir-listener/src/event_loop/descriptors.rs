//! The descriptors of a loop: their type, and which are ready.

use std::collections::VecDeque;

use super::connection::Connection;
use super::poller::EVENTS_PER_POLL;

/// The owner of a place.
pub(super) enum Descriptor {
    Free,
    Datagrams { listener: u32 },
    Acceptor { listener: u32 },
    Connection(Connection),
}

struct Slot {
    /// Goes up when the slot is freed, so that tokens of its former owner lead nowhere.
    generation: u32,
    /// Whether a token of this slot is in the ready queue.
    ready: bool,
    descriptor: Descriptor,
}

/// All descriptors by place, and the queue of those that have something.
pub(super) struct Descriptors {
    slots: Vec<Slot>,
    free: Vec<u32>,
    ready: VecDeque<u64>,
}

fn token(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

impl Descriptors {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::with_capacity(EVENTS_PER_POLL),
        }
    }

    /// Gives a descriptor a place.
    pub(super) fn add(&mut self, descriptor: Descriptor) -> u32 {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize].descriptor = descriptor;
            return index;
        }
        self.slots.push(Slot {
            generation: 0,
            ready: false,
            descriptor,
        });
        // So that no packet's turn has to grow the queue.
        let missing = self.slots.len().saturating_sub(self.ready.len());
        self.ready.reserve(missing);
        (self.slots.len() - 1) as u32
    }

    /// Empties a place.
    pub(super) fn remove(&mut self, index: u32) -> Descriptor {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.ready = false;
        self.free.push(index);
        std::mem::replace(&mut slot.descriptor, Descriptor::Free)
    }

    /// Number of occupied slots.
    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn token_of(&self, index: u32) -> u64 {
        token(index, self.slots[index as usize].generation)
    }

    /// The owner of a token; `None` when its place was emptied since it was given out.
    #[inline]
    pub(super) fn of_token(&self, token: u64) -> Option<&Descriptor> {
        let slot = self.slots.get(token as u32 as usize)?;
        (slot.generation == (token >> 32) as u32).then_some(&slot.descriptor)
    }

    pub(super) fn connection(&self, index: u32) -> Option<&Connection> {
        match &self.slots[index as usize].descriptor {
            Descriptor::Connection(connection) => Some(connection),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn connection_mut(&mut self, index: u32) -> Option<&mut Connection> {
        match &mut self.slots[index as usize].descriptor {
            Descriptor::Connection(connection) => Some(connection),
            _ => None,
        }
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = (u32, &Connection)> {
        (0..self.slots.len() as u32).filter_map(|index| Some((index, self.connection(index)?)))
    }

    /// All places, empty ones included.
    pub(super) fn places(&self) -> std::ops::Range<u32> {
        0..self.slots.len() as u32
    }

    pub(super) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn next_ready(&mut self) -> Option<u64> {
        self.ready.pop_front()
    }

    pub(super) fn make_ready(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if !slot.ready {
            slot.ready = true;
            self.ready.push_back(token(index, slot.generation));
        }
    }

    /// The descriptors that epoll reported as ready, if they still exist.
    pub(super) fn make_token_ready(&mut self, token: u64) {
        if self.of_token(token).is_some() {
            self.make_ready(token as u32);
        }
    }

    pub(super) fn make_all_ready(&mut self) {
        for index in self.places() {
            if !matches!(self.slots[index as usize].descriptor, Descriptor::Free) {
                self.make_ready(index);
            }
        }
    }

    /// After its turn: back into the queue, or out of it until epoll reports it. Its place may have been emptied by what
    /// happened, and even be someone else's by now.
    #[inline]
    pub(super) fn end_turn(&mut self, token: u64, next: Next) {
        let slot = &mut self.slots[token as u32 as usize];
        if slot.generation == (token >> 32) as u32 {
            match next {
                Next::Again => self.ready.push_back(token),
                Next::Wait => slot.ready = false,
            }
        }
    }
}

/// The fate of a descriptor after its turn.
pub(super) enum Next {
    /// It probably has more: serve it again without asking.
    Again,
    /// It is empty: wait until epoll reports it.
    Wait,
}
