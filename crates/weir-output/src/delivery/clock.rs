//! Time as deliveries see it: the system's, or one that a test drives.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

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
        now: watch::Receiver<Duration>,
    },
}

/// Moves a driven clock.
#[derive(Clone, Debug)]
pub struct Driver {
    unix: Arc<AtomicI64>,
    now: Arc<watch::Sender<Duration>>,
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
        let (sender, now) = watch::channel(Duration::ZERO);
        let unix = Arc::new(AtomicI64::new(unix));
        let driver = Driver {
            unix: unix.clone(),
            now: Arc::new(sender),
        };
        (Self(Inner::Driven { unix, now }), driver)
    }

    /// Time since the clock was made; never goes back.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Inner::System { start } => start.elapsed(),
            Inner::Driven { now, .. } => *now.borrow(),
        }
    }

    /// Unix seconds; may jump as the machine's clock does.
    pub fn unix(&self) -> i64 {
        match &self.0 {
            Inner::System { .. } => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                since.map_or(0, |since| since.as_secs() as i64)
            }
            Inner::Driven { unix, now } => unix.load(Ordering::Relaxed) + now.borrow().as_secs() as i64,
        }
    }

    /// Unix milliseconds; may jump as the machine's clock does.
    pub fn unix_ms(&self) -> i64 {
        match &self.0 {
            Inner::System { .. } => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                since.map_or(0, |since| since.as_millis() as i64)
            }
            Inner::Driven { unix, now } => {
                unix.load(Ordering::Relaxed) * 1000 + now.borrow().as_millis() as i64
            }
        }
    }

    /// Waits until [`Clock::now`] reaches `at`.
    pub async fn sleep_until(&self, at: Duration) {
        match &self.0 {
            Inner::System { start } => tokio::time::sleep_until((*start + at).into()).await,
            Inner::Driven { now, .. } => {
                // A clock without a driver is stopped for good.
                if now.clone().wait_for(|now| *now >= at).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

impl Driver {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now += by);
    }

    /// Sets the wall clock forward or back by this many seconds. No time passes.
    pub fn step(&self, seconds: i64) {
        self.unix.fetch_add(seconds, Ordering::Relaxed);
    }
}
