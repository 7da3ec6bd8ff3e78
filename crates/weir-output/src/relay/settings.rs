//! Settings of the StatsD relay.

use std::time::Duration;

use weir_config::{PathUse, SettingProblem, SettingType, choices, settings};
use weir_units::Address;

use crate::settings::{OutputSettings, OutputType};

settings! {
    /// Destination and transport of lines.
    pub struct RelaySettings {
        targets: Vec<String> = "[]"
            .takes(SettingType::List(&ADDRESS))
            .path(PathUse::Connect)
            .effect("The targets of lines. With several, a series (name and tags) always goes to the same one, chosen by a hash that every agent shares.")
            .change("to relay.")
            .required()
            // With the port from the variable beside it.
            .also(&["DD_STATSD_FORWARD_HOST"]);
        prefixes: Vec<String> = "[]"
            .effect("Relays only metrics and checks whose name, as received, begins with one of these.")
            .zero("Empty: everything, events included.")
            .change("to send a part of your metrics elsewhere.");
        only: bool = "false"
            .effect("Only relays: nothing is aggregated, and other outputs get no data.")
            .change("if your agent only distributes.");
        linger: Duration = "100ms"
            .takes(SettingType::Duration { min: MILLISECOND, max: Duration::from_secs(10) })
            .effect("The longest time that a line waits for others to share its packet.")
            .change("if you need less delay.");
        udp_bytes_max: usize = "1432"
            .takes(SettingType::Integer { min: 64, max: 65_507 })
            .effect("The maximum bytes in a datagram over UDP; a longer line is dropped and counted.")
            .change("if your network has larger packets, or your targets are on this machine.");
        uds_bytes_max: usize = "8192"
            .takes(SettingType::Integer { min: 64, max: 65_536 })
            .effect("The maximum bytes in a datagram to a Unix socket, and in a frame of a stream.")
            .change("if your targets have a lower limit.");
        tcp_framing: StreamFraming = "length"
            .effect("The framing of packets on TCP: each after its length in four bytes, the lowest first, as weir and DogStatsD's streams expect (`length`), or as lines (`newline`).")
            .change("if your targets are other StatsD servers (`newline`).");
        timeout: Duration = "5s"
            .takes(SettingType::Duration { min: MILLISECOND, max: Duration::from_secs(3600) })
            .effect("A target that accepts no data for this long has failed.")
            .change("if your targets sometimes stop answering for longer, or another target should take over sooner.");
        eject_after: u32 = "3"
            .takes(SettingType::Integer { min: 0, max: 1000 })
            .effect("After this many failures of a target in a row, the other targets get its lines, including waiting ones.")
            .zero("0: never; they wait for it.")
            .change("if you would rather lose lines than see a series at another target.");
        check_interval: Duration = "5s"
            .takes(SettingType::Duration { min: MILLISECOND, max: Duration::from_secs(3600) })
            .effect("The interval between checks of a failed target.")
            .change("if your targets restart often: lines wait until a check succeeds.");
        readmit_after: u32 = "2"
            .takes(SettingType::Integer { min: 1, max: 1000 })
            .effect("After this many successful checks in a row, an ejected target gets its lines again.")
            .change("if your targets come and go.");
    }
}

choices! {
    pub enum StreamFraming {
        Length: "length",
        Newline: "newline",
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);

const ADDRESS: SettingType = SettingType::Checked {
    allowed: "an address such as udp://host:port, tcp://host:port, unixgram:///path or unix:///path",
    check: is_address,
};

pub(crate) const TYPE: OutputType = OutputType {
    name: "relay",
    summary: "Forwards messages unchanged to one or several StatsD servers over UDP, TCP or Unix sockets.",
    on_by_default: false,
    settings: RelaySettings::SETTINGS,
    removed: &[],
    read: |output| output.read(|_, _| {}, check).map(OutputSettings::Relay),
};

fn is_address(text: &str) -> bool {
    match text.parse() {
        Ok(Address::Udp { port, .. } | Address::Tcp { port, .. }) => port > 0,
        parsed => parsed.is_ok(),
    }
}

fn check(settings: &RelaySettings) -> Result<(), SettingProblem> {
    for (at, target) in settings.targets.iter().enumerate() {
        if settings.targets[..at].contains(target) {
            return Err(SettingProblem::new(
                "targets",
                format!("{target} is listed twice"),
            ));
        }
    }
    if settings.targets.len() > TARGETS_MAX {
        return Err(SettingProblem::new(
            "targets",
            format!("at most {TARGETS_MAX} are allowed"),
        ));
    }
    Ok(())
}

/// More would get shares that differ much, and buffers of their own.
const TARGETS_MAX: usize = 256;

impl RelaySettings {
    /// The longest line a target takes, with its line feed. Zero for an invalid address.
    pub fn packet_bytes_max(&self, target: &str) -> usize {
        match target.parse() {
            Ok(Address::Udp { .. }) => self.udp_bytes_max,
            Ok(_) => self.uds_bytes_max,
            Err(_) => 0,
        }
    }
}
