//! What the program reads of its own page tables (/proc/self/pagemap). The kernel knows nothing of memory that is out,
//! and says that it was never touched: who resets memory by that would give one user's data to the next. So libc's
//! calls that read pass here, and such pages look as they would in the kernel's own swap (bit 62).
//!
//! ```text
//!   read, pread, readv ... ── no engine, or one that sleeps ──> libc's own: nothing is out
//!                          └─ libc's own, then: may it be page tables with a hole? ─> are they ours?
//!                             ─> asks the engine
//! ```
//!
//! These are frequent calls. Before an engine is awake each costs a comparison and a jump (`exports.rs`); afterwards a
//! look at the first words that were read: an entry of a page that is neither present nor swapped says nothing else but
//! perhaps that it is soft-dirty, and in what is not page tables there is soon a word that no entry can be. Only what
//! passes that costs a system call, which asks what file it was. So it does not matter how or when the program has
//! opened it.
//!
//! An answer is right because
//! 1. the engine says how pages stand at one moment between the beginning of the call and its end (mm/pager/look.rs),
//!    and it counts where the kernel has seen a hole;
//! 2. what the kernel has seen in place was there at another such moment;
//! 3. nobody waits for a lock that the engine may want: the bell is held, and the engine writes its answer into the
//!    library's own memory, which never goes out.
//!
//! Threads that read one descriptor by `read` at the same time share its offset, and know as little as this does which
//! part each of them has got.

use crate::bell::ask;
use crate::libc::NO_SUCH_CALL;
use crate::loaded;
use crate::own::with_bell;
use control::line::Line;
use control::page_tables::{self, LOOK_PAGES};
use control::{CONTROL, EngineState, Request};
use core::ffi::c_void;
use core::fmt::Write;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use linux_raw_sys::general as g;
use uffd::pagemap::{self, PRESENT_BIT, PROTECTED_BIT, SOFT_DIRTY_BIT, SWAPPED_BIT};
use uffd::{PAGE, sys};

/// libc's functions, by [`ReadCall`]; 0 before the first call of each.
#[unsafe(link_section = ".data.zfolio")]
pub static REAL: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

/// The calls that read, and their names.
macro_rules! functions {
    (frequent { $($name:ident => $call:ident;)* } $($rest:tt)*) => {
        /// The calls that read, by the names of their functions.
        #[allow(missing_docs, reason = "their names say it")]
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub enum ReadCall {
            $($call),*
        }

        /// Their names, without addresses: they are needed before those are filled in (relocate.rs).
        #[unsafe(link_section = ".text.startup.zfolio")]
        static NAMES: [[u8; 16]; [$(stringify!($name)),*].len()] = [$(name(stringify!($name))),*];
    };
}

include!("functions.in");

const fn name(text: &str) -> [u8; 16] {
    let (mut padded, mut at) = ([0; 16], 0);
    while at < text.len() {
        padded[at] = text.as_bytes()[at];
        at += 1;
    }
    padded
}

/// The address of libc's function, which is found when it is called first; of one that fails where this libc has none.
#[unsafe(link_section = ".text.startup.zfolio")]
pub extern "C" fn resolve(call: usize) -> usize {
    let (Some(name), Some(cell)) = (NAMES.get(call), REAL.get(call)) else {
        return no_such_call as *const () as usize;
    };
    let found = loaded::symbol_behind_us(name).unwrap_or(no_such_call as *const () as usize);
    cell.store(found, Relaxed);
    found
}

#[unsafe(link_section = ".text.startup.zfolio")]
extern "C" fn no_such_call() -> isize {
    NO_SUCH_CALL as isize
}

/// libc's own function, as the function type `F`.
///
/// # Safety
/// `F` must be the type of a pointer to that function.
unsafe fn real<F: Copy>(call: ReadCall) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let known = REAL[call as usize].load(Relaxed);
    let address = if known == 0 { resolve(call as usize) } else { known };
    // SAFETY: the address of a function is a function pointer; the type is the caller's contract.
    unsafe { core::mem::transmute_copy(&address) }
}

/// `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Iovec {
    at: usize,
    bytes: usize,
}

/// Where a descriptor stands, for the calls that say no offset.
const HERE: i64 = -1;

type Read = extern "C" fn(i32, *mut c_void, usize) -> isize;
type ReadChk = extern "C" fn(i32, *mut c_void, usize, usize) -> isize;
type Pread = extern "C" fn(i32, *mut c_void, usize, i64) -> isize;
type PreadChk = extern "C" fn(i32, *mut c_void, usize, i64, usize) -> isize;
type Readv = extern "C" fn(i32, usize, i32) -> isize;
type Preadv = extern "C" fn(i32, usize, i32, i64) -> isize;
type Preadv2 = extern "C" fn(i32, usize, i32, i64, i32) -> isize;

/// read(2).
pub extern "C" fn read(fd: i32, at: *mut c_void, bytes: usize) -> isize {
    // SAFETY: the type of read.
    let real = unsafe { real::<Read>(ReadCall::Read) };
    let done = real(fd, at, bytes);
    complete(fd, &[Iovec { at: at as usize, bytes }], HERE, done)
}

/// read(2), where the compiler knows how large the buffer is.
pub extern "C" fn __read_chk(fd: i32, at: *mut c_void, bytes: usize, most: usize) -> isize {
    // SAFETY: the type of __read_chk.
    let real = unsafe { real::<ReadChk>(ReadCall::ReadChk) };
    let done = real(fd, at, bytes, most);
    complete(fd, &[Iovec { at: at as usize, bytes }], HERE, done)
}

/// pread(2).
pub extern "C" fn pread(fd: i32, at: *mut c_void, bytes: usize, offset: i64) -> isize {
    // SAFETY: the type of pread.
    let real = unsafe { real::<Pread>(ReadCall::Pread) };
    let done = real(fd, at, bytes, offset);
    complete(fd, &[Iovec { at: at as usize, bytes }], offset, done)
}

/// pread(2) under its other name.
pub extern "C" fn pread64(fd: i32, at: *mut c_void, bytes: usize, offset: i64) -> isize {
    // SAFETY: the type of pread64.
    let real = unsafe { real::<Pread>(ReadCall::Pread64) };
    let done = real(fd, at, bytes, offset);
    complete(fd, &[Iovec { at: at as usize, bytes }], offset, done)
}

/// pread(2), where the compiler knows how large the buffer is.
pub extern "C" fn __pread_chk(fd: i32, at: *mut c_void, bytes: usize, offset: i64, most: usize) -> isize {
    // SAFETY: the type of __pread_chk.
    let real = unsafe { real::<PreadChk>(ReadCall::PreadChk) };
    let done = real(fd, at, bytes, offset, most);
    complete(fd, &[Iovec { at: at as usize, bytes }], offset, done)
}

/// The same under its other name.
pub extern "C" fn __pread64_chk(fd: i32, at: *mut c_void, bytes: usize, offset: i64, most: usize) -> isize {
    // SAFETY: the type of __pread64_chk.
    let real = unsafe { real::<PreadChk>(ReadCall::Pread64Chk) };
    let done = real(fd, at, bytes, offset, most);
    complete(fd, &[Iovec { at: at as usize, bytes }], offset, done)
}

/// readv(2).
pub extern "C" fn readv(fd: i32, pieces: usize, count: i32) -> isize {
    // SAFETY: the type of readv.
    let real = unsafe { real::<Readv>(ReadCall::Readv) };
    let done = real(fd, pieces, count);
    // SAFETY: where readv succeeds it has read the pieces.
    unsafe { complete_pieces(fd, pieces, count, HERE, done) }
}

/// preadv(2).
pub extern "C" fn preadv(fd: i32, pieces: usize, count: i32, offset: i64) -> isize {
    // SAFETY: the type of preadv.
    let real = unsafe { real::<Preadv>(ReadCall::Preadv) };
    let done = real(fd, pieces, count, offset);
    // SAFETY: where preadv succeeds it has read the pieces.
    unsafe { complete_pieces(fd, pieces, count, offset, done) }
}

/// preadv(2) under its other name.
pub extern "C" fn preadv64(fd: i32, pieces: usize, count: i32, offset: i64) -> isize {
    // SAFETY: the type of preadv64.
    let real = unsafe { real::<Preadv>(ReadCall::Preadv64) };
    let done = real(fd, pieces, count, offset);
    // SAFETY: where preadv64 succeeds it has read the pieces.
    unsafe { complete_pieces(fd, pieces, count, offset, done) }
}

/// preadv2(2).
pub extern "C" fn preadv2(fd: i32, pieces: usize, count: i32, offset: i64, flags: i32) -> isize {
    // SAFETY: the type of preadv2.
    let real = unsafe { real::<Preadv2>(ReadCall::Preadv2) };
    let done = real(fd, pieces, count, offset, flags);
    // SAFETY: where preadv2 succeeds it has read the pieces.
    unsafe { complete_pieces(fd, pieces, count, offset, done) }
}

/// preadv2(2) under its other name.
pub extern "C" fn preadv64v2(fd: i32, pieces: usize, count: i32, offset: i64, flags: i32) -> isize {
    // SAFETY: the type of preadv64v2.
    let real = unsafe { real::<Preadv2>(ReadCall::Preadv64v2) };
    let done = real(fd, pieces, count, offset, flags);
    // SAFETY: where preadv64v2 succeeds it has read the pieces.
    unsafe { complete_pieces(fd, pieces, count, offset, done) }
}

/// What `syscall` goes on with for the numbers of these calls; `None` for others, and while nothing can be out.
pub fn by_syscall(number: u32) -> Option<usize> {
    if page_tables::IS_AWAKE.load(Relaxed) == 0 {
        return None;
    }
    match number {
        g::__NR_read => Some(read_by_syscall as *const () as usize),
        g::__NR_pread64 => Some(pread_by_syscall as *const () as usize),
        g::__NR_readv => Some(readv_by_syscall as *const () as usize),
        g::__NR_preadv => Some(preadv_by_syscall as *const () as usize),
        g::__NR_preadv2 => Some(preadv2_by_syscall as *const () as usize),
        _ => None,
    }
}

extern "C" fn read_by_syscall(_number: i64, fd: i32, at: *mut c_void, bytes: usize) -> isize {
    read(fd, at, bytes)
}

extern "C" fn pread_by_syscall(_number: i64, fd: i32, at: *mut c_void, bytes: usize, offset: i64) -> isize {
    pread64(fd, at, bytes, offset)
}

extern "C" fn readv_by_syscall(_number: i64, fd: i32, pieces: usize, count: i32) -> isize {
    readv(fd, pieces, count)
}

/// The upper half of the offset, the sixth argument, is of no use where a register holds all of it.
extern "C" fn preadv_by_syscall(_number: i64, fd: i32, pieces: usize, count: i32, offset: i64) -> isize {
    preadv64(fd, pieces, count, offset)
}

extern "C" fn preadv2_by_syscall(
    _number: i64,
    fd: i32,
    pieces: usize,
    count: i32,
    offset: i64,
    _high: i64,
    flags: i32,
) -> isize {
    preadv64v2(fd, pieces, count, offset, flags)
}

/// What a word of page tables says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// There is nothing: neither a page nor a swap entry.
    Hole,
    /// There is a page, of which a write is told to some userfaultfd.
    Protected,
    /// There is something.
    Page,
    /// It is no entry of page tables.
    Else,
}

fn says(word: u64) -> Says {
    if word & !SOFT_DIRTY_BIT == 0 {
        Says::Hole
    } else if word & (PRESENT_BIT | SWAPPED_BIT) == 0 {
        Says::Else
    } else if word & PROTECTED_BIT != 0 {
        Says::Protected
    } else {
        Says::Page
    }
}

/// An entry as the kernel has told it, with what the engine knows of the page. Which frame or slot it has is told to
/// those alone whom the kernel tells.
fn merge(told: u64, known: u64) -> u64 {
    const PLACE: u64 = (1 << 55) - 1;
    match says(told) {
        Says::Hole => known & !PLACE,
        Says::Protected if known & PROTECTED_BIT == 0 => told & !PROTECTED_BIT,
        _ => told,
    }
}

/// One entry.
const ENTRY: usize = size_of::<u64>();

/// The words that were read, where they lie.
struct EntryWords<'a> {
    pieces: &'a [Iovec],
    bytes: usize,
}

impl EntryWords<'_> {
    /// Their addresses. The kernel reads whole entries into each piece.
    fn places(&self) -> impl Iterator<Item = *mut u64> {
        let mut left = self.bytes;
        self.pieces.iter().flat_map(move |piece| {
            let bytes = piece.bytes.min(left);
            left -= bytes;
            (piece.at..piece.at + bytes / ENTRY * ENTRY).step_by(ENTRY).map(|at| at as *mut u64)
        })
    }

    /// True where they may be page tables with something in them that the kernel does not know.
    fn may_be_wrong(&self) -> bool {
        for place in self.places() {
            // SAFETY: the kernel has just written to it.
            match says(unsafe { place.read_unaligned() }) {
                Says::Hole | Says::Protected => return true,
                Says::Else => return false,
                Says::Page => {}
            }
        }
        false
    }
}

/// A call has read `done` bytes, or failed: returns the same when what they say is right.
fn complete(fd: i32, pieces: &[Iovec], offset: i64, done: isize) -> isize {
    if done <= 0 || !(done as usize).is_multiple_of(ENTRY) || page_tables::IS_AWAKE.load(Relaxed) == 0 {
        return done;
    }
    let words = EntryWords { pieces, bytes: done as usize };
    if !words.may_be_wrong() || !is_own(fd) {
        return done;
    }
    let offset = match offset {
        HERE => pagemap::stands_at(fd).map_or(0, |end| end.saturating_sub(done as usize)),
        offset => offset as usize,
    };
    let (mut places, first) = (words.places(), offset / ENTRY);
    let mut from = first;
    while from < first + done as usize / ENTRY {
        let to = (first + done as usize / ENTRY).min(from + LOOK_PAGES);
        with_answer(from * PAGE..to * PAGE, |known| {
            for (place, known) in places.by_ref().take(to - from).zip(known) {
                // SAFETY: the kernel has just written to it.
                unsafe { place.write_unaligned(merge(place.read_unaligned(), *known)) };
            }
        });
        from = to;
    }
    done
}

/// [`complete`] for a call with several buffers, which the kernel fills one after the other.
///
/// # Safety
/// If `done` is more than 0, the kernel must have just read `count` of these pieces, at this address.
unsafe fn complete_pieces(fd: i32, pieces: usize, count: i32, offset: i64, done: isize) -> isize {
    if done <= 0 {
        return done;
    }
    // SAFETY: the caller's contract.
    let pieces = unsafe { core::slice::from_raw_parts(pieces as *const Iovec, count as usize) };
    complete(fd, pieces, offset, done)
}

/// Asks the engine about a range of pages, [`LOOK_PAGES`] at most.
fn with_answer(range: Range<usize>, act: impl FnOnce(&[u64])) {
    with_bell(|| {
        if CONTROL.state() == EngineState::Awake && range.end <= 1 << 47 {
            ask(Request::Look, range.clone());
            // SAFETY: the engine has answered, and nobody else asks.
            act(&unsafe { &*page_tables::answer() }[..range.len() / PAGE]);
        }
    })
}

/// True for a descriptor of this memory's page tables, where that may be asked.
pub fn is_own(fd: i32) -> bool {
    if page_tables::is_bound() {
        return false;
    }
    if !pagemap::may_be(fd) {
        return false;
    }
    let (mut link, mut path) = (Line::default(), [0; 96]);
    // A thread may have descriptors of its own.
    let _ = write!(link, "/proc/thread-self/fd/{fd}\0");
    let len = sys::readlink(link.as_str().as_bytes(), &mut path).unwrap_or(0);
    let Some(pid) = whose(&path[..len]) else { return false };
    // A thread's number is not another process's. A child of vfork has its parent's memory.
    let own = sys::getpid().unwrap_or(0) as u32;
    pid == own || sys::gettid() == Ok(pid as usize) || sys::same_vm(own, pid) == Ok(true)
}

/// The process, or thread, of whose page tables a path is: `/proc/PID/pagemap`, or `/proc/PID/task/TID/pagemap`,
/// wherever proc is mounted.
fn whose(path: &[u8]) -> Option<u32> {
    let mut parts = path.rsplit(|byte| *byte == b'/');
    if parts.next() != Some(b"pagemap") {
        return None;
    }
    core::str::from_utf8(parts.next()?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_page_tables_is_in_their_path() {
        for (path, expected) in [
            ("/proc/12/pagemap", Some(12)),
            ("/proc/12/task/34/pagemap", Some(34)),
            ("/elsewhere/proc/12/pagemap", Some(12)),
            ("/proc/12/maps", None),
            ("/home/pagemap", None),
            ("pagemap", None),
            ("", None),
        ] {
            assert_eq!(whose(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn descriptors_of_this_process_are_told_from_others() {
        let open = |path: &str| sys::open(path.as_bytes(), 0).unwrap();
        let parent = format!("/proc/{}/pagemap\0", sys::getppid().unwrap());
        assert!(is_own(open("/proc/self/pagemap\0").raw()));
        assert!(is_own(open("/proc/thread-self/pagemap\0").raw()));
        assert!(!is_own(open("/proc/self/maps\0").raw()));
        assert!(!is_own(open(&parent).raw()));
        assert!(!is_own(-1));
    }

    #[test]
    fn only_page_tables_with_a_hole_are_looked_at_twice() {
        let there = PRESENT_BIT | SOFT_DIRTY_BIT | 0x1234;
        let may_be_wrong = |words: &[u64]| {
            let pieces = [Iovec { at: words.as_ptr() as usize, bytes: words.len() * ENTRY }];
            EntryWords { pieces: &pieces, bytes: words.len() * ENTRY }.may_be_wrong()
        };
        assert!(!may_be_wrong(&[there, there]));
        assert!(!may_be_wrong(&[SWAPPED_BIT]));
        assert!(may_be_wrong(&[there, 0]));
        assert!(may_be_wrong(&[there, SOFT_DIRTY_BIT]));
        assert!(may_be_wrong(&[there | PROTECTED_BIT]));
        assert!(!may_be_wrong(&[1, 0]), "no entry");
        assert!(!may_be_wrong(&[there, u64::from_le_bytes(*b"page 123"), 0]));
    }

    #[test]
    fn words_lie_in_pieces_as_far_as_they_were_read() {
        let memory = [0u64; 6];
        let at = memory.as_ptr() as usize;
        let pieces =
            [Iovec { at, bytes: 16 }, Iovec { at: at + 24, bytes: 0 }, Iovec { at: at + 32, bytes: 16 }];
        let places = |bytes| {
            EntryWords { pieces: &pieces, bytes }.places().map(|p| p as usize - at).collect::<Vec<_>>()
        };
        assert_eq!(places(32), [0, 8, 32, 40]);
        assert_eq!(places(24), [0, 8, 32]);
        assert_eq!(places(0), []);
    }

    #[test]
    fn what_the_engine_knows_counts_where_the_kernel_sees_nothing() {
        let there = PRESENT_BIT | SOFT_DIRTY_BIT | 0x1234;
        let out = mm::look::OUT;
        assert_eq!(merge(0, out), out);
        assert_eq!(merge(SOFT_DIRTY_BIT, out), out);
        assert_eq!(merge(0, 0), 0);
        assert_eq!(merge(there, out), there, "it was there");
        assert_eq!(merge(0, there), there & !0x1234, "it has come since; nobody learns where it lies");
        assert_eq!(merge(there | PROTECTED_BIT, there), there, "protected by us");
        assert_eq!(merge(there | PROTECTED_BIT, there | PROTECTED_BIT), there | PROTECTED_BIT);
    }

    #[test]
    fn names_are_whole() {
        assert!(NAMES.iter().all(|name| name.contains(&0) && name[0] != 0));
        for call in 0..NAMES.len() {
            assert_ne!(resolve(call), 0);
        }
    }
}
