//! Belady's rule: what is used again last of all goes. Nobody can know that while the program runs; no policy that
//! compresses page by page has fewer misses, but for what pages differ in size.

use super::Policy;
use super::ordered::Ordered;
use crate::memory::Memory;
use crate::price::Tier;
use crate::trace::{Event, PageId, Trace};
use std::cmp::Reverse;

/// When each page is used again.
pub struct Belady {
    /// For each event that is a touch: the event in which its page is touched the next time.
    next: Vec<usize>,
    resident: Ordered<Reverse<usize>>,
    /// What was touched last.
    last: (Reverse<usize>, PageId),
}

impl Belady {
    /// Reads the future.
    pub fn new(trace: &Trace) -> Belady {
        let mut next_of = vec![usize::MAX; trace.pages.len()];
        let mut next = vec![usize::MAX; trace.events.len()];
        for (at, event) in trace.events.iter().enumerate().rev() {
            match *event {
                Event::Touch { page, .. } => next[at] = std::mem::replace(&mut next_of[page as usize], at),
                // What is written after that is another page.
                Event::Discard { first, count } => {
                    next_of[first as usize..][..count as usize].fill(usize::MAX)
                }
                Event::Ran { .. } => {}
            }
        }
        Belady { next, resident: Ordered::default(), last: (Reverse(0), 0) }
    }
}

impl Policy for Belady {
    fn touched(&mut self, _memory: &mut Memory<'_>, page: PageId, _was: Option<Tier>, event: usize) {
        self.last = (Reverse(self.next[event]), page);
        self.resident.set(page, self.last.0);
    }

    fn make_room(&mut self, memory: &mut Memory<'_>) {
        let (key, last) = self.last;
        self.resident.remove(last);
        while memory.is_over() {
            let Some(page) = self.resident.pop() else { break };
            memory.put(page, Tier::Fast);
        }
        self.resident.set(last, key);
    }

    fn discarded(&mut self, _memory: &Memory<'_>, page: PageId, _was: Tier) {
        self.resident.remove(page);
    }
}
