//! Standard output that was closed before the process started.

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The standard library puts `/dev/null` where a standard stream is closed, before `main`: to know it, the program has to look
/// earlier.
// SAFETY: the loader calls each function of this section once, before `main`, in C's convention. This one makes a system call and
// stores a flag; it needs nothing that is set up later.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: asks about a descriptor by its number, whether it is open or not.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// Makes writes to a standard output that was closed at the start fail like writes to a pipe without reader: their data is lost.
pub fn break_closed_output() -> io::Result<()> {
    if !WAS_CLOSED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let (_, writer) = io::pipe()?;
    // SAFETY: both numbers are of open descriptors, and nothing owns the second's old file: the standard library refers to it by number.
    match unsafe { libc::dup2(writer.as_raw_fd(), libc::STDOUT_FILENO) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
