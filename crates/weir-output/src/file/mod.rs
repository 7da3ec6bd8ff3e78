//! A file of JSON lines that rotates itself, or that another program rotates and announces by SIGHUP.

mod log_file;
mod rotated;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinError;
use weir_aggregate::{Batch, Expansion};
use weir_config::{DURATION_MAX, PathUse, SettingProblem, SettingType, choices, settings};

use crate::StartError;
use crate::delivery::{
    BoxFuture, Clock, Delivery, Endpoint, Landed, Order, Outcome, OutputEnvironment, Payload, Transport,
};
use crate::json_lines::LinesEncoder;
use crate::preview;
use crate::settings::{BatchOutput, DeliverySettings, OutputType, Start};

use log_file::LogFile;

settings! {
    /// Path, rotation, and the number of kept files.
    pub struct FileSettings {
        path: String = "''"
            .path(PathUse::WriteBeside)
            .effect("The file to append to. Its directory must exist and also gets the rotated files.")
            .change("to write a file.")
            .required();
        rotate_bytes: u64 = "100MiB"
            .takes(SettingType::Bytes { min: 0, max: u64::MAX >> 1 })
            .effect("weir starts a new file before this one would become larger.")
            .zero("0: at any size.")
            .change("if you read the files with tools that want small or large ones.");
        rotate_age: Duration = "0"
            .takes(SettingType::Duration { min: Duration::ZERO, max: DURATION_MAX })
            .effect("weir starts a new file when this one reaches this age and is not empty.")
            .zero("0: at any age.")
            .change("if you want a file per hour or day.");
        compression: Compression = "gzip"
            .effect("The compression of rotated files.")
            .change("if you write much data: zstd is several times faster.");
        kept_files_max: usize = "10"
            .takes(SettingType::Integer { min: 0, max: 1_000_000 })
            .effect("The maximum number of rotated files; the oldest are deleted first.")
            .zero("0: any number.")
            .change("if you need a longer history.");
        kept_bytes_max: u64 = "1GiB"
            .takes(SettingType::Bytes { min: 0, max: u64::MAX >> 1 })
            .effect("The maximum size of all rotated files; the oldest are deleted first.")
            .zero("0: any number.")
            .change("if you have less disk, or need a longer history.");
        fsync: Fsync = "rotation"
            .effect("When written lines are synchronised to the disk: by the system, when a file is complete, or with every write.")
            .change("if your lines must outlive a loss of power (`always`).");
    }
}

choices! {
    /// Compression of rotated files.
    pub enum Compression {
        Gzip: "gzip",
        Zstd: "zstd",
        None: "none",
    }
}

choices! {
    /// The times at which the system is asked to synchronise written data.
    pub enum Fsync {
        /// Never: the system does so by itself, usually within half a minute.
        None: "none",
        /// When a file is complete.
        Rotation: "rotation",
        /// With every write, before it counts as delivered.
        Always: "always",
    }
}

pub(crate) const TYPE: OutputType = OutputType {
    name: "file",
    summary: "Appends one JSON object per point and line to a file, and rotates, compresses and deletes old ones.",
    on_by_default: false,
    settings: FileSettings::SETTINGS,
    removed: &[],
    read: |output| BatchOutput::read(output, |_, _| {}, check),
};

fn check(settings: &FileSettings) -> Result<(), SettingProblem> {
    if settings.path.ends_with('/') {
        return Err(SettingProblem::new(
            "path",
            "names a directory; it must name a file",
        ));
    }
    if settings.rotate_bytes > 0 && settings.rotate_bytes < ROTATE_BYTES_MIN {
        return Err(SettingProblem::new("rotate_bytes", "must be 0 or at least 4KiB"));
    }
    if settings.kept_bytes_max > 0 && settings.kept_bytes_max < settings.rotate_bytes {
        let message = "must be 0 or at least rotate_bytes, or no file would be kept";
        return Err(SettingProblem::new("kept_bytes_max", message));
    }
    Ok(())
}

/// Below this a file would be a few lines.
const ROTATE_BYTES_MIN: u64 = 4 << 10;
/// Bytes in one write, so that a file can end near its bound.
const PAYLOAD_BYTES: usize = 256 << 10;
/// Longest interval between checks of a file's age.
const AGE_INTERVAL: Duration = Duration::from_secs(60);

impl Start for FileSettings {
    fn preview(&self, batch: &Batch, expansion: &Arc<Expansion>) -> Vec<String> {
        let encoder = LinesEncoder::new(expansion.clone(), PAYLOAD_BYTES);
        preview::of_lines(&preview::payloads(encoder, batch), preview::of_json)
    }

    fn start(
        &self,
        name: &str,
        expansion: &Arc<Expansion>,
        environment: &OutputEnvironment,
    ) -> Result<Delivery, StartError> {
        let unix = environment.clock.unix();
        // The output that this one replaces has it open, and closes it when this one takes over.
        let file = if environment.is_replaced(&self.path) {
            LogFile::closed(self)
        } else {
            LogFile::open(self, unix).map_err(StartError::Path)?
        };
        let payload_bytes = match self.rotate_bytes {
            0 => PAYLOAD_BYTES,
            bytes => PAYLOAD_BYTES.min(bytes as usize),
        };
        let transport = Appender {
            settings: self.clone(),
            clock: environment.clock.clone(),
            file: Arc::new(Mutex::new(file)),
            reopen: AtomicBool::new(false),
            work: Notify::new(),
            compression_error: Mutex::default(),
        };
        let endpoint = Endpoint {
            label: self.path.clone(),
            directory: self.path.clone(),
            family: None,
            transport: Arc::new(transport),
        };
        let encoder = Box::new(LinesEncoder::new(expansion.clone(), payload_bytes));
        let settings = DeliverySettings::local();
        let order = Order::TimeOrder;
        let started = Delivery::start(name, &settings, order, encoder, vec![endpoint], environment);
        Ok(started?)
    }
}

/// Appends payloads, one at a time.
struct Appender {
    settings: FileSettings,
    clock: Clock,
    file: Arc<Mutex<LogFile>>,
    reopen: AtomicBool,
    /// There is something to reopen or to compress.
    work: Notify,
    compression_error: Mutex<Option<String>>,
}

impl Appender {
    /// Works on the file, off the runtime's threads.
    async fn with_file<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut LogFile) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let file = self.file.clone();
        let work = move || work(&mut file.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(work).await
    }

    /// Maintenance besides writing: rotation by age, reopening, compression and removal of rotated files.
    async fn maintain(&self) {
        let now = self.clock.unix();
        let reopen = self.reopen.swap(false, Ordering::AcqRel);
        let done = self.with_file(move |file| {
            if reopen {
                file.reopen(now)?;
            }
            file.rotate_if_old(now)
        });
        if let Ok(Err(error)) = done.await {
            tracing::warn!(path = self.settings.path, "{error}");
        }
        let settings = self.settings.clone();
        let compressed = tokio::task::spawn_blocking(move || rotated::compress_and_prune(&settings));
        let error = match compressed.await {
            Ok(result) => result.err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let mut known = self
            .compression_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &error
            && known.is_none()
        {
            tracing::warn!(
                path = self.settings.path,
                "rotated files stay as they are: {error}"
            );
        }
        *known = error;
    }
}

impl Transport for Appender {
    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome> {
        self.send_and_mark(payload, Landed::default())
    }

    fn send_and_mark(&self, payload: Payload, landed: Landed) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let now = self.clock.unix();
            let written = self.with_file(move |file| {
                landed.begin();
                let appended = file.append(payload.id, &payload.body, now);
                appended.inspect(|_| landed.mark())
            });
            match written.await {
                Ok(Ok(rotated)) => {
                    if rotated {
                        self.work.notify_one();
                    }
                    Outcome::Delivered
                }
                Ok(Err(error)) => Outcome::Retry {
                    error: error.to_string(),
                    after: None,
                },
                Err(error) => Outcome::Retry {
                    error: error.to_string(),
                    after: None,
                },
            }
        })
    }

    fn background(&self, clock: Clock) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let age = self.settings.rotate_age;
            loop {
                // Before the work, which looks at the clock too: time that passes meanwhile counts.
                let next = clock.now() + age.min(AGE_INTERVAL);
                // At first for files of an earlier process.
                self.maintain().await;
                tokio::select! {
                    () = self.work.notified() => {}
                    () = clock.sleep_until(next), if !age.is_zero() => {}
                }
            }
        })
    }

    fn reopen(&self) {
        self.reopen.store(true, Ordering::Release);
        self.work.notify_one();
    }

    fn rest(&self) {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).close();
    }

    fn release(&self) {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).release();
    }

    fn details(&self) -> BTreeMap<&'static str, String> {
        let error = self
            .compression_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        error.map(|error| ("rotated files", error)).into_iter().collect()
    }
}
