//! zfolio's own: one price of memory. It sees faults alone.

use super::Policy;
use crate::beside::Beside;
use crate::hazard::{CLASSES, FRESH, Hazard, Us};
use crate::memory::Memory;
use crate::price::{self, Head, Neighbour, Probing, Step, TIERS, Tier};
use crate::trace::{PageId, Trace};
use std::collections::VecDeque;
use vmscan::PAGE;

/// What is known of a page.
#[derive(Clone, Copy, Default)]
struct State {
    class: u8,
    /// Since when it is mapped, or out.
    since_us: Us,
    /// Of its place in a list; an older one is void.
    stamp: u32,
}

/// Pages beside one that missed are watched for this part of what an untouched page lies in the program: what comes in
/// vain makes that shorter for all.
const WATCHED_PART: f32 = 4.0;

/// Pages unmapped for each that goes on, at most.
const UNMAPPED_A_STEP: usize = 1;

/// Lists of pages by tier and class, each the oldest first.
pub struct Price {
    states: Vec<State>,
    lists: [[VecDeque<(PageId, u32)>; CLASSES]; TIERS],
    hazard: Hazard,
    probing: Probing,
    has_area: bool,
    /// What is known of pages beside those that miss, if they may come along.
    beside: Option<Beside>,
    /// What the last steps cost in the mean, and how long pages lay in the program that were unmapped.
    price: f32,
    lies_us: f32,
    /// Of what went to each tier: how many pages, and what they take.
    sizes: [(f32, f32); TIERS],
    now_us: Us,
    last: PageId,
}

impl Price {
    /// With tiers in memory, an area if there is one, and pages that come beside others, if they may.
    pub fn new(trace: &Trace, has_area: bool, has_beside: bool) -> Price {
        Price {
            states: vec![State::default(); trace.pages.len()],
            lists: Default::default(),
            hazard: Hazard::default(),
            probing: Probing::default(),
            has_area,
            beside: has_beside.then(Beside::default),
            price: 0.0,
            lies_us: 10_000.0,
            sizes: [PAGE as f32, PAGE as f32, 2000.0, 1000.0, 0.0].map(|bytes| (16.0, 16.0 * bytes)),
            now_us: 0,
            last: 0,
        }
    }

    fn push(&mut self, page: PageId, tier: Tier) {
        let state = &mut self.states[page as usize];
        state.stamp += 1;
        self.lists[tier as usize][usize::from(state.class)].push_back((page, state.stamp));
    }

    /// The oldest page of a list that is still there.
    fn oldest(&mut self, tier: Tier, class: usize) -> Option<PageId> {
        let list = &mut self.lists[tier as usize][class];
        while let Some(&(page, stamp)) = list.front() {
            if self.states[page as usize].stamp == stamp {
                return Some(page);
            }
            list.pop_front();
        }
        None
    }

    /// What a page takes where it is, and is likely to take below: as others do in the mean, in proportion
    /// where it is compressed.
    fn bytes(&self, memory: &Memory<'_>, page: PageId, tier: Tier) -> [f32; TIERS] {
        let means = self.sizes.map(|(pages, bytes)| bytes / pages);
        let takes = memory.bytes_in(page, tier) as f32;
        let mut bytes = means.map(|mean| mean * takes / means[tier as usize]);
        if !self.has_area {
            bytes[Tier::Area as usize] = f32::NAN;
        }
        bytes
    }

    /// What is to go on next, and from which page.
    fn next_step(&mut self, memory: &Memory<'_>) -> Option<(PageId, Step)> {
        let mut heads = Vec::new();
        let mut pages = Vec::new();
        for tier in [Tier::Inactive, Tier::Fast, Tier::Dense] {
            for class in 0..CLASSES {
                let Some(page) = self.oldest(tier, class) else { continue };
                let State { class, since_us, .. } = self.states[page as usize];
                heads.push(Head { tier, class, since_us, bytes: self.bytes(memory, page, tier) });
                pages.push(page);
            }
        }
        let step = price::cheapest(&heads, &self.hazard, memory.costs())?;
        Some((pages[step.head], step))
    }

    /// The page that costs least to unmap, and what; not the one that is being touched.
    fn next_probe(&mut self, memory: &Memory<'_>) -> Option<(PageId, f32)> {
        let oldest = (0..CLASSES).filter_map(|class| {
            self.oldest(Tier::Resident, class)?;
            let list = &self.lists[Tier::Resident as usize][class];
            let is_there =
                |of: &&(PageId, u32)| of.0 != self.last && self.states[of.0 as usize].stamp == of.1;
            let &(page, _) = list.iter().find(is_there)?;
            let mapped_us = self.now_us - self.states[page as usize].since_us;
            Some((page, self.probing.cost(class as u8, mapped_us, memory.costs())))
        });
        oldest.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    fn unmap(&mut self, memory: &mut Memory<'_>, page: PageId) {
        let state = &mut self.states[page as usize];
        self.lies_us += ((self.now_us - state.since_us) as f32 - self.lies_us) / 256.0;
        state.since_us = self.hazard.out(state.class);
        memory.put(page, Tier::Inactive);
        self.push(page, Tier::Inactive);
    }

    /// Beside a page that missed come those of its window for which that pays. Now and then none does, and all are
    /// watched.
    fn bring_beside(&mut self, memory: &mut Memory<'_>, page: PageId) {
        let Some(beside) = &mut self.beside else { return };
        let (at, out) = (memory.address(page), memory.stored_beside(page));
        beside.missed(at);
        let chance = beside.chance(at);
        let pays = |page: &PageId| {
            let (tier, costs) = (memory.place(*page).expect("it is stored"), memory.costs());
            let bytes = (PAGE - memory.bytes_in(*page, tier)) as f32;
            let touch_us = costs.touch_us[tier as usize];
            let neighbour = |chance| Neighbour {
                chance,
                touch_us,
                bring_us: costs.bring_us,
                bytes,
                lies_us: self.lies_us,
            };
            chance.is_some_and(|chance| price::brings(neighbour(chance), self.price))
        };
        let brought = out.iter().copied().filter(pays).collect::<Vec<_>>();
        if brought.is_empty() {
            let until_us = self.now_us + (self.lies_us / WATCHED_PART) as Us;
            return beside.watch(at, out.into_iter().map(|page| memory.address(page)), until_us);
        }
        beside.came(at);
        for page in brought {
            let State { class, since_us, .. } = self.states[page as usize];
            self.hazard.gone(class, since_us);
            memory.bring(page);
            self.states[page as usize].since_us = self.now_us;
            self.push(page, Tier::Resident);
        }
    }

    fn go_on(&mut self, memory: &mut Memory<'_>, page: PageId, to: Tier) {
        if memory.place(page) == Some(Tier::Inactive) {
            self.probing.add(self.states[page as usize].class, false);
        }
        memory.put(page, to);
        let (pages, bytes) = &mut self.sizes[to as usize];
        *pages += 1.0;
        *bytes += memory.bytes_in(page, to) as f32;
        // What takes nothing has nowhere to go.
        if memory.bytes_in(page, to) == 0 {
            self.states[page as usize].stamp += 1;
        } else {
            self.push(page, to);
        }
    }
}

impl Policy for Price {
    fn touched(&mut self, memory: &mut Memory<'_>, page: PageId, was: Option<Tier>, _event: usize) {
        self.last = page;
        let State { class, since_us, .. } = self.states[page as usize];
        let class = match was {
            Some(Tier::Resident) => return,
            None => FRESH,
            Some(tier) => {
                if tier == Tier::Inactive {
                    self.probing.add(class, true);
                }
                self.hazard.touched(class, since_us)
            }
        };
        let state = &mut self.states[page as usize];
        (state.class, state.since_us) = (class, self.now_us);
        self.push(page, Tier::Resident);
        if was >= Some(Tier::Fast) {
            self.bring_beside(memory, page);
        }
    }

    fn make_room(&mut self, memory: &mut Memory<'_>) {
        let mut unmapped = 0;
        while memory.is_over() {
            let (step, probe) = (self.next_step(memory), self.next_probe(memory));
            let (pages, fast) = self.sizes[Tier::Fast as usize];
            let saves = (PAGE as f32) - fast / pages;
            match (step, probe) {
                (None, None) => break,
                (None, Some((page, _))) => self.unmap(memory, page),
                (Some((_, step)), Some((page, cost)))
                    if unmapped < UNMAPPED_A_STEP && step.price * saves > cost =>
                {
                    self.unmap(memory, page);
                    unmapped += 1;
                }
                (Some((page, step)), _) => {
                    self.price += (step.price - self.price) / 64.0;
                    self.go_on(memory, page, step.to);
                    unmapped = 0;
                }
            }
        }
    }

    fn discarded(&mut self, _memory: &Memory<'_>, page: PageId, was: Tier) {
        let state = &mut self.states[page as usize];
        state.stamp += 1;
        if was != Tier::Resident {
            self.hazard.gone(state.class, state.since_us);
        }
    }

    fn tick(&mut self, now: Us) {
        self.now_us = now;
        self.hazard.tick(now);
        if let Some(beside) = &mut self.beside {
            beside.tick(now);
        }
    }
}
