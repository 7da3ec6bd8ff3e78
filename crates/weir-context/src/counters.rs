//! Counters of the context tables.

use weir_counters::Significance::{Normal, Problem};
use weir_counters::{SeriesSpec, counters};

const fn alias(name: &'static str, path: &'static str) -> SeriesSpec {
    SeriesSpec::counter(name, path, "aliases")
}

counters! {
    /// Contexts in numbers. The drain of buckets fills in `Created` and `Expired`.
    pub enum ContextCounter {
        /// Live contexts, overflow series included.
        Live = SeriesSpec::gauge("weir_contexts", "contexts.live", "contexts"),
            Normal("It follows what clients send; `weir top` names the metrics with the most contexts.");
        /// Contexts created.
        Created = SeriesSpec::counter("weir_contexts_created_total", "contexts.created", "contexts"),
            Normal("If it rises as fast as messages, a tag has a new value in each of them: `weir top` names it.");
        /// Contexts that expired without samples.
        Expired = SeriesSpec::counter("weir_contexts_expired_total", "contexts.expired", "contexts"),
            Normal("Contexts come and go.");
        /// Overflow series: one per metric, with the samples of refused contexts.
        OverflowSeries = SeriesSpec::gauge("weir_overflow_series", "contexts.overflow_series", "series"),
            Problem("Raise `memory` or `contexts_max`, or drop the tag with the most values by a rule.");
        /// Distinct strings in contexts.
        Strings = SeriesSpec::gauge("weir_context_strings", "contexts.strings", "strings"),
            Normal("It follows the contexts.");
        /// Distinct tag lists of contexts.
        TagLists = SeriesSpec::gauge("weir_context_tag_lists", "contexts.tag_lists", "lists"),
            Normal("It follows the contexts.");
    }
}

counters! {
    /// Counters of the raw-alias cache.
    pub enum AliasCounter {
        /// Entries of the cache from a message's bytes, without values, to its context.
        Known = SeriesSpec::gauge("weir_aliases", "contexts.aliases", "aliases"),
            Normal("It follows the contexts.");
        /// Metrics whose bytes were unknown: weir found or created their context by its parts.
        Misses = SeriesSpec::counter("weir_alias_misses_total", "contexts.alias_misses", "messages"),
            Normal("If it rises as fast as messages, clients write the same tags in new orders each time, which costs CPU.");
        /// Aliases stored in the cache.
        Admitted = alias("weir_aliases_admitted_total", "contexts.aliases_admitted"),
            Normal("New contexts, or known ones in another form.");
        /// Aliases seen once; the cache stores them on their second use.
        HeldBack = alias("weir_aliases_held_back_total", "contexts.aliases_held_back"),
            Normal("Messages that are never repeated stay out of the cache.");
        /// Aliases removed from the cache.
        Evicted = alias("weir_aliases_evicted_total", "contexts.aliases_evicted"),
            Normal("Contexts expired, or memory was needed for others.");
        /// Aliases for which there was no memory and nothing idle to evict.
        Refused = alias("weir_aliases_refused_total", "contexts.aliases_refused"),
            Problem("Messages are looked up by their parts, which costs CPU: give weir more `memory`.");
    }
}

counters! {
    /// Counters of origins at a worker.
    pub enum OriginCounter {
        /// Origins that workers distinguish.
        Live = SeriesSpec::gauge("weir_origin_table_entries", "origin.table_entries", "origins"),
            Normal("It follows the containers that send; each worker counts its own.");
        /// Questions of workers for the tags of an origin.
        Asked = SeriesSpec::counter("weir_origin_questions_total", "origin.questions", "questions"),
            Normal("New containers send.");
        /// Answers that workers got.
        Answered = SeriesSpec::counter("weir_origin_answers_total", "origin.answers", "answers"),
            Normal("It follows look-ups and changes of tags.");
        /// Answers that differed from the previous one, so contexts were resolved again.
        Changed = SeriesSpec::counter("weir_origin_answers_changed_total", "origin.answers_changed", "answers"),
            Normal("Tags of containers change.");
        /// Origins refused because the table was full or they were too long: their messages count as their sender's.
        Refused = SeriesSpec::counter("weir_origins_refused_total", "origin.origins_refused", "origins"),
            Problem("Clients invent origins (`e:` tags, Local Data): switch `origin_client` off, or find them.");
    }
}
