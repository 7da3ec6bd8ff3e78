//! Flags that several verbs share, and the preparation of a load.

use crate::failure::Failure;
use std::path::Path;
use std::time::Duration;
use weir_load::profile::{Payload, Profile, Throttle, Transport};
use weir_load::profiles;
use weir_load::run::{Framing, RunError};
use weir_load::source::Load;
use weir_load::target::Target;
use weir_load::units::{Rate, Span, parse_seed};
use weir_rig_base::signal;
use weir_units::parse_duration;

/// The profile, and the changes to it.
#[derive(clap::Args, Clone)]
pub struct ProfileArgs {
    /// Name of a profile (see `load profiles`) or path of a YAML file.
    #[arg(value_name = "PROFILE", required_unless_present_any = ["profile", "file"])]
    pub name: Option<String>,
    /// The same as a flag.
    #[arg(long, short, conflicts_with = "name")]
    pub profile: Option<String>,
    /// Send this file instead of a profile: lines of text, a pcap file or agent capture with UDP packets, or to http:// requests
    /// separated by lines of `###`. After its end it starts again.
    #[arg(long, conflicts_with_all = ["name", "profile"])]
    pub file: Option<String>,
    /// Same profile and seed: same bytes on every machine. A number, or 32 bytes in hexadecimal.
    #[arg(long, value_parser = parse_seed)]
    pub seed: Option<u64>,
    /// Rate instead of the profile's: `8 MiB/s`, `100k msg/s`, `20k packets/s`.
    #[arg(long, value_parser = |text: &str| text.parse::<Rate>())]
    pub rate: Option<Rate>,
    /// Send as fast as the target accepts, not at the profile's rate.
    #[arg(long, conflicts_with = "rate")]
    pub all_out: bool,
    /// Connections instead of the profile's.
    #[arg(long)]
    pub connections: Option<u32>,
    /// Time that a client aggregates before it sends columns, instead of the profile's: whole seconds, the agent's bucket.
    #[arg(long, value_parser = parse_duration)]
    pub window: Option<Duration>,
}

impl ProfileArgs {
    /// The profile with the flags applied, and its name.
    pub fn profile(&self) -> Result<(String, Profile), Failure> {
        let name = self
            .profile
            .as_ref()
            .or(self.name.as_ref())
            .or(self.file.as_ref());
        let name = name.expect("clap asks for one");
        let path = Path::new(name);
        let mut profile = if self.file.is_some() {
            Profile {
                payload: Payload::File,
                file: Some(name.clone()),
                ..Profile::default()
            }
        } else if let Some(profile) = profiles::named(name) {
            profile
        } else if path.exists() {
            Profile::from_file(path).map_err(Failure::usage)?
        } else {
            let hint = match profiles::suggest(name) {
                Some(known) => format!("did you mean {known:?}?"),
                None => "`weir-bench load profiles` lists them".into(),
            };
            return Err(Failure::Usage(format!(
                "profile {name:?}: neither a named profile nor a file; {hint}"
            )));
        };
        if let Some(rate) = self.rate {
            profile.rate = Some(rate);
            // A rate on the command line replaces shapes with their own rates.
            if matches!(
                profile.throttle,
                Throttle::AllOut | Throttle::Linear { .. } | Throttle::Step(_) | Throttle::Trace(_)
            ) {
                profile.throttle = Throttle::Smooth;
            }
        }
        if self.all_out {
            profile.throttle = Throttle::AllOut;
        }
        if let Some(connections) = self.connections {
            profile.connections = connections;
        }
        if let Some(window) = self.window {
            profile.window = Span(window);
        }
        profile.validate().map_err(Failure::usage)?;
        Ok((name.clone(), profile))
    }

    /// The load on a target.
    pub fn load_on(&self, target: &Target) -> Result<Load, Failure> {
        let (name, profile) = self.profile()?;
        target
            .takes(profile.payload)
            .map_err(|error| Failure::Usage(format!("{name}: {error}")))?;
        self.load(Some(target.transport()))
    }

    /// The load on a transport; the profile's own if none is given.
    pub fn load(&self, transport: Option<Transport>) -> Result<Load, Failure> {
        let (name, profile) = self.profile()?;
        let transport = transport.unwrap_or(profile.transport);
        let seed = self.seed.unwrap_or(profile.seed);
        Load::prepare(&name, &profile, transport, seed).map_err(|error| match self.file {
            // The error names it.
            Some(_) => Failure::usage(error),
            None => Failure::Usage(format!("{name}: {error}")),
        })
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        match error {
            RunError::Usage(text) => Failure::Usage(text),
            RunError::Target(text) => Failure::Target(text),
            RunError::Io(error) => error.into(),
        }
    }
}

/// A transport on the command line.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum TransportArg {
    Udp,
    Unixgram,
    Unix,
    Tcp,
    Http,
}

impl From<TransportArg> for Transport {
    fn from(transport: TransportArg) -> Transport {
        match transport {
            TransportArg::Udp => Transport::Udp,
            TransportArg::Unixgram => Transport::Unixgram,
            TransportArg::Unix => Transport::Unix,
            TransportArg::Tcp => Transport::Tcp,
            TransportArg::Http => Transport::Http,
        }
    }
}

/// Writes a file, naming it in the error.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|error| Failure::Runtime(format!("{}: {error}", path.display())))
}

/// Refuses a file that could not be written, without creating it: a program that waits for it would find it empty.
pub fn check_writable(flag: &str, path: &Path) -> Result<(), Failure> {
    let bad = |what: String| Failure::Usage(format!("{flag} {}: {what}", path.display()));
    if path.exists() {
        return match std::fs::OpenOptions::new().append(true).open(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(bad(error.to_string())),
        };
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match tempfile::tempfile_in(folder) {
        Ok(_) => Ok(()),
        Err(error) => Err(bad(format!("cannot be made in {}: {error}", folder.display()))),
    }
}

/// A temporary directory for socket files. It is removed with the value, and on SIGTERM or SIGINT together with the process.
pub fn scratch() -> Result<tempfile::TempDir, Failure> {
    let cannot = |error: std::io::Error| Failure::Runtime(format!("a folder for socket files: {error}"));
    signal::block_termination().map_err(cannot)?;
    let folder = tempfile::Builder::new()
        .prefix("weir-bench-")
        .tempdir()
        .map_err(cannot)?;
    let path = folder.path().to_owned();
    std::thread::spawn(move || {
        while !signal::wait_termination(Duration::from_secs(3600)) {}
        let _ = std::fs::remove_dir_all(path);
        eprintln!("weir-bench: interrupted");
        std::process::exit(1);
    });
    Ok(folder)
}

/// A framing on the command line.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum FramingArg {
    Length,
    Newline,
}

impl From<FramingArg> for Framing {
    fn from(framing: FramingArg) -> Framing {
        match framing {
            FramingArg::Length => Framing::Length,
            FramingArg::Newline => Framing::Newline,
        }
    }
}
