//! States that are too large for one record.

use std::borrow::Cow;

use weir_protocol::Kind;

use crate::wire::{Reader, Writer};
use crate::{AgentId, Members, State};

/// Maximum piece of a set in one record. A larger set is divided among several records, which merge to the same set.
const SET_PIECE_BYTES: usize = 256 * 1024;

/// A state of a series, or a part of it, as bytes that lie somewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub series: u32,
    /// Start and end.
    pub state: (u32, u32),
    /// Number of rows it stands for.
    pub rows: u32,
}

impl Piece {
    pub fn len(&self) -> usize {
        (self.state.1 - self.state.0) as usize
    }
}

/// Whether a state has several pieces.
pub(crate) fn is_divided(state: &State) -> bool {
    matches!(state, State::Set(Members::Exact(members)) if members.bytes() > SET_PIECE_BYTES)
}

/// The pieces of a state.
pub(crate) fn pieces(state: &State) -> Vec<Cow<'_, State>> {
    let State::Set(Members::Exact(members)) = state else {
        return vec![Cow::Borrowed(state)];
    };
    let mut pieces: Vec<Vec<&[u8]>> = vec![Vec::new()];
    let mut bytes = 0;
    for member in members.iter() {
        if bytes + member.len() > SET_PIECE_BYTES {
            pieces.push(Vec::new());
            bytes = 0;
        }
        bytes += member.len();
        pieces.last_mut().expect("there is one").push(member);
    }
    match pieces.len() {
        1 => vec![Cow::Borrowed(state)],
        _ => pieces
            .into_iter()
            .map(|piece| Cow::Owned(State::Set(Members::exact(piece))))
            .collect(),
    }
}

/// Adds a set of `states` as one piece, or divided if it is too large. The first piece stands for the rows.
pub(crate) fn divided(whole: Piece, own: AgentId, states: &mut Writer, into: &mut Vec<Piece>) {
    if whole.len() <= SET_PIECE_BYTES {
        into.push(whole);
        return;
    }
    let (start, end) = whole.state;
    let bytes = states.bytes[start as usize..end as usize].to_vec();
    // Written by the caller.
    let state = State::read(Kind::Set, own, &mut Reader::new(&bytes)).expect("a state");
    for (number, piece) in pieces(&state).iter().enumerate() {
        let from = states.bytes.len() as u32;
        piece.write(own, states);
        into.push(Piece {
            series: whole.series,
            state: (from, states.bytes.len() as u32),
            rows: if number == 0 { whole.rows } else { 0 },
        });
    }
}
