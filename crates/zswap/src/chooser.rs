//! Which of two compressors makes an object: the fast one, or the dense one where what it saves is worth its time.
//!
//! ```text
//!   job: where it comes from ──> Regions: what the dense one saves there, and what it takes beyond the fast one
//!                                   │
//!                                   v  worth: bytes saved for a nanosecond
//!   clock ──> Purse ──> price ──> compare ──> Way: Fast, Dense, or Both, which is a sample
//!               ^                                          │
//!               └── spent: what it took beyond ── Tried <──┘ (codec.rs)
//! ```
//!
//! The *purse* fills as time passes, by the share of a CPU that the user gives, and holds a second's. What the dense
//! one takes beyond the fast one is paid from it, samples included. The emptier it is the dearer is a nanosecond: at
//! half a purse it costs [`PRICE`], nothing at a full one, and more than anybody has at an empty one. So all that goes
//! out is dense while little does; while much does the purse falls to where just as much is spent as comes in, on the
//! regions that are worth most; and no more than the budget is ever spent: what a job is likely to take is taken out
//! before it begins, and what it took put right afterwards. Nothing else is controlled. All processes of a run pay from
//! the same purse, and so have the same price.
//!
//! Single pages and windows are known apart, since both cost and gain are others.

use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// What is chosen for an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// The compressor: there is one alone.
    #[default]
    Only,
    /// The fast one of two.
    Fast,
    /// The dense one, and to say how long it took.
    Dense,
    /// First one and then the other, to compare them. What is kept is the dense one's.
    Both,
    /// None: the pages are kept as they are.
    Plain,
}

/// What objects of a job took, and came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Nanoseconds of processor time.
    pub ns: u32,
    /// Bytes.
    pub bytes: u32,
}

/// The same by each of two compressors that was asked to tell: zeros of any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// The fast one.
    pub fast: Made,
    /// The dense one.
    pub dense: Made,
}

/// Where a job comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The program's address of its first page.
    pub at: usize,
    /// How many pages it has.
    pub pages: usize,
    /// Whether each is an object of its own.
    pub is_single: bool,
}

/// What is chosen for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Where it comes from.
    pub from: Origin,
    /// By what it is made.
    pub way: Way,
    /// What it will take beyond the fast one, by what is known: taken out of the purse beforehand.
    held_ns: u64,
}

/// How long a purse takes to fill.
const FULL_NS: u64 = 1_000_000_000;

/// Bytes that a nanosecond must save at half a purse, as one by so many: what zstd:1 saves over lz4 on heaps is worth a
/// few times as much.
pub const PRICE: u128 = 10;

/// So many times as dear is it while a thread waits for room.
const AWAITED: u128 = 4;

/// Samples take one part in so many of the budget at most.
const SAMPLES: u64 = 4;

/// One job of so many of a region is a sample: each second time that all of it goes out.
const EVERY: u16 = 64;

const REGION_BYTES: usize = 2 << 20;

/// So many regions are remembered, where each has one place: what falls upon another forgets that.
const REGIONS: usize = 4096;

/// A mean moves by one part in so many towards a sample: of a region, and of all.
const REGION_STEP: i64 = 2;
const ALL_STEP: i64 = 16;

/// What may be spent, where all of a run have it.
#[derive(Clone, Copy, Debug)]
pub struct Purse<'a> {
    /// Until when, on the monotonic clock, what was spent is paid for; and the same for samples.
    pub paid_ns: &'a [AtomicU64; 2],
    /// So many hundredths of a CPU come in.
    pub percent: u32,
}

impl Purse<'_> {
    /// How full it is, in nanoseconds of the clock.
    fn fill_ns(&self, now_ns: u64) -> u64 {
        if self.percent == 0 { 0 } else { now_ns.saturating_sub(self.paid_ns[0].load(Relaxed)).min(FULL_NS) }
    }

    /// Takes out what was used of a CPU.
    fn spend(&self, now_ns: u64, cpu_ns: u64) {
        let from = now_ns.saturating_sub(FULL_NS);
        let pay = |paid: u64| Some(paid.max(from).saturating_add(self.earning_ns(cpu_ns)));
        let _ = self.paid_ns[0].fetch_update(Relaxed, Relaxed, pay);
    }

    /// Puts back what was taken out.
    fn put_back(&self, cpu_ns: u64) {
        let back = |paid: u64| Some(paid.saturating_sub(self.earning_ns(cpu_ns)));
        let _ = self.paid_ns[0].fetch_update(Relaxed, Relaxed, back);
    }

    /// True when there may be a sample of about so much, which is the last for as long as that takes.
    fn may_sample(&self, now_ns: u64, cpu_ns: u64) -> bool {
        let paid = self.paid_ns[1].load(Relaxed);
        let next = now_ns.saturating_add(self.earning_ns(cpu_ns).saturating_mul(SAMPLES));
        paid <= now_ns && self.paid_ns[1].compare_exchange(paid, next, Relaxed, Relaxed).is_ok()
    }

    /// How long it takes until so much has come in.
    fn earning_ns(&self, cpu_ns: u64) -> u64 {
        cpu_ns.saturating_mul(100) / u64::from(self.percent.max(1))
    }
}

/// What is known of memory, for a page.
#[derive(Clone, Copy, Debug)]
struct Known {
    fast_ns: u32,
    dense_ns: u32,
    /// How much smaller the dense one's objects are.
    gain: i32,
}

/// What is taken for true before there is a sample: heaps of python, on a processor of 2024.
const GUESS: Known = Known { fast_ns: 4_500, dense_ns: 8_000, gain: 500 };

impl Known {
    /// What a sample of so many pages says.
    fn new(tried: &Tried, pages: usize) -> Known {
        let of_page = |sum: u32| sum / pages as u32;
        Known {
            fast_ns: of_page(tried.fast.ns),
            dense_ns: of_page(tried.dense.ns),
            gain: of_page(tried.fast.bytes) as i32 - of_page(tried.dense.bytes) as i32,
        }
    }

    /// Moves towards a sample, by one part in `step` of the way.
    fn follow(&mut self, sample: Known, step: i64) {
        let between = |old: i64, new: i64| match (new - old) / step {
            0 => old + (new - old).signum(),
            way => old + way,
        };
        self.fast_ns = between(self.fast_ns.into(), sample.fast_ns.into()) as u32;
        self.dense_ns = between(self.dense_ns.into(), sample.dense_ns.into()) as u32;
        self.gain = between(self.gain.into(), sample.gain.into()) as i32;
    }

    fn extra_ns(&self) -> u32 {
        self.dense_ns.saturating_sub(self.fast_ns)
    }

    /// True when what the dense one saves is worth its time to who has a purse that is so full.
    fn is_worth(&self, fill_ns: u64, is_awaited: bool) -> bool {
        let (Ok(gain), 1..) = (u128::try_from(self.gain), self.gain) else { return false };
        let extra = u128::from(self.extra_ns().max(1));
        let dear = if is_awaited { AWAITED } else { 1 };
        gain * PRICE * u128::from(fill_ns) > extra * dear * u128::from(FULL_NS - fill_ns)
    }
}

/// What is known of a region's single pages, or of its windows.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// Which, and of what kind; 0 where none is.
    key: usize,
    known: Known,
    /// False until its first sample is there.
    has_own: bool,
    /// Jobs since the last sample was asked for.
    since: u16,
}

/// See the head of the file.
pub struct Chooser<'a> {
    purse: Purse<'a>,
    regions: Vec<Region>,
    /// Of all memory: single pages, and windows.
    all: [Known; 2],
}

impl<'a> Chooser<'a> {
    /// Nothing is known yet; `None` where there is no memory.
    pub fn new(purse: Purse<'a>) -> Option<Chooser<'a>> {
        let mut regions = Vec::new();
        regions.try_reserve_exact(REGIONS).ok()?;
        regions.resize(REGIONS, Region { key: 0, known: GUESS, has_own: false, since: 0 });
        Some(Chooser { purse, regions, all: [GUESS; 2] })
    }

    /// Chooses for a job, of which `learn` or `withdraw` is to hear. `is_awaited` says that a thread waits for room.
    pub fn choose(&mut self, now_ns: u64, from: Origin, is_awaited: bool) -> Chosen {
        let (way, of_page) = self.way(now_ns, from, is_awaited);
        let held_ns = u64::from(of_page) * from.pages as u64;
        if held_ns > 0 {
            self.purse.spend(now_ns, held_ns);
        }
        Chosen { from, way, held_ns }
    }

    /// The way of a job, and what a page takes beyond the fast one.
    fn way(&mut self, now_ns: u64, from: Origin, is_awaited: bool) -> (Way, u32) {
        let fill_ns = self.purse.fill_ns(now_ns);
        if fill_ns == 0 {
            return (Way::Fast, 0);
        }
        let (key, place) = key(from);
        let region = &mut self.regions[place];
        let is_known = region.key == key;
        let known =
            if is_known && region.has_own { region.known } else { self.all[usize::from(from.is_single)] };
        if is_known {
            region.since = region.since.saturating_add(1);
        }
        let sample_ns = u64::from(known.dense_ns) * from.pages as u64;
        if (!is_known || region.since >= EVERY) && self.purse.may_sample(now_ns, sample_ns) {
            *region = Region { key, since: 0, known, has_own: is_known && region.has_own };
            return (Way::Both, known.dense_ns);
        }
        if known.is_worth(fill_ns, is_awaited) { (Way::Dense, known.extra_ns()) } else { (Way::Fast, 0) }
    }

    /// The job was not begun.
    pub fn withdraw(&mut self, chosen: &Chosen) {
        self.purse.put_back(chosen.held_ns);
    }

    /// Hears what came of a job, of which so many pages were compressed; how much of the budget it took, in nanoseconds
    /// of a CPU.
    pub fn learn(&mut self, now_ns: u64, chosen: &Chosen, pages: usize, tried: &Tried) -> u64 {
        if chosen.held_ns > 0 {
            self.purse.put_back(chosen.held_ns);
        }
        let from = chosen.from;
        if pages == 0 || tried.dense == Made::default() {
            return 0;
        }
        let (key, place) = key(from);
        let region = Some(&mut self.regions[place]).filter(|region| region.key == key);
        let all = &mut self.all[usize::from(from.is_single)];
        let spent = if tried.fast == Made::default() {
            let fast_ns =
                region.filter(|region| region.has_own).map_or(all.fast_ns, |region| region.known.fast_ns);
            u64::from(tried.dense.ns).saturating_sub(u64::from(fast_ns) * pages as u64)
        } else {
            let sample = Known::new(tried, pages);
            all.follow(sample, ALL_STEP);
            if let Some(region) = region {
                let step = if region.has_own { REGION_STEP } else { 1 };
                region.known.follow(sample, step);
                region.has_own = true;
            }
            tried.dense.ns.into()
        };
        self.purse.spend(now_ns, spent);
        spent
    }
}

/// What a region and a kind are known by, and their place.
fn key(from: Origin) -> (usize, usize) {
    let key = (from.at / REGION_BYTES) << 2 | usize::from(from.is_single) << 1 | 1;
    // Regions in a row are to have places of their own, and so are those of two arenas.
    let mixed = (key >> 1) ^ (key >> 14) ^ (key >> 25);
    (key, mixed % REGIONS)
}
