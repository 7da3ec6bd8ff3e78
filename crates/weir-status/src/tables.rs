//! Series from lists of the status, and from values that no thread counts.

use weir_counters::Significance::{Normal, Problem};
use weir_counters::{CounterInfo, SeriesSpec};
use weir_origin::{OriginStatus, SourceStatus};

use super::clients::ClientRow;
use super::contexts::{LimitedRow, TagKeyRow};
use super::fleet::{AgentRow, PartitionRow, SentRow};
use super::status::{
    MemoryShare, MemoryStatus, OutputStatus, PointBooks, RateLimitedRow, RefusedSenderRow, ReloadStatus,
    RuleStatus, RulesStatus, StateStatus, Status,
};

/// A series computed from a part of the status.
pub struct ComputedSeries<T: 'static> {
    pub info: CounterInfo,
    pub read: fn(&T) -> Option<f64>,
}

/// Series of a list, with the labels that identify its entries.
pub struct Table<T: 'static> {
    pub labels: &'static [&'static str],
    pub shown: &'static [ComputedSeries<T>],
}

/// Number and time of reloads with one result.
pub type Reloads = (u64, u64);

fn flag(is: bool) -> Option<f64> {
    Some(f64::from(u8::from(is)))
}

macro_rules! tables {
    ($($table:ident: $part:ty, by $labels:expr, {
        $(#[doc = $doc:literal] $kind:ident($name:literal, $path:literal, $unit:literal), $significance:expr, $read:expr;)+
    })+) => {
        $(pub const $table: Table<$part> = Table {
            labels: &$labels,
            shown: &[$(ComputedSeries {
                info: CounterInfo { series: SeriesSpec::$kind($name, $path, $unit), doc: $doc, significance: $significance },
                read: $read,
            }),+],
        };)+
    };
}

tables! {
    PROGRAM: Status, by ["version"], {
        /// Always 1; the label has the version of the running program.
        gauge("weir_info", "version", "always 1"),
            Normal("Another version was started."), |_| Some(1.0);
    }

    START: Status, by [], {
        /// Unix time of the start.
        gauge("weir_start_time_seconds", "started", "seconds"),
            Normal("weir was restarted."), |status| Some(status.process.started as f64);
    }

    MEMORY: MemoryStatus, by [], {
        /// The memory budget.
        gauge("weir_memory_budget_bytes", "memory.budget", "bytes"),
            Normal("It is `memory`."), |memory| Some(memory.budget as f64);
        /// Memory counted against the budget.
        gauge("weir_memory_used_bytes", "memory.used", "bytes"),
            Normal("Near the budget, new contexts are refused: see `weir_context_limit_samples_total`."), |memory| Some(memory.used as f64);
    }

    MEMORY_PARTS: u64, by ["part"], {
        /// Used memory, by part.
        gauge("weir_memory_part_bytes", "memory.parts", "bytes"),
            Normal("The largest part shows what uses the memory."), |bytes| Some(*bytes as f64);
    }

    SHARES: MemoryShare, by ["share"], {
        /// Size of each share of the memory budget.
        gauge("weir_memory_share_bytes", "memory.shares[].bytes", "bytes"),
            Normal("It follows `memory` and the configured listeners and outputs; `docs/limits.md` has the shares."), |share| Some(share.bytes as f64);
        /// Use of each share of the memory budget.
        gauge("weir_memory_share_used_bytes", "memory.shares[].used", "bytes"),
            Normal("When the share is full, weir takes the action shown in `weir status`."), |share| Some(share.used as f64);
        /// Used share, from 0 to 1, of the fullest part of each share of the memory budget: outputs have parts of a share.
        gauge("weir_memory_share_fullest_ratio", "memory.shares[].fullest", "ratio"),
            Normal("Near 1, the output with this part takes the action shown in `weir status`: raise `memory`."), |share| Some(share.fullest);
    }

    SHARE_EVENTS: u64, by ["event", "share"], {
        /// Actions by which a share of the memory budget stays within its limit. What an action loses is counted at its place too.
        counter("weir_memory_share_events_total", "memory.shares[].events", "times"),
            Normal("`aliases_evicted`, `histograms_folded` and `sets_estimated` lose nothing. The others mean that the share was full: raise `memory`."), |number| Some(*number as f64);
    }

    LIMITED: LimitedRow, by ["metric", "reason"], {
        /// Samples of metrics with refused contexts in the last bucket; absent without such metrics.
        gauge("weir_context_limit_metric_samples", "limits.limited[].samples", "samples"),
            Problem("Drop the tag with the most values by a rule (`exclude_tags`)."), |row| Some(row.samples as f64);
    }

    RATES: RateLimitedRow, by ["source"], {
        /// Packets dropped from sources above a rate limit; absent without such sources.
        gauge("weir_rate_limited_packets", "limits.rates[].packets", "packets"),
            Problem("Raise the limit or slow down the sender."), |row| Some(row.packets as f64);
    }

    REFUSED: RefusedSenderRow, by ["reason", "source"], {
        /// Packets dropped from senders that allowed_origins refuses; absent without such senders.
        gauge("weir_sender_refused_packets", "limits.senders_refused[].packets", "packets"),
            Problem("Add the origin to `allowed_origins`, or find out why it sends."), |row| Some(row.packets as f64);
    }

    TAG_KEYS: TagKeyRow, by ["key"], {
        /// Distinct values of tag keys with more than tag_values_alert; absent without such keys.
        gauge("weir_tag_key_values_alert", "limits.tag_keys[].values", "values"),
            Problem("Drop the tag with a rule, or raise `tag_values_alert`."), |row| Some(row.values as f64);
    }

    CLIENTS: ClientRow, by ["client", "origin", "transport", "version"], {
        /// Packets that a client sent, by its own telemetry; only for clients with losses.
        counter("weir_client_packets_sent_total", "clients.seen[].packets_sent", "packets"),
            Normal("It moves with the client's work."), |row| Some(row.packets_sent as f64);
        /// Packets that a client dropped, by its own telemetry; only for clients with losses.
        counter("weir_client_packets_dropped_total", "clients.seen[].packets_dropped", "packets"),
            Normal("See `weir_clients_packets_dropped_total` and its reasons."), |row| Some(row.packets_dropped as f64);
        /// Of these: packets for which the client's queue had no room.
        counter("weir_client_packets_dropped_queue_total", "clients.seen[].packets_dropped_queue", "packets"),
            Normal("See `weir_clients_packets_dropped_queue_total`."), |row| Some(row.packets_dropped_queue as f64);
        /// Of these: packets that the client could not write.
        counter("weir_client_packets_dropped_writer_total", "clients.seen[].packets_dropped_writer", "packets"),
            Normal("See `weir_clients_packets_dropped_writer_total`."), |row| Some(row.packets_dropped_writer as f64);
    }

    RELOADS: Reloads, by ["result"], {
        /// Reloads of the configuration, by result.
        counter("weir_config_reloads_total", "reload.{result}", "reloads"),
            Normal("The configuration, a key or a token changed; `weir_config_last_reload_failed` shows failures."), |(count, _)| Some(*count as f64);
        /// Unix time of the last reload of the configuration, by result; 0 before the first.
        gauge("weir_config_last_reload_timestamp_seconds", "reload.last_{result}", "seconds"),
            Normal("The configuration, a key or a token changed."), |(_, at)| Some(*at as f64);
    }

    RELOAD: ReloadStatus, by [], {
        /// 1 if the last reload failed: the active configuration is not that of the files.
        gauge("weir_config_last_reload_failed", "reload.last_error", "flag"),
            Problem("`weir status` shows the reason; `weir check` validates the file."), |reload| flag(reload.last_error.is_some());
        /// Settings whose value in the configuration differs from that in the process.
        gauge("weir_config_settings_waiting_for_restart", "reload.waiting_for_restart[]", "settings"),
            Problem("Restart weir to apply them."), |reload| Some(reload.waiting_for_restart.len() as f64);
    }

    UNDELIVERED: u64, by ["output"], {
        /// Samples, besides those that no output has, that this one had not delivered, or had not in its saved sums, when a process was killed.
        counter("weir_saved_state_undelivered_samples_total", "state.samples_undelivered.{output}", "samples"),
            Problem("A process was killed: give it time to stop (`TimeoutStopSec=`, `terminationGracePeriodSeconds`), or set `disk_path`."), |samples| Some(*samples as f64);
    }

    UNCERTAIN: u64, by ["output"], {
        /// Of the samples that this output lacks by the other counters of lost state, those that it may have delivered: a request was under way at a kill.
        counter("weir_saved_state_uncertain_samples_total", "state.samples_uncertain.{output}", "samples"),
            Normal("A process was killed: `docs/restart.md`."), |samples| Some(*samples as f64);
    }

    STATE: StateStatus, by [], {
        /// Contexts that this process took over from the previous one.
        gauge("weir_saved_state_restored_contexts", "state.contexts_restored", "contexts"),
            Normal("weir was restarted."), |state| Some(state.contexts_restored as f64);
        /// Samples in the open bucket that this process continued.
        gauge("weir_saved_state_restored_samples", "state.samples_restored", "samples"),
            Normal("weir was restarted."), |state| Some(state.samples_restored as f64);
        /// Contexts of the previous process that did not fit; their samples in the open bucket are lost.
        counter("weir_saved_state_refused_contexts_total", "state.contexts_refused", "contexts"),
            Problem("Raise `memory` or `contexts_max` to what it was before."), |state| Some(state.contexts_refused as f64);
        /// Number of times the state of the previous process could not be used.
        counter("weir_saved_state_set_aside_total", "state.set_aside", "times"),
            Problem("The open bucket of the previous process is lost: keep `bucket_width` and `state_path` at a restart, and the time between two processes below `context_expiry`."), |state| Some(state.set_aside as f64);
        /// Known samples in open buckets of earlier processes that could not be continued.
        counter("weir_saved_state_lost_samples_total", "state.samples_lost", "samples"),
            Problem("A process was killed, or the state was too old, of another agent, or of another `bucket_width`: the log says which. Give weir time to stop (`TimeoutStopSec=`, `terminationGracePeriodSeconds`)."), |state| Some(state.killed.samples_lost as f64);
        /// Damaged files of killed processes that could not be used.
        counter("weir_saved_state_damaged_files_total", "state.files_damaged", "files"),
            Problem("The log names them and what they have cost. After a power failure this is usual, as they are not synchronised; otherwise test the disk of `state_path`."), |state| Some(state.killed.files_damaged as f64);
        /// Processes of this agent that ended without saving state, for example after `kill -9` or for lack of memory.
        counter("weir_saved_state_kills_total", "state.kills", "processes"),
            Problem("Samples of the last second are lost: the log and `weir_saved_state_lost_samples_total` have the number. `journalctl -k` says whether the kernel ended it for lack of memory: then lower `memory`."), |state| Some(state.killed.kills as f64);
        /// Seconds of receiving that the last killed process lost.
        gauge("weir_saved_state_kill_seconds", "state.kill_seconds", "seconds"),
            Normal("At most a second, longer on a busy machine."), |state| Some(state.killed.kill_seconds);
        /// Outputs that could not continue their sums.
        counter("weir_saved_state_outputs_reset_total", "state.outputs_reset", "outputs"),
            Problem("Their settings changed, or they were removed from `outputs`: the log names them. Their sums start from zero, as after a first start."), |state| Some(state.outputs_reset as f64);
        /// Attempts to write books, sums or the open bucket to `state_path` that failed: a kill can lose what was not written.
        counter("weir_state_writes_failed_total", "state.saves_failed", "attempts"),
            Problem("Make room on the disk of `state_path`, or correct its rights: weir tries again every second."), |state| Some(state.saves.saves_failed as f64);
        /// Completed hand-overs: another process replaced this one.
        counter("weir_hand_overs_total", "state.hand_over.completed", "times"),
            Normal("weir was upgraded."), |state| Some(state.hand_over.completed as f64);
        /// Hand-overs that failed: the old process continued.
        counter("weir_hand_overs_failed_total", "state.hand_over.failed", "times"),
            Problem("Nothing is lost: the old process continues. Correct the cause and run `weir upgrade` again."), |state| Some(state.hand_over.failed as f64);
        /// The pause in receiving of the last hand-over.
        gauge("weir_hand_over_pause_seconds", "state.hand_over.pause_seconds", "seconds"),
            Normal("It grows with the contexts: `docs/restart.md`."), |state| Some(state.hand_over.pause_seconds);
        /// Connections that another process took over.
        counter("weir_hand_over_connections_total", "state.hand_over.connections", "connections"),
            Normal("weir was upgraded."), |state| Some(state.hand_over.connections as f64);
        /// Connections over TLS that a hand-over ended.
        counter("weir_hand_over_connections_ended_total", "state.hand_over.connections_ended", "connections"),
            Normal("Their clients reconnect; the clients count data that was in flight."), |state| Some(state.hand_over.connections_ended as f64);
    }

    RULES: RulesStatus, by [], {
        /// Active rules.
        gauge("weir_rules", "rules.count", "rules"),
            Normal("The configuration changed."), |rules| Some(rules.count as f64);
        /// Time spent on the search for matching rules.
        counter("weir_rule_matching_seconds_total", "rules.matching_seconds", "seconds"),
            Normal("It rises with new contexts, not with messages."), |rules| Some(rules.matching_seconds);
    }

    RULE: RuleStatus, by ["rule", "stage"], {
        /// Contexts to which a rule was applied; only for the busiest rules.
        counter("weir_rule_hits_total", "rules.active[].hits", "contexts"),
            Normal("The rule works as configured."), |rule| Some(rule.hits as f64);
        /// Time spent on applying a rule.
        counter("weir_rule_seconds_total", "rules.active[].seconds", "seconds"),
            Normal("It rises with new contexts, not with messages."), |rule| Some(rule.seconds);
        /// Samples a rule dropped.
        counter("weir_rule_samples_dropped_total", "rules.active[].samples_dropped", "samples"),
            Normal("The rule works as configured."), |rule| Some(rule.samples_dropped as f64);
        /// Live contexts that a rule in a dry run would change or drop.
        gauge("weir_rule_trial_contexts", "rules.active[].trial.contexts_now", "contexts"),
            Normal("It follows what clients send."), |rule| Some(rule.trial.as_ref()?.contexts_now as f64);
        /// Contexts that would remain of these.
        gauge("weir_rule_trial_contexts_left", "rules.active[].trial.contexts_then", "contexts"),
            Normal("It follows what clients send."), |rule| Some(rule.trial.as_ref()?.contexts_then as f64);
        /// Samples that a rule in a dry run would have dropped.
        counter("weir_rule_trial_samples_dropped_total", "rules.active[].trial.samples_dropped", "samples"),
            Normal("It follows what clients send."), |rule| Some(rule.trial.as_ref()?.samples_dropped as f64);
    }

    OUTPUTS: OutputStatus, by ["output"], {
        /// 1 if the last attempt succeeded.
        gauge("weir_output_healthy", "outputs[].healthy", "flag"),
            Problem("At 0 `weir status` shows the last error."), |output| flag(output.healthy);
        /// Age of the oldest pending point.
        gauge("weir_output_lag_seconds", "outputs[].lag_seconds", "seconds"),
            Problem("The backend is down or slow: `weir status` shows the last error."), |output| Some(output.lag_seconds);
        /// Bytes of the disk queue.
        gauge("weir_output_disk_queue_bytes", "outputs[].disk_bytes", "bytes"),
            Normal("It rises while the backend is down."), |output| output.disk_bytes.map(|bytes| bytes as f64);
    }

    BOOKS: PointBooks, by ["kind", "output"], {
        /// Items produced for an output, by kind.
        counter("weir_output_produced_total", "outputs[].{kind}s.produced", "items"),
            Normal("It rises with each flush. Each produced item is delivered, pending or dropped."), |books| Some(books.produced as f64);
        /// Items delivered, by kind.
        counter("weir_output_delivered_total", "outputs[].{kind}s.delivered", "items"),
            Normal("It rises with each flush."), |books| Some(books.delivered as f64);
        /// Items waiting, by kind.
        gauge("weir_output_pending", "outputs[].{kind}s.pending", "items"),
            Normal("It rises while the backend is down."), |books| Some(books.pending as f64);
    }

    RESOLVER: OriginStatus, by [], {
        /// Process numbers that were reused by another process.
        counter("weir_origin_processes_reused_total", "origin.resolver.processes_reused", "processes"),
            Normal("weir noticed it; a few earlier packets may have the other container's tags."), |resolver| Some(resolver.processes_reused as f64);
        /// Processes that moved to another container.
        counter("weir_origin_processes_moved_total", "origin.resolver.processes_moved", "processes"),
            Normal("weir noticed it; earlier packets may have the other process's tags."), |resolver| Some(resolver.processes_moved as f64);
        /// Known processes.
        gauge("weir_origin_processes_known", "origin.resolver.processes_known", "processes"),
            Normal("It follows the clients."), |resolver| Some(resolver.processes_known as f64);
        /// Origins whose tags changed.
        counter("weir_origin_changes_total", "origin.resolver.origins_changed", "origins"),
            Normal("Tags of containers change."), |resolver| Some(resolver.origins_changed as f64);
        /// Origins in use.
        gauge("weir_origins_live", "origin.resolver.origins_live", "origins"),
            Normal("It follows the containers that send."), |resolver| Some(resolver.origins_live as f64);
        /// Origins in use that are in no source.
        gauge("weir_origins_unknown", "origin.resolver.origins_unknown", "origins"),
            Problem("A source is missing or fails: `weir status` shows the state of each."), |resolver| Some(resolver.origins_unknown as f64);
        /// Walks through the cgroups in search of an inode.
        counter("weir_origin_cgroup_walks_total", "origin.resolver.cgroup_walks", "walks"),
            Normal("Clients name their container by an inode."), |resolver| Some(resolver.cgroup_walks as f64);
    }

    PROCESSES: u64, by ["result"], {
        /// Look-ups of processes, by result.
        counter("weir_origin_processes_total", "origin.resolver.processes", "processes"),
            Normal("`process_denied` and `process_unreadable`: weir lacks the permission: `docs/origin.md`."), |count| Some(*count as f64);
    }

    ORIGINS: u64, by ["result"], {
        /// Look-ups of origins, by result.
        counter("weir_origins_total", "origin.resolver.origins", "origins"),
            Normal("`unknown`: they are in no source: `docs/origin.md`."), |count| Some(*count as f64);
    }

    SOURCES: SourceStatus, by ["place", "source"], {
        /// 1 if the last attempt of a tag source succeeded.
        gauge("weir_origin_source_healthy", "origin.resolver.sources[].healthy", "flag"),
            Problem("At 0 `weir status` shows its last error."), |source| flag(source.healthy);
        /// Containers and pods in a source.
        gauge("weir_origin_source_entities", "origin.resolver.sources[].entities", "containers and pods"),
            Normal("It follows the machine."), |source| Some(source.entities as f64);
        /// Answers of a source.
        counter("weir_origin_source_updates_total", "origin.resolver.sources[].updates", "answers"),
            Normal("The source answers."), |source| Some(source.updates as f64);
        /// Failed attempts of a source.
        counter("weir_origin_source_failures_total", "origin.resolver.sources[].failures", "attempts"),
            Problem("Its containers have no tags: let `weir doctor --config FILE` test the source, or correct its address (`origin_docker`, `origin_containerd`, `origin_kubelet`)."), |source| Some(source.failures as f64);
    }

    FLEET_PARTITIONS: PartitionRow, by ["partition"], {
        /// Records of a partition that were not read yet.
        gauge("weir_fleet_partition_lag_records", "fleet.partitions[].lag_records", "records"),
            Normal("It rises while agents publish faster than the merge reads."), |row| Some(row.lag_records as f64);
        /// Lag of a partition's merged records behind the clock.
        gauge("weir_fleet_partition_lag_seconds", "fleet.partitions[].lag_seconds", "seconds"),
            Normal("It is zero while everything is read."), |row| Some(row.lag_seconds);
        /// Open buckets of a partition.
        gauge("weir_fleet_partition_open_buckets", "fleet.partitions[].open_buckets", "buckets"),
            Normal("More than three while the merge waits for an agent."), |row| Some(row.open_buckets as f64);
        /// Agents that a partition's last closed bucket waited for.
        gauge("weir_fleet_partition_agents_expected", "fleet.partitions[].agents_expected", "agents"),
            Normal("It follows the fleet."), |row| Some(row.agents_expected as f64);
        /// Agents whose records are in a partition's last closed bucket.
        gauge("weir_fleet_partition_agents_seen", "fleet.partitions[].agents_seen", "agents"),
            Normal("If it is below the expected number, an agent ended, or stopped between two partitions."), |row| Some(row.agents_seen as f64);
        /// Repeated records of a partition.
        counter("weir_fleet_partition_repeated_records_total", "fleet.partitions[].repeated", "records"),
            Normal("Agents resend records that were not confirmed."), |row| Some(row.repeated as f64);
        /// Records of a partition that arrived after their bucket had closed.
        counter("weir_fleet_partition_late_records_total", "fleet.partitions[].late", "records"),
            Normal("See `weir_fleet_late_records_total`."), |row| Some(row.late as f64);
        /// Quarantined records of a partition.
        counter("weir_fleet_partition_quarantined_records_total", "fleet.partitions[].quarantined", "records"),
            Normal("See `weir_fleet_quarantined_records_total`."), |row| Some(row.quarantined as f64);
    }

    FLEET_AGENTS: AgentRow, by ["agent", "host"], {
        /// 1 if an agent's records are missing in the last closed bucket; only for agents with a problem.
        gauge("weir_fleet_agent_missing", "fleet.agents[].is_missing", "flag"),
            Problem("It ended, or cannot reach the log."), |row| flag(row.is_missing);
        /// Records that prove that another agent has the id of this one.
        gauge("weir_fleet_agent_shared_id_records", "fleet.agents[].shared_id", "records"),
            Problem("Remove the state directory of one of them."), |row| Some(row.shared_id as f64);
        /// Series states of an agent that arrived late.
        gauge("weir_fleet_agent_late_states", "fleet.agents[].late", "states"),
            Normal("They are in corrections."), |row| Some(row.late as f64);
        /// Quarantined series states of an agent.
        gauge("weir_fleet_agent_quarantined_states", "fleet.agents[].quarantined", "states"),
            Problem("`weir merge status` shows the reason."), |row| Some(row.quarantined as f64);
        /// Series states of an agent that were not received yet.
        gauge("weir_fleet_agent_missing_states", "fleet.agents[].missing", "states"),
            Normal("They may still arrive."), |row| Some(row.missing as f64);
        /// Series states of an agent that are lost.
        gauge("weir_fleet_agent_lost_states", "fleet.agents[].lost", "states"),
            Problem("The log deleted them before they were read, or the agent dropped them."), |row| Some(row.lost as f64);
    }

    FLEET_SENT: SentRow, by ["output"], {
        /// Partitions whose results this process delivers to an output.
        gauge("weir_fleet_sent_partitions", "fleet.sent[].partitions", "partitions"),
            Normal("Partitions move when a process joins or ends. If the sum over all processes stays below that of `weir_fleet_partitions`, results wait in the log."), |row| Some(row.partitions as f64);
        /// Buckets of the fleet that an output has received.
        counter("weir_fleet_sent_buckets_total", "fleet.sent[].buckets", "buckets"),
            Normal("It rises with each bucket that closes."), |row| Some(row.buckets as f64);
        /// Time since the end of the oldest bucket that an output waits to deliver, or else of the last one that it has delivered.
        gauge("weir_fleet_sent_lag_seconds", "fleet.sent[].lag_seconds", "seconds"),
            Normal("Two to eight buckets; more when the backend is slow: results wait in the log."), |row| Some(row.lag_seconds);
        /// Results that an output lacks: the log deleted them before, at most, or they are unreadable.
        counter("weir_fleet_sent_deleted_results_total", "fleet.sent[].deleted", "results"),
            Problem("The output was dead for longer than the log keeps results: a longer retention of the topic (`retention.ms`) keeps them. A newer program wrote unreadable ones: upgrade the merges first."), |row| Some(row.deleted as f64);
        /// Buckets delivered again to an output, because it was unknown whether it had received them.
        counter("weir_fleet_sent_again_buckets_total", "fleet.sent[].repeated", "buckets"),
            Normal("The previous process was killed. `repeats_are` in the status shows how the backend treats repeats."), |row| Some(row.repeated as f64);
        /// Series of corrections delivered to an output.
        counter("weir_fleet_corrected_series_total", "fleet.sent[].corrected", "series"),
            Normal("Late records arrived."), |row| Some(row.corrected as f64);
        /// Series of corrections that an output cannot take.
        counter("weir_fleet_not_corrected_series_total", "fleet.sent[].not_corrected", "series"),
            Problem("Late records arrived for gauges and sets, or for a backend that replaces points: the results in the log have them. A longer `grace` waits for them."), |row| Some(row.not_corrected as f64);
    }
}
