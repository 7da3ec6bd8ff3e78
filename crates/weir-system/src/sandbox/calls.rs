//! Refuses (EPERM) system calls that the agent never makes: those that access other processes, load code into the kernel, mount, set the
//! machine's clock or name, enter namespaces, or run another program.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// A deny list, because allocators, C libraries and runtimes change their system calls from release to release, and an allow list would
/// kill the agent after an update of the C library.
const REFUSED: &[libc::c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_perf_event_open,
    // Other programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Code in the kernel.
    libc::SYS_bpf,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    // File systems and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // The machine.
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_personality,
    // Keys of the kernel.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Why system calls are not refused.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("no filter for {}", std::env::consts::ARCH)]
    Architecture,
    #[error(transparent)]
    Compiling(#[from] seccompiler::BackendError),
    #[error(transparent)]
    Applying(#[from] seccompiler::Error),
}

/// Returns the number of refused calls.
pub fn refuse() -> Result<usize, FilterError> {
    let architecture = std::env::consts::ARCH
        .try_into()
        .map_err(|_| FilterError::Architecture)?;
    let rules: BTreeMap<i64, Vec<_>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let number = rules.len();
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture);
    let program: BpfProgram = filter.and_then(TryInto::try_into)?;
    seccompiler::apply_filter_all_threads(&program)?;
    Ok(number)
}
