//! One price of memory: which page goes on, and to which tier.
//!
//! ```text
//!   oldest page of each tier and class ──> Hazard ──> chance of a touch ─┐
//!   what a touch costs in each tier, and the way there ──> Costs ────────┼──> cheapest ──> Step: this page, to there
//!   what a page takes in each tier ──────────────────────────────────────┘                       its price
//! ```
//!
//! A page that goes from one tier to a lower one frees bytes, and each touch costs more from then on. So the page goes
//! that costs the least stall for the bytes that it frees: chance of a touch x (cost there - cost here) / bytes. What
//! the last step cost is the *price* of memory: a byte more would have saved so much. Where the limit is tight it
//! rises, and where there is room nothing goes at all. So tiers have the sizes that follow from what their touches
//! cost, and there is no other threshold.
//!
//! Pages that are in the program are touched unseen. To see whether one is wanted it is unmapped: it waits on the
//! inactive list, where a touch is a soft fault. [`Probing`] says which pages are unmapped, and how many.

use crate::hazard::{CLASSES, Hazard, Us};
use vmscan::fates::Fates;

/// Where a page is, the dearest in bytes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// In the program.
    Resident,
    /// Unmapped, as it is.
    Inactive,
    /// Compressed alone, for speed.
    Fast,
    /// Compressed with its window, for size.
    Dense,
    /// In a swap area.
    Area,
}

/// How many tiers there are.
pub const TIERS: usize = 5;

/// The tiers in their order.
pub const ALL: [Tier; TIERS] = [Tier::Resident, Tier::Inactive, Tier::Fast, Tier::Dense, Tier::Area];

/// What each tier costs, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// How long a thread waits that touches a page there.
    pub touch_us: [f32; TIERS],
    /// How much longer a thread waits for each page that comes beside the one that it touches.
    pub bring_us: f32,
    /// The part that counts of the processor time which a page takes to get there.
    pub work_us: [f32; TIERS],
}

/// The oldest page of a tier and a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// Where it is.
    pub tier: Tier,
    /// As [`Hazard`] has it.
    pub class: u8,
    /// Since when it is out.
    pub since_us: Us,
    /// What it takes there, and what it is likely to take in each tier below; NaN for a tier that takes none now.
    pub bytes: [f32; TIERS],
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Which of the heads.
    pub head: usize,
    /// Where it goes.
    pub to: Tier,
    /// The stall that it costs for each byte that it frees, in microseconds a microsecond.
    pub price: f32,
}

/// The step that costs least.
pub fn cheapest(heads: &[Head], hazard: &Hazard, costs: &Costs) -> Option<Step> {
    let steps = heads.iter().enumerate().flat_map(|(at, head)| {
        let rate = hazard.rate(head.class, head.since_us);
        ALL.into_iter().filter(|to| *to > head.tier).filter_map(move |to| {
            let freed = head.bytes[head.tier as usize] - head.bytes[to as usize];
            let more =
                costs.touch_us[to as usize] + costs.work_us[to as usize] - costs.touch_us[head.tier as usize];
            (freed > 0.0).then(|| Step { head: at, to, price: rate * more / freed })
        })
    });
    steps.min_by(|a, b| a.price.total_cmp(&b.price))
}

/// A page beside one that missed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbour {
    /// How likely it is to be wanted soon.
    pub chance: f32,
    /// How long a thread waits that misses it.
    pub touch_us: f32,
    /// How much longer one waits that it comes along with.
    pub bring_us: f32,
    /// What it takes more in the program than where it is.
    pub bytes: f32,
    /// How long it lies in the program if nobody touches it.
    pub lies_us: f32,
}

/// True where it saves more than it costs that a page comes along: what it takes in vain has a price, and has to go
/// again, which takes as long as it took to bring it.
pub fn brings(neighbour: Neighbour, price: f32) -> bool {
    let Neighbour { chance, touch_us, bring_us, bytes, lies_us } = neighbour;
    chance * touch_us > 2.0 * bring_us + (1.0 - chance) * price * bytes * lies_us
}

/// What became of pages that were unmapped, by class.
#[derive(Clone, Debug, Default)]
pub struct Probing {
    classes: [Fates; CLASSES],
}

/// So many fates of a class are remembered.
const MEMORY: u32 = 256;

impl Probing {
    /// A page of a class that was unmapped was touched on the inactive list, or went on from there.
    pub fn add(&mut self, class: u8, is_found: bool) {
        self.classes[usize::from(class)].add(is_found.into(), (!is_found).into(), MEMORY);
    }

    /// The stall in a microsecond that it costs to unmap a page of a class which has been mapped for so long.
    pub fn cost(&self, class: u8, mapped_us: Us, costs: &Costs) -> f32 {
        let fates = self.classes[usize::from(class)];
        let known = fates.known() as f32;
        // What is guessed counts as one that was found and one that was not.
        let chance = (fates.wanted_part() * known + 1.0) / (known + 2.0);
        chance * costs.touch_us[Tier::Inactive as usize] / (mapped_us + 1) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hazard::FRESH;

    const COSTS: Costs =
        Costs { touch_us: [0.0, 7.0, 12.0, 30.0, 100.0], bring_us: 2.0, work_us: [0.0; TIERS] };
    const BYTES: [f32; TIERS] = [4096.0, 4096.0, 1800.0, 900.0, 0.0];

    /// After a second in which pages of class 3 were asked for within 10 ms, and those of class 6 never.
    fn hazard() -> Hazard {
        let mut hazard = Hazard::default();
        (0..200).for_each(|_| _ = hazard.out(6));
        for ms in 1..=1000 {
            let out: [Us; 10] = [0; 10].map(|_| hazard.out(3));
            hazard.tick(ms * 1000);
            out.into_iter().for_each(|since| _ = hazard.touched(3, since));
        }
        hazard
    }

    fn head(tier: Tier, class: u8, age_us: Us) -> Head {
        Head { tier, class, since_us: 1_000_000 - age_us, bytes: BYTES }
    }

    #[test]
    fn what_is_cold_goes_to_where_most_is_freed_and_what_is_warm_stays_near() {
        let hazard = hazard();
        let step = |heads: &[Head]| cheapest(heads, &hazard, &COSTS).unwrap();
        let (warm, cold) = (head(Tier::Inactive, 3, 500), head(Tier::Inactive, 6, 900_000));
        assert_eq!(step(&[warm]).to, Tier::Fast, "5 us for 2,296 bytes");
        assert_eq!(step(&[warm, cold]).head, 1);
        assert!(step(&[cold]).price * 100.0 < step(&[warm]).price);
        // An object that hardly shrank goes on for less than one that is small.
        let large = Head { bytes: [4096.0, 4096.0, 4000.0, 2000.0, 0.0], ..head(Tier::Fast, 6, 900_000) };
        assert_eq!(step(&[head(Tier::Fast, 6, 900_000), large]).head, 1);
    }

    #[test]
    fn nothing_goes_to_a_tier_that_takes_none_or_frees_none() {
        let hazard = hazard();
        let cold =
            |tier, dense| Head { bytes: [4096.0, 4096.0, 1800.0, dense, f32::NAN], ..head(tier, 6, 900_000) };
        let dense = cold(Tier::Dense, 900.0);
        assert_eq!(cheapest(&[dense], &hazard, &COSTS), None);
        let step = cheapest(&[dense, cold(Tier::Fast, 900.0)], &hazard, &COSTS).unwrap();
        assert_eq!((step.head, step.to), (1, Tier::Dense));
        assert_eq!(cheapest(&[dense, cold(Tier::Fast, 3000.0)], &hazard, &COSTS), None);
    }

    #[test]
    fn dear_work_is_a_reason_to_wait() {
        let (hazard, warm) = (hazard(), head(Tier::Fast, FRESH, 1_000));
        let free = cheapest(&[warm], &hazard, &COSTS).unwrap();
        let dear = Costs { work_us: [0.0, 0.0, 2.0, 1000.0, 1000.0], ..COSTS };
        assert!(cheapest(&[warm], &hazard, &dear).unwrap().price > 5.0 * free.price);
    }

    #[test]
    fn a_page_comes_along_where_that_is_likely_to_save_more_than_its_memory_costs() {
        let fast = Neighbour { chance: 0.5, touch_us: 12.0, bring_us: 2.0, bytes: 2296.0, lies_us: 10_000.0 };
        assert!(brings(fast, 0.0) && brings(fast, 1e-7) && !brings(fast, 1e-6));
        assert!(!brings(Neighbour { chance: 0.1, ..fast }, 0.0), "it takes longer than it saves");
        assert!(brings(Neighbour { touch_us: 110.0, ..fast }, 1e-6), "a disk is slow");
    }

    #[test]
    fn a_class_that_is_found_again_costs_more_to_unmap_and_one_that_is_mapped_for_long_less() {
        let mut probing = Probing::default();
        (0..1000).for_each(|_| probing.add(2, true));
        (0..1000).for_each(|_| probing.add(5, false));
        let cost = |class, mapped_us| probing.cost(class, mapped_us, &COSTS);
        assert!(cost(2, 1000) > 50.0 * cost(5, 1000) && cost(2, 1000) > 9.0 * cost(2, 10_000));
        assert!(cost(5, 1000) < cost(FRESH, 1000) && cost(FRESH, 1000) < cost(2, 1000));
        (0..1000).for_each(|_| probing.add(2, false));
        assert!(probing.cost(2, 1000, &COSTS) < probing.cost(FRESH, 1000, &COSTS), "it is unlearned");
    }
}
