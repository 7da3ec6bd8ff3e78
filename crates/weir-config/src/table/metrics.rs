//! Settings of metrics: buckets, names, tags and rules.

use std::time::Duration;

use crate::setting::{DURATION_MAX, Reload, SettingType};
use crate::types::{HistogramAggregate, HistogramWeights, Percentile};
use crate::{rules, settings};

const SECOND: Duration = Duration::from_secs(1);

settings! {
    /// Samples into buckets.
    pub struct Aggregation {
        bucket_width: Duration = "10s"
            .takes(SettingType::Duration { min: SECOND, max: Duration::from_secs(3600) })
            .effect("Width of a bucket in whole seconds; a bucket is flushed when it closes.")
            .change("to see changes sooner, at the cost of more points.")
            .common();
        counter_expiry: Duration = "300s"
            .takes(SettingType::Duration { min: Duration::ZERO, max: DURATION_MAX })
            .effect("A counter without samples sends zeros for this long.")
            .zero("0: no zeros.")
            .change("if your alerts distinguish zero from no data.")
            .also(&["DD_DOGSTATSD_EXPIRY_SECONDS"]);
        context_expiry: Duration = "20s"
            .takes(SettingType::Duration { min: SECOND, max: DURATION_MAX })
            .effect("A context without samples for this long is removed (a counter's: also after `counter_expiry`). This affects only memory.")
            .change("if your series are sent about once a minute: their contexts then stay in memory.")
            .also(&["DD_DOGSTATSD_CONTEXT_EXPIRY_SECONDS"]);
        histogram_aggregates: Vec<HistogramAggregate> = "[max, median, avg, count]"
            .effect("Series made of each histogram and timing.")
            .zero("An empty list: none of them.")
            .change("if you use other aggregates.")
            .also(&["DD_HISTOGRAM_AGGREGATES"]);
        histogram_percentiles: Vec<Percentile> = "['0.95']"
            .effect("Percentiles made of each histogram and timing, rounded to whole percents.")
            .zero("An empty list: none.")
            .change("if you use other percentiles.")
            .also(&["DD_HISTOGRAM_PERCENTILES"]);
        histogram_weights: HistogramWeights = "exact"
            .effect("The count of a sampled histogram or timing: `exact` keeps fractions, `agent` truncates them like the Datadog Agent.")
            .change("if you compare the numbers of both agents.");
        histogram_copy_to_distribution: bool = "false"
            .effect("Every sample of a histogram or timing also goes into a distribution.")
            .change("if you move from histograms to distributions.")
            .also(&["DD_HISTOGRAM_COPY_TO_DISTRIBUTION"]);
        histogram_copy_to_distribution_prefix: String = "''"
            .effect("A prefix for the name of that distribution, without a dot in between.")
            .zero("Empty: the distribution has the histogram's name.")
            .change("if you move from histograms to distributions.")
            .also(&["DD_HISTOGRAM_COPY_TO_DISTRIBUTION_PREFIX"]);
        timestamps: bool = "true"
            .effect("Counters and gauges that carry a timestamp keep it and skip aggregation; off, the timestamp is ignored.")
            .change("if your clients send wrong timestamps.")
            .also(&["DD_DOGSTATSD_NO_AGGREGATION_PIPELINE"]);
        statsd_gauge_deltas: bool = "false"
            .effect("A gauge with a sign changes the last value instead of replacing it, as in etsy's StatsD.")
            .change("if you migrate from a StatsD that does this.");
        statsd_gauge_delta_expiry: Duration = "0s"
            .takes(SettingType::Duration { min: Duration::ZERO, max: DURATION_MAX })
            .effect("A gauge without a sample for longer than this is zero to a sign, as in statsd_exporter after its `ttl`. A mapping's `delta_expiry` replaces it.")
            .zero("0: its value is kept for `context_expiry`.")
            .change("if you migrate from a StatsD that forgets idle gauges.");
        statsd_sample_lists: bool = "false"
            .effect("A line may have several samples after one name, as in `a:1|c:2|c` or `a:320|ms:200|ms|@0.1`: each counts as a message of its own, and tags at the end are for all. The Datadog Agent refuses such lines.")
            .change("if you migrate from statsd_exporter, Telegraf or etsy's StatsD.");
        flush_open_buckets: bool = "true"
            .effect("Send the buckets that are still open at shutdown; off, they are dropped and counted.")
            .change("if you would rather lose a bucket than send part of one.")
            .also(&["DD_DOGSTATSD_FLUSH_INCOMPLETE_BUCKETS"]);
    }
}

settings! {
    /// Names of metrics, and additions to them.
    pub struct Names {
        hostname: String = "''"
            .effect("The host of messages that do not name one.")
            .zero("Empty: the system's host name.")
            .change("in containers, whose host name has no meaning.")
            .also(&["DD_HOSTNAME"])
            .common();
        tags: Vec<String> = "[]"
            .effect("Tags for every metric, event and service check.")
            .zero("An empty list: none.")
            .change("if you distinguish environments.")
            .also(&["DD_TAGS"])
            .common()
            .on_reload(Reload::Applied);
        extra_tags: Vec<String> = "[]"
            .effect("More tags like `tags`, so that two sources of settings can each add some.")
            .zero("An empty list: none.")
            .change("if you distinguish environments.")
            .also(&["DD_DOGSTATSD_TAGS", "DD_EXTRA_TAGS"])
            .on_reload(Reload::Applied);
        env: String = "''"
            .effect("The environment this agent runs in: adds the tag `env:...` to every metric, event and service check.")
            .zero("Empty: no such tag.")
            .change("if you distinguish environments, or your Datadog Agent has it.")
            .also(&["DD_ENV"])
            .on_reload(Reload::Applied);
        namespace: String = "''"
            .effect("A prefix for every metric name, with a dot in between.")
            .zero("Empty: names stay as they are.")
            .change("if you share a backend.")
            .also(&["DD_STATSD_METRIC_NAMESPACE"])
            .on_reload(Reload::Applied);
        namespace_blocklist: Vec<String> = "[datadog.agent, datadog.dogstatsd, datadog.process, datadog.trace_agent, datadog.tracer, activemq, activemq_58, airflow, cassandra, confluent, hazelcast, hive, ignite, jboss, jvm, kafka, presto, sidekiq, solr, tomcat, runtime]"
            .effect("Names that start with one of these get no namespace.")
            .zero("An empty list: every name gets it.")
            .change("to put a namespace before every name.")
            .also(&["DD_STATSD_METRIC_NAMESPACE_BLOCKLIST", "DD_STATSD_METRIC_NAMESPACE_BLACKLIST"])
            .on_reload(Reload::Applied);
        metric_filterlist: Vec<String> = "[]"
            .effect("Metrics with these names, namespace included, are dropped and counted. A histogram's series are filtered by their own names too.")
            .zero("An empty list: nothing is dropped.")
            .change("if you pay for unused metrics.")
            .also(&["DD_METRIC_FILTERLIST", "DD_STATSD_METRIC_BLOCKLIST"])
            .on_reload(Reload::Applied);
        metric_filterlist_match_prefix: bool = "false"
            .effect("The names of `metric_filterlist` are prefixes.")
            .change("to filter whole families.")
            .also(&["DD_METRIC_FILTERLIST_MATCH_PREFIX", "DD_STATSD_METRIC_BLOCKLIST_MATCH_PREFIX"])
            .on_reload(Reload::Applied);
        max_tag_length: Option<usize> = "0"
            .takes(SettingType::Integer { min: 0, max: 65_536 })
            .effect("Tags are cut to this many bytes, at the end of a character.")
            .zero("0: tags stay as they are.")
            .change("if your backend refuses long tags.")
            .on_reload(Reload::Applied);
    }
}

settings! {
    /// Effects of rules on names and tags.
    pub struct Rules {
        tag_styles: Vec<rules::TagStyle> = "[]"
            .effect("Styles of tags in names, besides tags after the type: `librato` for `name#a=b,c=d`, `influx` for `name,a=b,c=d`, `signalfx` for `name[a=b,c=d]`. weir takes them out of the name first. A tag without a value is dropped, and so is one without a key. With `hashes` a tag after the type may have its own `#` (`|#a:1,#b:2`), and blank tags are dropped.")
            .zero("An empty list: such text stays part of the name.")
            .change("if you migrate from statsd_exporter or Telegraf.")
            .on_reload(Reload::Applied);
        mapper_profiles: Vec<rules::Profile> = "[]"
            .effect("New names and tags for metrics, by their received name. `docs/rules.md` has every field.")
            .zero("An empty list: names stay as they are.")
            .change("if your names contain values that should be tags.")
            .also(&["DD_DOGSTATSD_MAPPER_PROFILES"])
            .on_reload(Reload::Applied);
        metric_tag_filterlist: Vec<rules::TagFilter> = "[]"
            .effect("Metric names, each with tag keys to remove (`exclude`) or to keep (`include`); series that become equal are aggregated as one.")
            .zero("An empty list: tags stay as they are.")
            .change("if you pay for unused tags.")
            .also(&["DD_METRIC_TAG_FILTERLIST"])
            .on_reload(Reload::Applied);
        rules: Vec<rules::Rule> = "[]"
            .effect("Drops, tag filters, actions on tag values, hosts, tags and histogram series for metrics by their final name, in this order. `docs/rules.md` has every field.")
            .zero("An empty list: no rules.")
            .change("if you pay per series, or must not forward some values.")
            .on_reload(Reload::Applied);
    }
}
