//! The machine's own swap, beneath the program and the engine alike: a page becomes a swap entry by itself, and who
//! touches it has it back without a word to anybody.

use super::World;
use super::memory::Memory;

impl Memory {
    /// What was swapped is there again: somebody has touched it.
    pub fn swap_in(&mut self, at: usize) {
        if let Some(page) = self.page_mut(at) {
            page.swapped = false;
        }
    }
}

impl World {
    /// Some pages go, wherever they are. Locked ones stay, those of a device, and those that no copy need be kept of.
    pub fn swap_out(&mut self) {
        let stays = self.random.below(8) + 1;
        let swappable = |(at, page): (usize, &super::memory::Page)| {
            let is_free = !page.zero && page.pins == 0 && !page.lazy && !page.swapped;
            let is_locked = self.memory.vma(at).is_none_or(|(_, vma)| vma.locked);
            (is_free && !is_locked).then_some(at)
        };
        let all: Vec<usize> = self.memory.pages_in(0..usize::MAX).filter_map(swappable).collect();
        for at in all {
            if self.random.one_in(stays) {
                // What another process has let go of since a fork is this one's alone once it has come back.
                let exclusive = self.random.one_in(2);
                let page = self.memory.page_mut(at).expect("listed");
                page.swapped = true;
                page.exclusive |= exclusive;
                self.memory.huge.split(at);
                self.trace("the machine swaps", [at as u64, 0, 0]);
            }
        }
    }
}
