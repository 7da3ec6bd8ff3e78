//! Validates a profile. An error has the key and the allowed values.

use super::*;

/// A larger packet size is a typo; no intake accepts it.
const PACKET_MAX: u64 = 64 << 20;
const PREBUILT_MAX: u64 = 16 << 30;

fn check(good: bool, message: impl FnOnce() -> String) -> Result<(), ProfileError> {
    if good {
        Ok(())
    } else {
        Err(ProfileError(message()))
    }
}

fn share(key: &str, value: f64) -> Result<(), ProfileError> {
    check((0.0..=1.0).contains(&value), || {
        format!("{key}: {value} is not a chance, allowed is 0 to 1")
    })
}

/// Whether the weights are valid and have a positive sum.
fn are_weights<'a>(mut weights: impl Iterator<Item = &'a f64> + Clone) -> bool {
    weights.clone().sum::<f64>() > 0.0 && weights.all(|weight| *weight >= 0.0 && weight.is_finite())
}

impl Profile {
    /// Refuses a profile that cannot be generated.
    pub fn validate(&self) -> Result<(), ProfileError> {
        self.check_contexts()?;
        self.check_chances()?;
        self.check_tag_order()?;
        self.check_lengths()?;
        self.check_words()?;
        self.check_values()?;
        self.check_shares()?;
        self.check_packet_size()?;
        self.check_bounds()?;
        self.check_throttle()?;
        self.check_churn()?;
        self.check_file()?;
        self.check_statsd()
    }

    fn check_file(&self) -> Result<(), ProfileError> {
        check((self.payload == Payload::File) == self.file.is_some(), || {
            "file: names the file of payload file, and no other payload has one".into()
        })
    }

    fn check_contexts(&self) -> Result<(), ProfileError> {
        check(self.contexts.min >= 1 && self.contexts.max <= 20_000_000, || {
            format!("contexts: {} is outside 1..20000000", self.contexts)
        })?;
        check(
            !self.first_pass_at_once
                || self.first_pass && self.mode == Mode::Composed && self.payload.is_statsd(),
            || "first_pass_at_once: needs first_pass, mode composed and payload dogstatsd or statsd".into(),
        )?;
        match &self.popularity {
            Popularity::Zipf(s) => check((0.0..=5.0).contains(s), || {
                format!("popularity: zipf {s} is outside 0..5")
            })?,
            Popularity::Weights(weights) => check(are_weights(weights.iter()), || {
                "popularity: weights must be zero or more, and one above zero".into()
            })?,
            _ => {}
        }
        Ok(())
    }

    fn check_chances(&self) -> Result<(), ProfileError> {
        for (key, value) in [
            ("flood_p", self.flood_p),
            ("unique_tag_ratio", self.unique_tag_ratio),
            ("shared_tagsets", self.shared_tagsets),
            ("multivalue_p", self.multivalue_p),
            ("sample_p", self.sample_p),
            ("value.float_p", self.value.float_p),
            ("type_conflict", self.type_conflict),
            ("cardinality_p", self.cardinality_p),
            ("malformed_p", self.malformed_p),
        ] {
            share(key, value)?;
        }
        for (key, extension) in [
            ("container_id", self.container_id),
            ("external_data", self.external_data),
        ] {
            if let Some(extension) = extension {
                share(&format!("{key}.p"), extension.p)?;
                check((1..=65_535).contains(&extension.pool), || {
                    format!("{key}.pool: {} is outside 1..65535", extension.pool)
                })?;
            }
        }
        if let Some(timestamp) = self.timestamp {
            share("timestamp.p", timestamp.p)?;
            check(timestamp.base > 0, || {
                format!(
                    "timestamp.base: {} is not above zero (seconds since 1970)",
                    timestamp.base
                )
            })?;
        }
        Ok(())
    }

    fn check_tag_order(&self) -> Result<(), ProfileError> {
        match self.tag_order {
            TagOrder::Fixed => Ok(()),
            TagOrder::Shuffled(p) => share("tag_order.shuffled", p),
            TagOrder::Dup(p) => share("tag_order.dup", p),
        }
    }

    fn check_lengths(&self) -> Result<(), ProfileError> {
        for (key, range, max) in [
            ("name_len", self.name_len, 4096),
            ("tag_key_len", self.tag_key_len, 4096),
            ("tag_value_len", self.tag_value_len, 60_000),
            ("tag_len", self.tag_len.unwrap_or(Range::just(3)), 60_000),
            ("multivalue_n", self.multivalue_n, 4096),
        ] {
            check(
                range.min >= 1 && range.max <= max && range.min <= range.max,
                || format!("{key}: {range} is outside 1..{max}"),
            )?;
        }
        match &self.tags_per_msg {
            TagCount::Range(range) => check(range.max <= 4096, || {
                format!("tags_per_msg: {range} is outside 0..4096")
            })?,
            TagCount::Histogram(weights) => check(
                weights.keys().all(|n| *n <= 4096) && are_weights(weights.values()),
                || "tags_per_msg: needs tag counts of 0 to 4096 with weights, one above zero".into(),
            )?,
        }
        Ok(())
    }

    fn check_words(&self) -> Result<(), ProfileError> {
        if let Names::List(list) = &self.names {
            check_list("names.list", list, &['|', ':', '\n'])?;
        }
        if let TagKeys::List(list) = &self.tag_keys {
            check_list("tag_keys.list", list, &['|', ',', '\n'])?;
        }
        if let TagValues::List(list) = &self.tag_values {
            check_list("tag_values.list", list, &['|', ',', '\n'])?;
        }
        Ok(())
    }

    fn check_values(&self) -> Result<(), ProfileError> {
        check(
            !self.sample_rates.is_empty() && self.sample_rates.iter().all(|n| (1..=1_000_000).contains(n)),
            || "sample_rates: a list of n of the rates 1/n, each 1 to 1000000".into(),
        )?;
        check((1..=6).contains(&self.value.decimals), || {
            format!("value.decimals: {} is outside 1..6", self.value.decimals)
        })?;
        check((1..=65_536).contains(&self.value.pool), || {
            format!("value.pool: {} is outside 1..65536", self.value.pool)
        })?;
        let values = self.value.pool as u64 * self.multivalue_n.max;
        check(self.multivalue_p == 0.0 || values <= 1 << 24, || {
            format!(
                "value.pool: {} texts of up to {} values (multivalue_n) are {values}, the most is {}",
                self.value.pool,
                self.multivalue_n.max,
                1 << 24
            )
        })?;
        match self.value.kind {
            ValueKind::Uniform { min, max } => check(min <= max, || {
                format!("value.kind: uniform {min} to {max} is an impossible range")
            })?,
            ValueKind::Lognormal { median, sigma } => check(
                median > 0.0 && median < 1e12 && (0.0..=5.0).contains(&sigma),
                || "value.kind: lognormal needs a median of 0 to 1e12 and a sigma of 0 to 5".into(),
            )?,
            ValueKind::Constant(_) | ValueKind::SmallInts => {}
            ValueKind::Sequence => check(self.multivalue_p == 0.0 && self.value.float_p == 0.0, || {
                "value.kind: sequence is one whole number per message: set multivalue_p and value.float_p to 0".into()
            })?,
        }
        check((1..=1_000_000).contains(&self.set_members), || {
            format!("set_members: {} is outside 1..1000000", self.set_members)
        })?;
        Ok(())
    }

    fn check_shares(&self) -> Result<(), ProfileError> {
        let weights = |key: &str, all: &[f64]| {
            check(are_weights(all.iter()), || {
                format!("{key}: weights must be zero or more, and one above zero")
            })
        };
        weights(
            "kinds",
            &[self.kinds.metric, self.kinds.event, self.kinds.service_check],
        )?;
        weights("types", &self.types.weights())?;
        Ok(())
    }

    fn check_packet_size(&self) -> Result<(), ProfileError> {
        match &self.packet_size {
            Some(PacketSize::OneOf(sizes)) => {
                check(!sizes.is_empty() && sizes.iter().all(|s| s.0 >= 16), || {
                    "packet_size: each size must be 16 bytes or more".into()
                })?
            }
            Some(PacketSize::Between { min, max }) => check(min.0 >= 16 && min <= max, || {
                format!("packet_size: {min} to {max} is an impossible range (16 bytes or more)")
            })?,
            Some(PacketSize::Fill(size)) => {
                check(size.0 >= 16, || format!("packet_size: {size} is below 16 bytes"))?
            }
            Some(PacketSize::Exactly { exactly }) => check(
                exactly.0 >= 64 && self.payload.is_statsd() && self.messages_per_packet.is_none(),
                || {
                    format!(
                        "packet_size: exactly {exactly} needs 64 bytes or more, payload dogstatsd or statsd, and no \
                         messages_per_packet"
                    )
                },
            )?,
            Some(PacketSize::Histogram(sizes)) => check(
                sizes.keys().all(|s| *s >= 16) && are_weights(sizes.values()),
                || "packet_size: needs sizes of 16 bytes or more with weights, one above zero".into(),
            )?,
            None => {}
        }
        Ok(())
    }

    fn check_bounds(&self) -> Result<(), ProfileError> {
        if let Some(size) = &self.packet_size {
            check(size.max() <= PACKET_MAX, || {
                format!(
                    "packet_size: {} is above {}",
                    Bytes(size.max()),
                    Bytes(PACKET_MAX)
                )
            })?;
        }
        check(self.prebuilt.0 <= PREBUILT_MAX, || {
            format!("prebuilt: {} is above {}", self.prebuilt, Bytes(PREBUILT_MAX))
        })?;
        if let Some(range) = self.messages_per_packet {
            check(range.min >= 1, || {
                "messages_per_packet: must be at least 1".into()
            })?;
        }
        check((1..=10_000).contains(&self.connections), || {
            format!("connections: {} is outside 1..10000", self.connections)
        })?;
        let window = self.window.0;
        check(
            window.subsec_nanos() == 0 && (1..=3600).contains(&window.as_secs()),
            || {
                format!(
                    "window: {} is not a whole number of seconds, 1s to 1h",
                    self.window
                )
            },
        )?;
        Ok(())
    }

    fn check_throttle(&self) -> Result<(), ProfileError> {
        match &self.throttle {
            Throttle::Burst { period, duty } => {
                share("throttle.burst.duty", *duty)?;
                check(!period.0.is_zero(), || {
                    "throttle.burst.period: must be above zero".into()
                })?;
            }
            Throttle::Linear { from, to, over } => check(from.unit == to.unit && !over.0.is_zero(), || {
                "throttle.linear: from and to need the same unit, over must be above zero".into()
            })?,
            Throttle::Step(steps) => check(
                !steps.is_empty()
                    && steps
                        .iter()
                        .all(|s| s.rate.unit == steps[0].rate.unit && !s.hold.0.is_zero()),
                || "throttle.step: needs steps of one unit, each held longer than zero".into(),
            )?,
            Throttle::Smooth | Throttle::Poisson | Throttle::LadingBurst => {}
            Throttle::AllOut | Throttle::Trace(_) => {}
        }
        Ok(())
    }

    fn check_churn(&self) -> Result<(), ProfileError> {
        if self.churn != Churn::None {
            check(self.rate.is_some(), || {
                "churn: is measured in the schedule's time, so the profile needs a rate".into()
            })?;
        }
        match &self.churn {
            Churn::None => {}
            Churn::Trickle { per_second, group } => {
                check(*per_second > 0.0 && *per_second <= 1.0, || {
                    format!("churn.trickle.per_second: {per_second} is outside 0..1")
                })?;
                check(*group >= 1, || "churn.trickle.group: at least 1".into())?;
            }
            Churn::Deploy {
                share: part,
                within,
                every,
                group,
            } => {
                share("churn.deploy.share", *part)?;
                check(!within.0.is_zero() && within.0 <= every.0, || {
                    "churn.deploy: within must be above zero and no longer than every".into()
                })?;
                check(*group >= 1, || "churn.deploy.group: at least 1".into())?;
            }
        }
        Ok(())
    }

    fn check_statsd(&self) -> Result<(), ProfileError> {
        if self.payload == Payload::Statsd {
            check(
                self.types.distribution == 0.0
                    && self.types.histogram == 0.0
                    && self.kinds.event == 0.0
                    && self.kinds.service_check == 0.0
                    && self.multivalue_p == 0.0
                    && self.flood_p == 0.0
                    && self.churn == Churn::None,
                || {
                    "payload statsd: knows counters, gauges, timers and sets, one value each, without tags: \
                     set types.distribution, types.histogram, kinds.event, kinds.service_check, multivalue_p, \
                     flood_p and churn to nothing"
                        .into()
                },
            )?;
        }
        Ok(())
    }
}

fn check_list(key: &str, list: &[String], bad: &[char]) -> Result<(), ProfileError> {
    check(!list.is_empty(), || format!("{key}: is empty"))?;
    for text in list {
        check(!text.is_empty() && !text.contains(bad), || {
            format!("{key}: {text:?} must not be empty or contain any of {bad:?}")
        })?;
    }
    Ok(())
}
