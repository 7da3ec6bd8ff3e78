//! `weir-bench history`: results over time as text, CSV or a page; notes and acknowledgements at results.

use super::{Code, out};
use crate::detect::history::{self, History, Mark};
use crate::detect::run::DetectError;
use std::fs;
use std::path::PathBuf;
use weir_rig_base::clock;

#[derive(clap::Args)]
pub struct Args {
    /// A file written with `--history`.
    file: PathBuf,
    /// Print CSV for other tools instead.
    #[arg(long)]
    csv: bool,
    /// Also print level changes of goals that are no headline.
    #[arg(long)]
    all: bool,
    /// Write a page with trends, level changes and notes to this file; it needs no other file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Smallest level change to report, in percent.
    #[arg(long, default_value_t = 2.0, value_name = "PERCENT")]
    change_min: f64,
    /// Keep a note at the results of this run or commit (the first digits are enough).
    #[arg(long, value_name = "COMMIT", requires = "note")]
    mark: Option<String>,
    /// Text of the note.
    #[arg(long, value_name = "TEXT", requires = "mark")]
    note: Option<String>,
    /// The note acknowledges the level changes that begin there.
    #[arg(long, requires = "mark")]
    acknowledge: bool,
    /// Only at results of this experiment.
    #[arg(long, value_name = "NAME", requires = "mark")]
    experiment: Option<String>,
    /// Exit with 1 if the headline of an experiment became worse and nobody acknowledged it.
    #[arg(long)]
    fail: bool,
}

pub fn run(a: &Args) -> Code {
    if let (Some(at), Some(note)) = (&a.mark, &a.note) {
        let mark = Mark {
            created_unix: clock::unix_ns() / 1_000_000_000,
            at: at.clone(),
            note: note.clone(),
            acknowledges: a.acknowledge,
            experiment: a.experiment.clone(),
        };
        add(a, &mark)?;
    }
    let history = history::read(&a.file).map_err(DetectError::config)?;
    let options = weir_regress::change_point::Options {
        change_min: a.change_min / 100.0,
        ..Default::default()
    };
    if let Some(path) = &a.html {
        fs::write(path, history::page(&history, &options)).map_err(|e| DetectError::failed_at(path, e))?;
    }
    out(&match a.csv {
        true => history::csv(&history.entries),
        false => history::describe(&history, &options, a.all),
    });
    let changes = history::changes(&history, &options);
    let is_open =
        |c: &history::LevelChange| c.first.headline && c.acknowledged.is_none() && c.is_worse() == Some(true);
    Ok(u8::from(a.fail && changes.iter().any(is_open)))
}

/// A note at nothing would never be seen again.
fn add(a: &Args, mark: &Mark) -> Result<(), DetectError> {
    let History { entries, .. } = history::read(&a.file).map_err(DetectError::config)?;
    if !entries.iter().any(|e| mark.is_at(e)) {
        let of = a
            .experiment
            .as_ref()
            .map_or(String::new(), |e| format!(" of {e}"));
        return Err(DetectError::unusable(
            &a.file,
            format!("no result{of} at {:?}", mark.at),
        ));
    }
    history::append_line(&a.file, mark).map_err(|e| DetectError::failed_at(&a.file, e))
}
