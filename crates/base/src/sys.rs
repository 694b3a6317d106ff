//! Raw system calls of x86-64 Linux. Each function is the call of its name; pointers are checked by the kernel, and what
//! a call may do to the caller's memory is the caller's to know, hence `unsafe` where memory can change.

pub mod consts;

use core::arch::asm;
use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use linux_raw_sys::{errno, general as g};

/// An error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub u32);

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`.")] pub const $name: Errno = Errno(errno::$name);)*

            /// The name, as in errno(3); "an unknown error" for those that zfolio never meets.
            pub fn name(self) -> &'static str {
                match self { $(Errno::$name => stringify!($name),)* _ => "an unknown error" }
            }
        }
    };
}
names!(EPERM ENOENT ESRCH EINTR EIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EINVAL ENOSYS ENOTTY ENXIO EMFILE ETIMEDOUT EOPNOTSUPP ECHILD);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (errno {})", self.name(), self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a system call returns.
pub type Result<T> = core::result::Result<T, Errno>;

/// Makes the system call `nr`.
///
/// # Safety
/// The arguments must be right for the call, and what it writes must be the caller's to write.
#[inline]
pub unsafe fn syscall(nr: u32, args: [usize; 6]) -> Result<usize> {
    let mut ret: usize = nr as usize;
    // SAFETY: the kernel clobbers rcx and r11 only; memory effects are the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") ret, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
             in("r10") args[3], in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _,
             options(nostack));
    }
    if ret > -4096isize as usize { Err(Errno(ret.wrapping_neg() as u32)) } else { Ok(ret) }
}

macro_rules! call {
    ($nr:ident $(, $arg:expr)*) => {{
        let given = [$($arg as usize),*];
        let mut args = [0usize; 6];
        args[..given.len()].copy_from_slice(&given);
        // SAFETY: the wrapper's own contract covers the call (see each function).
        unsafe { syscall(g::$nr, args) }
    }};
}

/// An open file descriptor, closed when dropped.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    /// The number.
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// Takes ownership of a descriptor.
    pub fn own(fd: usize) -> Fd {
        Fd(fd as i32)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let _ = call!(__NR_close, self.0);
    }
}

/// Opens `path`, which must end with NUL.
pub fn open(path: &[u8], flags: u32) -> Result<Fd> {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    call!(__NR_openat, g::AT_FDCWD, path.as_ptr(), flags | g::O_CLOEXEC, 0).map(Fd::own)
}

/// Opens `path`, which must end with NUL, from the directory `dir` on.
pub fn open_at(dir: &Fd, path: &[u8], flags: u32) -> Result<Fd> {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    call!(__NR_openat, dir.0, path.as_ptr(), flags | g::O_CLOEXEC, 0).map(Fd::own)
}

/// How many links a file or directory has; `path` must end with NUL.
pub fn links(path: &[u8]) -> Result<usize> {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    // SAFETY: plain integers, of any value.
    let mut stat: g::stat = unsafe { core::mem::zeroed() };
    call!(__NR_stat, path.as_ptr(), &raw mut stat)?;
    Ok(stat.st_nlink as usize)
}

/// Where a symbolic link leads; the length. `path` must end with NUL.
pub fn readlink(path: &[u8], to: &mut [u8]) -> Result<usize> {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    call!(__NR_readlink, path.as_ptr(), to.as_mut_ptr(), to.len())
}

/// True when the process's real user may read `path`, which must end with NUL.
pub fn may_read(path: &[u8]) -> bool {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    // The old call, which every loader makes: what lets a program be executed lets it through.
    call!(__NR_access, path.as_ptr(), g::R_OK).is_ok()
}

/// Says why the process's real user may not execute the file at `path`, where a string with NUL is, or anything.
pub fn may_execute(path: *const u8) -> Result<()> {
    call!(__NR_access, path, g::X_OK).map(drop)
}

/// As [`open`], with a path that is at `path`, or not.
pub fn open_at_address(path: *const u8, flags: u32) -> Result<Fd> {
    call!(__NR_openat, g::AT_FDCWD, path, flags | g::O_CLOEXEC, 0).map(Fd::own)
}

/// Lets this process have `count` descriptors, or as many as it may.
pub fn want_descriptors(count: u64) {
    let mut old = [0u64; 2];
    if call!(__NR_prlimit64, 0, g::RLIMIT_NOFILE, 0, old.as_mut_ptr()).is_err() || old[0] >= count {
        return;
    }
    let set = |limits: [u64; 2]| call!(__NR_prlimit64, 0, g::RLIMIT_NOFILE, limits.as_ptr(), 0);
    if set([count, old[1].max(count)]).is_err() {
        let _ = set([old[1], old[1]]);
    }
}

/// Up to which priority this process may raise others of its user (RLIMIT_NICE).
pub fn nice_limit() -> u64 {
    let mut limits = [0u64; 2];
    let _ = call!(__NR_prlimit64, 0, g::RLIMIT_NICE, 0, limits.as_mut_ptr());
    limits[0]
}

/// Reads at an offset.
pub fn pread(fd: &Fd, buffer: &mut [u8], offset: usize) -> Result<usize> {
    call!(__NR_pread64, fd.0, buffer.as_mut_ptr(), buffer.len(), offset)
}

/// Writes at an offset.
///
/// # Safety
/// In /proc/PID/mem: the memory must be the caller's to write.
pub unsafe fn pwrite(fd: &Fd, bytes: &[u8], offset: usize) -> Result<usize> {
    call!(__NR_pwrite64, fd.0, bytes.as_ptr(), bytes.len(), offset)
}

/// Reads.
pub fn read(fd: &Fd, buffer: &mut [u8]) -> Result<usize> {
    call!(__NR_read, fd.0, buffer.as_mut_ptr(), buffer.len())
}

/// Writes.
pub fn write(fd: &Fd, buffer: &[u8]) -> Result<usize> {
    call!(__NR_write, fd.0, buffer.as_ptr(), buffer.len())
}

/// An ioctl whose argument is a structure.
///
/// # Safety
/// `arg` must be what `request` takes, and what the request does to memory must be the caller's to do.
pub unsafe fn ioctl<T>(fd: &Fd, request: u32, arg: &mut T) -> Result<usize> {
    call!(__NR_ioctl, fd.0, request, arg as *mut T)
}

/// Maps `bytes` of private anonymous memory, or of the file in `fd` shared, at an address of the kernel's choice.
pub fn mmap(bytes: usize, prot: u32, flags: u32, fd: Option<&Fd>) -> Result<usize> {
    call!(__NR_mmap, 0, bytes, prot, flags, fd.map_or(-1, |f| f.0), 0)
}

/// The same at an address, where `flags` must have MAP_FIXED or MAP_FIXED_NOREPLACE.
///
/// # Safety
/// With MAP_FIXED nobody may use what is there.
pub unsafe fn mmap_at(at: usize, bytes: usize, prot: u32, flags: u32, fd: Option<&Fd>) -> Result<()> {
    debug_assert!(flags & (g::MAP_FIXED | g::MAP_FIXED_NOREPLACE) != 0);
    call!(__NR_mmap, at, bytes, prot, flags, fd.map_or(-1, |f| f.0), 0).map(drop)
}

/// Makes a file in memory that has no name in any directory.
pub fn memfd(name: &CStr) -> Result<Fd> {
    call!(__NR_memfd_create, name.as_ptr(), g::MFD_CLOEXEC).map(Fd::own)
}

/// Sets a file's size.
pub fn ftruncate(fd: &Fd, bytes: usize) -> Result<()> {
    call!(__NR_ftruncate, fd.0, bytes).map(drop)
}

/// How many bytes the process may map (RLIMIT_AS), `u64::MAX` for as much as it likes.
pub fn address_space_limit() -> Result<u64> {
    let mut limits = [u64::MAX; 2];
    call!(__NR_prlimit64, 0, g::RLIMIT_AS, 0, limits.as_mut_ptr()).map(|_| limits[0])
}

/// True when the process may not map as much as it likes.
pub fn is_address_space_limited() -> bool {
    address_space_limit() != Ok(u64::MAX)
}

/// Unmaps a range.
///
/// # Safety
/// Nothing may use the range any more.
pub unsafe fn munmap(at: usize, bytes: usize) -> Result<()> {
    call!(__NR_munmap, at, bytes).map(drop)
}

/// Advises the kernel on a range.
///
/// # Safety
/// Advice that discards contents must be given on memory whose contents nobody needs.
pub unsafe fn madvise(at: usize, bytes: usize, advice: u32) -> Result<()> {
    call!(__NR_madvise, at, bytes, advice).map(drop)
}

/// Changes a range's protection.
///
/// # Safety
/// The range must be the caller's, and its users must agree with the protection.
pub unsafe fn mprotect(at: usize, bytes: usize, prot: u32) -> Result<()> {
    call!(__NR_mprotect, at, bytes, prot).map(drop)
}

/// Moves a mapping to `to`, which takes the place of what is there, and grows or shrinks it to `new_bytes`; with MREMAP_DONTUNMAP it stays, empty.
///
/// # Safety
/// Nobody may use what was at either place by its old address.
pub unsafe fn mremap(at: usize, bytes: usize, new_bytes: usize, flags: u32, to: usize) -> Result<()> {
    call!(__NR_mremap, at, bytes, new_bytes, g::MREMAP_MAYMOVE | g::MREMAP_FIXED | flags, to).map(drop)
}

/// Takes VM_LOCKED off a range.
pub fn munlock(at: usize, bytes: usize) -> Result<()> {
    call!(__NR_munlock, at, bytes).map(drop)
}

/// Sleeps while `*word == expected`, at most `timeout_ns`. `shared` for words that the kernel wakes across processes.
pub fn futex_wait(word: *const u32, expected: u32, timeout_ns: Option<u64>, shared: bool) -> Result<()> {
    let timeout = timeout_ns.map(timespec);
    let op = g::FUTEX_WAIT | if shared { 0 } else { g::FUTEX_PRIVATE_FLAG };
    call!(
        __NR_futex,
        word,
        op,
        expected,
        timeout.as_ref().map_or(core::ptr::null(), |t| t as *const Timespec)
    )
    .map(drop)
}

/// Wakes up to `count` sleepers on `word`; `shared` as they sleep.
pub fn futex_wake(word: *const u32, count: u32, shared: bool) {
    let op = g::FUTEX_WAKE | if shared { 0 } else { g::FUTEX_PRIVATE_FLAG };
    let _ = call!(__NR_futex, word, op, count);
}

/// Writes what it holds to the aligned word at `word`, as if the program had: the page is no longer shared since a fork, nor lazily
/// freeable. Never waits for a fault on a missing page, as any other way to write would: that is EFAULT.
pub fn futex_touch(word: usize) -> Result<()> {
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    // FUTEX_WAKE_OP changes a word on its way to wake sleepers of another. Adding 0 changes nothing; a sleeper on the word itself may be
    // woken for no reason, which futex(2) allows.
    let add_zero = (g::FUTEX_OP_ADD << 28) | (g::FUTEX_OP_CMP_LT << 24);
    call!(__NR_futex, NOBODY.as_ptr(), g::FUTEX_WAKE_OP | g::FUTEX_PRIVATE_FLAG, 0, 0, word, add_zero)
        .map(drop)
}

/// Has the kernel part the pages of the large folio that the one at `at` is in. UFFDIO_MOVE says EBUSY of all of them for
/// as long as the first was shared and was not written to since (Linux 6.18 looks at that one's flag alone), whosever
/// the one at `at` is. What memory holds stays as it is. EINVAL: the memory is locked.
pub fn split_folio(at: usize) -> Result<()> {
    // Advice on less than a whole folio splits it; what is cold goes first where the machine has no memory left.
    madvise_keep(at, crate::PAGE, g::MADV_COLD).map(drop)
}

#[repr(C)]
struct Timespec {
    sec: i64,
    nsec: i64,
}

impl Timespec {
    fn ns(&self) -> u64 {
        self.sec as u64 * 1_000_000_000 + self.nsec as u64
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec { sec: (ns / 1_000_000_000) as i64, nsec: (ns % 1_000_000_000) as i64 }
}

/// Nanoseconds on a clock of clock_gettime(2); 0 where there is no such clock.
pub fn clock(id: u32) -> u64 {
    let mut now = Timespec { sec: 0, nsec: 0 };
    let _ = call!(__NR_clock_gettime, id, &mut now as *mut Timespec);
    now.ns()
}

/// The address of a clock_gettime that is no system call; 0 when none is known.
static CLOCK: AtomicUsize = AtomicUsize::new(0);

/// Has [`now_ns`] call a function at this address.
///
/// # Safety
/// It must be a clock_gettime by the C calling convention, and stay.
pub unsafe fn set_clock(address: usize) {
    CLOCK.store(address, Relaxed);
}

/// Nanoseconds since some point in the past.
pub fn now_ns() -> u64 {
    let address = CLOCK.load(Relaxed);
    if address == 0 {
        return clock(g::CLOCK_MONOTONIC);
    }
    let mut now = Timespec { sec: 0, nsec: 0 };
    // SAFETY: the contract of `set_clock`.
    unsafe {
        let clock: extern "C" fn(u32, *mut Timespec) -> i32 = core::mem::transmute(address);
        clock(g::CLOCK_MONOTONIC, &mut now);
    }
    now.ns()
}

/// CPU nanoseconds of the calling process (all its threads).
pub fn process_cpu_ns() -> u64 {
    clock(g::CLOCK_PROCESS_CPUTIME_ID)
}

/// Writes to a word as it is, and says whether that took a page fault.
pub fn write_faults(word: &AtomicU32) -> bool {
    // `struct rusage` has 18 words; the count of faults that needed no I/O is the ninth.
    const MINOR: usize = 8;
    const RUSAGE_THREAD: u32 = 1;
    let (mut before, mut after) = ([0u64; 18], [0u64; 18]);
    // What the kernel may have done to the page besides (looked whether it is used, moved it) is undone by a read.
    word.load(Relaxed);
    // SAFETY: the kernel writes the two arrays, which have been written before, and the word is added 0 to. The code lies on one page: nothing in it can fault but that.
    unsafe {
        asm!(
            ".balign 64",
            "mov eax, {getrusage}",
            "mov edi, {thread}",
            "syscall",
            "lock add dword ptr [{word}], 0",
            "mov eax, {getrusage}",
            "mov edi, {thread}",
            "mov rsi, {after}",
            "syscall",
            getrusage = const g::__NR_getrusage,
            thread = const RUSAGE_THREAD,
            word = in(reg) word.as_ptr(),
            after = in(reg) after.as_mut_ptr(),
            inlateout("rsi") before.as_mut_ptr() => _,
            out("rax") _, out("rdi") _, out("rcx") _, out("r11") _,
            options(nostack),
        );
    }
    before[MINOR] != after[MINOR]
}

/// Lets another thread run.
pub fn sched_yield() {
    let _ = call!(__NR_sched_yield);
}

/// Sleeps.
pub fn sleep_ns(ns: u64) {
    let time = timespec(ns);
    let _ = call!(__NR_nanosleep, &time as *const Timespec, 0);
}

/// Waits until one of `fds` can be read, at most `timeout_ns`; says which can.
pub fn poll<const N: usize>(fds: [&Fd; N], timeout_ns: u64) -> Result<[bool; N]> {
    let mut set = fds.map(|fd| g::pollfd { fd: fd.0, events: g::POLLIN as i16, revents: 0 });
    let timeout = timespec(timeout_ns);
    call!(__NR_ppoll, set.as_mut_ptr(), N, &timeout as *const Timespec, 0, 8)?;
    Ok(set.map(|p| p.revents != 0))
}

/// True when `fd` takes something written to it now.
pub fn is_writable(fd: &Fd) -> bool {
    let mut set = [g::pollfd { fd: fd.0, events: g::POLLOUT as i16, revents: 0 }];
    let timeout = timespec(0);
    let told = call!(__NR_ppoll, set.as_mut_ptr(), 1, &timeout as *const Timespec, 0, 8);
    told.is_ok() && set[0].revents == g::POLLOUT as i16
}

/// A descriptor that becomes readable when process `pid` ends.
pub fn pidfd_open(pid: u32) -> Result<Fd> {
    call!(__NR_pidfd_open, pid, 0).map(Fd::own)
}

/// Sends a signal through a pidfd.
pub fn pidfd_send_signal(fd: &Fd, signal: u32) -> Result<()> {
    call!(__NR_pidfd_send_signal, fd.0, signal, 0, 0).map(drop)
}

/// A duplicate of another process's descriptor.
pub fn pidfd_getfd(fd: &Fd, theirs: u32) -> Result<Fd> {
    call!(__NR_pidfd_getfd, fd.0, theirs, 0).map(Fd::own)
}

/// A counter that one thread adds to and another polls.
pub fn eventfd() -> Result<Fd> {
    call!(__NR_eventfd2, 0, g::EFD_NONBLOCK | g::EFD_CLOEXEC).map(Fd::own)
}

/// Closes all descriptors of the calling file table.
pub fn close_all() {
    let _ = call!(__NR_close_range, 0, u32::MAX, 0);
}

/// True when processes `a` and `b` have the same address space; an error where the kernel cannot say.
pub fn same_vm(a: u32, b: u32) -> Result<bool> {
    const KCMP_VM: u32 = 1;
    call!(__NR_kcmp, a, b, KCMP_VM, 0, 0).map(|order| order == 0)
}

/// The robust list head of thread `tid`, 0 when it has none.
pub fn robust_list(tid: u32) -> Result<usize> {
    let (mut head, mut len) = (0usize, 0usize);
    call!(__NR_get_robust_list, tid, &mut head as *mut usize, &mut len as *mut usize)?;
    Ok(head)
}

/// The word that the kernel clears and wakes as the calling thread ends. Not every kernel says it.
pub fn tid_address() -> Result<usize> {
    const PR_GET_TID_ADDRESS: u32 = 40;
    let mut word = 0usize;
    call!(__NR_prctl, PR_GET_TID_ADDRESS, &mut word as *mut usize, 0, 0, 0)?;
    Ok(word)
}

/// Copies a process's memory from `at`. What is missing there is waited for, as a touch would; who must not wait reads /proc/self/mem.
pub fn peek(pid: u32, at: usize, buffer: &mut [u8]) -> Result<usize> {
    let local = [buffer.as_mut_ptr() as usize, buffer.len()];
    let remote = [at, buffer.len()];
    call!(__NR_process_vm_readv, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0)
}

/// Copies `bytes` to a process's memory at `at`.
///
/// # Safety
/// The memory there must be the caller's to write.
pub unsafe fn poke(pid: u32, at: usize, bytes: &[u8]) -> Result<usize> {
    let local = [bytes.as_ptr() as usize, bytes.len()];
    let remote = [at, bytes.len()];
    call!(__NR_process_vm_writev, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0)
}

/// Goes back to the beginning of a file or directory.
fn rewind(fd: &Fd) -> Result<()> {
    call!(__NR_lseek, fd.0, 0, 0).map(drop)
}

/// Entries of a directory: calls `each` with every name.
pub fn read_dir(fd: &Fd, mut each: impl FnMut(&[u8])) -> Result<()> {
    rewind(fd)?;
    let mut buffer = [0u64; 512];
    loop {
        let got = call!(__NR_getdents64, fd.0, buffer.as_mut_ptr(), size_of_val(&buffer))?;
        if got == 0 {
            return Ok(());
        }
        // SAFETY: the kernel filled `got` bytes of the buffer, which lives on.
        let bytes = unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), got) };
        let mut rest = bytes;
        // struct linux_dirent64: inode 8, offset 8, record length 2, type 1, name until NUL.
        while rest.len() > 19 {
            let len = u16::from_ne_bytes([rest[16], rest[17]]) as usize;
            let name = &rest[19..len];
            each(&name[..name.iter().position(|&b| b == 0).unwrap_or(name.len())]);
            rest = &rest[len..];
        }
    }
}

macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident => $nr:ident ( $($arg:ident : $ty:ty),* );)*) => {
        $($(#[$doc])* pub fn $name($($arg: $ty),*) -> Result<usize> { call!($nr $(, $arg)*) })*
    };
}

plain! {
    /// Process id. In line, since every process asks for it as it starts, where all code lies together.
    #[inline(always)]
    getpid => __NR_getpid();
    /// Process id of the parent.
    getppid => __NR_getppid();
    /// Thread id.
    gettid => __NR_gettid();
    /// Signals a process.
    kill => __NR_kill(pid: u32, signal: u32);
    /// Starts a session, so that no terminal's signal reaches the caller.
    setsid => __NR_setsid();
    /// Waits for child `pid`; `options` as in wait4(2).
    wait4 => __NR_wait4(pid: u32, status: *mut u32, options: u32);
    /// Waits for children in the manner of waitid(2); `info` is a `siginfo_t` of 128 bytes, or null.
    waitid => __NR_waitid(kind: u32, id: u32, info: *mut u32, options: u32);
    /// Asks whether orphaned descendants come to this process (PR_GET_CHILD_SUBREAPER); writes 0 or 1.
    get_subreaper => __NR_prctl(op: u32, yes: *mut u32);
    /// Sets the name that ps shows; 15 bytes and a NUL.
    set_name => __NR_prctl(op: u32, name: *const u8);
    /// The name of the calling thread (PR_GET_NAME) into a buffer of 16 bytes.
    get_name => __NR_prctl(op: u32, name: *mut u8);
    /// Whether this memory gets no transparent huge pages (PR_GET_THP_DISABLE), or is to get none from now on (PR_SET_THP_DISABLE), nor a child's copy
    /// of it; the others are 0.
    thp_disable => __NR_prctl(op: u32, yes: usize, a: usize, b: usize, c: usize);
    /// Fills a buffer with random bytes.
    getrandom => __NR_getrandom(at: *mut u8, bytes: usize, flags: u32);
    /// Changes the working directory; a NUL-terminated path.
    chdir => __NR_chdir(path: *const u8);
    /// Advises the kernel on a range without discarding anything; for advice such as MADV_DONTFORK.
    madvise_keep => __NR_madvise(at: usize, bytes: usize, advice: u32);
    /// Writes a mapping back. MS_INVALIDATE alone does nothing to anonymous memory, and says EBUSY where it is locked.
    msync => __NR_msync(at: usize, bytes: usize, flags: u32);
}

/// Sets the calling thread's signal mask and returns the old one.
pub fn signal_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    let _ = call!(__NR_rt_sigprocmask, g::SIG_SETMASK, &mask as *const u64, &mut old as *mut u64, 8);
    old
}

/// Signals that are pending.
pub fn pending_signals() -> u64 {
    let mut set = 0u64;
    let _ = call!(__NR_rt_sigpending, &mut set as *mut u64, 8);
    set
}

/// What the kernel knows of a signal's disposition (its `struct sigaction`): handler, flags, restorer, mask.
pub type Disposition = [u64; 4];

/// Sets a signal's disposition and returns the old one.
///
/// # Safety
/// A handler must be fit to run; 1 (SIG_IGN) always is.
pub unsafe fn sigaction(signal: u32, new: &Disposition) -> Result<Disposition> {
    let mut old = [0u64; 4];
    call!(__NR_rt_sigaction, signal, new as *const Disposition, &mut old as *mut Disposition, 8)?;
    Ok(old)
}

/// A set of CPUs, up to 8192 of them.
#[derive(Clone, Copy)]
pub struct CpuSet([u64; 128]);

impl CpuSet {
    /// Those that the calling thread may run on; none when the kernel does not say.
    pub fn of_this_thread() -> CpuSet {
        let mut mask = [0u64; 128];
        let _ = call!(__NR_sched_getaffinity, 0, size_of_val(&mask), mask.as_mut_ptr());
        CpuSet(mask)
    }

    /// One CPU.
    pub fn only(cpu: usize) -> CpuSet {
        let mut mask = [0u64; 128];
        mask[cpu / 64] |= 1 << (cpu % 64);
        CpuSet(mask)
    }

    /// The others.
    pub fn without(mut self, cpu: usize) -> CpuSet {
        self.0[cpu / 64] &= !(1 << (cpu % 64));
        self
    }

    /// True when the CPU is one of them.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }
}

/// Binds a thread to CPUs; 0 is the calling one.
pub fn sched_setaffinity(tid: u32, cpus: &CpuSet) -> Result<()> {
    call!(__NR_sched_setaffinity, tid, size_of_val(&cpus.0), cpus.0.as_ptr()).map(drop)
}

/// Sets a thread's scheduling policy, with priority 0; 0 is the calling one.
pub fn sched_setscheduler(tid: u32, policy: u32) -> Result<()> {
    let priority = 0u32;
    call!(__NR_sched_setscheduler, tid, policy, &raw const priority).map(drop)
}

/// True when a thread like the calling one may become SCHED_IDLE and leave that again. It is tried out, and where it may not the caller
/// stays SCHED_IDLE: a thread that ends soon.
pub fn may_yield() -> bool {
    call!(__NR_sched_getscheduler, 0) == Ok(consts::SCHED_OTHER as usize)
        && sched_setscheduler(0, consts::SCHED_IDLE).is_ok()
        && sched_setscheduler(0, consts::SCHED_OTHER).is_ok()
}

/// Ends the calling thread.
pub fn exit(code: u32) -> ! {
    let _ = call!(__NR_exit, code);
    unreachable!("exit returned")
}

/// Starts a thread of execution at `entry(argument)` on the stack that ends at `stack_top`, with clone's `flags`. The new
/// one must not return from `entry`. Returns its id to the caller.
///
/// # Safety
/// `stack_top` must be 16-byte aligned and the stack unused; with CLONE_VM all that `entry` does is done to this process.
pub unsafe fn clone(
    flags: u32,
    stack_top: usize,
    entry: extern "C" fn(usize) -> !,
    argument: usize,
) -> Result<u32> {
    let mut ret = g::__NR_clone as usize;
    // SAFETY: the child runs on its own stack and never comes back here; the parent sees an ordinary system call.
    unsafe {
        asm!(
            "syscall",
            "test eax, eax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") ret,
            in("rdi") flags as usize, in("rsi") stack_top, in("rdx") 0usize, in("r10") 0usize, in("r8") 0usize,
            in("r12") argument, in("r13") entry,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    if ret > -4096isize as usize { Err(Errno(ret.wrapping_neg() as u32)) } else { Ok(ret as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_names() {
        assert_eq!(open(b"/no/such/file\0", 0).unwrap_err().to_string(), "ENOENT (errno 2)");
    }

    #[test]
    fn a_directory_is_read_to_its_end() {
        let dir = open(b"/proc/self/task\0", consts::O_DIRECTORY).unwrap();
        let mut names = Vec::new();
        read_dir(&dir, |name| names.push(String::from_utf8(name.to_vec()).unwrap())).unwrap();
        assert!(names.contains(&gettid().unwrap().to_string()), "{names:?}");
    }

    #[test]
    fn peek_reads_memory_and_refuses_holes() {
        let value = 0x1234_5678u32.to_le_bytes();
        let mut got = [0; 4];
        let pid = getpid().unwrap() as u32;
        assert_eq!(peek(pid, value.as_ptr() as usize, &mut got), Ok(4));
        assert_eq!(got, value);
        assert_eq!(peek(pid, 16, &mut got), Err(Errno::EFAULT));
    }
}
