//! Provides the unwind tables of a static program before the C library is ready.
//!
//! jemalloc's profiler walks the stack once, with its first allocation. A static C library allocates during its start, before it has
//! recorded the program's own tables; the unwinder finds none and aborts the process. So `build.rs` makes the linker redirect the
//! unwinder's look-up to this module (`--wrap`), which only uses the program header that the linker wrote.

use std::ffi::{c_int, c_void};

use libc::{Elf64_Ehdr, Elf64_Phdr, PT_GNU_EH_FRAME, PT_LOAD};

/// `struct dl_find_object` of glibc on x86-64. The unwinder reads only `tables`.
#[repr(C)]
pub struct DlFindObject {
    flags: u64,
    start: *const c_void,
    end: *const c_void,
    link_map: *const c_void,
    tables: *const c_void,
    reserved: [u64; 7],
}

unsafe extern "C" {
    /// The program header in memory; the linker gives it this name.
    static __ehdr_start: Elf64_Ehdr;
    fn __real__dl_find_object(address: *const c_void, found: *mut DlFindObject) -> c_int;
}

/// Answers for the program's own code. The C library knows the rest, the vDSO, in time.
///
/// # Safety As for `_dl_find_object`: `found` points to space for one.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__dl_find_object(address: *const c_void, found: *mut DlFindObject) -> c_int {
    let program = program();
    if (program.start..program.end).contains(&address) {
        // SAFETY: the caller's promise.
        unsafe { found.write(program) };
        return 0;
    }
    // SAFETY: the arguments of this function.
    unsafe { __real__dl_find_object(address, found) }
}

fn program() -> DlFindObject {
    let head = &raw const __ehdr_start;
    // SAFETY: the linker wrote head and segments for the kernel, which has mapped both; they are never written.
    let segments = unsafe {
        std::slice::from_raw_parts(
            head.byte_add((*head).e_phoff as usize).cast::<Elf64_Phdr>(),
            usize::from((*head).e_phnum),
        )
    };
    let mut loaded = segments.iter().filter(|segment| segment.p_type == PT_LOAD);
    // The first segment begins with the header; segments are sorted by address.
    let first = loaded.next().map_or(0, |segment| segment.p_vaddr);
    let end = loaded
        .next_back()
        .map_or(first, |segment| segment.p_vaddr + segment.p_memsz);
    let tables = segments.iter().find(|segment| segment.p_type == PT_GNU_EH_FRAME);
    let at = |address: u64| {
        head.wrapping_byte_add((address - first) as usize)
            .cast::<c_void>()
    };
    DlFindObject {
        flags: 0,
        start: head.cast(),
        end: at(end),
        link_map: std::ptr::null(),
        tables: tables.map_or(std::ptr::null(), |segment| at(segment.p_vaddr)),
        reserved: [0; 7],
    }
}
