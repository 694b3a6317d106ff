//! The stages of a size: all of the memory goes out, folio by folio, and comes back.

use super::ground::{BYTES, Ground};
use base::{PAGE, PageMask};
use mm::kernel::Run;
use mm::swap_map::{Entry, Kind, SwapMap};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;
use uffd::Memory;
use uffd::sys::CpuSet;
use vmscan::WINDOW;
use vmscan::heat::Heat;
use zsmalloc::{Anonymous, Handle};
use zswap::{Cache, Choice, Codec, New, PARCEL_MAX_BYTES, Priors, WINDOW_PAGES};

/// What goes out at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub bytes: usize,
    /// It is a huge page.
    pub is_huge: bool,
}

/// What works: a worker's codec, and a pool.
pub struct Tools {
    codec: Codec,
    cache: Cache<Anonymous>,
    map: SwapMap,
    parcel: Vec<u8>,
    buffer: Vec<u8>,
}

impl Tools {
    /// For one size.
    pub fn new(choice: Choice) -> Result<Tools, acomp::Error> {
        let (parcel, buffer) = (vec![0; PARCEL_MAX_BYTES], vec![0; WINDOW]);
        let (codec, cache) = (Codec::new(choice, 1, &[])?, Cache::new(Anonymous));
        Ok(Tools { codec, cache, map: SwapMap::default(), parcel, buffer })
    }
}

/// How long each stage took for a folio, in microseconds of the clock on the wall.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    pub scan: f64,
    pub move_out: f64,
    /// What a move takes more while another thread of the program runs; none where there is one CPU.
    pub tlb: Option<f64>,
    pub read: f64,
    pub compress: f64,
    pub store: f64,
    pub look_up: f64,
    pub decompress: f64,
    /// To decompress one page of it alone, in the mean of all.
    pub one_page: f64,
    pub move_in: f64,
    /// All came back as huge pages.
    pub stays_huge: bool,
}

impl Stages {
    /// Of each stage the middle one of several rounds.
    pub fn medians(rounds: &[Stages]) -> Stages {
        let of = |stage: fn(&Stages) -> f64| median(rounds.iter().map(stage).collect());
        let tlb = rounds.iter().map(|round| round.tlb).collect::<Option<Vec<_>>>().map(median);
        Stages {
            scan: of(|s| s.scan),
            move_out: of(|s| s.move_out),
            tlb,
            read: of(|s| s.read),
            compress: of(|s| s.compress),
            store: of(|s| s.store),
            look_up: of(|s| s.look_up),
            decompress: of(|s| s.decompress),
            one_page: of(|s| s.one_page),
            move_in: of(|s| s.move_in),
            stays_huge: rounds.iter().all(|round| round.stays_huge),
        }
    }
}

/// The middle one; of an even number the upper.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// What is stored of a window: its objects, with how many pages each has.
type Stored = Vec<(Handle, u32, usize)>;

/// All of the memory out and back, once. It must come back as it was.
pub fn round(ground: &Ground, tools: &mut Tools, memory: &[u8], size: Size) -> Result<Stages, String> {
    ground.fill(memory, size.is_huge).map_err(|errno| format!("memory cannot be registered: {errno}"))?;
    let offsets = || (0..BYTES).step_by(size.bytes);
    let count = offsets().count() as f64;
    let mut stages = Stages::default();
    let mut runs = [Run::default(); 64];
    stages.scan = timed(|| {
        for at in offsets().map(|offset| ground.program + offset) {
            let _ = ground.pagemap.present(at..at + size.bytes, size.bytes / PAGE, &mut runs);
        }
    }) / count;
    stages.move_out = moved(ground, size, ground.inactive, ground.program)? / count;
    // Back and out again while somebody runs, for the difference; then back is what it takes to bring them.
    moved(ground, size, ground.program, ground.inactive)?;
    let beside = while_another_runs(|| moved(ground, size, ground.inactive, ground.program));
    stages.tlb = beside.transpose()?.map(|us| (us / count - stages.move_out).max(0.0));
    if stages.tlb.is_none() {
        moved(ground, size, ground.inactive, ground.program)?;
    }

    let stored = store(ground, tools, size, &mut stages)?;
    let per_folio = |us: f64| us / count;
    (stages.read, stages.compress, stages.store) =
        (per_folio(stages.read), per_folio(stages.compress), per_folio(stages.store));
    load(ground, tools, &stored, &mut stages)?;
    (stages.look_up, stages.decompress) = (per_folio(stages.look_up), per_folio(stages.decompress));
    stages.move_in = moved(ground, size, ground.program, ground.inactive)? / count;
    stages.stays_huge = ground.is_huge(ground.program..ground.program + BYTES);
    stored.into_iter().flatten().for_each(|(handle, ..)| tools.cache.invalidate(handle));
    if ground.contents() != memory {
        return Err("what came back is not what went out: please report this".to_string());
    }
    Ok(stages)
}

/// How long something takes, in microseconds.
fn timed(mut what: impl FnMut()) -> f64 {
    let begun = Instant::now();
    what();
    begun.elapsed().as_secs_f64() * 1e6
}

/// Moves everything from one mapping to the other, folio by folio: how long that takes, in microseconds.
fn moved(ground: &Ground, size: Size, to: usize, from: usize) -> Result<f64, String> {
    let mut stop = None;
    let us = timed(|| {
        for offset in (0..BYTES).step_by(size.bytes) {
            let (to, from) = (to + offset, from + offset);
            // SAFETY: the mappings are the ground's, and nobody reads them meanwhile.
            let moved = unsafe { ground.userfault.move_pages(&ground.pagemap, to, from, size.bytes) };
            stop = stop.or(moved.stop);
        }
    });
    stop.map_or(Ok(us), |errno| Err(format!("UFFDIO_MOVE: {errno}")))
}

/// Does something while another thread of this process runs on another CPU; `None` where there is no other.
fn while_another_runs<T>(what: impl FnOnce() -> T) -> Option<T> {
    if CpuSet::of_this_thread().count() < 2 {
        return None;
    }
    let (runs, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            runs.store(true, Relaxed);
            while !ends.load(Relaxed) {
                spin_loop();
            }
        });
        while !runs.load(Relaxed) {
            thread::yield_now();
        }
        let done = what();
        ends.store(true, Relaxed);
        Some(done)
    })
}

/// Makes objects of what lies on the inactive list, as a worker does, and takes them into the pool: those of each
/// window.
fn store(ground: &Ground, tools: &mut Tools, size: Size, stages: &mut Stages) -> Result<Vec<Stored>, String> {
    let program = Memory::own().map_err(|errno| format!("/proc/self/mem: {errno}"))?;
    let unit = (size.bytes / PAGE).min(WINDOW_PAGES);
    let Tools { codec, cache, map, parcel, buffer } = tools;
    let mut all = Vec::new();
    for offset in (0..BYTES).step_by(WINDOW) {
        let (at, mut is_read) = (ground.inactive + offset, false);
        stages.read += timed(|| is_read = program.read(at, buffer));
        if !is_read {
            return Err(format!("the memory at {at:#x} cannot be read"));
        }
        let (pages, priors, mut packed) = (PageMask::first(WINDOW_PAGES), Priors::default(), None);
        stages.compress +=
            timed(|| packed = Some(codec.pack_one(buffer, pages, unit, &priors, false, parcel)));
        let (mut stored, mut begin, mut page) = (Stored::new(), 0, 0);
        for new in packed.expect("it was packed").objects.into_iter().flatten() {
            let New::Blob { fingerprint, bytes, .. } = new else {
                return Err("one word fills a page: its way is shorter".to_string());
            };
            let (object, mut handle) = (&parcel[begin..begin + bytes as usize], None);
            stages.store += timed(|| handle = cache.store(object));
            let handle = handle.ok_or("there is no memory for the pool")?;
            for index in page..page + unit {
                let entry = Entry::new(Kind::Stored, all.len() as u32, index - page, Heat::COLD);
                map.set(ground.program + offset + index * PAGE, entry);
            }
            (begin, page) = (begin + bytes as usize, page + unit);
            stored.push((handle, fingerprint, unit));
        }
        all.push(stored);
    }
    Ok(all)
}

/// Loads what is stored back to the inactive list, whose pages are written over.
fn load(ground: &Ground, tools: &mut Tools, stored: &[Stored], stages: &mut Stages) -> Result<(), String> {
    let Tools { codec, cache, map, buffer, .. } = tools;
    let mut is_sound = true;
    let mut pages = 0;
    for (offset, objects) in (0..BYTES).step_by(WINDOW).zip(stored) {
        let mut at = offset;
        for &(handle, fingerprint, unit) in objects {
            stages.look_up += timed(|| {
                let entry = map.get(ground.program + at);
                is_sound &= entry.kind() == Kind::Stored && cache.hash(handle, 0).is_some();
            });
            let to = &mut buffer[..unit * PAGE];
            stages.decompress += timed(|| is_sound &= cache.load(codec, handle, fingerprint, 0, to).is_ok());
            // SAFETY: the ground's mapping, as far as the object reaches, which nobody else has.
            unsafe { std::slice::from_raw_parts_mut((ground.inactive + at) as *mut u8, to.len()) }
                .copy_from_slice(to);
            let page = at / PAGE % unit;
            stages.one_page += timed(|| {
                is_sound &= cache.load(codec, handle, fingerprint, page, &mut buffer[..PAGE]).is_ok()
            });
            (at, pages) = (at + unit * PAGE, pages + 1);
        }
    }
    stages.one_page /= f64::from(pages);
    if is_sound { Ok(()) } else { Err("an object cannot be read: please report this".to_string()) }
}
