//! Sets up the tail and captures.

use std::sync::{Arc, Mutex, PoisonError};

use weir_context::{OriginKey, Rules};
use weir_ingest::WorkerHandle;
use weir_origin::{OriginExplanation, Origins};
use weir_protocol::Message;

use crate::columns::Columns;
use crate::explain;
use weir_admin::streams::Streams;
use weir_admin::tap::{Knowledge, TapListener, Taps};
use weir_agent::budget::{Budget, Share};

/// `None`: the configuration gives them no memory, because messages are confidential.
pub fn taps(
    budget: &Budget,
    streams: Streams,
    workers: &[WorkerHandle],
    listeners: Vec<TapListener>,
    (origins, rules): (Option<Origins>, Arc<Mutex<Rules>>),
    columns: Option<&Arc<Columns>>,
) -> Option<Arc<Taps>> {
    let room = budget.share(Share::Taps);
    let taps = Taps {
        workers: workers.iter().map(WorkerHandle::commands).collect(),
        listeners,
        knowledge: Box::new(AgentKnowledge { origins, rules }),
        room,
        streams,
        counts: Mutex::default(),
        held: Arc::default(),
        lost: Arc::default(),
        capturing: Arc::new(tokio::sync::Semaphore::new(1)),
        columns: columns.map(|columns| columns.taps.clone()).unwrap_or_default(),
    };
    (room > 0).then(|| Arc::new(taps))
}

struct AgentKnowledge {
    origins: Option<Origins>,
    rules: Arc<Mutex<Rules>>,
}

impl Knowledge for AgentKnowledge {
    fn sender(&self, pid: i32) -> OriginExplanation {
        let origins = self.origins.as_ref();
        origins
            .and_then(|origins| origins.explain(&OriginKey::default(), Some(pid)))
            .unwrap_or_default()
    }

    fn dropped(
        &self,
        message: &Message<'_>,
        sender: &OriginExplanation,
        listener: &TapListener,
    ) -> Option<String> {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone();
        explain::dropped(message, sender, listener.reading.names, &rules)
    }
}
