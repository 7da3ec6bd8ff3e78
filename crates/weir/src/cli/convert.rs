//! `weir convert`: converts another program's configuration.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};

use weir_config::node::FILE_BYTES_MAX;
use weir_convert::{ConvertError, Converted};
use weir_system::failure::Failure;

type Conversion = Box<dyn Fn(&str) -> Result<Converted, ConvertError>>;

pub fn command() -> Command {
    let file = || {
        Arg::new("file")
            .value_name("FILE")
            .required(true)
            .value_parser(value_parser!(PathBuf))
            .help("The file to read")
    };
    Command::new("convert")
        .about("Print another program's configuration as weir's, and list what was not converted")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("statsd-exporter")
                .about("The mapping file of Prometheus' statsd_exporter, and its flags")
                .arg(file())
                .arg(
                    Arg::new("flags")
                        .value_name("FLAG")
                        .num_args(0..)
                        .last(true)
                        .help("Its flags, after --, such as --statsd.listen-udp=:9125"),
                ),
        )
        .subcommand(
            Command::new("datadog")
                .about("The DogStatsD settings of a datadog.yaml")
                .arg(file()),
        )
        .subcommand(
            Command::new("telegraf")
                .about("The statsd inputs of a telegraf.conf")
                .arg(file()),
        )
        .subcommand(
            Command::new("gostatsd")
                .about("The configuration of gostatsd")
                .arg(file()),
        )
}

pub fn convert(arguments: &ArgMatches) -> Result<(), Failure> {
    let (convert, arguments): (Conversion, _) = match arguments.subcommand() {
        Some(("statsd-exporter", arguments)) => {
            let flags: Vec<String> = arguments
                .get_many("flags")
                .map_or_else(Vec::new, |flags| flags.cloned().collect());
            (
                Box::new(move |text: &str| weir_convert::statsd_exporter(text, &flags)),
                arguments,
            )
        }
        Some(("telegraf", arguments)) => (
            Box::new(|text: &str| weir_convert::telegraf(text, &|name: &str| std::env::var(name).ok())),
            arguments,
        ),
        Some(("gostatsd", arguments)) => (Box::new(weir_convert::gostatsd), arguments),
        Some(("datadog", arguments)) => (Box::new(weir_convert::datadog), arguments),
        _ => return Err(Failure::usage("nothing to convert given; try --help")),
    };
    let path = arguments.get_one::<PathBuf>("file").expect("clap requires it");
    let shown = path.display();
    let failed = |error: &dyn std::fmt::Display| Failure::usage(format!("{shown}: cannot be read: {error}"));
    let size = std::fs::metadata(path).map_err(|error| failed(&error))?.len();
    if size > FILE_BYTES_MAX as u64 {
        return Err(failed(&format!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let converted = convert(&text)
        .map_err(|ConvertError { line, message }| Failure::usage(format!("{shown}:{line}: {message}")))?;
    for (consequence, left) in weir_convert::by_consequence(&converted.left) {
        eprintln!("{}:", consequence.heading());
        for left in left {
            eprintln!("{shown}:{}: not converted: {}", left.line, left.message);
        }
    }
    super::print(&converted.yaml)?;
    if !converted.remark.is_empty() {
        eprint!("admin: {}", converted.remark);
    }
    Ok(())
}
