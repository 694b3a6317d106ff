//! What children get of the program's memory: while a fork is under way all of it, but for what the program keeps from them itself; else nothing that is registered, unless
//! the kernel tells of copies.
//!
//! It is advice on mappings, which goes with them wherever mremap takes them. One that is moved while others are advised may be passed over: its old place is looked at too late, or its
//! new one too early. Who moves it waits until the engine has read that, so it is advised where it has come to as soon as that is read, and with no event under way
//! all have been.

use super::{Live, TOP};
use crate::arena;
use crate::dontfork;
use core::ops::Range;
use mm::kernel::Kernel;
use uffd::sys::{self, consts::*};

impl Live {
    /// Lets children have all of the program's memory, but for what it keeps from them itself. What was registered while an event was under way is kept
    /// out too, and in none of the pager's lists. What lies in `regions`, which are registered, is marked.
    ///
    /// The mark is advice that means nothing to anonymous memory, and goes with a mapping wherever mremap or fork takes it. A program that gave it itself
    /// loses it here.
    pub fn let_in(&self, regions: &[Range<usize>]) {
        self.is_let_in.set(true);
        if !self.tells_of_forks() {
            self.give_back();
        }
        self.advise(regions, &[MADV_RANDOM]);
    }

    /// Lets children have what the program does not keep from them itself.
    pub(super) fn give_back(&self) {
        self.each_mapping(0..TOP, dontfork::give_back);
    }

    /// Keeps mappings out of children again that are registered in these ranges, or in part of them, if they are ever, and takes the marks off.
    pub fn keep_out(&self, regions: &[Range<usize>]) {
        self.is_let_in.set(false);
        let advice = [MADV_DONTFORK, MADV_NORMAL];
        self.advise(regions, &advice[self.tells_of_forks() as usize..]);
    }

    /// In a child: takes the marks off that it has inherited.
    pub fn unmark(&self, regions: &[Range<usize>]) {
        self.advise(regions, &[MADV_NORMAL]);
    }

    /// A mapping has come here from elsewhere, maybe in the middle of one of these. Something else may be in its place by now, which is not registered and so not kept out.
    pub(super) fn advise_moved(&self, to: Range<usize>) {
        let (is_let_in, is_told_of) = (self.is_let_in.get(), self.tells_of_forks());
        self.each_mapping(to, |range| {
            if is_let_in || is_told_of {
                dontfork::give_back(range.clone());
            } else if self.has(range.clone()) {
                let _ = sys::madvise_keep(range.start, range.len(), MADV_DONTFORK);
            }
            if is_let_in {
                let _ = sys::madvise_keep(range.start, range.len(), MADV_RANDOM);
            }
        });
    }

    /// Mappings of which a part is in a range are advised on whole: one that has grown meanwhile would have a seam, over which mremap fails.
    fn advise(&self, regions: &[Range<usize>], advice: &[u32]) {
        for region in regions {
            self.each_mapping(region.clone(), |range| {
                for &advice in advice {
                    let _ = sys::madvise_keep(range.start, range.len(), advice);
                }
            });
        }
    }

    /// Calls `each` with the program's own mappings that a range touches, whole.
    fn each_mapping(&self, range: Range<usize>, mut each: impl FnMut(Range<usize>)) {
        let mut at = range.start;
        while let Ok(Some(m)) = self.maps.query(at)
            && m.range.start < range.end
        {
            at = m.range.start;
            while at < m.range.end && !m.foreign {
                let part = arena::first_foreign(at..m.range.end);
                if part.is_empty() {
                    break;
                }
                at = part.end;
                each(part);
            }
            at = m.range.end;
        }
    }
}
