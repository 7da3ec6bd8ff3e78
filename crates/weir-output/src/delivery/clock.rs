//! Time as deliveries see it: the system's, or one that a test drives.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::task::JoinError;

use super::{lock, wait_for};

/// A source of time. Clones show the same time.
#[derive(Clone, Debug)]
pub struct Clock(Inner);

#[derive(Clone, Debug)]
enum Inner {
    System {
        start: Instant,
    },
    Driven {
        /// Unix seconds when it was made.
        unix: Arc<AtomicI64>,
        time: Arc<DrivenTime>,
        simulated: Option<Lives>,
    },
}

/// Whether the process of a simulated output has not ended.
#[derive(Clone)]
struct Lives(Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Lives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lives")
    }
}

/// Moves a driven clock.
#[derive(Clone, Debug)]
pub struct Driver {
    unix: Arc<AtomicI64>,
    time: Arc<DrivenTime>,
}

/// Wakes waiting tasks in the order in which they came, which a watch channel does not.
#[derive(Debug, Default)]
struct DrivenTime {
    now: Mutex<Duration>,
    moved: Notify,
}

impl DrivenTime {
    fn now(&self) -> Duration {
        *lock(&self.now)
    }
}

impl Clock {
    /// The machine's clocks.
    pub fn system() -> Self {
        Self(Inner::System {
            start: Instant::now(),
        })
    }

    /// A clock that stands at `unix` seconds until its driver moves it.
    pub fn driven(unix: i64) -> (Self, Driver) {
        Self::with_driver(unix, None)
    }

    /// The same for an output that runs on one thread alone, so that its events have one order: nothing is random, nothing runs on another
    /// thread, and no other time passes. Once it does not live any more, it does not touch its disk either.
    pub fn simulated(unix: i64, lives: Arc<dyn Fn() -> bool + Send + Sync>) -> (Self, Driver) {
        Self::with_driver(unix, Some(Lives(lives)))
    }

    fn with_driver(unix: i64, simulated: Option<Lives>) -> (Self, Driver) {
        let time: Arc<DrivenTime> = Arc::default();
        let unix = Arc::new(AtomicI64::new(unix));
        let driver = Driver {
            unix: unix.clone(),
            time: time.clone(),
        };
        let inner = Inner::Driven {
            unix,
            time,
            simulated,
        };
        (Self(inner), driver)
    }

    /// Time since the clock was made; never goes back.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Inner::System { start } => start.elapsed(),
            Inner::Driven { time, .. } => time.now(),
        }
    }

    /// Unix seconds; may jump as the machine's clock does.
    pub fn unix(&self) -> i64 {
        match &self.0 {
            Inner::System { .. } => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                since.map_or(0, |since| since.as_secs() as i64)
            }
            Inner::Driven { unix, time, .. } => unix.load(Ordering::Relaxed) + time.now().as_secs() as i64,
        }
    }

    /// Unix milliseconds; may jump as the machine's clock does.
    pub fn unix_ms(&self) -> i64 {
        match &self.0 {
            Inner::System { .. } => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                since.map_or(0, |since| since.as_millis() as i64)
            }
            Inner::Driven { unix, time, .. } => {
                unix.load(Ordering::Relaxed) * 1000 + time.now().as_millis() as i64
            }
        }
    }

    fn simulated_life(&self) -> Option<&Lives> {
        match &self.0 {
            Inner::Driven { simulated, .. } => simulated.as_ref(),
            Inner::System { .. } => None,
        }
    }

    fn is_simulated(&self) -> bool {
        self.simulated_life().is_some()
    }

    /// A seed for jitter, which differs between processes and calls.
    pub fn seed(&self) -> u64 {
        if self.is_simulated() { 1 } else { super::seed() }
    }

    /// Runs something that may block, on a thread of its own.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let Some(Lives(lives)) = self.simulated_life().cloned() else {
            return tokio::task::spawn_blocking(work).await;
        };
        let within = async move {
            match lives() {
                true => work(),
                false => {
                    // With all that it holds of the disk.
                    drop(work);
                    std::future::pending().await
                }
            }
        };
        tokio::spawn(within).await
    }

    /// Waits for something, for so long. `None`: it did not come.
    pub async fn within<T>(&self, patience: Duration, what: impl Future<Output = T>) -> Option<T> {
        if !self.is_simulated() {
            return tokio::time::timeout(patience, what).await.ok();
        }
        tokio::select! {
            biased;
            came = what => Some(came),
            () = self.sleep_until(self.now() + patience) => None,
        }
    }

    /// Waits until [`Clock::now`] reaches `at`.
    pub async fn sleep_until(&self, at: Duration) {
        match &self.0 {
            Inner::System { start } => tokio::time::sleep_until((*start + at).into()).await,
            Inner::Driven { time, .. } => wait_for(&time.moved, || time.now() >= at).await,
        }
    }
}

impl Driver {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        *lock(&self.time.now) += by;
        self.time.moved.notify_waiters();
    }

    /// Sets the wall clock forward or back by this many seconds. No time passes.
    pub fn step(&self, seconds: i64) {
        self.unix.fetch_add(seconds, Ordering::Relaxed);
    }
}
