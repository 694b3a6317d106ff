//! Locked mappings, and how one grows that was registered before it was locked.
//!
//! mremap that moves such a mapping fills what it adds (mm_populate) before it sends its event; each page of that is a
//! fault of ours, and until the event is read nothing can be put there. So mremap is let fill it, as memory that is not
//! registered, and then it is registered again. mremap has not returned by then, and what comes back has all that the
//! rest of the mapping has: the same userfaultfd, the same flags (nothing else is touched here: not what is kept out of
//! children, nor a fork's mark), and the pages' anon_vma, which both halves of a mapping share. So the kernel joins the
//! two again.

use crate::smaps;
use core::ops::Range;
use uffd::maps::{Mapping, Maps};
use uffd::pagemap::{Pagemap, Run};
use uffd::sys::{self, consts::*};
use uffd::{Errno, Userfault};

/// True when the mapping at `at` is locked: the program wants it to stay. Of anonymous memory msync has nothing to
/// write back, and only says EBUSY where a lock is (smaps says it too, and walks all page tables for it).
pub fn is_locked(at: usize) -> bool {
    sys::msync(at, uffd::PAGE, MS_INVALIDATE) == Err(Errno::EBUSY)
}

/// True when the mapping at `at` is locked and filled, all of it, also as it grows: not where MLOCK_ONFAULT was asked
/// for, which smaps alone tells. (Of kernels whose smaps does not know it, it is filled by us at worst.)
pub fn is_filled(at: usize) -> bool {
    let mut on_fault = false;
    if is_locked(at) {
        let _ = smaps::each(|range, flags| on_fault |= range.contains(&at) && flags.is_locked_on_fault());
        return !on_fault;
    }
    false
}

/// How often it is looked at most whether more of a range has been filled, without seeing any.
const LOOKS: usize = 30;

/// Lets whoever waits at the start of a range fill it, which is part of a locked mapping that is registered with
/// `uffd`. False when it is not registered any more.
///
/// Nothing is filled here: should the range be another mapping by now, the fault would be ours to serve. Nor does it
/// matter whether all of it has been filled: who waits at the next page is let fill the rest.
pub fn fill(uffd: &Userfault, maps: &Maps, pagemap: &Pagemap, range: &Range<usize>) -> Result<bool, Errno> {
    // Whoever waits there goes on now.
    uffd.unregister(range.clone())?;
    let (mut upto, mut looks) = (range.start, 0);
    while upto < range.end && looks < LOOKS {
        let mut first = [Run::default()];
        let (found, _) = pagemap.present(upto..range.end, usize::MAX, &mut first)?;
        if found == 1 && first[0].start == upto {
            (upto, looks) = (first[0].end, 0);
        } else {
            looks += 1;
            if looks < LOOKS / 2 { sys::sched_yield() } else { sys::sleep_ns(20_000) }
        }
    }
    // Of the mapping it is all that is not registered.
    let is_same = |m: Mapping| m.range.start == range.start && m.range.end >= range.end;
    let stays = maps.query(range.start)?.is_some_and(is_same) && is_locked(range.start);
    Ok(stays && uffd.register(range.clone()).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uffd::{Features, Message, PAGE};

    fn map(pages: usize) -> usize {
        sys::mmap(pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap()
    }

    /// mlock2; 1 is MLOCK_ONFAULT.
    ///
    /// # Safety
    /// The range is the caller's.
    unsafe fn lock(at: usize, bytes: usize, flags: usize) {
        const MLOCK2: u32 = 325;
        // SAFETY: the caller's contract.
        assert_eq!(unsafe { sys::syscall(MLOCK2, [at, bytes, flags, 0, 0, 0]) }, Ok(0));
    }

    /// A locked mapping moves and grows, and is one mapping when the call is over, as without a userfaultfd.
    #[test]
    fn what_a_locked_mapping_has_grown_by_is_filled_and_part_of_it() {
        const OLD: usize = 8 * PAGE;
        const NEW: usize = 20 * PAGE;
        let Ok(uffd) = Userfault::open(Features::Events) else {
            return crate::skip::skip("userfaultfd is refused");
        };
        // Between two that nothing joins.
        let (from, place) = (map(8), map(22));
        let to = place + PAGE;
        for gap in [place, to + NEW] {
            // SAFETY: memory of this test alone.
            unsafe { sys::mprotect(gap, PAGE, PROT_NONE) }.unwrap();
        }
        uffd.register(from..from + OLD).unwrap();
        sys::madvise_keep(from, OLD, MADV_DONTFORK).unwrap();
        let locker = std::thread::spawn(move || {
            // SAFETY: as above.
            unsafe { lock(from, OLD, 0) };
        });
        while !locker.is_finished() {
            if let Some(Message::Fault { at, .. }) = uffd.next() {
                assert_eq!(uffd.zeropage(at, PAGE).stop, None);
            }
        }
        locker.join().unwrap();
        assert!(is_filled(from));
        // SAFETY: as above.
        let mover = std::thread::spawn(move || unsafe { sys::mremap(from, OLD, NEW, 0, to) });
        let (maps, pagemap) = (Maps::open().unwrap(), Pagemap::open().unwrap());
        let mut filled = false;
        while !mover.is_finished() {
            match uffd.next() {
                Some(Message::Fault { at, .. }) => {
                    assert_eq!(uffd.zeropage(at, PAGE).stop, Some(Errno::EAGAIN), "its event is due");
                    assert_eq!(fill(&uffd, &maps, &pagemap, &(at..to + NEW)), Ok(true));
                    filled = true;
                }
                Some(_) => assert!(filled),
                None => sys::sched_yield(),
            }
        }
        mover.join().unwrap().unwrap();
        let whole = maps.query(to).unwrap().unwrap().range;
        assert_eq!(whole, to..to + NEW);
        let mut runs = [Run::default(); 2];
        let (found, _) = pagemap.present(whole.clone(), 100, &mut runs).unwrap();
        assert_eq!((found, runs[0].start..runs[0].end), (1, whole));
    }

    #[test]
    fn what_is_locked_and_filled_on_fault_is_told_from_the_rest() {
        let at = map(4);
        assert!(!is_locked(at) && !is_filled(at));
        // SAFETY: memory of this test alone.
        unsafe { lock(at, 4 * PAGE, 1) };
        assert!(is_locked(at) && !is_filled(at));
        // SAFETY: as above.
        unsafe { lock(at, 4 * PAGE, 0) };
        assert!(is_filled(at));
        // SAFETY: as above.
        unsafe { sys::munmap(at, 4 * PAGE) }.unwrap();
    }
}
