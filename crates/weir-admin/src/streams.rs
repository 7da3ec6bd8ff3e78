//! Answers in pieces: the limit of open event streams, and the end of an answer.
//!
//! HTTP ends a body in good order when nothing more comes. A producer that has died, or a reader that was too slow, must not look like that: a
//! scrape without an end would be a scrape without series. So a producer says that it has [finished](PieceSender::finish); otherwise
//! the answer was [`Cut`], and the server cuts its connection.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Of all kinds together.
const STREAMS_MAX: usize = 16;

/// Held while a stream is open.
pub type Permit = OwnedSemaphorePermit;

/// There are as many as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{STREAMS_MAX} streams are open; close one")]
pub struct TooManyStreams;

#[derive(Clone, Debug)]
pub struct Streams(Arc<Semaphore>);

impl Default for Streams {
    fn default() -> Self {
        Streams(Arc::new(Semaphore::new(STREAMS_MAX)))
    }
}

impl Streams {
    /// Permission for one more stream, or the reason for refusing it.
    pub fn open(&self) -> Result<Permit, TooManyStreams> {
        let permit = self.0.clone().try_acquire_owned();
        permit.map_err(|_| TooManyStreams)
    }
}

/// An answer ended early: its producer died, or its reader was too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the answer ended early")]
pub struct Cut;

/// Sends the pieces of one answer.
pub struct PieceSender {
    pieces: mpsc::Sender<Bytes>,
    is_finished: Arc<AtomicBool>,
}

/// The pieces of one answer.
#[derive(Debug)]
pub struct Pieces {
    pieces: mpsc::Receiver<Bytes>,
    is_finished: Arc<AtomicBool>,
    /// Dropped with this.
    held: Option<Arc<dyn Any + Send + Sync>>,
}

/// An answer of which at most `waiting` pieces wait for its reader.
pub fn pieces(waiting: usize) -> (PieceSender, Pieces) {
    let (sender, receiver) = mpsc::channel(waiting);
    let is_finished = Arc::new(AtomicBool::new(false));
    let sender = PieceSender {
        pieces: sender,
        is_finished: is_finished.clone(),
    };
    let pieces = Pieces {
        pieces: receiver,
        is_finished,
        held: None,
    };
    (sender, pieces)
}

impl PieceSender {
    /// The answer is whole. Without this it is [`Cut`].
    pub fn finish(self) {
        self.is_finished.store(true, Ordering::Release);
    }
}

impl Deref for PieceSender {
    type Target = mpsc::Sender<Bytes>;

    fn deref(&self) -> &mpsc::Sender<Bytes> {
        &self.pieces
    }
}

impl Pieces {
    /// Holds this until the answer is read, or its reader has left.
    pub fn hold(&mut self, held: Arc<dyn Any + Send + Sync>) {
        self.held = Some(held);
    }

    /// The next piece; `None` at the end of a whole answer.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        let piece = ready!(self.pieces.poll_recv(context));
        Poll::Ready(match piece {
            Some(piece) => Some(Ok(piece)),
            None if self.is_finished.load(Ordering::Acquire) => None,
            None => Some(Err(Cut)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(mut pieces: Pieces) -> (usize, Option<Cut>) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut number = 0;
        loop {
            match pieces.poll_next(&mut context) {
                Poll::Ready(Some(Ok(_))) => number += 1,
                Poll::Ready(Some(Err(cut))) => return (number, Some(cut)),
                Poll::Ready(None) => return (number, None),
                Poll::Pending => unreachable!("the sender has ended"),
            }
        }
    }

    #[test]
    fn an_answer_is_whole_only_if_its_producer_says_so() {
        for number in 0..3 {
            for finishes in [false, true] {
                let (sender, answer) = pieces(2);
                (0..number).for_each(|_| sender.try_send(Bytes::from_static(b"x")).unwrap());
                if finishes {
                    sender.finish();
                } else {
                    drop(sender);
                }
                assert_eq!(ended(answer), (number, (!finishes).then_some(Cut)));
            }
        }
    }

    #[test]
    fn there_are_sixteen_streams() {
        let streams = Streams::default();
        let mut open: Vec<Permit> = (0..16).map(|_| streams.open().unwrap()).collect();
        let refused = streams.clone().open().unwrap_err();
        assert_eq!(refused.to_string(), "16 streams are open; close one");
        open.pop();
        assert!(streams.open().is_ok(), "a place is free again");
    }
}
