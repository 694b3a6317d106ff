//! PAGEMAP_SCAN and UFFDIO_WRITEPROTECT, which go through the pages of a range.

use super::World;
use super::kernel::SimKernel;
use crate::kernel::{Errno, Run};
use std::ops::Range;
use vmscan::PAGE;

impl SimKernel {
    /// PAGEMAP_SCAN.
    pub fn scan(
        &mut self,
        range: Range<usize>,
        max_pages: usize,
        wants_swapped: bool,
        runs: &mut [Run],
    ) -> (usize, usize) {
        let mut world = self.0.borrow_mut();
        world.enter();
        let (mut found, mut pages) = (0, 0);
        for (at, page) in world.memory.pages_in(range.clone()) {
            if page.zero || !wants_swapped && page.swapped {
                continue;
            }
            let huge = world.memory.huge.contains(at);
            let joins = found > 0 && runs[found - 1].end == at && runs[found - 1].huge == huge;
            if pages == max_pages || !joins && found == runs.len() {
                return (found, runs[found - 1].end);
            }
            if joins {
                runs[found - 1].end = at + PAGE;
            } else {
                runs[found] = Run { start: at, end: at + PAGE, huge };
                found += 1;
            }
            pages += 1;
        }
        (found, range.end)
    }

    /// UFFDIO_WRITEPROTECT: how many pages of the range were shared.
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
}
