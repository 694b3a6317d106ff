//! The pager's own, as it is without the price: a clock hand goes round the addresses, spares what has heat
//! ([`vmscan::heat`]), and takes the rest to an inactive list of fixed size; its oldest are compressed page by page.
//! With an area the pool is bounded. Where the kernel tells touches, or writes, it spares what was touched since it
//! came by last.

use super::Policy;
use super::pool::Pool;
use crate::memory::Memory;
use crate::price::Tier;
use crate::trace::{Event, PageId, Trace};
use std::collections::VecDeque;
use vmscan::PAGE;
use vmscan::heat::Heat;
use vmscan::touches::Lenience;

/// One part of the limit in so many is the inactive list.
const INACTIVE_PART: usize = 32;

/// So many pages are unmapped at a time.
const QUANTUM: usize = 16;

/// The hand, and what is known of each page.
pub struct Pager<'t> {
    hand: usize,
    heats: Vec<Heat>,
    /// How many pages had been unmapped when this one was the last time.
    unmapped_at: Vec<usize>,
    unmapped: usize,
    resident: usize,
    inactive: VecDeque<(PageId, usize)>,
    last: PageId,
    /// Where there is an area.
    pool: Option<Pool>,
    /// Where they are told: which pages were touched since the hand came by.
    touches: Option<Vec<bool>>,
    /// Where writes alone are told, and misses, since what comes is not protected: the trace has which they are.
    writes: Option<&'t Trace>,
    lenience: Lenience,
}

impl<'t> Pager<'t> {
    /// With the hand at the first page; and, where there is an area, a pool.
    pub fn new(trace: &Trace, pool: Option<Pool>) -> Pager<'t> {
        let (heats, unmapped_at) = (vec![Heat::COLD; trace.pages.len()], vec![0; trace.pages.len()]);
        Pager {
            hand: 0,
            heats,
            unmapped_at,
            unmapped: 0,
            resident: 0,
            inactive: VecDeque::new(),
            last: 0,
            pool,
            touches: None,
            writes: None,
            lenience: Lenience::default(),
        }
    }

    /// The same where touches are told.
    pub fn with_touches(self) -> Pager<'t> {
        Pager { touches: Some(vec![false; self.heats.len()]), ..self }
    }

    /// The same where writes are. What the trace's program wrote after it had read is not known as a write there.
    pub fn with_writes(self, trace: &'t Trace) -> Pager<'t> {
        Pager { writes: Some(trace), ..self.with_touches() }
    }

    /// True where a touch is told: of a resident page, or of one that had to come.
    fn is_told(&self, event: usize, was: Option<Tier>) -> bool {
        let is_write = |trace: &Trace| matches!(trace.events[event], Event::Touch { is_write: true, .. });
        was != Some(Tier::Resident) || self.writes.is_none_or(is_write)
    }

    /// The oldest page of the inactive list that is still there.
    fn oldest(&mut self, memory: &Memory<'_>) -> Option<PageId> {
        while let Some((page, at)) = self.inactive.pop_front() {
            if memory.place(page) == Some(Tier::Inactive) && self.unmapped_at[page as usize] == at {
                return Some(page);
            }
        }
        None
    }

    /// Unmaps some pages: how many.
    fn unmap(&mut self, memory: &mut Memory<'_>) -> usize {
        let (mut taken, mut looks) = (0, 4 * self.heats.len());
        while taken < QUANTUM && looks > 0 {
            looks -= 1;
            let page = self.hand;
            self.hand = (self.hand + 1) % self.heats.len();
            if memory.place(page as PageId) != Some(Tier::Resident) || page as PageId == self.last {
                continue;
            }
            let touched = self.touches.as_mut().is_some_and(|touches| std::mem::take(&mut touches[page]));
            if touched && self.lenience.spares(1) {
                continue;
            }
            if let Some(cooler) = self.heats[page].visited() {
                self.heats[page] = cooler;
                continue;
            }
            memory.put(page as PageId, Tier::Inactive);
            self.unmapped += 1;
            self.unmapped_at[page] = self.unmapped;
            self.inactive.push_back((page as PageId, self.unmapped));
            self.resident -= 1;
            taken += 1;
        }
        self.lenience.took(taken);
        taken
    }
}

impl Policy for Pager<'_> {
    fn touched(&mut self, memory: &mut Memory<'_>, page: PageId, was: Option<Tier>, event: usize) {
        self.last = page;
        let is_told = self.is_told(event, was);
        if let Some(touches) = &mut self.touches {
            touches[page as usize] |= is_told;
        }
        if let (Some(pool), Some(was)) = (&mut self.pool, was.filter(|was| *was >= Tier::Fast)) {
            pool.missed(memory, page, was, self.resident);
        }
        let heat = &mut self.heats[page as usize];
        *heat = match was {
            Some(Tier::Resident) => return,
            Some(Tier::Inactive) => heat.touched(),
            Some(_) => Heat::refault(self.unmapped - self.unmapped_at[page as usize], self.resident),
            None => Heat::COLD,
        };
        self.resident += 1;
    }

    fn make_room(&mut self, memory: &mut Memory<'_>) {
        let most = memory.limit_bytes() / PAGE / INACTIVE_PART;
        while memory.is_over() {
            // What lies there may be gone: then the list is empty, and short, the next time.
            if self.inactive.len() <= most && self.unmap(memory) == 0 && self.inactive.is_empty() {
                break;
            }
            if let Some(page) = self.oldest(memory) {
                match &mut self.pool {
                    Some(pool) => pool.put(memory, page),
                    None => memory.put(page, Tier::Fast),
                }
            }
        }
    }

    fn discarded(&mut self, memory: &Memory<'_>, page: PageId, was: Tier) {
        self.resident -= usize::from(was == Tier::Resident);
        if let Some(pool) = &mut self.pool {
            pool.gone(memory, page, was);
        }
    }
}
