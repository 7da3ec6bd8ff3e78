//! The standard output: one JSON object per point, event or check and line.

use std::io::Write;
use std::sync::Arc;

use weir_aggregate::{Batch, Expansion};
use weir_config::settings;

use crate::StartError;
use crate::delivery::{
    BoxFuture, Delivery, Endpoint, Landed, Order, Outcome, OutputEnvironment, Payload, Transport,
};
use crate::json_lines::LinesEncoder;
use crate::preview;
use crate::settings::{BatchOutput, DeliverySettings, OutputType, Start};

settings! {
    /// There is nothing to set.
    pub struct StdoutSettings {}
}

pub(crate) const TYPE: OutputType = OutputType {
    name: "stdout",
    summary: "Prints one JSON object per point and line on standard output, for users and pipes.",
    on_by_default: false,
    settings: &[],
    removed: &[],
    read: |output| BatchOutput::read::<StdoutSettings>(output, |_, _| {}, |_| Ok(())),
};

/// Bytes in one write.
const PAYLOAD_BYTES: usize = 256 << 10;

impl Start for StdoutSettings {
    fn preview(&self, batch: &Batch, expansion: &Arc<Expansion>) -> Vec<String> {
        let encoder = LinesEncoder::new(expansion.clone(), PAYLOAD_BYTES);
        preview::of_lines(&preview::payloads(encoder, batch), preview::of_json)
    }

    fn start(
        &self,
        name: &str,
        expansion: &Arc<Expansion>,
        environment: &OutputEnvironment,
    ) -> Result<Delivery, StartError> {
        let endpoint = Endpoint {
            label: "standard output".into(),
            directory: "stdout".into(),
            family: None,
            transport: Arc::new(Stdout),
        };
        let encoder = Box::new(LinesEncoder::new(expansion.clone(), PAYLOAD_BYTES));
        let settings = DeliverySettings::local();
        let order = Order::TimeOrder;
        let started = Delivery::start(name, &settings, order, encoder, vec![endpoint], environment);
        Ok(started?)
    }
}

struct Stdout;

impl Transport for Stdout {
    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome> {
        self.send_and_mark(payload, Landed::default())
    }

    /// A reader that has stopped blocks only this thread.
    fn send_and_mark(&self, payload: Payload, landed: Landed) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let written = tokio::task::spawn_blocking(move || {
                let mut stdout = std::io::stdout().lock();
                landed.begin();
                stdout.write_all(&payload.body)?;
                stdout.flush()?;
                landed.mark();
                Ok::<_, std::io::Error>(())
            });
            match written.await {
                Ok(Ok(())) => Outcome::Delivered,
                // Half of it may have been read already, so trying again could only garble.
                Ok(Err(error)) => Outcome::Rejected {
                    error: format!("standard output cannot be written: {error}"),
                },
                Err(error) => Outcome::Rejected {
                    error: error.to_string(),
                },
            }
        })
    }
}
