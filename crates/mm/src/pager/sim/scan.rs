//! PAGEMAP_SCAN, UFFDIO_WRITEPROTECT and UFFDIO_RWPROTECT, which go through the pages of a range.

use super::World;
use super::kernel::SimKernel;
use crate::kernel::{Errno, Kernel, Run};
use std::ops::Range;
use vmscan::PAGE;

impl SimKernel {
    /// PAGEMAP_SCAN.
    pub fn scan(
        &mut self,
        range: Range<usize>,
        max_pages: usize,
        wants_swapped: bool,
        wants_touches: bool,
        runs: &mut [Run],
    ) -> (usize, usize) {
        let mut world = self.0.borrow_mut();
        world.enter();
        let (mut found, mut pages) = (0, 0);
        let is_told = |at| world.memory.vma(at).is_some_and(|(_, vma)| world.memory.is_watched(vma));
        for (at, page) in world.memory.pages_in(range.clone()) {
            if page.zero || !wants_swapped && page.swapped {
                continue;
            }
            let huge = world.memory.huge.contains(at);
            let touched = wants_touches && !page.protected && is_told(at);
            let is_alike = |run: &Run| run.end == at && run.huge == huge && run.touched == touched;
            let joins = found > 0 && is_alike(&runs[found - 1]);
            if pages == max_pages || !joins && found == runs.len() {
                return (found, runs[found - 1].end);
            }
            if joins {
                runs[found - 1].end = at + PAGE;
            } else {
                runs[found] = Run { start: at, end: at + PAGE, huge, touched };
                found += 1;
            }
            pages += 1;
        }
        (found, range.end)
    }

    /// UFFDIO_WRITEPROTECT, or UFFDIO_RWPROTECT: how many pages of the range were shared.
    pub fn set_protection(&mut self, range: Range<usize>, protected: bool) -> Result<usize, Errno> {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.trace("protect", [range.start as u64, range.end as u64, protected as u64]);
        let fits = |w: &World| {
            let all = w.memory.vmas_in(range.clone());
            let is_whole = w.memory.gaps(range.clone()).is_empty();
            (is_whole && all.iter().all(|(_, vma)| vma.registered)).then_some(()).ok_or(Errno::ENOENT)
        };
        world.admit(fits)?;
        world.memory.huge.treat(&range);
        let pages: Vec<usize> = world.memory.pages_in(range).map(|(at, _)| at).collect();
        let mut shared = 0;
        for at in pages {
            let page = world.memory.page_mut(at).expect("listed");
            page.protected = protected;
            shared += !page.exclusive as usize;
        }
        Ok(shared)
    }

    /// Undoes either, if there is anything to undo.
    pub fn bare(&mut self, range: Range<usize>) -> Result<(), Errno> {
        let is_any = self.0.borrow().memory.pages_in(range.clone()).any(|(_, page)| page.protected);
        if !is_any || self.0.borrow().bugs.stays_protected {
            return Ok(());
        }
        self.set_protection(range.clone(), false)?;
        self.wake(range);
        Ok(())
    }
}
