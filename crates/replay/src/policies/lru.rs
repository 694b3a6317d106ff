//! Least recently used first, to one tier; and from there, with a bound on what it takes, to the area.

use super::Policy;
use super::ordered::Ordered;
use crate::memory::Memory;
use crate::price::Tier;
use crate::trace::PageId;

/// The lists, by the last touch and by when a page went out.
pub struct Lru {
    to: Tier,
    /// What may lie in that tier, in percent of the limit.
    pool_percent: Option<usize>,
    resident: Ordered<usize>,
    pool: Ordered<usize>,
    pool_bytes: usize,
    stored: usize,
    brings_windows: bool,
}

impl Lru {
    /// Pages go to a tier, of which so many percent of the limit may be.
    pub fn new(to: Tier, pool_percent: Option<usize>) -> Lru {
        let (resident, pool) = (Ordered::default(), Ordered::default());
        Lru { to, pool_percent, resident, pool, pool_bytes: 0, stored: 0, brings_windows: false }
    }

    /// What is out of a window comes with each page of it, as if it were touched too.
    pub fn with_windows(self) -> Lru {
        Lru { brings_windows: true, ..self }
    }

    fn leave_pool(&mut self, memory: &Memory<'_>, page: PageId) {
        if self.pool.remove(page) {
            self.pool_bytes -= memory.bytes_in(page, self.to);
        }
    }
}

impl Policy for Lru {
    fn touched(&mut self, memory: &mut Memory<'_>, page: PageId, was: Option<Tier>, event: usize) {
        self.leave_pool(memory, page);
        if self.brings_windows && was >= Some(Tier::Fast) {
            for page in memory.stored_beside(page) {
                self.leave_pool(memory, page);
                memory.bring(page);
                self.resident.set(page, event.saturating_sub(1));
            }
        }
        self.resident.set(page, event);
    }

    fn make_room(&mut self, memory: &mut Memory<'_>) {
        while memory.is_over() {
            let bound = self.pool_percent.map_or(usize::MAX, |percent| memory.limit_bytes() * percent / 100);
            if self.pool_bytes > bound {
                let (_, oldest) = self.pool.first().expect("the pool has bytes");
                self.leave_pool(memory, oldest);
                memory.put(oldest, Tier::Area);
                continue;
            }
            // The page that was touched last stays, whatever it takes.
            let victim = if self.resident.len() > 1 { self.resident.pop() } else { None };
            let Some(page) = victim else { break };
            memory.put(page, self.to);
            if self.to != Tier::Area {
                self.pool.set(page, self.stored);
                self.pool_bytes += memory.bytes_in(page, self.to);
                self.stored += 1;
            }
        }
    }

    fn discarded(&mut self, memory: &Memory<'_>, page: PageId, _was: Tier) {
        self.resident.remove(page);
        self.leave_pool(memory, page);
    }
}
