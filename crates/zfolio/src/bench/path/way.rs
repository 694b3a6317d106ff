//! The stages of a size: all of the memory goes out, folio by folio, and comes back.

use super::super::measure::middle;
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
    /// All came back as huge pages; `None` where they were none.
    pub stays_huge: Option<bool>,
}

impl Stages {
    /// Of each stage the middle one of several rounds.
    pub fn medians(rounds: &[Stages]) -> Stages {
        let of = |stage: fn(&Stages) -> f64| median(rounds.iter().map(stage).collect());
        let tlb = rounds.iter().map(|round| round.tlb).collect::<Option<Vec<_>>>().map(median);
        let stay = rounds.iter().map(|round| round.stays_huge).collect::<Option<Vec<_>>>();
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
            stays_huge: stay.map(|stay| stay.into_iter().all(|stays| stays)),
        }
    }
}

/// The middle one; 0 of none.
pub fn median(values: Vec<f64>) -> f64 {
    middle(&values, f64::total_cmp).unwrap_or_default()
}

/// What is stored of a window: its objects, with how many pages each has.
type Stored = Vec<(Handle, u32, usize)>;

/// All of the memory out and back, once. It must come back as it was.
pub fn round(ground: &Ground, tools: &mut Tools, memory: &[u8], size: Size) -> Result<Stages, String> {
    ground.fill(memory, size.is_huge).map_err(|errno| format!("memory cannot be registered: {errno}"))?;
    let all = ground.program..ground.program + BYTES;
    let was_huge = ground.is_huge(all.clone());
    let offsets = || (0..BYTES).step_by(size.bytes);
    let count = offsets().count() as f64;
    let mut stages = Stages::default();
    let mut runs = [Run::default(); 64];
    let ((), scan) = timed(|| {
        for at in offsets().map(|offset| ground.program + offset) {
            let _ = ground.pagemap.present(at..at + size.bytes, size.bytes / PAGE, &mut runs);
        }
    });
    stages.scan = scan / count;
    stages.move_out = moved(ground, size, ground.inactive, ground.program)? / count;
    // Back, and out again while somebody runs, for the difference.
    moved(ground, size, ground.program, ground.inactive)?;
    let beside = while_another_runs(|| moved(ground, size, ground.inactive, ground.program));
    stages.tlb = beside.transpose()?.map(|us| (us / count - stages.move_out).max(0.0));
    if stages.tlb.is_none() {
        moved(ground, size, ground.inactive, ground.program)?;
    }

    let stored = store(ground, tools, size, &mut stages)?;
    load(ground, tools, &stored, &mut stages)?;
    let Stages { read, compress, store, look_up, decompress, .. } = &mut stages;
    for sum in [read, compress, store, look_up, decompress] {
        *sum /= count;
    }
    stages.move_in = moved(ground, size, ground.program, ground.inactive)? / count;
    stages.stays_huge = was_huge.then(|| ground.is_huge(all));
    stored.into_iter().flatten().for_each(|(handle, ..)| tools.cache.invalidate(handle));
    if ground.contents() != memory {
        return Err("what came back is not what went out: please report this".to_string());
    }
    Ok(stages)
}

/// Does something: what came of it, and how long it took, in microseconds.
fn timed<T>(what: impl FnOnce() -> T) -> (T, f64) {
    let begun = Instant::now();
    let done = what();
    (done, begun.elapsed().as_secs_f64() * 1e6)
}

/// Moves everything from one mapping to the other, folio by folio: how long that takes, in microseconds.
fn moved(ground: &Ground, size: Size, to: usize, from: usize) -> Result<f64, String> {
    let (stop, us) = timed(|| {
        (0..BYTES).step_by(size.bytes).find_map(|offset| {
            let (to, from) = (to + offset, from + offset);
            // SAFETY: the mappings are the ground's, and nobody reads them meanwhile.
            unsafe { ground.userfault.move_pages(&ground.pagemap, to, from, size.bytes) }.stop
        })
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
        let at = ground.inactive + offset;
        let (is_read, us) = timed(|| program.read(at, buffer));
        stages.read += us;
        if !is_read {
            return Err(format!("the memory at {at:#x} cannot be read"));
        }
        let (pages, priors) = (PageMask::first(WINDOW_PAGES), Priors::default());
        let (packed, us) = timed(|| codec.pack_one(buffer, pages, unit, &priors, false, parcel));
        stages.compress += us;
        let (mut stored, mut begin, mut page) = (Stored::new(), 0, 0);
        for new in packed.objects.into_iter().flatten() {
            let New::Blob { fingerprint, bytes, .. } = new else {
                return Err("one word fills a page: its way is shorter".to_string());
            };
            let (handle, us) = timed(|| cache.store(&parcel[begin..begin + bytes as usize]));
            stages.store += us;
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
    let (mut is_sound, mut loaded) = (true, 0);
    for (offset, objects) in (0..BYTES).step_by(WINDOW).zip(stored) {
        let mut at = offset;
        for &(handle, fingerprint, unit) in objects {
            let (is_found, look_up) = timed(|| {
                map.get(ground.program + at).kind() == Kind::Stored && cache.hash(handle, 0).is_some()
            });
            let to = &mut buffer[..unit * PAGE];
            let (all, decompress) = timed(|| cache.load(codec, handle, fingerprint, 0, to));
            // SAFETY: the ground's mapping, as far as the object reaches, which nobody else has.
            unsafe { std::slice::from_raw_parts_mut((ground.inactive + at) as *mut u8, to.len()) }
                .copy_from_slice(to);
            // Each window another page, so that all count alike.
            let page = offset / WINDOW % unit;
            let (one, one_page) = timed(|| cache.load(codec, handle, fingerprint, page, &mut buffer[..PAGE]));
            stages.look_up += look_up;
            stages.decompress += decompress;
            stages.one_page += one_page;
            is_sound &= is_found && all.is_ok() && one.is_ok();
            (at, loaded) = (at + unit * PAGE, loaded + 1);
        }
    }
    stages.one_page /= f64::from(loaded);
    if is_sound { Ok(()) } else { Err("an object cannot be read: please report this".to_string()) }
}
