//! The flags of statsd_exporter.

use std::fmt::Write as _;

use weir_config::show_text;

use crate::{Consequence, Unconverted, address, did_you_mean};

/// Settings that follow from flags.
#[derive(Debug)]
pub struct Flags {
    /// Key and value, in the order of the command line.
    settings: Vec<(&'static str, String)>,
    librato: bool,
    influx: bool,
    signalfx: bool,
    relay: Vec<(&'static str, String)>,
}

/// Flags that weir does not need, and why.
const NOT_NEEDED: &[(&str, &str)] = &[
    (
        "statsd.cache-size",
        "rules cost known contexts nothing, so there is no cache to size",
    ),
    (
        "statsd.cache-type",
        "rules cost known contexts nothing, so there is no cache to size",
    ),
    ("statsd.event-queue-size", "there is one memory budget, `memory`"),
    (
        "statsd.event-flush-threshold",
        "messages are taken in batches, and none waits for others",
    ),
    (
        "statsd.event-flush-interval",
        "messages are taken in batches, and none waits for others",
    ),
    (
        "statsd.udp-packet-queue-size",
        "there is one memory budget, `memory`; receive_buffer is the kernel's queue",
    ),
    (
        "web.enable-lifecycle",
        "POST /api/v1/reload of the admin address and SIGHUP reload",
    ),
    (
        "web.config.file",
        "the admin address takes no TLS; put a proxy in front of it",
    ),
    ("web.systemd-socket", "the admin address is a setting, `admin`"),
    (
        "debug.dump-fsm",
        "`weir explain` shows which mapping applies to a message",
    ),
    ("check-config", "`weir check` validates a configuration"),
    ("log.format", "the log has one format"),
    ("statsd.mapping-config", "is the file that is converted"),
];

/// Flags with a counterpart.
const KNOWN: &[&str] = &[
    "statsd.listen-udp",
    "statsd.listen-tcp",
    "statsd.listen-unixgram",
    "statsd.unixsocket-mode",
    "statsd.read-buffer",
    "web.listen-address",
    "web.telemetry-path",
    "statsd.parse-librato-tags",
    "statsd.parse-influxdb-tags",
    "statsd.parse-signalfx-tags",
    "statsd.parse-dogstatsd-tags",
    "statsd.relay.address",
    "statsd.relay.packet-length",
    "log.level",
];

impl Flags {
    /// Flags without a counterpart are reported.
    pub fn read(arguments: &[String], left: &mut Vec<Unconverted>) -> Flags {
        let mut flags = Flags {
            settings: Vec::new(),
            librato: true,
            influx: true,
            signalfx: true,
            relay: Vec::new(),
        };
        if !arguments.is_empty() {
            // statsd_exporter's default addresses.
            flags.settings = vec![
                ("udp", address(":9125")),
                ("tcp", address(":9125")),
                ("tcp_framing", "newline".to_owned()),
                ("admin", address(":9102")),
            ];
        }
        let mut arguments = arguments.iter().map(String::as_str).peekable();
        while let Some(argument) = arguments.next() {
            let name = argument.trim_start_matches('-');
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, value),
                None if is_switch(name) => (name, ""),
                None => (
                    name,
                    arguments.next_if(|next| !next.starts_with("--")).unwrap_or(""),
                ),
            };
            if let Err((consequence, message)) = flags.take(name, value) {
                left.push(Unconverted::new(consequence, 0, format!("--{name}: {message}")));
            }
        }
        flags
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), (Consequence, String)> {
        let changes = |message: &str| Err((Consequence::ChangesData, message.to_owned()));
        let is_on = !name.starts_with("no-") && value != "false";
        match name.trim_start_matches("no-") {
            "statsd.listen-udp" => self.set("udp", address(value)),
            "statsd.listen-tcp" => self.set("tcp", address(value)),
            "statsd.listen-unixgram" => self.set("uds", value.to_owned()),
            "statsd.unixsocket-mode" => self.set("socket_mode", format!("0{value}")),
            "statsd.read-buffer" => self.set("receive_buffer", value.to_owned()),
            "web.listen-address" => self.set("admin", address(value)),
            "web.telemetry-path" if value == "/metrics" => {}
            "web.telemetry-path" => return changes("the path is /metrics"),
            "statsd.parse-librato-tags" => self.librato = is_on,
            "statsd.parse-influxdb-tags" => self.influx = is_on,
            "statsd.parse-signalfx-tags" => self.signalfx = is_on,
            "statsd.parse-dogstatsd-tags" if is_on => {}
            "statsd.parse-dogstatsd-tags" => {
                return changes("tags behind the type are always read; rules remove them");
            }
            "statsd.relay.address" => self.relay.push(("targets", format!("['udp://{value}']"))),
            "statsd.relay.packet-length" => self.relay.push(("udp_bytes_max", value.to_owned())),
            "log.level" => self.set("log_level", value.to_owned()),
            other => {
                if let Some((_, why)) = NOT_NEEDED.iter().find(|(name, _)| *name == other) {
                    return Err((Consequence::NoEffect, (*why).to_owned()));
                }
                let hint = did_you_mean(
                    other,
                    KNOWN
                        .iter()
                        .chain(NOT_NEEDED.iter().map(|(name, _)| name))
                        .copied(),
                );
                return changes(&hint.unwrap_or("is not known".to_owned()));
            }
        }
        Ok(())
    }

    fn set(&mut self, key: &'static str, value: String) {
        self.settings.retain(|(other, _)| *other != key);
        self.settings.push((key, value));
    }

    /// Settings for reading messages. If flags name listeners, they apply to these alone: one that is added later, for clients of another
    /// kind, uses weir's defaults.
    pub fn write_reading(&self, out: &mut String) {
        let styles = self.tag_styles().join(", ");
        if self.settings.is_empty() {
            let _ = writeln!(
                out,
                "tag_styles: [{styles}]\nstatsd_gauge_deltas: true\nstatsd_sample_lists: true"
            );
            return;
        }
        let listeners = self
            .settings
            .iter()
            .filter_map(|(key, value)| listener(key, value));
        for (at, listener) in listeners.enumerate() {
            if at == 0 {
                out.push_str("per_listener:\n");
            }
            let _ = writeln!(
                out,
                "- listener: {}\n  gauge_deltas: true\n  sample_lists: true\n  tag_styles: [{styles}]",
                show_text(&listener)
            );
        }
    }

    fn tag_styles(&self) -> Vec<&'static str> {
        let styles = [
            (self.librato, "librato"),
            (self.influx, "influx"),
            (self.signalfx, "signalfx"),
        ];
        let on = styles.iter().filter(|(is_on, _)| *is_on);
        // That program takes the `#` of a tag behind the type away.
        on.map(|(_, style)| *style).chain(["hashes"]).collect()
    }

    pub fn write(&self, out: &mut String) {
        for (key, value) in &self.settings {
            let _ = match *key {
                "udp" | "tcp" | "uds" if value.is_empty() => writeln!(out, "{key}: []"),
                "udp" | "tcp" | "uds" => writeln!(out, "{key}: [{}]", show_text(value)),
                _ => writeln!(out, "{key}: {}", show_text(value)),
            };
        }
    }

    pub fn write_relay(&self, out: &mut String) {
        if self.relay.iter().any(|(key, _)| *key == "targets") {
            out.push_str("  relay:\n");
            for (key, value) in &self.relay {
                let _ = writeln!(out, "    {key}: {value}");
            }
        }
    }
}

/// The listener of a setting.
fn listener(key: &str, value: &str) -> Option<String> {
    match key {
        _ if value.is_empty() => None,
        "udp" | "tcp" => Some(format!("{key}://{value}")),
        "uds" => Some(format!("unixgram://{value}")),
        _ => None,
    }
}

/// Whether a flag takes no value.
fn is_switch(name: &str) -> bool {
    name.starts_with("no-")
        || name.starts_with("statsd.parse-")
        || matches!(
            name,
            "web.enable-lifecycle" | "check-config" | "web.systemd-socket"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> (String, Vec<Unconverted>) {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let mut left = Vec::new();
        let flags = Flags::read(&arguments, &mut left);
        let mut out = String::new();
        flags.write(&mut out);
        flags.write_relay(&mut out);
        flags.write_reading(&mut out);
        (out, left)
    }

    #[test]
    fn flags_become_settings() {
        let (out, left) = read(&[
            "--statsd.listen-udp=:8125",
            "--statsd.listen-tcp",
            "",
            "--no-statsd.parse-influxdb-tags",
            "--statsd.relay.address",
            "old.example:8125",
            "--statsd.relay.packet-length=1000",
            "--statsd.unixsocket-mode=755",
        ]);
        assert_eq!(left, []);
        for part in [
            "udp: ['*:8125']\n",
            "tcp: []\n",
            "admin: '*:9102'\n",
            "socket_mode: 0755\n",
            "targets: ['udp://old.example:8125']\n    udp_bytes_max: 1000\n",
            "per_listener:\n- listener: udp://*:8125\n  gauge_deltas: true\n  sample_lists: true\n  tag_styles: [librato, signalfx, hashes]\n",
        ] {
            assert!(out.contains(part), "{part}: {out}");
        }
        assert_eq!(out.matches("- listener:").count(), 1, "{out}");
        let (out, _) = read(&[
            "--statsd.listen-udp=localhost:1",
            "--statsd.listen-unixgram=/run/x",
        ]);
        for listener in ["udp://localhost:1", "tcp://*:9125", "unixgram:///run/x"] {
            assert!(
                out.contains(&format!("- listener: {listener}\n")),
                "{listener}: {out}"
            );
        }
        assert_eq!(
            read(&[]).0,
            "tag_styles: [librato, influx, signalfx, hashes]\nstatsd_gauge_deltas: true\nstatsd_sample_lists: true\n"
        );
        let (_, left) = read(&[
            "--statsd.cache-size=3",
            "--statsd.listen-upd=:1",
            "--web.telemetry-path=/x",
        ]);
        let consequences: Vec<Consequence> = left.iter().map(|left| left.consequence).collect();
        assert_eq!(
            consequences,
            [
                Consequence::NoEffect,
                Consequence::ChangesData,
                Consequence::ChangesData
            ]
        );
        assert!(
            left[1].message.ends_with("did you mean statsd.listen-udp?"),
            "{left:?}"
        );
    }
}
