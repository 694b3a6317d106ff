//! Memory that cannot be written to (a collector's heap behind a write barrier, code of a JIT, the executable's
//! constants): UFFDIO_MOVE takes nothing of it. It cannot be made writable for a moment either: what another thread
//! says of its protection meanwhile would be undone.
//!
//! ```text
//!   out: a helper calls mremap(MREMAP_DONTUNMAP), which takes the pages to a landing of the engine's and leaves the
//!        mapping, registered as it is; the engine reads the event
//!   in:  UFFDIO_COPY, which fills memory of any protection
//! ```
//!
//! This is safe because
//! 1. the pages leave in one step, as by a move: whoever looks at one afterwards has a fault, and until the event
//!    is read nothing can be filled. So it does not matter whether the mapping has become writable meanwhile: a
//!    write is either in the page that was taken, or a fault;
//! 2. of messages that are read meanwhile none is lost: faults are handed on afterwards, and for an event's sake
//!    all goes back to its place first;
//! 3. the mapping is registered after the engine has said what it takes (`Control::taking`). Whatever libc maps
//!    there from then on is not handed to the program before all is done ([`is_possible`], grow.rs): nothing is in
//!    it yet that could be taken. What is mapped there past libc in that moment, and written to, is taken without
//!    an event, and the program is stopped with a message;
//! 4. nothing is moved meanwhile by mremap (`Control::begin_remap`): of two events that come in any order nobody
//!    could say where a page belongs that was taken between them. What is moved past libc just then stops the
//!    program too;
//! 5. a page that a device may write to is not copied until it has done so: such a page cannot be moved on from the
//!    landing (live/protections.rs). A page that was lent for good ([`lends_pages`]) is not taken at all, and
//!    nobody can begin to lend a page for writing that cannot be written to.

use crate::processes;
use control::arena;
use control::hooked;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering::*};
use uffd::PAGE;
use uffd::sites::Site;
use uffd::sys::{self, consts::*};

/// So much is taken at a time, and held twice meanwhile.
pub const PIECE: usize = 256 << 10;

/// Of smaller mappings nothing is taken, nor of constants in smaller pieces: each time costs a process.
pub const FEWEST: usize = 4;

/// True where all that libc maps passes us.
pub fn is_possible() -> bool {
    [Site::Mmap, Site::Mremap, Site::Brk].into_iter().all(hooked::is_active)
}

/// True when pages of the process are pinned for longer than a call takes (io_uring's buffers, RDMA), or that is
/// not known.
pub fn lends_pages() -> bool {
    let mut text = [0u8; 4096];
    let read = sys::open(b"/proc/self/status\0", O_RDONLY).and_then(|file| sys::read(&file, &mut text));
    let pinned = read.ok().and_then(|bytes| pinned_kib(&text[..bytes]));
    pinned != Some(0)
}

/// What /proc/PID/status says of pinned memory, in KiB.
fn pinned_kib(status: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"\nVmPin:";
    let at = status.windows(NAME.len()).position(|name| name == NAME)? + NAME.len();
    let digits = status[at..].iter().skip_while(|byte| byte.is_ascii_whitespace());
    let digits = digits.take_while(|byte| byte.is_ascii_digit());
    digits.fold(None, |sum, digit| Some(sum.unwrap_or(0) * 10 + (digit - b'0') as usize))
}

/// Pages are on their way to `to`, the mapping where they were stays.
struct MoveOrder {
    from: usize,
    bytes: usize,
    to: usize,
    /// [`PENDING`], [`DONE`] or [`REFUSED`].
    result: AtomicU32,
}

const PENDING: u32 = 0;
const DONE: u32 = 1;
const REFUSED: u32 = 2;

extern "C" fn mover(order: usize) -> ! {
    // SAFETY: `remove` keeps it until this process has ended.
    let order = unsafe { &*(order as *const MoveOrder) };
    // SAFETY: the engine's to take.
    let moved = unsafe { sys::mremap(order.from, order.bytes, order.bytes, MREMAP_DONTUNMAP, order.to) };
    order.result.store(if moved.is_ok() { DONE } else { REFUSED }, SeqCst);
    sys::exit(0)
}

/// What became of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The pages are there, and the event was read.
    All,
    /// Nothing has changed: there was no helper to be had, or the kernel has refused it.
    Refused,
    /// The pages are there, and there was no event: nobody had registered them.
    Foreign,
}

/// Takes the pages of a registered range, and leaves the mapping. They are at `to` afterwards, engine memory whose
/// place they take, registered and read-only. `read` reads a message, if there is one, and says whether it was the
/// event about a move to `to`: the helper waits for that. `wait` returns when there is one, or after a while.
pub fn remove(
    from: Range<usize>,
    to: usize,
    wait: impl Fn(),
    mut read: impl FnMut() -> Option<bool>,
) -> Removed {
    let order = MoveOrder { from: from.start, bytes: from.len(), to, result: AtomicU32::new(PENDING) };
    // SAFETY: it makes a system call and ends, and the order is here until then.
    let Ok(helper) = (unsafe { processes::helper(mover, &raw const order as usize) }) else {
        return Removed::Refused;
    };
    let mut is_told = false;
    loop {
        // In this order: who has ended has told. (A filter of the program's may have ended the helper.)
        let has_ended = helper.has_ended();
        while let Some(ours) = read() {
            is_told |= ours;
        }
        if is_told || has_ended {
            break;
        }
        // Asleep, and not by turns with whoever else wants the CPU.
        wait();
    }
    helper.wait();
    while read().is_some() {}
    let result = order.result.load(SeqCst);
    match result {
        DONE if is_told => Removed::All,
        DONE => Removed::Foreign,
        _ => Removed::Refused,
    }
}

/// A place for pages that are taken; gone with this.
pub struct Landing(Range<usize>);

impl Landing {
    /// For so many bytes.
    pub fn new(bytes: usize) -> Option<Landing> {
        arena::map_apart(bytes, PAGE).map(|at| Landing(at..at + bytes))
    }

    /// Where it is.
    pub fn range(&self) -> Range<usize> {
        self.0.clone()
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        // SAFETY: whoever had it has copied what was there, and has taken it off its descriptor.
        unsafe { arena::unmap(self.0.start, self.0.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uffd::pagemap::Pagemap;
    use uffd::{Features, Message, Userfault};

    const PAGES: usize = 16;

    /// Pages of ones, which can only be read.
    fn constants() -> Range<usize> {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        let at = sys::mmap(PAGES * PAGE, PROT_READ | PROT_WRITE, flags, None).unwrap();
        // SAFETY: this test's own.
        unsafe {
            core::ptr::write_bytes(at as *mut u8, 1, PAGES * PAGE);
            sys::mprotect(at, PAGES * PAGE, PROT_READ).unwrap();
        }
        at..at + PAGES * PAGE
    }

    #[test]
    fn pages_leave_a_read_only_mapping_which_stays_registered() {
        let Ok(uffd) = Userfault::open(Features::Events) else {
            crate::skip::skip("userfaultfd is refused");
            return;
        };
        let (from, landing) = (constants(), Landing::new(PAGES * PAGE).unwrap());
        uffd.register(from.clone()).unwrap();
        let to = landing.range().start;
        let read = || uffd.next().map(|message| message == Message::Remap { from: from.clone(), to });
        assert_eq!(remove(from.clone(), to, sys::sched_yield, read), Removed::All);
        let pagemap = Pagemap::open().unwrap();
        assert_eq!([from.start, to].map(|at| pagemap.is_present(at).unwrap()), [false, true]);
        uffd.unregister(landing.range()).unwrap();
        // SAFETY: a hole is filled with what was there.
        let back = unsafe { uffd.copy(from.start, to, PAGES * PAGE) };
        assert_eq!((back.bytes, back.stop), (PAGES * PAGE, None));
        // SAFETY: all of it is there again.
        let pages = unsafe { core::slice::from_raw_parts(from.start as *const u8, from.len()) };
        assert!(pages.iter().all(|&byte| byte == 1));
    }

    #[test]
    fn what_nobody_has_registered_is_noticed() {
        let (from, landing) = (constants(), Landing::new(PAGES * PAGE).unwrap());
        assert_eq!(remove(from.clone(), landing.range().start, sys::sched_yield, || None), Removed::Foreign);
        let askew = from.start + 1..from.end + 1;
        assert_eq!(remove(askew, landing.range().start, sys::sched_yield, || None), Removed::Refused);
    }

    #[test]
    fn pinned_memory_is_found_in_the_status() {
        assert_eq!(pinned_kib(b"VmLck:\t       8 kB\nVmPin:\t      64 kB\nVmHWM:\t 9 kB\n"), Some(64));
        assert_eq!(pinned_kib(b"VmLck:\t       8 kB\nVmPin:\t       0 kB\n"), Some(0));
        assert_eq!(pinned_kib(b"VmLck:\t       8 kB\n"), None);
        assert!(!lends_pages(), "this process has lent nothing");
    }
}
