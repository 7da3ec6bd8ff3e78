//! `weir-bench load dump`: the messages themselves, one per line.

use super::common::ProfileArgs;
use crate::failure::Failure;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use weir_load::run::SentStream;
use weir_load::truth::{self, Detail};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Stop with the packet that reaches this many messages.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Connection of the stream.
    #[arg(long, default_value_t = 0)]
    connection: u32,
    /// Print packets as records of a 32-bit little-endian length and the bytes, which `load replay` and `load learn` read.
    #[arg(long)]
    raw: bool,
    /// Print only the digest of the stream so far.
    #[arg(long, conflicts_with = "raw")]
    digest: bool,
    /// Write the manifest of the printed messages, with a row per context.
    #[arg(long)]
    manifest: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let load = args.profile.load(None)?;
    if args.connection >= load.profile.connections {
        return Err(Failure::Usage(format!(
            "--connection {}: the profile has {}",
            args.connection, load.profile.connections
        )));
    }
    let (mut source, cycle) = load.source(args.connection);
    let mut buffer = vec![0u8; source.room()];
    let mut out = BufWriter::new(std::io::stdout().lock());
    let (mut messages, mut packets) = (0u64, 0u64);
    while messages < args.count {
        let packet = source.packet(&mut buffer);
        messages += u64::from(packet.messages);
        packets += 1;
        if args.digest {
            continue;
        }
        let bytes = &buffer[..packet.len];
        let written = if args.raw {
            out.write_all(&(packet.len as u32).to_le_bytes())
                .and_then(|()| out.write_all(bytes))
        } else {
            out.write_all(bytes).and_then(|()| out.write_all(b"\n"))
        };
        match written {
            Ok(()) => {}
            // The reader has closed the pipe.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    let sent = [SentStream {
        connection: args.connection,
        composed: packets,
        skipped: Vec::new(),
        cycle,
    }];
    if args.digest {
        writeln!(out, "{}", truth::replay(&load, &sent, &Detail::default()).digest)?;
    }
    if let Some(path) = &args.manifest {
        let detail = Detail {
            contexts: true,
            ..Detail::default()
        };
        let manifest = truth::replay(&load, &sent, &detail);
        let text = serde_json::to_vec_pretty(&manifest).map_err(Failure::runtime)?;
        super::common::write(path, &text)?;
    }
    out.flush()?;
    Ok(())
}
