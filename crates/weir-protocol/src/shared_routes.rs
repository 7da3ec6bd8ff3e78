//! Routes that one thread changes and others use.
#![allow(
    clippy::disallowed_types,
    reason = "the one lock here: workers and relays have no other crate in common, and who holds it copies a pointer"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Routes;

/// Routes that change now and then, for readers that must not wait.
#[derive(Debug)]
pub struct SharedRoutes {
    version: AtomicU64,
    routes: Mutex<Arc<Routes>>,
}

impl SharedRoutes {
    pub fn new(routes: Routes) -> Self {
        Self {
            version: AtomicU64::new(1),
            routes: Mutex::new(Arc::new(routes)),
        }
    }

    pub fn set(&self, routes: Routes) {
        *self.routes.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(routes);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    pub fn get(&self) -> Arc<Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Routes newer than `known`, unless they are being changed at this moment.
    #[inline]
    pub fn newer(&self, known: &mut u64) -> Option<Arc<Routes>> {
        let version = self.version.load(Ordering::Acquire);
        if version == *known {
            return None;
        }
        let routes = self.routes.try_lock().ok()?.clone();
        *known = version;
        Some(routes)
    }
}
