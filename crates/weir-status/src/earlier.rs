//! Books across restarts: the counts of earlier processes are added to those of this one.

use crate::status::{ListenerStatus, Number, Numbers, OutputStatus, Status};

impl Status {
    /// Adds the books of the previous process, which include those of its predecessors. Gauges stay.
    pub fn add_earlier(&mut self, earlier: &Status) {
        self.numbers.add_counters(&earlier.numbers);
        self.limits.numbers.add_counters(&earlier.limits.numbers);
        self.clients.numbers.add_counters(&earlier.clients.numbers);
        if let (Some(own), Some(earlier)) = (&mut self.origin, &earlier.origin) {
            own.numbers.add_counters(&earlier.numbers);
        }
        for listener in &earlier.listeners {
            self.add_listener(listener);
        }
        for output in &earlier.outputs {
            self.add_output(&output.closed());
        }
        let (state, before) = (&mut self.state, &earlier.state);
        state.set_aside += before.set_aside;
        state.saves.saves_failed += before.saves.saves_failed;
        state.killed.samples_lost += before.killed.samples_lost;
        state.killed.kills += before.killed.kills;
        state.killed.files_damaged += before.killed.files_damaged;
        for (all, before) in [
            (
                &mut state.killed.samples_undelivered,
                &before.killed.samples_undelivered,
            ),
            (
                &mut state.killed.samples_uncertain,
                &before.killed.samples_uncertain,
            ),
        ] {
            for (output, samples) in before {
                *all.entry(output.clone()).or_default() += samples;
            }
        }
        state.contexts_refused += before.contexts_refused;
        state.outputs_reset += before.outputs_reset;
        state.hand_over.add(&before.hand_over);
    }

    /// A listener is identified by its address. A removed one keeps its books.
    fn add_listener(&mut self, earlier: &ListenerStatus) {
        let mut counted = Numbers::default();
        counted.add_counters(&earlier.numbers);
        if let Some(Number::Group(books)) = counted.at("books") {
            self.numbers.group_at("total").merge(books);
        }
        match self
            .listeners
            .iter_mut()
            .find(|own| own.address == earlier.address)
        {
            Some(own) => own.numbers.merge(&counted),
            None => self.listeners.push(ListenerStatus {
                address: earlier.address.clone(),
                numbers: counted,
            }),
        }
    }

    /// An output is identified by name and type. A removed one keeps its books.
    fn add_output(&mut self, earlier: &OutputStatus) {
        let same =
            |own: &&mut OutputStatus| own.name == earlier.name && own.output_type == earlier.output_type;
        let mut counted = Numbers::default();
        counted.add_counters(&earlier.numbers);
        let earlier = &OutputStatus {
            numbers: counted,
            ..earlier.clone()
        };
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

#[cfg(test)]
mod tests {
    use crate::counters::PipelineCounter;
    use crate::examples::balanced;
    use weir_counters::Counts;

    /// Counters add up, gauges stay this process's own.
    #[test]
    fn books_of_two_processes_balance() {
        let mut earlier = balanced();
        let mut counts = Counts::default();
        counts[PipelineCounter::RowsMerged] = 5;
        counts[PipelineCounter::BucketSeconds] = 10;
        earlier.add(None, &counts);
        earlier.state.set_aside = 1;
        let mut own = balanced();
        own.add(None, &counts);
        own.add_earlier(&earlier);
        assert_eq!(own.imbalances(), Vec::<String>::new());
        assert_eq!(own.total("samples").received, 60);
        assert_eq!(own.listeners.len(), 1);
        assert_eq!(own.of(PipelineCounter::RowsMerged), 10);
        assert_eq!(own.of(PipelineCounter::BucketSeconds), 10);
        assert_eq!(own.state.set_aside, 1);
        // Three points were on disk and are found by this process.
        assert_eq!(
            (own.outputs[0].points.produced, own.outputs[0].points.pending),
            (15, 3)
        );

        earlier.listeners[0].address = "udp://127.0.0.1:1".into();
        earlier.outputs[0].name = "gone".into();
        let mut other = balanced();
        other.add_earlier(&earlier);
        assert_eq!(other.imbalances(), Vec::<String>::new());
        assert_eq!((other.listeners.len(), other.outputs.len()), (2, 2));
    }
}
