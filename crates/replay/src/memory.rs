//! The memory that a policy decides about: where each page of the trace is, what it takes, and what touches have cost.

use crate::trace::{Page, PageId, Trace};
use vmscan::PAGE;
use vmscan::price::{Costs, TIERS, Tier};

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Touches of pages in each tier; of those in the program, none is counted.
    pub touches: [u64; TIERS],
    /// Pages that went to each tier.
    pub moves: [u64; TIERS],
    /// Touches of pages that were not there yet.
    pub fresh: u64,
    /// How long the program waited, in microseconds.
    pub stall_us: f64,
}

impl Figures {
    /// Touches of pages that were neither in the program nor on the inactive list.
    pub fn misses(&self) -> u64 {
        self.touches[Tier::Fast as usize..].iter().sum()
    }
}

/// A program's pages.
pub struct Memory<'t> {
    pages: &'t [Page],
    places: Vec<Option<Tier>>,
    costs: Costs,
    limit_bytes: usize,
    bytes: usize,
    figures: Figures,
}

impl Memory<'_> {
    /// None of the pages is there.
    pub fn new(trace: &Trace, costs: Costs, limit_bytes: usize) -> Memory<'_> {
        let places = vec![None; trace.pages.len()];
        Memory { pages: &trace.pages, places, costs, limit_bytes, bytes: 0, figures: Figures::default() }
    }

    /// Where a page is, if it is there.
    pub fn place(&self, page: PageId) -> Option<Tier> {
        self.places[page as usize]
    }

    /// What it takes, or would take, in a tier.
    pub fn bytes_in(&self, page: PageId, tier: Tier) -> usize {
        let page = &self.pages[page as usize];
        match tier {
            Tier::Resident | Tier::Inactive => PAGE,
            Tier::Fast => page.alone_bytes as usize,
            Tier::Dense => page.dense_bytes.min(page.alone_bytes) as usize,
            Tier::Area => 0,
        }
    }

    /// What touches and ways cost.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// What it may take.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// True where something has to go.
    pub fn is_over(&self) -> bool {
        self.bytes > self.limit_bytes
    }

    /// What was counted.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// The program touches a page, and has it then. What is returned is where it was.
    pub fn touch(&mut self, page: PageId) -> Option<Tier> {
        let was = self.place(page);
        match was {
            None => self.figures.fresh += 1,
            Some(Tier::Resident) => return was,
            Some(tier) => {
                self.figures.touches[tier as usize] += 1;
                // One word has nothing to be decompressed.
                let is_filled = self.pages[page as usize].alone_bytes == 0;
                let tier = if is_filled { Tier::Inactive } else { tier };
                self.figures.stall_us += f64::from(self.costs.touch_us[tier as usize]);
            }
        }
        self.set(page, Some(Tier::Resident));
        was
    }

    /// A page that is there goes to a tier.
    pub fn put(&mut self, page: PageId, tier: Tier) {
        assert!(self.place(page).is_some_and(|place| place != tier), "page {page} is no page for {tier:?}");
        self.figures.moves[tier as usize] += 1;
        self.set(page, Some(tier));
    }

    /// A page is there no more.
    pub fn discard(&mut self, page: PageId) {
        self.set(page, None);
    }

    fn set(&mut self, page: PageId, place: Option<Tier>) {
        let takes = |place: Option<Tier>| place.map_or(0, |tier| self.bytes_in(page, tier));
        self.bytes = self.bytes + takes(place) - takes(self.place(page));
        self.places[page as usize] = place;
    }
}
