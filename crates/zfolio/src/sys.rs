//! The system calls that std has no words for. All `unsafe` of the command is here, in `probe.rs` and in `ptrace.rs`,
//! but for what `attach.rs` writes and the mapping of the shared page in `rundir.rs`.

use base::{Errno, Fd};
use rustix::event::{self, PollFd, PollFlags};
use rustix::fs;
use rustix::net::{self, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::termios::{self, LocalModes};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Error, IoSlice};
use std::mem::{MaybeUninit, zeroed};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::slice::from_raw_parts;
use std::time::Duration;
use swap::Table;

/// A process id.
pub type Pid = libc::pid_t;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(Error::other)
}

/// True when the effective user may execute `path`.
pub fn may_execute(path: &Path) -> bool {
    fs::accessat(fs::CWD, path, fs::Access::EXEC_OK, fs::AtFlags::EACCESS).is_ok()
}

/// True when the file has an extended attribute of this name.
pub fn has_attribute(path: &Path, name: &CStr) -> bool {
    fs::getxattr(path, name, &mut [0; 0]).is_ok_and(|bytes| bytes > 0)
}

/// True when files of the directory's filesystem may be executed and mapped as code.
pub fn allows_code(dir: &Path) -> bool {
    fs::statvfs(dir).is_ok_and(|system| !system.f_flag.contains(fs::StatVfsMountFlags::NOEXEC))
}

/// The effective user's id.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The effective user's id of another process; none of one that has ended.
pub fn user_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Fills streams 0 to 2 that are closed with /dev/null, closed again for CMD: a file of ours must not get their number,
/// since messages would be written into it.
pub fn fill_closed_streams() {
    for fd in 0..3 {
        // SAFETY: asking for a descriptor's flags, and opening one, touch no memory. open(2) gives the lowest free
        // number.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) < 0 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            }
        }
    }
}

/// What a file takes of its file system, in bytes; 0 where there is none.
pub fn allocated_bytes(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).map_or(0, |file| 512 * file.blocks())
}

/// Makes a file at least as long as this range, with room for all of that: otherwise a process that touches a part of
/// it for the first time when the file system is full is killed by SIGBUS.
pub fn allocate(file: &File, range: Range<usize>) -> io::Result<()> {
    let (from, bytes) = (range.start as libc::off_t, range.len() as libc::off_t);
    // SAFETY: touches no memory.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), from, bytes) } {
        0 => Ok(()),
        error => Err(Error::from_raw_os_error(error)),
    }
}

/// Maps the first `size_of::<T>()` bytes of a file, but for the first `first_bytes`, which are those of another;
/// shared, for the rest of the process's life.
///
/// # Safety
/// `T` must be valid in all bits, and the files at least that long; `first_bytes` must be whole pages and no more than
/// `T` has.
pub unsafe fn map_shared<T>(file: &File, first: &File, first_bytes: usize) -> io::Result<&'static mut T> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, and another over its beginning; what they hold is the
    // caller's contract.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            size_of::<T>(),
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        if libc::mmap(at, first_bytes, protection, flags, first.as_raw_fd(), 0) == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(&mut *at.cast::<T>())
    }
}

/// A copy of what [`map_shared`] maps. Who may write to a file may cut it off, too: that is an error here, and kills a
/// process that has mapped it.
///
/// # Safety
/// `T` must be valid in all bits; `first_bytes` must be no more than `T` has.
pub unsafe fn read_shared<T>(file: &File, first: &File, first_bytes: usize) -> io::Result<Box<T>> {
    let mut copy = Box::<T>::new_uninit();
    // SAFETY: the memory is the box's own, as long as `T`. It is written to before anything reads it.
    let bytes = unsafe {
        std::ptr::write_bytes(copy.as_mut_ptr(), 0, 1);
        std::slice::from_raw_parts_mut(copy.as_mut_ptr().cast::<u8>(), size_of::<T>())
    };
    let (start, rest) = bytes.split_at_mut(first_bytes);
    first.read_exact_at(start, 0)?;
    file.read_exact_at(rest, first_bytes as u64)?;
    // SAFETY: all bytes are written, and any are valid by the caller's contract.
    Ok(unsafe { copy.assume_init() })
}

/// A table of so many clusters, in a file in memory of this name, mapped for the rest of the process's life.
pub fn make_table(name: &CStr, clusters: usize) -> Result<(Fd, Table), Errno> {
    let (protection, bytes) = (libc::PROT_READ | libc::PROT_WRITE, Table::file_len(clusters));
    let file = base::sys::memfd(name)?;
    base::sys::ftruncate(&file, bytes)?;
    let at = base::sys::mmap(bytes, protection as u32, libc::MAP_SHARED as u32, Some(&file))?;
    // SAFETY: the mapping is that long, begins with a page, and stays; its two parts do not overlap. What they hold are
    // integers, which all processes change as atomics.
    let (words, shared) = unsafe {
        let shared = std::ptr::with_exposed_provenance(at + Table::shared_at(clusters));
        let words = std::ptr::with_exposed_provenance(at);
        (from_raw_parts(words, clusters), from_raw_parts(shared, Table::shared_len(clusters)))
    };
    Ok((file, Table::new(words, shared)))
}

/// Fills the first `bytes` of a file of one page with random numbers, which are in no core dump of this process's. The
/// page is kept in memory for as long as this process lives, or the answer is why it is not.
pub fn make_secret(file: &Fd, bytes: usize) -> Result<Result<(), Errno>, Errno> {
    assert!(bytes <= uffd::PAGE);
    base::sys::ftruncate(file, uffd::PAGE)?;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u32;
    let at = base::sys::mmap(uffd::PAGE, protection, libc::MAP_SHARED as u32, Some(file))?;
    base::sys::madvise_keep(at, uffd::PAGE, libc::MADV_DONTDUMP as u32)?;
    let page: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: touches no memory but to bring the page.
    let is_locked = check(unsafe { libc::mlock(page, uffd::PAGE) });
    // SAFETY: the page is this call's alone. No more than 256 bytes come at once, whole.
    let got = unsafe { libc::getrandom(page, bytes, 0) };
    if got != bytes as isize {
        return Err(Errno::EIO);
    }
    Ok(is_locked.map(drop).map_err(|error| Errno(error.raw_os_error().unwrap_or(0) as u16)))
}

/// Another descriptor of the same file description.
pub fn duplicate(file: &Fd) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open for as long as its owner is there.
    unsafe { BorrowedFd::borrow_raw(file.raw()) }.try_clone_to_owned()
}

/// The device, major and minor, of memfds and of what is shared without a file: the kernel has one file system for all
/// of them.
pub fn memfd_device() -> Option<(u64, u64)> {
    let file = File::from(fs::memfd_create(c"zfolio-device", fs::MemfdFlags::CLOEXEC).ok()?);
    let device = file.metadata().ok()?.dev();
    Some((libc::major(device).into(), libc::minor(device).into()))
}

/// Takes the exclusive lock of a file without waiting; false when somebody has it.
pub fn try_lock(file: &File) -> bool {
    fs::flock(file, fs::FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Takes a lock of a file that others may have too, without waiting; false when somebody has it for himself.
pub fn share_lock(file: &File) -> bool {
    fs::flock(file, fs::FlockOperation::NonBlockingLockShared).is_ok()
}

/// True when a descriptor is this process's terminal, this process is not in its background, and it takes lines and
/// echoes them: nobody reads single keys, draws the screen, or asks for a password.
pub fn is_line_mode(fd: impl AsFd) -> bool {
    const WANTED: LocalModes = LocalModes::ICANON.union(LocalModes::ECHO);
    is_in_foreground(&fd) && termios::tcgetattr(fd).is_ok_and(|mode| mode.local_modes.contains(WANTED))
}

/// True when a descriptor is this process's terminal, and this process is not in its background.
fn is_in_foreground(fd: impl AsFd) -> bool {
    // Not by rustix, where no group is 0: that is how a PID namespace sees one that is outside.
    // SAFETY: neither touches memory of ours.
    unsafe { libc::tcgetpgrp(fd.as_fd().as_raw_fd()) == libc::getpgrp() }
}

/// True when there is this to be told of a descriptor, without waiting.
fn is_ready(fd: impl AsFd, wanted: PollFlags) -> bool {
    let mut asked = [PollFd::new(&fd, wanted)];
    event::poll(&mut asked, Some(&Timespec::default())) == Ok(1) && asked[0].revents().contains(wanted)
}

/// True when a write to this process's terminal would not have to wait, and this process is not in its background.
pub fn takes_output(fd: impl AsFd) -> bool {
    is_in_foreground(&fd) && is_ready(fd, PollFlags::OUT)
}

/// True when a write would not have to wait: it is taken, at least in part, or fails at once.
pub fn answers_a_write(fd: impl AsFd) -> bool {
    let mut asked = [PollFd::new(&fd, PollFlags::OUT)];
    event::poll(&mut asked, Some(&Timespec::default())) == Ok(1) && !asked[0].revents().is_empty()
}

/// What CMD is to inherit although this process has changed it: signal mask, and the disposition of SIGCHLD.
pub struct Inherited {
    mask: libc::sigset_t,
    child: libc::sigaction,
}

/// Blocks every signal, so that they are taken by [`next_signal`] and none ends this process.
pub fn take_over_signals() -> Inherited {
    // SAFETY: the sets and actions are initialised by the calls that take them.
    unsafe {
        let mut inherited = Inherited { mask: zeroed(), child: zeroed() };
        let mut all = zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, &mut inherited.mask);
        // Inherited as ignored, children would vanish with their status.
        let mut default: libc::sigaction = zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGCHLD, &default, &mut inherited.child);
        inherited
    }
}

/// A signal that came in.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// A process sent it, by kill(2), sigqueue(3) or their like; false: the kernel did, the terminal for instance.
    pub sent: bool,
}

/// Waits for the next blocked signal.
pub fn next_signal(timeout: Duration) -> Option<Signal> {
    let timeout = libc::timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos() as i64 };
    // SAFETY: all three structures are plain data, initialised before use.
    unsafe {
        let mut all = zeroed();
        libc::sigfillset(&mut all);
        let mut info: libc::siginfo_t = zeroed();
        let number = libc::sigtimedwait(&all, &mut info, &timeout);
        (number > 0).then_some(Signal { number, sent: info.si_code <= 0 })
    }
}

/// Sends descriptors over a socket with this byte, since they cannot go alone. It does not wait.
pub fn send_descriptors(to: &UnixStream, byte: u8, descriptors: &[BorrowedFd]) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(memcg::HANDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "more than there is room for");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    net::sendmsg(to, &[IoSlice::new(&[byte])], &mut control, flags)?;
    Ok(())
}

/// A process that has connected.
pub struct Peer {
    /// Its number, in this process's namespace.
    pub pid: u32,
    /// Its effective user then, in this process's namespace.
    pub uid: u32,
    /// A descriptor of the process.
    pub process: OwnedFd,
}

/// Who has connected.
pub fn peer(socket: &UnixStream) -> io::Result<Peer> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    socket_option(socket, libc::SO_PEERCRED, &mut cred)?;
    let mut process: libc::c_int = -1;
    socket_option(socket, SO_PEERPIDFD, &mut process)?;
    // SAFETY: the kernel has made it for us.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    Ok(Peer { pid: cred.pid as u32, uid: cred.uid, process })
}

/// Since Linux 6.5; libc has no name for it yet.
const SO_PEERPIDFD: libc::c_int = 77;

fn socket_option<T>(socket: &UnixStream, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let at = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes no more than so many bytes, of an option that is one of plain integers.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, at, &mut bytes) })?;
    if bytes as usize == size_of::<T>() { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// True when the process of this pidfd has not ended.
pub fn is_running(process: &OwnedFd) -> bool {
    // A signal that is pending makes it an error, which says nothing of the process.
    !is_ready(process, PollFlags::IN)
}

/// Makes this process the parent of descendants whose own parent has ended.
pub fn become_subreaper() {
    // SAFETY: touches no memory. It cannot fail since Linux 3.4.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Sends a signal; one who is gone gets none.
pub fn kill(pid: Pid, signal: i32) {
    // SAFETY: touches no memory.
    unsafe { libc::kill(pid, signal) };
}

/// True when there is a process of this number, a zombie included.
pub fn exists(pid: Pid) -> bool {
    // SAFETY: sends nothing, and touches no memory.
    pid > 0
        && (unsafe { libc::kill(pid, 0) } == 0 || Error::last_os_error().raw_os_error() != Some(libc::ESRCH))
}

/// Stops this process until somebody continues it.
pub fn stop() {
    // SAFETY: touches no memory.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It exited with this status.
    Exited(u8),
    /// It was killed by this signal.
    Killed(i32),
    /// It was stopped, or is traced by us and has stopped for that: its status.
    Stopped(i32),
}

/// Children, as [`reap`] finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// One of them has changed.
    Child(Pid, Change),
    /// There are some, and nothing new about them.
    Living,
    /// There are none.
    None,
}

/// Asks about any child, without waiting; also those without an exit signal, as engines are.
pub fn reap() -> Reaped {
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes the status only.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED | libc::__WALL) };
        return match pid {
            0 => Reaped::Living,
            pid if pid < 0 => Reaped::None,
            pid if libc::WIFEXITED(status) => {
                Reaped::Child(pid, Change::Exited(libc::WEXITSTATUS(status) as u8))
            }
            pid if libc::WIFSIGNALED(status) => Reaped::Child(pid, Change::Killed(libc::WTERMSIG(status))),
            pid if libc::WIFSTOPPED(status) => Reaped::Child(pid, Change::Stopped(status)),
            _ => continue,
        };
    }
}

/// Starts a program in a child process, which inherits what this process inherited. The error is execve's.
pub fn spawn(
    program: &Path,
    arguments: &[CString],
    environment: &[CString],
    inherited: &Inherited,
) -> io::Result<Pid> {
    let program = c_path(program)?;
    let argv = pointers(arguments.iter());
    let envp = pointers(environment.iter());
    // What execvp(3) does with a text without `#!`.
    let through_shell = [c"/bin/sh".to_owned(), program.clone()];
    let shell_argv = pointers(through_shell.iter().chain(arguments.iter().skip(1)));
    let (mut error_reader, error_writer) = io::pipe()?;
    // SAFETY: this process has one thread, so the child may do whatever the parent may. The arrays end with a null
    // pointer and live until exec or exit.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        // SAFETY: as above.
        let error = unsafe {
            libc::sigaction(libc::SIGCHLD, &inherited.child, std::ptr::null_mut());
            libc::sigprocmask(libc::SIG_SETMASK, &inherited.mask, std::ptr::null_mut());
            libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr());
            if Error::last_os_error().raw_os_error() == Some(libc::ENOEXEC) {
                libc::execve(c"/bin/sh".as_ptr(), shell_argv.as_ptr(), envp.as_ptr());
            }
            Error::last_os_error()
        };
        let errno = error.raw_os_error().unwrap_or(0).to_ne_bytes();
        let _ = io::Write::write_all(&mut &error_writer, &errno);
        // SAFETY: ends the process.
        unsafe { libc::_exit(127) };
    }
    drop(error_writer);
    let mut errno = [0; 4];
    match io::Read::read_exact(&mut error_reader, &mut errno) {
        // The pipe closed with nothing in it: exec succeeded.
        Err(_) => Ok(pid),
        Ok(()) => {
            // SAFETY: the child is on its way out; no status is asked for.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            Err(Error::from_raw_os_error(i32::from_ne_bytes(errno)))
        }
    }
}

fn pointers<'a>(strings: impl Iterator<Item = &'a CString>) -> Vec<*const libc::c_char> {
    strings.map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

/// How many ticks, as /proc/PID/stat counts them, make a second.
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// How long the machine has been running, in nanoseconds, as /proc/PID/stat counts.
pub fn since_boot_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How much processor time this process has used.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How much processor time another process has used, in nanoseconds; 0 when there is none.
pub fn cpu_ns_of(pid: Pid) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut clock = 0;
    // SAFETY: the kernel writes the clock's number and the structure only.
    unsafe {
        if libc::clock_getcpuclockid(pid, &mut clock) == 0 {
            libc::clock_gettime(clock, &mut time);
        }
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Swaps to a device, ahead of all others.
pub fn swap_on(device: &Path) -> io::Result<()> {
    let path = c_path(device)?;
    // SAFETY: the kernel reads the path.
    check(unsafe { libc::swapon(path.as_ptr(), SWAP_FIRST) }).map(drop)
}

/// A priority is given (SWAP_FLAG_PREFER), and it is the highest.
const SWAP_FIRST: libc::c_int = 0x8000 | 0x7fff;

/// Swaps to it no longer.
pub fn swap_off(device: &Path) -> io::Result<()> {
    let path = c_path(device)?;
    // SAFETY: the kernel reads the path.
    check(unsafe { libc::swapoff(path.as_ptr()) }).map(drop)
}

/// True while the machine's own swap holds anything.
pub fn is_swapping() -> bool {
    let info = rustix::system::sysinfo();
    info.freeswap < info.totalswap
}

/// The running kernel's release, `6.12.3-amd64`, and its build, `#1 SMP ...`.
pub fn kernel() -> (String, String) {
    let name = rustix::system::uname();
    let text = |words: &CStr| words.to_string_lossy().into_owned();
    (text(name.release()), text(name.version()))
}
