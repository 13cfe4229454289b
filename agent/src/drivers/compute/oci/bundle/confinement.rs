//! What a container may do to its host: little.

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Capabilities, Capability, LinuxCapabilities, LinuxCapabilitiesBuilder, LinuxSeccomp,
    LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder, get_default_maskedpaths,
    get_default_readonly_paths,
};

/// What root in a container may do, beside what everybody may.
const ALLOWED: [Capability; 14] = [
    Capability::AuditWrite,
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::Mknod,
    Capability::NetBindService,
    Capability::NetRaw,
    Capability::Setfcap,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
    Capability::SysChroot,
];

/// System calls that are about the whole host, or that only make it easier to attack its kernel.
const REFUSED: &[&str] = &[
    "acct",
    "add_key",
    "bpf",
    "clock_adjtime",
    "clock_adjtime64",
    "clock_settime",
    "clock_settime64",
    "create_module",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_kernel_syms",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "migrate_pages",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "query_module",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "stime",
    "swapoff",
    "swapon",
    "syslog",
    "sysfs",
    "_sysctl",
    "umount",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
    "ustat",
    "vhangup",
    "vm86",
    "vm86old",
];

/// Not permitted.
const EPERM: u32 = 1;
/// No such call: what calls it does without.
const ENOSYS: u32 = 38;
/// The kernel's marks of new namespaces among the flags of `clone`.
const NEW_NAMESPACES: u64 = 0x7e02_0000;
/// Families of sockets that reach the host, or seldom used code of its kernel: AF_VSOCK, AF_ALG.
const REFUSED_SOCKETS: [u64; 2] = [40, 38];

pub(in super::super) fn capabilities() -> Result<LinuxCapabilities, OciSpecError> {
    let allowed: Capabilities = ALLOWED.into_iter().collect();
    LinuxCapabilitiesBuilder::default()
        .bounding(allowed.clone())
        .effective(allowed.clone())
        .permitted(allowed)
        // What is not root in it has none of them, also not by programs that it starts.
        .inheritable(Capabilities::new())
        .ambient(Capabilities::new())
        .build()
}

pub(in super::super) fn seccomp() -> Result<LinuxSeccomp, OciSpecError> {
    let mut calls = vec![
        call(REFUSED.iter().copied(), EPERM, Vec::new())?,
        // Its flags are where no filter sees them; libraries fall back to `clone`.
        call(["clone3"], ENOSYS, Vec::new())?,
    ];
    for flag in (0..64).map(|bit| 1_u64 << bit).filter(|flag| NEW_NAMESPACES & flag != 0) {
        calls.push(call(["clone"], EPERM, vec![has_flag(flag)?])?);
    }
    for family in REFUSED_SOCKETS {
        calls.push(call(["socket"], EPERM, vec![is(family)?])?);
    }
    LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActAllow)
        .syscalls(calls)
        .build()
}

fn call<'a>(
    names: impl IntoIterator<Item = &'a str>,
    errno: u32,
    args: Vec<LinuxSeccompArg>,
) -> Result<LinuxSyscall, OciSpecError> {
    let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    let call = LinuxSyscallBuilder::default()
        .names(names)
        .action(LinuxSeccompAction::ScmpActErrno)
        .errno_ret(errno);
    if args.is_empty() { call.build() } else { call.args(args).build() }
}

fn has_flag(flag: u64) -> Result<LinuxSeccompArg, OciSpecError> {
    LinuxSeccompArgBuilder::default()
        .index(0_usize)
        .value(flag)
        .value_two(flag)
        .op(LinuxSeccompOperator::ScmpCmpMaskedEq)
        .build()
}

fn is(value: u64) -> Result<LinuxSeccompArg, OciSpecError> {
    LinuxSeccompArgBuilder::default()
        .index(0_usize)
        .value(value)
        .op(LinuxSeccompOperator::ScmpCmpEq)
        .build()
}

/// What it does not see.
pub(super) fn masked() -> Vec<String> {
    let mut masked = get_default_maskedpaths();
    masked.extend(
        ["/proc/interrupts", "/sys/devices/virtual/powercap", "/sys/kernel/security"]
            .map(str::to_owned),
    );
    masked
}

/// What it does not write to.
pub(super) fn read_only() -> Vec<String> {
    get_default_readonly_paths()
}
