//! Where the tables are from which the stack of a static program is walked, before the C library knows.
//!
//! jemalloc's profiler walks the stack once, when it is first asked for memory. A static C library asks while it starts, before it has
//! noted where its own program is, and the unwinder, which finds no table, ends the process. So `build.rs` has the linker lead the
//! unwinder's question here (`--wrap`), and here nothing is asked but what the linker wrote at the program's head.

use std::ffi::{c_int, c_void};

use libc::{Elf64_Ehdr, Elf64_Phdr, PT_GNU_EH_FRAME, PT_LOAD};

/// `struct dl_find_object` of glibc on x86-64, where the unwinder reads `tables` alone.
#[repr(C)]
pub struct Found {
    flags: u64,
    start: *const c_void,
    end: *const c_void,
    link_map: *const c_void,
    tables: *const c_void,
    reserved: [u64; 7],
}

unsafe extern "C" {
    /// The head of the program, in memory; the linker gives it this name.
    static __ehdr_start: Elf64_Ehdr;
    fn __real__dl_find_object(address: *const c_void, found: *mut Found) -> c_int;
}

/// The program's own code is told of here. What else there is, the kernel's page of fast system calls, the C library knows in time.
///
/// # Safety
/// As for `_dl_find_object`: `found` leads to a place for one.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__dl_find_object(address: *const c_void, found: *mut Found) -> c_int {
    let program = program();
    if (program.start..program.end).contains(&address) {
        // SAFETY: the caller's promise.
        unsafe { found.write(program) };
        return 0;
    }
    // SAFETY: what this function was called with.
    unsafe { __real__dl_find_object(address, found) }
}

fn program() -> Found {
    let head = &raw const __ehdr_start;
    // SAFETY: the linker wrote head and segments for the kernel, which has mapped both; they are never written.
    let segments = unsafe {
        std::slice::from_raw_parts(
            head.byte_add((*head).e_phoff as usize).cast::<Elf64_Phdr>(),
            usize::from((*head).e_phnum),
        )
    };
    let mut loaded = segments.iter().filter(|segment| segment.p_type == PT_LOAD);
    // The first one begins with the head; segments are sorted by address.
    let first = loaded.next().map_or(0, |segment| segment.p_vaddr);
    let end = loaded
        .last()
        .map_or(first, |segment| segment.p_vaddr + segment.p_memsz);
    let tables = segments.iter().find(|segment| segment.p_type == PT_GNU_EH_FRAME);
    let at = |address: u64| {
        head.wrapping_byte_add((address - first) as usize)
            .cast::<c_void>()
    };
    Found {
        flags: 0,
        start: head.cast(),
        end: at(end),
        link_map: std::ptr::null(),
        tables: tables.map_or(std::ptr::null(), |segment| at(segment.p_vaddr)),
        reserved: [0; 7],
    }
}
