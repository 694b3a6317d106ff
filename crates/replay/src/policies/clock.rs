//! CLOCK: a hand goes round the pages that are in the program, and spares each once that was touched since it passed.

use super::Policy;
use super::ordered::Ordered;
use crate::memory::Memory;
use crate::price::Tier;
use crate::trace::PageId;
use std::collections::HashSet;

/// The ring, as a queue with the hand at its first page.
#[derive(Default)]
pub struct Clock {
    ring: Ordered<u64>,
    referenced: HashSet<PageId>,
    last: u64,
}

impl Clock {
    fn push(&mut self, page: PageId) {
        self.last += 1;
        self.ring.set(page, self.last);
    }
}

impl Policy for Clock {
    fn touched(&mut self, _memory: &mut Memory<'_>, page: PageId, was: Option<Tier>, _event: usize) {
        if was == Some(Tier::Resident) {
            self.referenced.insert(page);
        } else {
            self.push(page);
        }
    }

    fn make_room(&mut self, memory: &mut Memory<'_>) {
        while memory.is_over() && self.ring.len() > 1 {
            let page = self.ring.pop().expect("it has pages");
            if self.referenced.remove(&page) {
                self.push(page);
            } else {
                memory.put(page, Tier::Fast);
            }
        }
    }

    fn discarded(&mut self, _memory: &Memory<'_>, page: PageId, _was: Tier) {
        self.ring.remove(page);
        self.referenced.remove(&page);
    }
}
