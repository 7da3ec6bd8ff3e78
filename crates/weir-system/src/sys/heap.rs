//! The allocator: its settings, its statistics, and a dump of its samples.

use std::ffi::CString;
use std::io::{self, Read as _};
use std::os::fd::FromRawFd as _;

use tikv_jemalloc_ctl::{background_thread, epoch, raw, stats};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A pointer that jemalloc reads once, before anything else runs.
#[repr(transparent)]
pub struct Settings(*const u8);

// SAFETY: the pointer leads to a constant that is never written.
unsafe impl Sync for Settings {}

/// Few arenas and quick decay keep the idle process small. A background thread returns memory while nothing allocates. On average one
/// allocation in 512 KiB is sampled for the heap profile, which also accumulates the allocations of each stack since the start.
// SAFETY: jemalloc looks for a symbol of this name that holds a pointer to text with a zero at its end.
#[used]
#[unsafe(no_mangle)]
pub static malloc_conf: Settings = Settings(
    concat!(
        "narenas:2,tcache_max:4096,dirty_decay_ms:1000,muzzy_decay_ms:0,",
        "background_thread:true,max_background_threads:1,",
        "prof:true,prof_active:true,lg_prof_sample:19,prof_accum:true",
        "\0"
    )
    .as_ptr(),
);

/// In bytes, as counted by the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStatistics {
    /// Allocated by the program.
    pub allocated: u64,
    /// In pages with at least one allocation.
    pub active: u64,
    /// The allocator's own tables.
    pub metadata: u64,
    /// Held in physical memory.
    pub resident: u64,
    /// Held in address space.
    pub mapped: u64,
    /// Address space kept for reuse.
    pub retained: u64,
    /// Objects allocated since the start, and how many of them were freed.
    pub allocations: u64,
    pub deallocations: u64,
}

/// Fails only if the allocator was built without statistics.
pub fn statistics() -> io::Result<HeapStatistics> {
    let failed = |error: tikv_jemalloc_ctl::Error| io::Error::other(error.to_string());
    epoch::advance().map_err(failed)?;
    Ok(HeapStatistics {
        allocated: stats::allocated::read().map_err(failed)? as u64,
        active: stats::active::read().map_err(failed)? as u64,
        metadata: stats::metadata::read().map_err(failed)? as u64,
        resident: stats::resident::read().map_err(failed)? as u64,
        mapped: stats::mapped::read().map_err(failed)? as u64,
        retained: stats::retained::read().map_err(failed)? as u64,
        allocations: of_all_arenas([
            b"stats.arenas.4096.small.nmalloc\0",
            b"stats.arenas.4096.large.nmalloc\0",
        ])
        .map_err(failed)?,
        deallocations: of_all_arenas([
            b"stats.arenas.4096.small.ndalloc\0",
            b"stats.arenas.4096.large.ndalloc\0",
        ])
        .map_err(failed)?,
    })
}

/// The sum of two counters. Arena 4096 stands for all of them together.
fn of_all_arenas(names: [&'static [u8]; 2]) -> Result<u64, tikv_jemalloc_ctl::Error> {
    let mut sum = 0;
    for name in names {
        // SAFETY: these counters are 64-bit integers.
        sum += unsafe { raw::read::<u64>(name) }?;
    }
    Ok(sum)
}

/// While this exists, the allocator has no background thread. The next one inherits the rights of the thread that drops this.
#[derive(Debug)]
pub struct PausedThread(());

/// See [`PausedThread`].
pub fn pause_background_thread() -> PausedThread {
    // Fails if the allocator does not support such a thread.
    let _ = background_thread::write(false);
    PausedThread(())
}

impl Drop for PausedThread {
    fn drop(&mut self) {
        let _ = background_thread::write(true);
    }
}

/// Empties this thread's cache, so that its freed memory can be returned to the system.
pub fn release_memory() {
    // Switching the cache off empties it. An allocator without caches has nothing to return.
    for enabled in [false, true] {
        // SAFETY: `thread.tcache.enabled` takes a bool.
        let _ = unsafe { raw::write(b"thread.tcache.enabled\0", enabled) };
    }
}

/// The allocator's dump of the live sampled allocations, as text. Nothing is written to a disk.
pub fn dump() -> io::Result<String> {
    // SAFETY: the name is a C string; the returned descriptor is new and owned here.
    let mut memory = unsafe {
        let descriptor = libc::memfd_create(c"weir-heap".as_ptr(), libc::MFD_CLOEXEC);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        std::fs::File::from_raw_fd(descriptor)
    };
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
    let path = CString::new(path).map_err(io::Error::other)?;
    // SAFETY: `prof.dump` takes a pointer to a C string, which outlives the call.
    unsafe { raw::write(b"prof.dump\0", path.as_ptr()) }
        .map_err(|error| io::Error::other(format!("the allocator refuses: {error}")))?;
    let mut text = Vec::new();
    // jemalloc opened the file separately, so this descriptor is still at the start.
    memory.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
