//! `weir parse`: how weir reads one packet.

use std::io::Read as _;

use clap::{Arg, ArgMatches, Command};
use weir_protocol::ParseOptions;

use weir_system::failure::Failure;

/// Larger than any packet; guards against a wrong file.
const PACKET_BYTES_MAX: u64 = 16 << 20;

pub fn command() -> Command {
    let switch = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .default_value(default)
            .value_name("BOOL")
            .value_parser(clap::value_parser!(bool))
            .help(help)
    };
    Command::new("parse")
        .about("Parse one packet and print the meaning of each line as a JSON array")
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .default_value("-")
                .help("The packet; - reads standard input"),
        )
        .arg(switch(
            "origin-client",
            "true",
            "Read the origin fields c:, e: and card:",
        ))
        .arg(switch("timestamps", "true", "Read timestamps"))
        .arg(switch(
            "eol-required",
            "false",
            "Refuse a last line without a newline",
        ))
}

pub fn parse(arguments: &ArgMatches) -> Result<(), Failure> {
    super::print(&parsed(arguments)?)
}

fn parsed(arguments: &ArgMatches) -> Result<String, Failure> {
    let file = arguments.get_one::<String>("file").map_or("-", String::as_str);
    let mut packet = Vec::new();
    let read = if file == "-" {
        std::io::stdin()
            .lock()
            .take(PACKET_BYTES_MAX + 1)
            .read_to_end(&mut packet)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(PACKET_BYTES_MAX + 1).read_to_end(&mut packet))
    };
    read.map_err(|error| Failure::runtime(format!("{file} cannot be read: {error}")))?;
    if packet.len() as u64 > PACKET_BYTES_MAX {
        return Err(Failure::runtime(format!(
            "{file} is longer than any packet ({PACKET_BYTES_MAX} bytes)"
        )));
    }
    let on = |name| *arguments.get_one::<bool>(name).unwrap_or(&false);
    let options = ParseOptions {
        origin_client: on("origin-client"),
        timestamps: on("timestamps"),
        eol_required: on("eol-required"),
    };
    Ok(format!(
        "{}\n",
        weir_protocol::json::packet_to_json(&packet, &options)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_decide_how_a_line_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a:1|c|T5|c:ci-x\nb\nc:1|c").unwrap();
        let read = |switches: &[&str]| -> serde_json::Value {
            let arguments = [&["parse", file.path().to_str().unwrap()], switches].concat();
            let arguments = command().try_get_matches_from(arguments).unwrap();
            serde_json::from_str(&parsed(&arguments).unwrap()).unwrap()
        };
        let lines = read(&[]);
        assert_eq!(lines[0]["ts"], 5);
        assert_eq!(lines[0]["local"]["container_id"], "x");
        assert_eq!(lines[1]["error"], "no_separator");
        assert!(lines[2].get("error").is_none(), "{lines}");
        let lines = read(&["--timestamps=false", "--origin-client=false", "--eol-required"]);
        assert!(
            lines[0].get("ts").is_none() && lines[0].get("local").is_none(),
            "{lines}"
        );
        assert_eq!(lines[2]["error"], "unterminated");
    }
}
