//! The constants of the executable that hold addresses (RELRO): pages of its file of which the loader has made private copies. In a browser they are 11 MiB of each
//! process that is executed, hardly looked at, and no userfaultfd has them as long as they belong to a file.
//!
//! ```text
//!   start: file, private copies ── copied, and mremap ──> anonymous memory, read-only as before
//!   out:   UFFDIO_MOVE takes nothing that cannot be written to. So a helper calls mremap(MREMAP_DONTUNMAP), which takes the pages and leaves the
//!          mapping, registered as it is; the engine reads the event, and copies the pages to the stage
//!   in:    UFFDIO_COPY, as always where a move is refused
//! ```
//!
//! This is safe at the start because the process has one thread, which is here, and the loader is done with what it has made read-only. It is safe later because
//! 1. the pages leave in one step, as by a move: whoever looks at one afterwards has a fault, and until the event is read nothing can be filled;
//! 2. of messages that are read meanwhile none is lost: faults are handed on afterwards, and for an event's sake all goes back to its place first;
//! 3. nobody unmaps the constants of the executable that it runs. If somebody does, and maps something else there in the moment between the look and
//!    the call, there is no event, and the program is stopped.

use crate::arena;
use crate::birth;
use crate::control::CONTROL;
use crate::loaded;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering::*};
use uffd::PAGE;
use uffd::maps::Maps;
use uffd::pagemap::Pagemap;
use uffd::sys::{self, consts::*};

/// Fewer bytes of constants stay where they are.
const LEAST: usize = 1 << 20;

/// So much is moved at a time, and held twice meanwhile.
pub const PIECE: usize = 256 << 10;

/// One part in so many may be the file's own pages.
const FILE_PART: usize = 8;

/// Fewer pages than this are not taken: each time costs a process.
pub const FEWEST: usize = 4;

/// Gives the constants of the executable, which lie at `range`, anonymous memory. Where anything is not as expected they stay as they are.
pub fn make_anonymous(range: Range<usize>) {
    if range.len() < LEAST || !loaded::has_one_thread() || !is_private(&range) {
        return;
    }
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let Ok(from) = sys::mmap(range.len(), PROT_READ | PROT_WRITE, flags, None) else { return };
    let mut done = 0;
    while done < range.len() {
        let bytes = PIECE.min(range.len() - done);
        // SAFETY: the constants are there and stay the same; the new mapping is nobody else's; and nobody runs who could see the one take the other's place.
        let moved = unsafe {
            core::ptr::copy_nonoverlapping(
                (range.start + done) as *const u8,
                (from + done) as *mut u8,
                bytes,
            );
            sys::mprotect(from + done, bytes, PROT_READ)
                .and_then(|()| sys::mremap(from + done, bytes, bytes, 0, range.start + done))
        };
        if moved.is_err() {
            // SAFETY: what has not been moved is nobody's.
            let _ = unsafe { sys::munmap(from + done, range.len() - done) };
            break;
        }
        done += bytes;
    }
    CONTROL.constants.0.store(range.start, Relaxed);
    CONTROL.constants.1.store(range.start + done, Relaxed);
}

/// True when a range is one read-only mapping of a file, of which there are private copies of nearly all.
fn is_private(range: &Range<usize>) -> bool {
    let (Ok(maps), Ok(pagemap)) = (Maps::open(), Pagemap::open()) else { return false };
    let is_mapping = maps.query(range.start).is_ok_and(|m| {
        m.is_some_and(|m| m.read_only && m.range.start <= range.start && range.end <= m.range.end)
    });
    let mut runs = [Default::default(); 64];
    let (mut at, mut copies) = (range.start, 0);
    while is_mapping
        && at < range.end
        && let Ok((found, upto)) = pagemap.present(at..range.end, usize::MAX, &mut runs)
    {
        copies += runs[..found].iter().map(|run| run.end - run.start).sum::<usize>();
        at = upto;
    }
    range.len() - copies <= range.len() / FILE_PART
}

/// True when all of a range is such memory.
pub fn holds(range: &Range<usize>) -> bool {
    CONTROL.constants.0.load(Relaxed) <= range.start && range.end <= CONTROL.constants.1.load(Relaxed)
}

/// Pages are on their way to `to`, the mapping where they were stays.
struct Order {
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
    let order = unsafe { &*(order as *const Order) };
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

/// Takes the pages of a registered range, and leaves the mapping. They are at `to` afterwards, engine memory whose place they take, registered and read-only. `read` reads a
/// message, if there is one, and says whether it was the event about a move to `to`: the helper waits for that.
pub fn remove(from: Range<usize>, to: usize, mut read: impl FnMut() -> Option<bool>) -> Removed {
    let order = Order { from: from.start, bytes: from.len(), to, result: AtomicU32::new(PENDING) };
    // SAFETY: it makes a system call and ends, and the order is here until then.
    let Ok(helper) = (unsafe { birth::helper(mover, &raw const order as usize) }) else {
        return Removed::Refused;
    };
    let mut is_told = false;
    let result = loop {
        // In this order: what is done has told.
        let result = order.result.load(SeqCst);
        while let Some(ours) = read() {
            is_told |= ours;
        }
        if result != PENDING {
            break result;
        }
        sys::sched_yield();
    };
    helper.wait();
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
            println!("skipped: userfaultfd is refused");
            return;
        };
        let (from, landing) = (constants(), Landing::new(PAGES * PAGE).unwrap());
        uffd.register(from.clone()).unwrap();
        let to = landing.range().start;
        let read = || uffd.next().map(|message| message == Message::Remap { from: from.clone(), to });
        assert_eq!(remove(from.clone(), to, read), Removed::All);
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
        assert_eq!(remove(from.clone(), landing.range().start, || None), Removed::Foreign);
        let askew = from.start + 1..from.end + 1;
        assert_eq!(remove(askew, landing.range().start, || None), Removed::Refused);
    }

    #[test]
    fn few_constants_and_what_is_not_a_mapping_of_a_file_stay_where_they_are() {
        let few = constants();
        make_anonymous(few.clone());
        assert!(!holds(&few));
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        let at = sys::mmap(LEAST, PROT_READ, flags, None).unwrap();
        make_anonymous(at..at + LEAST);
        assert!(!holds(&(at..at + LEAST)), "nothing is there");
    }
}
