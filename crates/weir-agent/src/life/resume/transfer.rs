//! The state on its way to a process that takes over, while this one runs.

use std::io::{self, BufWriter};
use std::sync::atomic::Ordering;

use weir_ingest::SavedBucket;

use super::{StateSaver, clients, timestamped};
use crate::life::fixes::{self, Rule};
use crate::state::{Meta, StateWriter, TransferWriter, numbers_of};
use weir_status::status::Status;

impl StateSaver {
    /// Whether files of this process alone say what a kill leaves: books, sums and a checkpoint of every worker. Before that, what it began
    /// with counts, and another process that takes over would replace it. If that one fails, it would be missing.
    pub fn is_independent(&self) -> bool {
        if self.has_kept.load(Ordering::Acquire) {
            self.remove_base();
        }
        fixes::lacks(Rule::HandOversWaitForOwnFiles) || !self.has_base.load(Ordering::Acquire)
    }

    /// Destination of the state that another process continues. Until [`StateSaver::reclaim`] nothing more is saved: that one may write the
    /// same files.
    pub fn transfer(&self) -> io::Result<TransferWriter> {
        let directory = self.directory.as_ref().ok_or(io::ErrorKind::NotFound)?;
        self.set_ended(true);
        StateWriter::new(BufWriter::new(directory.transfer()?))
    }

    /// Adds to it what there is besides pieces of the workers' buckets, and outputs.
    pub fn finish_transfer(
        &self,
        transfer: &mut TransferWriter,
        workers: &[SavedBucket],
        books: &Status,
        now: i64,
    ) -> io::Result<()> {
        let timestamped = timestamped(workers);
        if let Some(directory) = &self.directory {
            transfer.meta(&Meta {
                timestamped_of: numbers_of(&timestamped),
                ..self.meta(directory, workers, now)
            })?;
        }
        transfer.timestamped(timestamped.values().flatten())?;
        transfer.clients(&clients(workers))?;
        transfer.books(books)?;
        transfer.finish().map(drop)
    }

    /// The process that was to take over has failed, and this one continues.
    pub fn reclaim(&self) {
        if let Some(directory) = &self.directory {
            directory.reclaim();
            self.progress.start_over();
        }
        self.set_ended(false);
    }
}
