//! Samples the stacks of every thread of the process, by CPU time.
//!
//! Each thread gets a timer on its CPU clock, which sends it a signal. The handler walks the stack into a slot of a fixed table, without
//! allocating or locking. Outside of a session there are no timers and no signals.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_void};

/// Deeper stacks lose their outermost frames.
const DEPTH: usize = 96;

/// Enough for a hundred samples per second of 40 busy threads between two drains 100 ms apart.
const SLOTS: usize = 512;

const EMPTY: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const READY: u32 = 2;

struct Slot {
    state: AtomicU32,
    thread: AtomicI32,
    depth: AtomicUsize,
    frames: [AtomicUsize; DEPTH],
}

/// All zeros, so it takes no memory before the first session.
static TABLE: [Slot; SLOTS] = [const {
    Slot {
        state: AtomicU32::new(EMPTY),
        thread: AtomicI32::new(0),
        depth: AtomicUsize::new(0),
        frames: [const { AtomicUsize::new(0) }; DEPTH],
    }
}; SLOTS];
static NEXT: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// One stack, innermost frame first. The first address is the interrupted instruction; the others are return addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    pub thread: i32,
    pub frames: Vec<usize>,
}

/// A sampling session. Only one exists at a time.
#[derive(Debug)]
pub struct Session {
    period_nanos: i64,
    timers: HashMap<i32, Timer>,
}

/// A kernel timer. The C library uses a pointer type for its number.
#[derive(Debug)]
struct Timer(libc::timer_t);

// SAFETY: a timer id belongs to the process, not to a thread.
unsafe impl Send for Timer {}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the id came from `timer_create` and is deleted once.
        unsafe {
            libc::timer_delete(self.0);
        }
    }
}

impl Session {
    /// `None` when another session runs.
    pub fn start(samples_per_second: u32) -> io::Result<Option<Self>> {
        if ACTIVE.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        let mut session = Self {
            period_nanos: 1_000_000_000 / i64::from(samples_per_second),
            timers: HashMap::new(),
        };
        LOST.store(0, Ordering::Relaxed);
        session.drain(|_| {});
        install_handler()?;
        session.watch_new_threads()?;
        Ok(Some(session))
    }

    /// Adds timers for threads that started since the last call. Call it periodically.
    pub fn watch_new_threads(&mut self) -> io::Result<()> {
        for entry in std::fs::read_dir("/proc/self/task")? {
            let name = entry?.file_name();
            let Some(thread) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            if !self.timers.contains_key(&thread) {
                // A thread that has just ended has no clock, which is not an error.
                if let Ok(timer) = start_timer(thread, self.period_nanos) {
                    self.timers.insert(thread, timer);
                }
            }
        }
        Ok(())
    }

    /// Takes the stacks since the last call.
    pub fn drain(&mut self, mut take: impl FnMut(Stack)) {
        for slot in &TABLE {
            if slot.state.load(Ordering::Acquire) == READY {
                let depth = slot.depth.load(Ordering::Relaxed).min(DEPTH);
                let frames = slot.frames[..depth]
                    .iter()
                    .map(|frame| frame.load(Ordering::Relaxed))
                    .collect();
                let thread = slot.thread.load(Ordering::Relaxed);
                slot.state.store(EMPTY, Ordering::Release);
                take(Stack { thread, frames });
            }
        }
    }

    /// Samples lost because the table was full.
    pub fn lost(&self) -> u64 {
        LOST.load(Ordering::Relaxed)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.timers.clear();
        // The handler stays installed for signals on their way.
        ACTIVE.store(false, Ordering::Release);
    }
}

fn install_handler() -> io::Result<()> {
    // SAFETY: the structure is fully initialised, and the handler is safe to run at any instruction (below).
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGPROF, &action, std::ptr::null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn start_timer(thread: i32, period_nanos: i64) -> io::Result<Timer> {
    // The kernel's number for the CPU clock of a thread of this process.
    let clock = (!thread << 3) | 6;
    // SAFETY: both structures are fully initialised and outlive the calls; the timer is owned by what is returned.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGPROF;
        event.sigev_notify_thread_id = thread;
        let mut id: libc::timer_t = std::ptr::null_mut();
        if libc::timer_create(clock, &mut event, &mut id) != 0 {
            return Err(io::Error::last_os_error());
        }
        let timer = Timer(id);
        let period = libc::timespec {
            tv_sec: period_nanos / 1_000_000_000,
            tv_nsec: period_nanos % 1_000_000_000,
        };
        let times = libc::itimerspec {
            it_interval: period,
            it_value: period,
        };
        if libc::timer_settime(timer.0, 0, &times, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(timer)
    }
}

/// Runs on the interrupted thread, between any two instructions: no allocation, no lock, no panic, and `errno` is preserved.
extern "C" fn on_signal(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    if !ACTIVE.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: `errno` of this thread; the kernel hands the handler a valid context.
    unsafe {
        let errno = *libc::__errno_location();
        record(interrupted_at(context));
        *libc::__errno_location() = errno;
    }
}

fn record(interrupted: usize) {
    for _ in 0..8 {
        let slot = &TABLE[NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS];
        let claimed = slot
            .state
            .compare_exchange(EMPTY, BEING_WRITTEN, Ordering::Acquire, Ordering::Relaxed);
        if claimed.is_ok() {
            let mut walk = Walk {
                slot,
                interrupted,
                depth: 0,
            };
            // SAFETY: the callback has the type the unwinder calls, and `walk` outlives the call.
            unsafe {
                _Unwind_Backtrace(on_frame, (&raw mut walk).cast());
            }
            if walk.depth == 0 {
                // The walk did not get past the handler's own frames; the interrupted instruction is known.
                slot.frames[0].store(interrupted, Ordering::Relaxed);
                walk.depth = 1;
            }
            slot.depth.store(walk.depth, Ordering::Relaxed);
            // SAFETY: takes nothing and cannot fail. A static program need not have the C library's function (build.rs).
            let thread = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
            slot.thread.store(thread, Ordering::Relaxed);
            slot.state.store(READY, Ordering::Release);
            return;
        }
    }
    LOST.fetch_add(1, Ordering::Relaxed);
}

struct Walk {
    slot: &'static Slot,
    interrupted: usize,
    depth: usize,
}

/// The unwinder that panics use, from the compiler's runtime library.
#[allow(non_camel_case_types)]
type _Unwind_Trace_Fn = extern "C" fn(context: *mut c_void, argument: *mut c_void) -> c_int;

unsafe extern "C" {
    fn _Unwind_Backtrace(trace: _Unwind_Trace_Fn, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

const CONTINUE: c_int = 0;
const STOP: c_int = 5;

extern "C" fn on_frame(context: *mut c_void, argument: *mut c_void) -> c_int {
    // SAFETY: the unwinder passes its own context and the `Walk` that `record` gave it.
    let (address, walk) = unsafe { (_Unwind_GetIP(context), &mut *argument.cast::<Walk>()) };
    // Skips the frames of the handler.
    if walk.depth == 0 && address != walk.interrupted {
        return CONTINUE;
    }
    if address == 0 || walk.depth == DEPTH {
        return STOP;
    }
    walk.slot.frames[walk.depth].store(address, Ordering::Relaxed);
    walk.depth += 1;
    CONTINUE
}

/// The interrupted instruction.
///
/// # Safety `context` must be the kernel's argument to a signal handler.
unsafe fn interrupted_at(context: *mut c_void) -> usize {
    // SAFETY: promised by the caller.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    return context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    return context.uc_mcontext.pc as usize;
}
