//! Books that go on: what earlier processes of the agent have counted is added to what this one has.

use super::status::{Books, ListenerStatus, OutputStatus, Reasons, Status};

impl Status {
    /// Adds the books of the process before, its predecessors' included. What is no count stays as it is.
    pub fn add_earlier(&mut self, earlier: &Status) {
        self.total.add(&earlier.total);
        for listener in &earlier.listeners {
            match self
                .listeners
                .iter_mut()
                .find(|own| own.address == listener.address)
            {
                Some(own) => own.add(listener),
                None => self.listeners.push(ListenerStatus {
                    connections: 0,
                    ..listener.clone()
                }),
            }
        }
        let (contexts, before) = (&mut self.contexts, &earlier.contexts);
        // Those that this process went on with are among those that it has made.
        contexts.created += before.created.saturating_sub(self.state.contexts_restored);
        contexts.expired += before.expired;
        contexts.alias_misses += before.alias_misses;
        self.flush.count += earlier.flush.count;
        self.drop_disagreements += earlier.drop_disagreements;
        let (rows, before) = (&mut self.rows, &earlier.rows);
        rows.received += before.received;
        rows.lost += before.lost;
        rows.merged += before.merged;
        add_reasons(&mut rows.samples, &before.samples);
        add_reasons(&mut self.limits.samples, &earlier.limits.samples);
        for output in &earlier.outputs {
            self.add_output(&output.closed());
        }
        let (state, before) = (&mut self.state, &earlier.state);
        state.set_aside += before.set_aside;
        state.samples_lost += before.samples_lost;
        state.contexts_refused += before.contexts_refused;
        state.outputs_begun_anew += before.outputs_begun_anew;
    }

    /// Outputs go by name and type; one that is gone keeps its books.
    fn add_output(&mut self, earlier: &OutputStatus) {
        let same =
            |own: &&mut OutputStatus| own.name == earlier.name && own.output_type == earlier.output_type;
        if let Some(own) = self.outputs.iter_mut().find(same) {
            return own.add(earlier);
        }
        if earlier.has_produced() {
            self.outputs.push(OutputStatus {
                healthy: true,
                last_error: None,
                lag_seconds: 0.0,
                disk_bytes: None,
                notes: vec!["an output of a process before this one".into()],
                ..earlier.clone()
            });
        }
    }
}

impl ListenerStatus {
    fn add(&mut self, earlier: &ListenerStatus) {
        self.books.add(&earlier.books);
        self.connections_refused += earlier.connections_refused;
        self.connections_failed_tls += earlier.connections_failed_tls;
        self.connections_refused_limit += earlier.connections_refused_limit;
        self.connections_closed_crowded += earlier.connections_closed_crowded;
        self.connections_closed_idle += earlier.connections_closed_idle;
        self.socket_files_remade += earlier.socket_files_remade;
        self.connections_cut += earlier.connections_cut;
    }
}

impl Books {
    fn add(&mut self, earlier: &Books) {
        self.bytes += earlier.bytes;
        self.datagrams.received += earlier.datagrams.received;
        self.datagrams.parsed += earlier.datagrams.parsed;
        add_reasons(&mut self.datagrams.dropped, &earlier.datagrams.dropped);
        self.messages.received += earlier.messages.received;
        self.messages.accepted += earlier.messages.accepted;
        add_reasons(&mut self.messages.rejected, &earlier.messages.rejected);
        self.samples.received += earlier.samples.received;
        self.samples.aggregated += earlier.samples.aggregated;
        self.samples.overflowed += earlier.samples.overflowed;
        self.samples.timestamped += earlier.samples.timestamped;
        add_reasons(&mut self.samples.dropped, &earlier.samples.dropped);
    }
}

fn add_reasons(reasons: &mut Reasons, earlier: &Reasons) {
    for (reason, count) in earlier {
        *reasons.entry(reason.clone()).or_default() += count;
    }
}
