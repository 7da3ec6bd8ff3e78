//! The command `weir`. The only place that decides exit codes.

use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    match weir::cli::main(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A full or closed standard error must not cause a panic.
            if !failure.message.is_empty() {
                let _ = writeln!(
                    std::io::stderr(),
                    "weir: {}",
                    failure.message.replace('\n', "\nweir: ")
                );
            }
            ExitCode::from(failure.kind.exit_code())
        }
    }
}
