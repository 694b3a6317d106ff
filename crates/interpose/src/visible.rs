//! How much memory the program sees, where its user has said so (`--visible`): programs that size their caches and
//! heaps by that see all of the machine's otherwise. Here pass libc's functions that tell it, and those that open
//! files; all of them go on to libc's own first.
//!
//! ```text
//!   sysinfo, sysconf, get_phys_pages ...   libc's own, then: what is too much becomes less
//!   open, openat, fopen ...                libc's own, then: is it a file that tells it? ─> another one, made of it,
//!                                          takes its place
//! ```
//!
//! Without the option none of this is in the way of anybody: the library's table of symbols has no such functions then,
//! and the loader binds the program to libc's (crates/zfolio/src/visible.rs, which writes the size as well).
//!
//! Which file it is says the file, not its path: the file system's kind, and where /proc says that the descriptor
//! leads. So it does not matter how it was found, from which directory and through which links. A file is made as the
//! program opens it: what it tells later is of that moment.
//!
//! What is made is a file in memory, opened to be read, which takes the number of the kernel's by dup3, in one step.
//! Until then it has a number of its own, for some microseconds, which exec closes. Nothing here allocates, locks, or
//! touches errno, and so it is no less safe in a signal handler than open is.

mod figures;
mod group;
mod lines;

use crate::libc::{self, Call, NO_SUCH_CALL};
use crate::loaded;
use control::line::Line;
use control::page_tables;
use control::run;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use figures::FigureKind;
use linux_raw_sys::general as g;
use memcg::Memcg;
use uffd::sys::{self, consts::*};
use uffd::{PAGE, file};

/// How much there is to be seen, in bytes: a number that `zfolio run` writes into the file of the library. 0 where the
/// user has said nothing.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".data.zfolio")]
static zfolio_visible_bytes: AtomicU64 = AtomicU64::new(0);

/// The longest path of a file that tells how much memory there is, in bytes.
const PATH_BYTES: usize = 1024;

/// What the program is to see, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    /// How much there is.
    total: u64,
    /// And how much of it the run does not hold.
    available: u64,
}

impl Shown {
    fn now() -> Shown {
        Shown::of(zfolio_visible_bytes.load(Relaxed), used_bytes())
    }

    fn of(total: u64, used: u64) -> Shown {
        Shown { total, available: total.saturating_sub(used) }
    }

    fn used(&self) -> u64 {
        self.total - self.available
    }
}

/// What the processes of the run hold. A process that has not grown has not mapped the run's page, and reads two words
/// of the file; one that may not do that takes it that they hold nothing.
fn used_bytes() -> u64 {
    if let Some(memcg) = run::memcg() {
        return memcg.used_bytes();
    }
    if page_tables::is_bound() {
        return 0;
    }
    let mut room = [0; memcg::PATH_BYTES];
    let page =
        run::beside_library(memcg::PAGE_FILE, &mut room).and_then(|path| sys::open(path, O_RDONLY).ok());
    let word = |at| {
        let mut word = [0; 8];
        let is_read = page.as_ref().is_some_and(|page| sys::pread(page, &mut word, at) == Ok(8));
        is_read.then_some(u64::from_le_bytes(word))
    };
    Memcg::used_of(word)
}

/// Looks at a file that libc has opened, or not, and puts another one in its place if it tells how much memory there
/// is.
fn opened(fd: i32) -> i32 {
    // A filter of system calls may end who makes one that it does not foresee.
    if fd >= 0 && !page_tables::is_bound() {
        let _ = show(fd);
    }
    fd
}

fn show(fd: i32) -> Option<()> {
    let file_system = file::file_system(fd)?;
    let flags = file::status_flags(fd).ok()?;
    if flags & (g::O_ACCMODE | g::O_PATH) != O_RDONLY {
        return None;
    }
    let mut path = [0; PATH_BYTES];
    let len = sys::readlink(link(fd).as_str().as_bytes(), &mut path).ok().filter(|len| *len < PATH_BYTES)?;
    let path = &path[..len];
    let kind = figures::kind(file_system, path)?;
    if kind != FigureKind::Machine && !group::is_ours(fd, file_system, path) {
        return None;
    }
    let made = file::in_memory(c"zfolio-visible").ok()?;
    if !figures::write(kind, fd, &Shown::now(), &made) {
        return None;
    }
    // Opened as the other one was, and at its beginning.
    let made = sys::open(link(made.raw()).as_str().as_bytes(), flags & O_NONBLOCK).ok()?;
    file::replace(fd, &made).ok()
}

/// Where /proc says what a descriptor leads to, with NUL. A thread may have descriptors of its own.
fn link(fd: i32) -> Line {
    let mut line = Line::default();
    let _ = write!(line, "/proc/thread-self/fd/{fd}\0");
    line
}

/// Defines the functions that are libc's own with more behind them: what each takes and returns, and what it does with
/// the address of libc's, which is looked for when the function is called first.
macro_rules! behind_libc {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $returns:ty => $call:expr;)*) => {
        $(
            $(#[$doc])*
            pub extern "C" fn $name($($argument: $type),*) -> $returns {
                static REAL: AtomicUsize = AtomicUsize::new(0);
                find(&REAL, stringify!($name)).map_or(NO_SUCH_CALL as $returns, $call)
            }
        )*
    };
}

/// The address of libc's function of this name, which is kept in `cell`.
fn find(cell: &AtomicUsize, name: &str) -> Option<usize> {
    match cell.load(Relaxed) {
        0 => {
            let found = loaded::symbol_behind_us(name.as_bytes())?;
            cell.store(found, Relaxed);
            Some(found)
        }
        known => Some(known),
    }
}

/// A function of libc's at this address, as the function type `F`.
///
/// # Safety
/// `F` must be the type of a pointer to that function.
unsafe fn as_function<F: Copy>(address: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: the address of a function is a function pointer; the type is the caller's contract.
    unsafe { core::mem::transmute_copy(&address) }
}

type Open = unsafe extern "C" fn(usize, i32, ...) -> i32;
type Openat = unsafe extern "C" fn(i32, usize, i32, ...) -> i32;
type OpenChecked = unsafe extern "C" fn(usize, i32) -> i32;
type OpenatChecked = unsafe extern "C" fn(i32, usize, i32) -> i32;
type Fopen = unsafe extern "C" fn(usize, usize) -> usize;
type Freopen = unsafe extern "C" fn(usize, usize, usize) -> usize;
type Sysconf = unsafe extern "C" fn(i32) -> i64;

behind_libc! {
    /// open(2).
    open(path: usize, flags: i32, mode: u32) -> i32 => |real| {
        // SAFETY: the type of open, and the program's own call.
        opened_with(flags, unsafe { as_function::<Open>(real)(path, flags, mode) })
    };
    /// open(2) under its other name.
    open64(path: usize, flags: i32, mode: u32) -> i32 => |real| {
        // SAFETY: the type of open64, and the program's own call.
        opened_with(flags, unsafe { as_function::<Open>(real)(path, flags, mode) })
    };
    /// openat(2).
    openat(dir: i32, path: usize, flags: i32, mode: u32) -> i32 => |real| {
        // SAFETY: the type of openat, and the program's own call.
        opened_with(flags, unsafe { as_function::<Openat>(real)(dir, path, flags, mode) })
    };
    /// openat(2) under its other name.
    openat64(dir: i32, path: usize, flags: i32, mode: u32) -> i32 => |real| {
        // SAFETY: the type of openat64, and the program's own call.
        opened_with(flags, unsafe { as_function::<Openat>(real)(dir, path, flags, mode) })
    };
    /// open(2), where the compiler knows that there is no mode.
    __open_2(path: usize, flags: i32) -> i32 => |real| {
        // SAFETY: the type of __open_2, and the program's own call.
        opened_with(flags, unsafe { as_function::<OpenChecked>(real)(path, flags) })
    };
    /// The same under its other name.
    __open64_2(path: usize, flags: i32) -> i32 => |real| {
        // SAFETY: the type of __open64_2, and the program's own call.
        opened_with(flags, unsafe { as_function::<OpenChecked>(real)(path, flags) })
    };
    /// openat(2), where the compiler knows that there is no mode.
    __openat_2(dir: i32, path: usize, flags: i32) -> i32 => |real| {
        // SAFETY: the type of __openat_2, and the program's own call.
        opened_with(flags, unsafe { as_function::<OpenatChecked>(real)(dir, path, flags) })
    };
    /// The same under its other name.
    __openat64_2(dir: i32, path: usize, flags: i32) -> i32 => |real| {
        // SAFETY: the type of __openat64_2, and the program's own call.
        opened_with(flags, unsafe { as_function::<OpenatChecked>(real)(dir, path, flags) })
    };
    /// fopen(3).
    fopen(path: usize, mode: usize) -> usize => |real| {
        // SAFETY: the type of fopen, and the program's own call.
        opened_stream(unsafe { as_function::<Fopen>(real)(path, mode) })
    };
    /// fopen(3) under its other name.
    fopen64(path: usize, mode: usize) -> usize => |real| {
        // SAFETY: the type of fopen64, and the program's own call.
        opened_stream(unsafe { as_function::<Fopen>(real)(path, mode) })
    };
    /// freopen(3).
    freopen(path: usize, mode: usize, stream: usize) -> usize => |real| {
        // SAFETY: the type of freopen, and the program's own call.
        opened_stream(unsafe { as_function::<Freopen>(real)(path, mode, stream) })
    };
    /// freopen(3) under its other name.
    freopen64(path: usize, mode: usize, stream: usize) -> usize => |real| {
        // SAFETY: the type of freopen64, and the program's own call.
        opened_stream(unsafe { as_function::<Freopen>(real)(path, mode, stream) })
    };
    /// sysinfo(2).
    sysinfo(info: usize) -> i32 => |real| {
        // SAFETY: the type of sysinfo, and the program's own call.
        tell(info, unsafe { as_function::<unsafe extern "C" fn(usize) -> i32>(real)(info) })
    };
    /// sysconf(3).
    sysconf(name: i32) -> i64 => |real| {
        // SAFETY: the type of sysconf, and the program's own call.
        configured(name, unsafe { as_function::<Sysconf>(real)(name) })
    };
    /// sysconf(3) under its other name.
    __sysconf(name: i32) -> i64 => |real| {
        // SAFETY: the type of __sysconf, and the program's own call.
        configured(name, unsafe { as_function::<Sysconf>(real)(name) })
    };
}

/// sysconf's names.
const SC_PHYS_PAGES: i32 = 85;
const SC_AVPHYS_PAGES: i32 = 86;

/// get_phys_pages(3): by sysconf, as libc has one by the other.
pub extern "C" fn get_phys_pages() -> i64 {
    sysconf(SC_PHYS_PAGES)
}

/// get_avphys_pages(3).
pub extern "C" fn get_avphys_pages() -> i64 {
    sysconf(SC_AVPHYS_PAGES)
}

/// What `syscall` goes on with for the numbers of these calls; `None` for others, and where the user has said nothing.
pub fn by_syscall(number: u32) -> Option<usize> {
    if zfolio_visible_bytes.load(Relaxed) == 0 {
        return None;
    }
    match number {
        g::__NR_open | g::__NR_openat | g::__NR_openat2 => Some(open_by_syscall as *const () as usize),
        g::__NR_sysinfo => Some(sysinfo_by_syscall as *const () as usize),
        _ => None,
    }
}

/// None of these calls has more than four arguments.
extern "C" fn open_by_syscall(number: i64, a: usize, b: usize, c: usize, d: usize) -> i64 {
    opened(real_syscall(number, [a, b, c, d]) as i32).into()
}

extern "C" fn sysinfo_by_syscall(number: i64, info: usize) -> i64 {
    tell(info, real_syscall(number, [info, 0, 0, 0]) as i32).into()
}

fn real_syscall(number: i64, [a, b, c, d]: [usize; 4]) -> i64 {
    // SAFETY: the type of syscall(2).
    let real = unsafe { libc::real::<unsafe extern "C" fn(i64, ...) -> i64>(Call::Syscall) };
    // SAFETY: the program's own call, with its own arguments.
    real.map_or(NO_SUCH_CALL.into(), |f| unsafe { f(number, a, b, c, d) })
}

/// A file was opened with these flags, or was not: what cannot be read, or is made, is no file that tells how much
/// memory there is.
fn opened_with(flags: i32, fd: i32) -> i32 {
    if flags as u32 & (g::O_ACCMODE | g::O_PATH | g::O_DIRECTORY | g::O_CREAT) == O_RDONLY {
        opened(fd)
    } else {
        fd
    }
}

/// A stream, of which nothing was read yet.
fn opened_stream(stream: usize) -> usize {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    if stream != 0
        && let Some(fileno) = find(&REAL, "fileno")
    {
        // SAFETY: the type of fileno(3).
        let fileno = unsafe { as_function::<unsafe extern "C" fn(usize) -> i32>(fileno) };
        // SAFETY: libc has just opened the stream.
        opened(unsafe { fileno(stream) });
    }
    stream
}

/// `struct sysinfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sysinfo {
    uptime: i64,
    loads: [u64; 3],
    total: u64,
    free: u64,
    shared: u64,
    buffers: u64,
    swap_total: u64,
    swap_free: u64,
    processes: u16,
    total_high: u64,
    free_high: u64,
    /// Of all sizes, in bytes.
    unit: u32,
}

impl Sysinfo {
    fn show(&mut self, shown: &Shown) {
        let unit = u64::from(self.unit.max(1));
        self.total = self.total.min(shown.total / unit);
        self.free = self.free.min(shown.available / unit);
        self.shared = self.shared.min(self.total);
        (self.buffers, self.swap_total, self.swap_free) = (0, 0, 0);
    }
}

fn tell(info: usize, result: i32) -> i32 {
    if result == 0 {
        // SAFETY: the kernel has just written the structure there, for the program.
        unsafe { (*(info as *mut Sysinfo)).show(&Shown::now()) };
    }
    result
}

/// What sysconf is to say instead of `told`.
fn configured(name: i32, told: i64) -> i64 {
    let most = |bytes: u64| told.min((bytes / PAGE as u64) as i64);
    match name {
        SC_PHYS_PAGES => most(zfolio_visible_bytes.load(Relaxed)),
        SC_AVPHYS_PAGES => most(Shown::now().available),
        _ => told,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_less_and_never_more() {
        let mut info =
            Sysinfo { total: 24 << 30, free: 20 << 30, shared: 1 << 30, unit: 1, ..Sysinfo::default() };
        (info.buffers, info.swap_total, info.uptime) = (1 << 20, 1 << 30, 7);
        let shown = Shown::of(200 << 20, 50 << 20);
        info.show(&shown);
        let expected = Sysinfo {
            total: 200 << 20,
            free: 150 << 20,
            shared: 200 << 20,
            uptime: 7,
            unit: 1,
            ..Sysinfo::default()
        };
        assert_eq!(info, expected);
        let mut small = Sysinfo { total: 100, free: 90, unit: 1 << 20, ..Sysinfo::default() };
        small.show(&shown);
        assert_eq!((small.total, small.free), (100, 90), "there is no more");
        small.show(&Shown::of(64 << 20, 65 << 20));
        assert_eq!((small.total, small.free), (64, 0), "in its units; more is held than there is to be seen");
    }
}
