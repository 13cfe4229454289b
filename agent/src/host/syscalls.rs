//! System calls that have no safe wrapper; the agent's only unsafe code.
#![expect(
    unsafe_code,
    reason = "pidfds, taps, packet sockets, mounts, volumes, memory, and calls between fork and exec, have \
              no safe wrapper"
)]

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::libc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has all threads allocate from one arena. Other C libraries than GNU's have no more anyway.
pub(super) fn use_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two integers; it is refused or done.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives the kernel back what was allocated and freed.
pub(super) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim touches free memory only, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Takes away pages of a mapping that nobody has written to; each comes back from its file when it is
/// touched. A kernel that refuses leaves them.
pub(super) fn unmap_code(range: std::ops::Range<usize>) {
    let start = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: the mapping is private and of a file, and is neither writable nor written to, so that its
    // content is the file's before and after.
    unsafe { libc::madvise(start, range.len(), libc::MADV_DONTNEED) };
}

/// Opens a descriptor of a process; it becomes readable when the process ends.
pub(super) fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), 0) };
    match i32::try_from(answer) {
        // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends a signal to exactly the process that `pidfd` was opened for.
pub(super) fn pidfd_kill(pidfd: &OwnedFd, signal: i32) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed and means "as kill(2) would fill it".
    let answer = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            libc::c_long::from(pidfd.as_raw_fd()),
            libc::c_long::from(signal),
            no_info,
            0,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether a process of this user runs, in this namespace of processes.
pub(super) fn user_has_processes(uid: u32) -> io::Result<bool> {
    // Whatever the priority is: the answer may be -1, so the error alone tells.
    nix::errno::Errno::clear();
    // SAFETY: getpriority takes two integers and touches no memory of ours.
    unsafe { libc::getpriority(libc::PRIO_USER, uid) };
    match nix::errno::Errno::last() {
        nix::errno::Errno::UnknownErrno => Ok(true),
        nix::errno::Errno::ESRCH => Ok(false),
        error => Err(error.into()),
    }
}

/// Connects an open `/dev/net/tun` with the tap of this name; without one, makes it.
pub(super) fn tun_set_iff(tun: &OwnedFd, name: &str, flags: u16) -> io::Result<()> {
    const TUNSETIFF: libc::c_ulong = nix::request_code_write!(b'T', 202, size_of::<libc::c_int>());
    // SAFETY: ifreq is plain data, for which all zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    if name.len() > room {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = flags.cast_signed();
    // SAFETY: the request is an ifreq, which the kernel reads and writes, and outlives the call.
    let answer = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whose processes alone may connect with a tap, beside those that may change networks.
pub(super) fn tun_set_owner(tun: &OwnedFd, uid: u32) -> io::Result<()> {
    const TUNSETOWNER: libc::c_ulong =
        nix::request_code_write!(b'T', 204, size_of::<libc::c_int>());
    // SAFETY: the argument is a number; no memory of ours is touched.
    let answer = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETOWNER, libc::c_ulong::from(uid)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The tap stays when nobody has it open.
pub(super) fn tun_set_persist(tun: &OwnedFd) -> io::Result<()> {
    const TUNSETPERSIST: libc::c_ulong =
        nix::request_code_write!(b'T', 203, size_of::<libc::c_int>());
    // SAFETY: the argument is a number; no memory of ours is touched.
    let answer = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETPERSIST, 1 as libc::c_ulong) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A socket for the frames of one kind that an interface receives, those to a group among them.
pub(super) fn packet_socket(interface: u32, ethertype: u16, group: [u8; 6]) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // No kind of frames yet: until it is bound it would hear all interfaces.
    // SAFETY: socket takes three integers and touches no memory of ours.
    let answer = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(answer) };
    let index = i32::try_from(interface).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: packet_mreq is plain data, for which all zeros are a value.
    let mut joined: libc::packet_mreq = unsafe { std::mem::zeroed() };
    joined.mr_ifindex = index;
    joined.mr_type = u16::try_from(libc::PACKET_MR_MULTICAST).unwrap_or(0);
    joined.mr_alen = 6;
    joined.mr_address[..group.len()].copy_from_slice(&group);
    // SAFETY: the option is a packet_mreq of this size, which outlives the call.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const joined).cast(),
            socklen::<libc::packet_mreq>(),
        )
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sockaddr_ll is plain data, for which all zeros are a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or(0);
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = index;
    // SAFETY: the address is a sockaddr_ll of this size, which outlives the call.
    let answer = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), socklen::<libc::sockaddr_ll>())
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

fn socklen<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

/// Waits until a descriptor is readable.
pub(super) async fn readable(fd: OwnedFd) -> io::Result<()> {
    register(fd)?.readable().await.map(drop)
}

/// A descriptor whose readiness to be read the runtime tells.
pub(super) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned, stays open as long as the registration, and is the same
    // one at each call of `as_raw_fd`.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
        .map_err(|error| io::Error::other(error.to_string()))
}

/// Makes the child a session of its own that keeps none of the agent's descriptors, and that the
/// kernel may end before the agent when memory runs out.
pub(super) fn detach(command: &mut tokio::process::Command) {
    const FIRST_INHERITED: libc::c_long = 3;
    const LAST: libc::c_long = 0x7fff_ffff;
    const CLOSE_RANGE_CLOEXEC: libc::c_long = 4;
    // SAFETY: setsid, open, write, close and close_range are async-signal-safe and allocate nothing, as is required
    // between fork and exec. Descriptors are only marked, because the standard library still
    // needs one of them to report a failed exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid().map_err(io::Error::from)?;
            // The agent's own protection is not its guests'. A kernel that refuses leaves them with
            // it; they start all the same.
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
            if file >= 0 {
                libc::write(file, b"0".as_ptr().cast(), 1);
                libc::close(file);
            }
            let range = (FIRST_INHERITED, LAST, CLOSE_RANGE_CLOEXEC);
            // A kernel before 5.11 refuses; all descriptors the agent opens are close-on-exec
            // anyway, this is for those that it inherited itself.
            libc::syscall(libc::SYS_close_range, range.0, range.1, range.2);
            Ok(())
        });
    }
}

/// Makes the child a session of its own with its standard input as terminal.
pub(super) fn take_terminal(command: &mut tokio::process::Command) {
    // SAFETY: setsid and ioctl are async-signal-safe and allocate nothing, as is required between fork
    // and exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid().map_err(io::Error::from)?;
            match libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) {
                0.. => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
}

/// Has the program begin in a user namespace of its own, in which nobody is anybody yet.
pub(super) fn in_a_new_user_namespace(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: unshare is async-signal-safe and allocates nothing, as is required between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER).map_err(io::Error::from)
        });
    }
}

/// This thread keeps all its rights whatever users it acts for from here on.
pub(super) fn keep_rights() -> io::Result<()> {
    // Of linux/securebits.h.
    const NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
    // SAFETY: prctl takes integers here and touches no memory of ours.
    let answer = unsafe { libc::prctl(libc::PR_SET_SECUREBITS, NO_SETUID_FIXUP, 0, 0, 0) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A path as the kernel reads it.
fn c_path(path: &std::path::Path) -> io::Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt as _;
    std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// A copy of the mount that shows a folder, from that folder on, which is nowhere yet.
pub(super) fn open_tree(folder: &std::path::Path) -> io::Result<OwnedFd> {
    let path = c_path(folder)?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: the path is a C string, which the kernel reads, and outlives the call.
    let answer =
        unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    match i32::try_from(answer) {
        // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Shows all that a mount shows, which is nowhere yet, under the ids of a user namespace.
pub(super) fn map_ids(tree: &OwnedFd, user_namespace: &OwnedFd, read_only: bool) -> io::Result<()> {
    let read_only = if read_only { libc::MOUNT_ATTR_RDONLY } else { 0 };
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP | read_only,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(user_namespace.as_raw_fd()).unwrap_or(u64::MAX),
    };
    // SAFETY: the path is a C string, and the argument a mount_attr of this size; the kernel reads both,
    // and both outlive the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounts what is nowhere yet on a folder.
pub(super) fn move_mount(tree: &OwnedFd, at: &std::path::Path) -> io::Result<()> {
    let path = c_path(at)?;
    // SAFETY: both paths are C strings, which the kernel reads, and outlive the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Which volume of ZFS a block device is; the kernel says `ENOTTY` of any other.
pub(super) fn volume_of(device: &std::fs::File) -> io::Result<Vec<u8>> {
    // Of OpenZFS's sys/fs/zfs.h: BLKZNAME, and ZFS_MAX_DATASET_NAME_LEN.
    const NAME_BYTES: usize = 256;
    const BLKZNAME: libc::c_ulong = nix::request_code_read!(0x12, 125, NAME_BYTES);
    let mut name = [0_u8; NAME_BYTES];
    // SAFETY: the kernel writes at most these bytes, as the request's code says, which outlive the call.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), BLKZNAME, name.as_mut_ptr()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(name.split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
}

/// Gives a terminal another size.
pub(super) fn set_window_size(end: &std::fs::File, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the argument is a winsize, which the kernel reads, and outlives the call.
    let answer = unsafe { libc::ioctl(end.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A file whose readiness to be read and written the runtime tells.
pub(super) fn watch_both_ways(file: std::fs::File) -> io::Result<AsyncFd<std::fs::File>> {
    // SAFETY: the descriptor is owned, stays open as long as the registration, and is the same
    // one at each call of `as_raw_fd`.
    unsafe { AsyncFd::register_with_interest(file, Interest::READABLE | Interest::WRITABLE) }
        .map_err(|error| io::Error::other(error.to_string()))
}

/// The descriptor that comes with the next message on a socket.
pub(super) fn received_descriptor(socket: &impl std::os::fd::AsFd) -> io::Result<OwnedFd> {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    let mut byte = [0; 64];
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    let mut room = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let fd = socket.as_fd().as_raw_fd();
    let message = recvmsg::<()>(fd, &mut parts, Some(&mut room), flags)?;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = part
            && let Some(&first) = descriptors.first()
        {
            // SAFETY: the kernel has just given us this descriptor; nobody else owns it. There is room
            // for one alone.
            return Ok(unsafe { OwnedFd::from_raw_fd(first) });
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "no descriptor came"))
}
