//! Calibrates profiles without the rest of the rig: `cargo run --release -p weir-load --example calibrate budget-1k ...`

use std::time::Duration;
use weir_load::{calibrate::calibrate, profiles, source::Load};

fn main() {
    for name in std::env::args().skip(1) {
        let profile = profiles::named(&name).expect("a named profile");
        let load = Load::prepare(&name, &profile, profile.transport, profile.seed).expect("valid");
        let folder = std::env::temp_dir();
        match calibrate(&load, &folder, Duration::from_secs(2), Some((0, 1)), false) {
            Ok((result, report)) => println!(
                "{name}: {:.3} GB/s, {:.0} packets/s, {:.2} M messages/s; compose {:.1} ns/message; \
                 own CPU {:.0} ns/packet ({:.3} s user, {:.3} s system, {:.3} s waiting for the core), blocked {:.0} %, received {:.4}",
                result.bytes_per_s / 1e9,
                result.packets_per_s,
                result.messages_per_s / 1e6,
                result.compose_ns_per_message,
                result.cpu_ns_per_packet,
                report.cpu_user.as_secs_f64(),
                report.cpu_system.as_secs_f64(),
                report.run_delay.as_secs_f64(),
                result.blocked_share * 100.0,
                result.received_share
            ),
            Err(error) => println!("{name}: {error}"),
        }
    }
}
