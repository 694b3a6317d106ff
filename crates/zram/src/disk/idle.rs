//! Marks of idle blocks.

use super::{Disk, Which};
use crate::group::Group;
use crate::table::shared;
use base::PageMask;
use zsmalloc::Backing;

impl<B: Backing> Disk<B> {
    /// Marks all blocks idle whose contents are in the pool, or those to which no request came for so many seconds, and
    /// takes the mark from the others. A block's next request takes it too.
    pub fn mark_idle(&self, age_s: Option<u32>) {
        for (_, group) in self.table.iter_from(0) {
            let group = shared(group);
            group.set_idle(self.older(&group, age_s));
        }
    }

    /// Blocks in the pool to which no request came for so many seconds.
    pub(super) fn older(&self, group: &Group, age_s: Option<u32>) -> PageMask {
        let now_s = self.tunables.now_s();
        let is_older =
            |block: usize| age_s.is_none_or(|age_s| now_s.saturating_sub(group.accessed_s(block)) >= age_s);
        let stored = group.having(|entry| entry.is_stored());
        stored.iter().filter(|block| is_older(*block)).collect()
    }

    /// The blocks in the pool that a command is for.
    pub(super) fn chosen(&self, group: &Group, which: Which) -> PageMask {
        let stored = group.having(|entry| entry.is_stored());
        let huge = || group.having(|entry| entry.made().is_some_and(|made| made.is_huge));
        match which {
            Which::All => stored,
            Which::Idle => stored & group.idle(),
            Which::Huge => stored & huge(),
            Which::HugeIdle => stored & group.idle() & huge(),
            Which::Incompressible => {
                stored & group.having(|entry| entry.made().is_some_and(|made| made.is_incompressible))
            }
        }
    }
}
