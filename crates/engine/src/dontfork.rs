//! Ranges that the program itself keeps out of its children (MADV_DONTFORK). The engine keeps all that is registered
//! out of them. So the kernel's flag says nothing of the program's wish there: the wish is kept in a table, and the
//! engine goes by it when it gives the memory back.
//!
//! While the engine is awake it alone sets the flag. The hook of madvise asks it by the doorbell
//! (`advice::advise`). This is safe because
//! 1. one thread, the engine's, applies advice, registers, gives back, and lets children have memory for a fork: none
//!    of these is half done when another begins;
//! 2. a thread that finds the engine asleep notes that there is advice (`Control::early_advice`), advises the kernel
//!    itself, and looks again. The engine first says that it is awake, then asks the kernel what is kept out
//!    ([`ask_kernel`]), and then registers. So either it finds the flag, or the thread finds it awake and asks it;
//! 3. events tell where a registered mapping goes, and that it is gone ([`follow`]); of what mremap adds to one, and
//!    of a mapping that is not registered, the hook of mremap tells (`Live::follow_mremap`). Advice is applied with no
//!    event under way (`Pager::await_quiet`): an event that is read later is of something that came after the advice;
//! 4. of what is not registered no event tells that it is gone, and so the table may be stale there. A stale range has
//!    no flag that anybody would give back. Before it is registered the table is compared with the kernel's flag
//!    (`Live::learn_advice`), and what a registered mapping grows by is as that is, whatever the table had there
//!    (`Live::follow_growth`). That flag is the program's, since the engine leaves none on what is not registered
//!    (`Live::leave_strangers`);
//! 5. no clone waits for the engine, whatever the flags are, since EVENT_FORK is off. MADV_DOFORK by a system-call
//!    instruction of the program's own passes no hook, and takes the engine's flag away until the next fork. Until
//!    then a worker's clone copies that memory too, and unmaps it; a fork in place lets its child have it anyway; only
//!    a clone that passes no hook either makes a child that reads zeros where pages are out. MADV_DONTFORK by such an
//!    instruction is lost at the next fork.

use crate::smaps;
use alloc::vec::Vec;
use control::CONTROL;
use control::arena;
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use uffd::maps::Maps;
use uffd::sys::{self, Errno, consts::*};
use uffd::{Message, Mutex, PAGE};

/// What the program keeps out. The engine's; taken by no other process.
static TABLE: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// Takes `hole` out of a list of ranges.
fn subtract(ranges: &mut Vec<Range<usize>>, hole: &Range<usize>) {
    for index in (0..ranges.len()).rev() {
        let r = ranges[index].clone();
        if r.end > hole.start && r.start < hole.end {
            ranges.swap_remove(index);
            ranges.extend(
                [r.start..hole.start, hole.end..r.end].into_iter().filter(|rest| rest.start < rest.end),
            );
        }
    }
}

/// What of a range is in none of the others, by address.
pub fn without(range: Range<usize>, others: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut rest = alloc::vec![range];
    rest.retain(|rest| !rest.is_empty());
    for other in others {
        subtract(&mut rest, other);
    }
    rest.sort_unstable_by_key(|rest| rest.start);
    rest
}

/// Enters what the kernel keeps out of children in the table, if the program has advised it so. To be called before
/// anything is registered, and so kept out by us. Walks all page tables, once. An error leaves the table as it was.
pub fn ask_kernel() -> Result<(), Errno> {
    if CONTROL.early_advice.load(SeqCst) == 0 {
        return Ok(());
    }
    let mut found = Vec::new();
    smaps::each(|range, flags| found.extend(flags.is_kept_out().then_some(range)))?;
    for range in found {
        let mut at = range.start;
        while at < range.end {
            let part = arena::first_foreign(at..range.end);
            at = part.end;
            if !part.is_empty() {
                note(&part, true);
            }
        }
    }
    Ok(())
}

/// The program keeps a range out of its children, or lets them have it.
pub fn note(range: &Range<usize>, is_kept_out: bool) {
    let mut table = TABLE.lock();
    subtract(&mut table, range);
    if is_kept_out {
        table.push(range.clone());
        CONTROL.keeps_out.store(1, SeqCst);
    }
}

/// Follows what a message says of mappings.
pub fn follow(message: &Message) {
    let table = &mut TABLE.lock();
    match message {
        Message::Unmap(range) => subtract(table, range),
        Message::Remap { from, to } if !table.is_empty() => {
            let mut moved = table.clone();
            subtract(&mut moved, &(0..from.start));
            subtract(&mut moved, &(from.end..usize::MAX));
            subtract(table, &(*to..*to + from.len()));
            // The old address too, unless it is kept, empty: an UNMAP follows.
            table.extend(moved.into_iter().map(|r| r.start - from.start + to..r.end - from.start + to));
        }
        _ => {}
    }
}

/// True when the program keeps all of a range out of its children, as far as the table knows; it may be stale.
pub fn keeps(range: &Range<usize>) -> bool {
    inherited(range.clone()).is_empty()
}

/// Lets children have what of `range` the program does not keep from them itself. False where the kernel has not
/// enough memory for that; what is not mapped any more (ENOMEM) is nobody's to have.
pub fn give_back(range: Range<usize>) -> bool {
    let mut has_all = true;
    for part in inherited(range) {
        has_all &= sys::madvise_keep(part.start, part.len(), MADV_DOFORK) != Err(Errno::EAGAIN);
    }
    has_all
}

/// The parts of `range` that the program lets its children have.
fn inherited(range: Range<usize>) -> Vec<Range<usize>> {
    without(range, &TABLE.lock())
}

/// True when all of a mapping is kept out of children already. Only smaps would tell, and walks all page tables for
/// it: a second for node's 832 mappings. So its first page is kept out, which splits the mapping unless all of it was;
/// if not, that is the caller's to undo.
pub fn is_kept_out(maps: &Maps, whole: &Range<usize>) -> Result<bool, Errno> {
    if whole.len() == PAGE {
        return is_advised(whole.start);
    }
    sys::madvise_keep(whole.start, PAGE, MADV_DONTFORK)?;
    let first = maps.query(whole.start)?.filter(|m| m.range.contains(&whole.start)).ok_or(Errno::EAGAIN)?;
    Ok(first.range.end > whole.start + PAGE)
}

/// True when the mapping at an address is kept out of children by the kernel now. Walks all page tables.
pub fn is_advised(at: usize) -> Result<bool, Errno> {
    let mut is_kept_out = false;
    smaps::each(|range, flags| is_kept_out |= range.contains(&at) && flags.is_kept_out())?;
    Ok(is_kept_out)
}

/// As an engine starts: it knows of nothing that is kept out. What its process inherits by fork is let in.
///
/// # Safety
/// The caller is the only process that uses the table.
pub unsafe fn begin() {
    // SAFETY: nobody else can hold a reference to the static; the old list's memory is a parent's.
    unsafe { (&raw const TABLE).cast_mut().write(Mutex::new(Vec::new())) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one table.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn what_was_kept_out_before_an_engine_was_awake_is_found() {
        let _alone = ALONE.lock().expect("the other test passes");
        let at = sys::mmap(4 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
        sys::madvise_keep(at + 4096, 8192, MADV_DONTFORK).unwrap();
        let range = at..at + (4 << 12);
        ask_kernel().unwrap();
        assert_eq!(inherited(range.clone()).len(), 1, "nobody has said anything");
        CONTROL.early_advice.store(1, SeqCst);
        ask_kernel().unwrap();
        assert_eq!(inherited(range.clone()), [at..at + 4096, at + 3 * 4096..at + 4 * 4096]);
        CONTROL.early_advice.store(0, SeqCst);
        note(&(0..usize::MAX), false);
        // SAFETY: nobody uses it.
        unsafe { sys::munmap(at, range.len()) }.unwrap();
    }

    #[test]
    fn what_the_program_keeps_to_itself_is_not_given_to_children() {
        let _alone = ALONE.lock().expect("the other test passes");
        note(&(10..20), true);
        note(&(40..50), true);
        note(&(45..47), false);
        assert_eq!(inherited(0..60), [0..10, 20..40, 45..47, 50..60]);
        assert_eq!(inherited(12..18), []);
        // A mapping that takes the place of one that was kept out is inherited: it was not, and the child had a hole
        // there.
        follow(&Message::Unmap(0..45));
        assert_eq!(inherited(0..60), [0..47, 50..60]);
        follow(&Message::Remap { from: 46..49, to: 6 });
        follow(&Message::Unmap(46..49));
        assert_eq!(inherited(0..60), [0..7, 9..49, 50..60]);
        note(&(0..100), false);
        assert_eq!(inherited(0..60), std::vec![0..60]);
        assert_eq!(inherited(7..7), []);
    }

    #[test]
    fn a_mapping_that_is_kept_out_of_children_is_told_from_one_that_is_not() {
        let maps = Maps::open().unwrap();
        // Between two that nothing joins.
        let at = arena::map(5 << 16, 1 << 16).unwrap();
        let whole = at + (2 << 16)..at + (3 << 16);
        for gap in [at + (1 << 16), at + (3 << 16)] {
            // SAFETY: memory of this test alone.
            unsafe { sys::mprotect(gap, 1 << 16, 0) }.unwrap();
        }
        let advise =
            |range: &Range<usize>, advice| sys::madvise_keep(range.start, range.len(), advice).unwrap();
        advise(&whole, MADV_DOFORK);
        assert_eq!(is_kept_out(&maps, &whole), Ok(false));
        advise(&(whole.start..whole.start + PAGE), MADV_DOFORK);
        assert_eq!(maps.query(whole.start).unwrap().unwrap().range, whole, "whole again");
        advise(&whole, MADV_DONTFORK);
        assert_eq!(is_kept_out(&maps, &whole), Ok(true));
        assert_eq!(maps.query(whole.start).unwrap().unwrap().range, whole);
    }
}
