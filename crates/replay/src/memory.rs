//! The memory that a policy decides about: where each page of the trace is, what it takes, and what touches have cost.

use crate::price::{Costs, TIERS, Tier};
use crate::trace::{Page, PageId, Trace};
use vmscan::{PAGE, WINDOW};

/// Pages of a window.
const WINDOW_PAGES: u64 = (WINDOW / PAGE) as u64;

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Touches of pages in each tier; of those in the program, none is counted.
    pub touches: [u64; TIERS],
    /// Pages that went to each tier.
    pub moves: [u64; TIERS],
    /// Touches of pages that were not there yet.
    pub fresh: u64,
    /// Pages that came beside one that was touched, and those of them that went again untouched.
    pub brought: u64,
    pub vain: u64,
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
    /// It came beside another, and was not touched since.
    is_brought: Vec<bool>,
    costs: Costs,
    limit_bytes: usize,
    bytes: usize,
    figures: Figures,
}

impl Memory<'_> {
    /// None of the pages is there.
    pub fn new(trace: &Trace, costs: Costs, limit_bytes: usize) -> Memory<'_> {
        let (places, is_brought) = (vec![None; trace.pages.len()], vec![false; trace.pages.len()]);
        let figures = Figures::default();
        Memory { pages: &trace.pages, places, is_brought, costs, limit_bytes, bytes: 0, figures }
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

    /// Where it is in the program's memory, in bytes.
    pub fn address(&self, page: PageId) -> usize {
        self.pages[page as usize].number as usize * PAGE
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
        self.is_brought[page as usize] = false;
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
        self.went(page);
        self.set(page, Some(tier));
    }

    /// A page comes to the program beside one that is touched.
    pub fn bring(&mut self, page: PageId) {
        assert!(self.place(page).is_some_and(|place| place >= Tier::Fast), "page {page}");
        self.figures.brought += 1;
        self.figures.stall_us += f64::from(self.costs.bring_us);
        self.is_brought[page as usize] = true;
        self.set(page, Some(Tier::Resident));
    }

    /// The other pages of a page's window that are compressed, or in the area.
    pub fn stored_beside(&self, page: PageId) -> Vec<PageId> {
        let window = |page: usize| self.pages[page].number / WINDOW_PAGES;
        let is_beside = |other: &usize| window(*other) == window(page as usize);
        let before = (0..page as usize).rev().take_while(is_beside);
        let after = (page as usize + 1..self.pages.len()).take_while(is_beside);
        let is_stored = |page: &PageId| self.place(*page) >= Some(Tier::Fast);
        before.chain(after).map(|page| page as PageId).filter(is_stored).collect()
    }

    /// A page is there no more.
    pub fn discard(&mut self, page: PageId) {
        self.went(page);
        self.set(page, None);
    }

    fn went(&mut self, page: PageId) {
        let is_brought = std::mem::take(&mut self.is_brought[page as usize]);
        self.figures.vain += u64::from(is_brought && self.place(page) <= Some(Tier::Inactive));
    }

    fn set(&mut self, page: PageId, place: Option<Tier>) {
        let takes = |place: Option<Tier>| place.map_or(0, |tier| self.bytes_in(page, tier));
        self.bytes = self.bytes + takes(place) - takes(self.place(page));
        self.places[page as usize] = place;
    }
}
