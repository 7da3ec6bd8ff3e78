//! Events and service checks of a batch.

/// An event, ready for delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    pub title: String,
    pub text: String,
    /// Unix seconds, given by the sender or taken on receipt.
    pub timestamp: i64,
    /// `None`: the agent's own host.
    pub host: Option<String>,
    pub aggregation_key: String,
    pub source_type: String,
    pub priority: weir_protocol::Priority,
    pub alert_type: weir_protocol::AlertType,
    pub tags: Vec<String>,
}

/// A service check, ready for delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckRecord {
    pub name: String,
    pub status: weir_protocol::CheckStatus,
    /// Unix seconds, given by the sender or taken on receipt.
    pub timestamp: i64,
    /// `None`: the agent's own host.
    pub host: Option<String>,
    pub message: String,
    pub tags: Vec<String>,
}
