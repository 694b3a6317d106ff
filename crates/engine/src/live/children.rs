//! What children get of the program's memory: while a fork is under way all of it, but for what the program keeps from
//! them itself; else nothing that is registered.
//!
//! It is advice on mappings, which goes with them wherever mremap takes them. One that is moved while others are
//! advised may be passed over: its old place is looked at too late, or its new one too early. Who moves it waits until
//! the engine has read that, so it is advised where it has come to as soon as that is read, and with no event under way
//! all have been.

use super::{Live, TOP};
use crate::dontfork;
use control::arena;
use core::ops::Range;
use uffd::maps::Mapping;
use uffd::sys::{self, consts::*};
use uffd::{Errno, PAGE};

impl Live {
    /// Lets children have all of the program's memory, but for what it keeps from them itself. What was registered
    /// while an event was under way is kept out too, and in none of the pager's lists. What lies in `regions`, which
    /// are registered, is marked.
    ///
    /// The mark is advice that means nothing to anonymous memory, and goes with a mapping wherever mremap or fork takes
    /// it. A program that gave it itself loses it here.
    ///
    /// False where the kernel has not enough memory for that: a child would miss some of its own.
    pub fn let_in(&self, regions: &[Range<usize>]) -> bool {
        self.is_let_in.set(true);
        let mut has_all = true;
        // What is never managed too: it may have come where something was kept out that moment.
        self.each_part(0..TOP, |_, part| has_all &= dontfork::give_back(part));
        // A mapping that is not marked is one that the child must not go on with (`Misfit`).
        self.advise(regions, &[MADV_RANDOM]);
        has_all
    }

    /// Keeps mappings out of children again that are registered in these ranges, or in part of them, if they are ever,
    /// and takes the marks off.
    pub fn keep_out(&self, regions: &[Range<usize>]) {
        self.is_let_in.set(false);
        self.advise(regions, &[MADV_DONTFORK, MADV_NORMAL]);
        // Where something is being unmapped something else may have come, which the pager does not know.
        if self.is_behind() {
            regions.iter().for_each(|region| self.leave_strangers(region));
        }
    }

    /// Does what the program asks for: children are to have a range (MADV_DOFORK), or not (MADV_DONTFORK). What is
    /// registered, in `regions`, stays as it is until it is given back. The error is what the kernel would say to a
    /// program without an engine: engine memory is a gap.
    pub fn advise_children(
        &self,
        range: Range<usize>,
        advice: u32,
        regions: &[Range<usize>],
    ) -> Result<(), Errno> {
        dontfork::note(&range, advice == MADV_DONTFORK);
        let (mut at, mut result) = (range.start, Ok(()));
        while at < range.end {
            let part = arena::first_foreign(at..range.end);
            if part.start > at {
                result = Err(Errno::ENOMEM);
            }
            at = part.end;
            for rest in dontfork::without(part, regions) {
                match sys::madvise_keep(rest.start, rest.len(), advice) {
                    Ok(_) => {}
                    // Where something is mapped the kernel has done it.
                    Err(Errno::ENOMEM) => result = Err(Errno::ENOMEM),
                    Err(errno) => return Err(errno),
                }
            }
        }
        result
    }

    /// Asks the kernel whether the program keeps a mapping out of its children. Of one that is registered it says so
    /// in any case.
    pub(super) fn learn_advice(&self, whole: &Range<usize>) -> Result<(), Errno> {
        if !dontfork::is_kept_out(&self.maps, whole)? {
            dontfork::note(whole, false);
            dontfork::give_back(whole.start..whole.start + PAGE);
        } else if !dontfork::keeps(whole) && !self.has(whole.clone()) && dontfork::is_advised(whole.start)? {
            // Seldom: what the program advises while the engine is awake the table knows. Another mapping may have come
            // here meanwhile.
            dontfork::note(whole, true);
        }
        Ok(())
    }

    /// mremap has moved something to a range. Where that is in `regions`, which are registered, an event has told of
    /// it.
    pub fn follow_mremap(&self, range: Range<usize>, regions: &[Range<usize>]) {
        self.each_mapping(range, |whole| {
            if !is_registered(regions, &whole) {
                let _ = self.learn_advice(&whole);
            }
        });
    }

    /// mremap has enlarged something by a range, which is kept out as the rest is: what the table has there is of
    /// another mapping, which was not registered and is gone.
    pub fn follow_growth(&self, added: Range<usize>, regions: &[Range<usize>]) {
        let last = added.start - PAGE..added.start;
        if is_registered(regions, &last) {
            dontfork::note(&added, dontfork::keeps(&last));
        }
        self.follow_mremap(last.start..added.end, regions);
    }

    /// In a child: takes the marks off that it has inherited.
    pub fn unmark(&self, regions: &[Range<usize>]) {
        self.advise(regions, &[MADV_NORMAL]);
    }

    /// A mapping has come here from elsewhere, maybe in the middle of one of these. Something else may be in its place
    /// by now, which is not registered and so not kept out.
    pub(super) fn advise_moved(&self, to: Range<usize>) {
        let is_let_in = self.is_let_in.get();
        self.each_mapping(to, |range| {
            if is_let_in {
                dontfork::give_back(range.clone());
                let _ = sys::madvise_keep(range.start, range.len(), MADV_RANDOM);
            } else if self.has(range.clone()) {
                let _ = sys::madvise_keep(range.start, range.len(), MADV_DONTFORK);
                self.leave_strangers(&range);
            }
        });
    }

    /// Mappings of which a part is in a range are advised on whole: one that has grown meanwhile would have a seam,
    /// over which mremap fails.
    fn advise(&self, regions: &[Range<usize>], advice: &[u32]) {
        for region in regions {
            self.each_mapping(region.clone(), |range| {
                for &advice in advice {
                    let _ = sys::madvise_keep(range.start, range.len(), advice);
                }
            });
        }
    }

    /// Calls `each` with the program's own mappings that a range touches, whole, but for shared memory and files.
    fn each_mapping(&self, range: Range<usize>, mut each: impl FnMut(Range<usize>)) {
        self.each_part(range, |m, part| {
            if !m.foreign {
                each(part);
            }
        });
    }

    /// Calls `each` with all mappings that a range touches, whole, and what of each is the program's own.
    pub(super) fn each_part(&self, range: Range<usize>, mut each: impl FnMut(&Mapping, Range<usize>)) {
        let mut at = range.start;
        while let Ok(Some(m)) = self.maps.query(at)
            && m.range.start < range.end
        {
            at = m.range.start;
            while at < m.range.end {
                let part = arena::first_foreign(at..m.range.end);
                if part.is_empty() {
                    break;
                }
                at = part.end;
                each(&m, part);
            }
            at = m.range.end;
        }
    }
}

/// True when a part of a range is in `regions`.
fn is_registered(regions: &[Range<usize>], range: &Range<usize>) -> bool {
    regions.iter().any(|r| r.start < range.end && range.start < r.end)
}
