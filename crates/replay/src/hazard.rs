//! How likely a page that is out is to be asked for, measured.
//!
//! Each page that is out is of a *class*: how long it was out the last time, before it was asked for. Pages that go out
//! at about the same time are a *generation* of their class. While time passes, a generation adds *exposure* (pages
//! times microseconds) to the cell of its class and age; a page that is asked for adds a touch there:
//!
//! ```text
//!             age: 64 us    128 us    256 us    512 us  ..
//!   class 0   touches / exposure   ..
//!   class 1                        ..         a cell's touches / its exposure = touches per page and microsecond
//!   ..                                        of a page of this class that has been out for so long
//! ```
//!
//! This is a survival curve's hazard rate (occurrence over exposure). It needs no model of the program: one that goes
//! round a loop has a peak at the age of its round, and one that touches at random has a flat rate.

use std::collections::VecDeque;

/// Microseconds.
pub type Us = u64;

/// How many classes there are: never yet out, then out for less than 128 us, 512 us, .. the last time.
pub const CLASSES: usize = 12;

/// Cells of a class: ages of less than 64 us, 128 us, 256 us, ..; the last is open.
const AGES: usize = 28;

/// The first age, in bits.
const FIRST_BITS: usize = 6;

/// Generations of a class that are known apart.
const GENERATIONS: usize = 48;

/// Touches and exposure of a cell are halved when it has as much evidence as so many touches.
const MEMORY: f32 = 4096.0;

/// A cell is known when so many pages have gone through it.
const KNOWN: f32 = 16.0;

/// The class of a page that was out for so long when it was asked for.
pub fn class_of(out_us: Us) -> u8 {
    (1 + age_of(out_us) / 2).min(CLASSES - 1) as u8
}

/// The class of a page that has not been out before.
pub const FRESH: u8 = 0;

fn age_of(us: Us) -> usize {
    ((us >> FIRST_BITS).checked_ilog2().map_or(0, |bits| bits as usize + 1)).min(AGES - 1)
}

/// The touches that a page of such an age sees in a microsecond if nothing is known: one in as long again.
fn guess(age: usize) -> f32 {
    1.0 / ((1u64 << (FIRST_BITS + age)) as f32)
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    touches: f32,
    exposure: f32,
}

#[derive(Clone, Copy, Debug)]
struct Generation {
    since_us: Us,
    pages: u32,
}

#[derive(Clone, Debug, Default)]
struct Class {
    cells: [Cell; AGES],
    /// The oldest first.
    generations: VecDeque<Generation>,
}

/// What is known of pages that are out.
#[derive(Clone, Debug)]
pub struct Hazard {
    classes: [Class; CLASSES],
    now_us: Us,
}

impl Default for Hazard {
    fn default() -> Hazard {
        Hazard { classes: core::array::from_fn(|_| Class::default()), now_us: 0 }
    }
}

impl Hazard {
    /// Time goes on: pages that are out are exposed meanwhile. To be called each 100 microseconds or so.
    pub fn tick(&mut self, now_us: Us) {
        let passed_us = now_us.saturating_sub(self.now_us) as f32;
        self.now_us = self.now_us.max(now_us);
        for class in &mut self.classes {
            for generation in &class.generations {
                let age = age_of(now_us.saturating_sub(generation.since_us));
                let cell = &mut class.cells[age];
                cell.exposure += generation.pages as f32 * passed_us;
                if cell.touches + cell.exposure * guess(age) > MEMORY {
                    *cell = Cell { touches: cell.touches / 2.0, exposure: cell.exposure / 2.0 };
                }
            }
        }
    }

    /// A page of a class goes out. What is returned is what it is out since, as it has to be told when it comes back.
    pub fn out(&mut self, class: u8) -> Us {
        let (now_us, generations) = (self.now_us, &mut self.classes[usize::from(class)].generations);
        match generations.back_mut() {
            Some(last) if last.since_us == now_us => last.pages += 1,
            _ => generations.push_back(Generation { since_us: now_us, pages: 1 }),
        }
        if generations.len() > GENERATIONS {
            merge(generations, now_us);
        }
        now_us
    }

    /// A page of a class that is out since then is asked for. What is returned is its class from now on.
    pub fn touched(&mut self, class: u8, since_us: Us) -> u8 {
        let out_us = self.now_us - since_us;
        self.classes[usize::from(class)].cells[age_of(out_us)].touches += 1.0;
        self.gone(class, since_us);
        class_of(out_us)
    }

    /// A page of a class that is out since then is there no more.
    pub fn gone(&mut self, class: u8, since_us: Us) {
        let generations = &mut self.classes[usize::from(class)].generations;
        // A generation has all pages that went out from its time on until the next one's.
        let after = generations.partition_point(|generation| generation.since_us <= since_us);
        generations[after - 1].pages -= 1;
        while generations.front().is_some_and(|generation| generation.pages == 0) {
            generations.pop_front();
        }
    }

    /// The touches in a microsecond that a page of a class, which is out since then, is to see: until the age by which
    /// that is least. What is unlikely to come back for long is cold, although a touch soon may be likelier than later
    /// (Gittins' index, of a page that is put aside).
    pub fn rate(&self, class: u8, since_us: Us) -> f32 {
        let (first, class) =
            (age_of(self.now_us.saturating_sub(since_us)), &self.classes[usize::from(class)]);
        let (mut least, mut stays, mut touches, mut exposure) = (f32::INFINITY, 1.0, 0.0, 0.0);
        for (age, cell) in class.cells.iter().enumerate().skip(first) {
            // How it goes on with pages that are older than any before is not known.
            if age > first && cell.exposure * guess(age) < KNOWN {
                break;
            }
            // What is guessed counts as one touch.
            let rate = (cell.touches + 1.0) / (cell.exposure + 1.0 / guess(age));
            // An age lasts as long as all before it; so many touches are expected of a page that is out until then.
            let expected = rate / guess(age) / 2.0;
            touches += stays * expected / (1.0 + expected);
            exposure += stays / (guess(age) * 2.0) / (1.0 + expected);
            stays /= 1.0 + expected;
            least = least.min(touches / exposure);
        }
        least
    }
}

/// Two neighbours become one, where that changes their ages least.
fn merge(generations: &mut VecDeque<Generation>, now_us: Us) {
    let span = |at: usize| {
        let [first, second] = [generations[at], generations[at + 1]];
        (second.since_us - first.since_us) as f32 / (now_us - first.since_us + 1) as f32
    };
    let first = (0..generations.len() - 1)
        .min_by(|a, b| span(*a).total_cmp(&span(*b)))
        .expect("it has more than one");
    let second = generations.remove(first + 1).expect("it has a next one");
    generations[first].pages += second.pages;
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Random;

    /// Pages go out at random times, and each is asked for after what `wait` says.
    fn run(hazard: &mut Hazard, pages: usize, ticks: u64, mut wait: impl FnMut() -> Us) {
        let mut out: Vec<(Us, Us)> = Vec::new();
        for tick in 1..=ticks {
            hazard.tick(tick * 1000);
            out.retain(|&(since, until)| {
                let stays = tick * 1000 < until;
                if !stays {
                    hazard.touched(FRESH, since);
                }
                stays
            });
            if out.len() < pages {
                out.push((hazard.out(FRESH), tick * 1000 + wait()));
            }
        }
    }

    #[test]
    fn a_program_that_touches_at_random_has_the_same_rate_at_each_age() {
        let (mut hazard, mut random) = (Hazard::default(), Random(5));
        // Exponential with a mean of 100 ms.
        run(&mut hazard, 200, 20_000, || {
            (-(random.within(1..1 << 20) as f64 / (1 << 20) as f64).ln() * 1e5) as Us
        });
        for age_us in [3_000, 10_000, 50_000, 150_000] {
            let rate = hazard.rate(FRESH, hazard.now_us - age_us);
            assert!((0.8e-5..1.25e-5).contains(&rate), "{age_us}: {rate}");
        }
    }

    #[test]
    fn a_program_that_goes_round_has_a_peak_at_its_round() {
        let (mut hazard, mut random) = (Hazard::default(), Random(6));
        run(&mut hazard, 200, 20_000, || 90_000 + random.below(10_000) as Us);
        let rate = |age_us| hazard.rate(FRESH, hazard.now_us - age_us);
        assert!(rate(80_000) > 20.0 * rate(10_000), "{} {}", rate(80_000), rate(10_000));
    }

    #[test]
    fn what_is_never_asked_for_becomes_cold_and_what_changes_is_noticed() {
        let mut hazard = Hazard::default();
        let since: Vec<Us> = (0..1000).map(|_| hazard.out(3)).collect();
        (1..=1000).for_each(|ms| hazard.tick(ms * 1000));
        assert!(hazard.rate(3, hazard.now_us - 500_000) < guess(13) / 100.0);
        for since in since {
            assert_eq!(hazard.touched(3, since), class_of(1_000_000));
        }
        assert!(hazard.rate(3, hazard.now_us - 1_000_000) > guess(14));
    }

    #[test]
    fn generations_keep_the_number_of_pages() {
        let (mut hazard, mut random, mut out) = (Hazard::default(), Random(8), Vec::new());
        for ms in 0..5000 {
            hazard.tick(ms * 1000);
            for _ in 0..random.below(3) {
                let class = random.below(CLASSES) as u8;
                out.push((class, hazard.out(class)));
            }
            if !out.is_empty() && random.one_in(2) {
                let (class, since) = out.swap_remove(random.below(out.len()));
                hazard.gone(class, since);
            }
            let pages: u32 =
                hazard.classes.iter().flat_map(|class| &class.generations).map(|of| of.pages).sum();
            assert_eq!(pages as usize, out.len());
            assert!(hazard.classes.iter().all(|class| class.generations.len() <= GENERATIONS));
        }
    }

    #[test]
    fn classes_are_by_how_long_a_page_was_out() {
        let classes = [0, 64, 200, 1_000, 1 << 20, 1 << 40].map(class_of);
        assert_eq!(classes, [1, 1, 2, 3, 8, 11]);
    }
}
