//! Batches between a flush and the encoder of an output: bounded in bytes, the one under way included.

use crate::support;

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Waker};
use std::time::Duration;

use support::*;
use weir_aggregate::{Batch, IDLE_BUCKETS_MAX};
use weir_output::delivery::{
    BoxFuture, Class, Clock, Counter, Delivery, Encode, Encoded, Endpoint, Items, Order, Outcome, Payload,
    Reason, Transport,
};

/// Says when it begins with a batch, and ends when it is told to.
struct Steps {
    begun: Sender<()>,
    go: Receiver<()>,
}

impl Encode for Steps {
    fn counter(&self) -> Counter {
        Box::new(|_| Items {
            points: 1,
            ..Items::default()
        })
    }

    fn encode(&mut self, _: &Batch, out: &mut Encoded) {
        self.begun.send(()).unwrap();
        out.dropped(Reason::Unsupported, Class::Points, 1);
        self.go.recv().unwrap();
    }

    fn finish(&mut self, _: &mut Encoded) {}

    fn open(&self) -> Items {
        Items::default()
    }
}

struct Nowhere;

impl Transport for Nowhere {
    fn send(&self, _: Payload) -> BoxFuture<'_, Outcome> {
        Box::pin(std::future::ready(Outcome::Delivered))
    }
}

/// An output, the beginnings of its encoder, and the way to end its steps.
fn start(clock: Clock) -> (Delivery, Receiver<()>, Sender<()>) {
    let ((begun, begins), (go, goes)) = (channel(), channel());
    let encoder = Steps { begun, go: goes };
    let endpoint = Endpoint {
        label: "nowhere".into(),
        directory: "nowhere".into(),
        family: None,
        transport: Arc::new(Nowhere),
    };
    let output = Delivery::start(
        "steps",
        &delivery(),
        Order::NewestFirst,
        Box::new(encoder),
        vec![endpoint],
        &environment(clock),
    );
    let output = output.unwrap();
    // A full inbox drops at once.
    output.limit_wait(Duration::ZERO);
    (output, begins, go)
}

fn dropped(output: &Delivery, reason: Reason) -> u64 {
    let status = output.status();
    let dropped = &status.endpoints[0].dropped;
    dropped.get(&reason).map_or(0, |items| items.points)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_batch_under_way_counts_against_the_limit() {
    let (output, begins, go) = start(Clock::system());
    let batch = batches("a:1|c\n").swap_remove(0);
    let bytes = batch.bytes() as u64;
    output.limit_inbox(2 * bytes);
    output.submit(&batch);
    begins.recv().unwrap();
    assert_eq!(output.inbox_bytes(), bytes);
    output.submit(&batch);
    output.submit(&batch);
    assert_eq!(
        (output.inbox_bytes(), dropped(&output, Reason::InboxFull)),
        (2 * bytes, 1)
    );
    go.send(()).unwrap();
    begins.recv().unwrap();
    assert_eq!(output.inbox_bytes(), bytes, "the first one was freed");
    // A batch that is larger than the limit is taken if it is the only one.
    output.limit_inbox(0);
    output.submit(&batch);
    assert_eq!(dropped(&output, Reason::InboxFull), 2);
    go.send(()).unwrap();
    wait(&output, "nothing waits", |status| {
        status.endpoints[0].pending.inbox.is_zero()
    })
    .await;
    assert_eq!(output.inbox_bytes(), 0);
    output.submit(&batch);
    begins.recv().unwrap();
    assert_eq!(
        (output.inbox_bytes(), dropped(&output, Reason::InboxFull)),
        (bytes, 2)
    );
    go.send(()).unwrap();
    output.shutdown(DEADLINE).await;
    assert!(output.status().balances());
}

/// At the end of the grace period the encoder ends with its batch, not with its inbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_output_leaves_the_rest_of_its_inbox() {
    let (clock, _driver) = Clock::driven(BUCKET);
    let (output, begins, go) = start(clock);
    let batch = batches("a:1|c\n").swap_remove(0);
    (0..3).for_each(|_| output.submit(&batch));
    begins.recv().unwrap();
    {
        let mut ending = std::pin::pin!(output.shutdown(Duration::ZERO));
        let now = ending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(now.is_pending(), "a batch is under way");
        // One step is all that the encoder may take.
        go.send(()).unwrap();
        drop(go);
        ending.await;
    }
    assert_eq!(dropped(&output, Reason::Shutdown), 2);
    assert!(begins.try_recv().is_err() && output.status().balances());
}

/// A step of the clock closes the bucket under way and, for idle counters, many more at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zero_buckets_of_a_step_displace_no_bucket() {
    let (output, begins, go) = start(Clock::system());
    let batch = batches("a:1|c\n").swap_remove(0);
    output.submit(&batch);
    begins.recv().unwrap();
    // The zero buckets, and the next bucket with samples.
    (0..=IDLE_BUCKETS_MAX).for_each(|_| output.submit(&batch));
    assert_eq!(dropped(&output, Reason::InboxFull), 0);
    (0..=IDLE_BUCKETS_MAX + 1).for_each(|_| go.send(()).unwrap());
    output.shutdown(DEADLINE).await;
    assert!(output.status().balances());
}
