//! The way of a folio into the pool, one window after the other against batches of eight: looked at, hashed,
//! compressed, put into the pool. By software on the CPU, and by deflate-iaa on a model of the device with eight
//! engines. The tables have the form of those of the kernel's series "zswap compression batching" and "mm: ZSWAP
//! swap-out of mTHP folios".
//!
//! `cargo run --release --package zswap --example store_path [FILE [LATENCY_PAGES [COMPRESSOR...]]]`
//!
//! FILE is memory to store (a dump; made up without it, or for `-`). Both ways take turns; medians of turns, and of the
//! ratios of turns side by side, with an interval. The objects are the same both ways. Processor time is that of the
//! thread that stores. The model's latency is given as so many times what software takes for a page, and it has
//! computed all before (`recall`): what it shows is what batches do to waiting.

#[path = "../tests/heap/mod.rs"]
mod heap;

use acomp::{Compressor, Context};
use heap::Heap;
use iaa::topology::Topology;
use iaa::{Config, Driver};
use iaa_model::{DeviceConfig, Model};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zswap::{
    BATCH_MAX, Cache, Codec, New, PAGE, PARCEL_MAX_BYTES, Packed, PageMask, Priors, WINDOW_PAGES, Window,
};

const WINDOW_BYTES: usize = WINDOW_PAGES * PAGE;
const PARCEL_BYTES: usize = PARCEL_MAX_BYTES.next_multiple_of(PAGE);
/// How much of the memory is stored in a turn.
const TOTAL_BYTES: usize = 8 << 20;
/// How long turns are taken, for each table.
const SECONDS: u64 = 5;
/// What is measured, if nothing is asked for.
const NAMES: [&str; 4] = ["lzo-rle", "lz4", "zstd:1", "deflate-iaa"];

/// Memory as a program has it: pointers and small numbers.
fn made_up() -> Vec<u8> {
    let mut seed = 1u64;
    let mut memory = Vec::with_capacity(TOTAL_BYTES);
    for word in 0..TOTAL_BYTES / 16 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        memory.extend((0x7f00_0000_0000 | (seed >> 50) << 4).to_le_bytes());
        memory.extend((word as u64 & 31).to_le_bytes());
    }
    memory
}

/// What this thread has had of a processor: on a busy machine the clock on the wall says little.
fn processor_time() -> Duration {
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    const THREAD_CPUTIME: i32 = 3;
    let mut time = [0; 2];
    // SAFETY: `time` is as long as a timespec, which it is filled in as.
    assert_eq!(unsafe { clock_gettime(THREAD_CPUTIME, &mut time) }, 0);
    Duration::new(time[0] as u64, time[1] as u32)
}

/// What a turn came to: it took, and what was stored.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    elapsed: f64,
    cpu: f64,
    calls: u64,
    stored: Stored,
}

/// The counters, of the objects and the pages in them, and a hash of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stored {
    folios: usize,
    pages: usize,
    same_filled: usize,
    objects: usize,
    incompressible: usize,
    bytes: usize,
    hash: u64,
}

/// A codec and a pool, and what its turns came to.
struct Variant {
    codec: Codec,
    cache: Cache<Heap>,
    parcels: Vec<u8>,
    /// One window after the other, and 8 at a time. By the same codec: where in memory another one's tables lie can
    /// make 4 per cent.
    turns: [Vec<Turn>; 2],
    device: Option<(Model, Arc<Driver>)>,
}

impl Variant {
    fn new(compressor: Compressor, latency: Option<Duration>) -> Variant {
        let mut codec = Codec::new(compressor, 1, &[]).expect("memory");
        let device = latency.map(|latency| {
            let model =
                Model::new([DeviceConfig { engines: 8, latency, recall: true, ..DeviceConfig::default() }]);
            // Late is what other work on this machine makes late.
            let mut driver = None;
            let mut open = |config| {
                let config = Config { timeout_ns: 60_000_000_000, ..config };
                let opened = Arc::new(Driver::new(config, Topology::read("")));
                model.attach(&opened);
                driver = Some(opened.clone());
                Some(opened)
            };
            assert!(codec.attach(|context: &mut Context| context.attach(&mut open)));
            (model, driver.expect("it has been opened"))
        });
        // Alike in both: where in a page a parcel begins makes some per cent.
        let parcels = vec![0; BATCH_MAX * PARCEL_BYTES + PAGE];
        Variant { codec, cache: Cache::new(Heap), parcels, turns: Default::default(), device }
    }

    /// Takes the objects of a window in.
    fn store(cache: &Cache<Heap>, packed: &Packed, parcel: &[u8], unit: usize, stored: &mut Stored) {
        let mut at = 0;
        let mut left = packed.in_objects.count();
        stored.same_filled += packed.zero.count();
        stored.pages += left + packed.zero.count();
        for new in packed.objects.into_iter().flatten() {
            let pages = left.min(unit);
            left -= pages;
            let New::Blob { bytes: length, fingerprint, compressed, .. } = new else {
                stored.same_filled += pages;
                continue;
            };
            let object = &parcel[at..][..length as usize];
            black_box(cache.store(object).expect("memory"));
            at += object.len();
            stored.objects += 1;
            stored.incompressible += usize::from(!compressed);
            stored.bytes += object.len();
            stored.hash = (stored.hash.rotate_left(7) ^ u64::from(fingerprint) ^ object.len() as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn turn(&mut self, memory: &mut [u8], folio: usize, unit: usize, is_batched: bool) {
        let calls = self.calls();
        let (whole, priors) = (PageMask::first(WINDOW_PAGES), Priors::default());
        let mut stored = Stored::default();
        self.cache = Cache::new(Heap);
        let off = self.parcels.as_ptr().align_offset(PAGE);
        let parcels = &mut self.parcels[off..];
        let (begun, had) = (Instant::now(), processor_time());
        for folio in memory.chunks_exact_mut(folio) {
            stored.folios += 1;
            if !is_batched {
                for window in folio.chunks_exact_mut(WINDOW_BYTES) {
                    let parcel = &mut parcels[..PARCEL_MAX_BYTES];
                    let packed = self.codec.pack_one(window, whole, unit, &priors, false, parcel);
                    Self::store(&self.cache, &packed, parcel, unit, &mut stored);
                }
                continue;
            }
            for windows in folio.chunks_mut(BATCH_MAX * WINDOW_BYTES) {
                let mut windows: [Window<'_>; BATCH_MAX] = {
                    let mut bytes = windows.chunks_exact_mut(WINDOW_BYTES);
                    let mut parcels = parcels.chunks_exact_mut(PARCEL_BYTES);
                    core::array::from_fn(|_| {
                        let (bytes, pages) =
                            bytes.next().map_or((&mut [][..], PageMask::NONE), |bytes| (bytes, whole));
                        let (parcel, packed) = (parcels.next().expect("one for each"), Packed::default());
                        Window { bytes, pages, unit, priors: &priors, is_plain: false, parcel, packed }
                    })
                };
                let count = windows.iter().filter(|window| !window.pages.is_empty()).count();
                let windows = &mut windows[..count];
                self.codec.pack(windows, &mut || {});
                for window in windows {
                    Self::store(&self.cache, &window.packed, window.parcel, unit, &mut stored);
                }
            }
        }
        let elapsed = begun.elapsed().as_secs_f64();
        let cpu = (processor_time() - had).as_secs_f64();
        let calls = self.calls() - calls;
        self.turns[usize::from(is_batched)].push(Turn { elapsed, cpu, calls, stored });
    }

    /// What the device has done.
    fn calls(&self) -> u64 {
        self.device.as_ref().map_or(0, |(_, driver)| driver.stats().calls().comp_calls)
    }

    /// In the first turn the model computes.
    fn counted(&self, is_batched: bool) -> &[Turn] {
        &self.turns[usize::from(is_batched)][1..]
    }
}

/// What a GiB takes, of turns of so many bytes: the median.
fn for_a_gib(turns: &[Turn], bytes: usize, of: fn(&Turn) -> f64) -> f64 {
    median(turns.iter().map(of).collect()) * (1u64 << 30) as f64 / bytes as f64
}

fn sorted(mut all: Vec<f64>) -> Vec<f64> {
    all.sort_by(f64::total_cmp);
    all
}

fn median(all: Vec<f64>) -> f64 {
    let all = sorted(all);
    all[all.len() / 2]
}

/// What batches change, of turns side by side: the median of their ratios, in per cent, and where it lies at 95 %, by
/// the order of these alone.
fn change(one: &[Turn], eight: &[Turn], of: fn(&Turn) -> f64) -> [f64; 3] {
    let pairs = one.iter().zip(eight);
    let ratios = sorted(pairs.map(|(one, eight)| 100.0 * (of(eight) / of(one) - 1.0)).collect());
    let (half, off) = (ratios.len() as f64 / 2.0, 0.98 * (ratios.len() as f64).sqrt());
    let last = ratios.len() - 1;
    let at = |rank: f64| ratios[(rank.max(0.0) as usize).min(last)];
    [at(half), at((half - off).floor()), at((half + off).ceil())]
}

/// Both ways of one compressor beside each other, and what was counted.
fn show(title: &str, [one, eight]: [&[Turn]; 2], memory: &[u8]) {
    let stored = one[0].stored;
    println!("\n{title}: {} turns of {} MiB, hash {:016x}", one.len(), memory.len() >> 20, stored.hash);
    println!("  {:<26}{:>12}{:>12}{:>10}", "", "sequential", "batched", "change");
    let line = |what: &str, of: fn(&Turn) -> f64, digits: usize| {
        let [by_one, by_eight] = [one, eight].map(|turns| for_a_gib(turns, memory.len(), of));
        let [change, from, to] = change(one, eight, of);
        println!(
            "  {what:<26}{by_one:>12.digits$}{by_eight:>12.digits$}{change:>+9.1}%  ({from:+.1} to {to:+.1})"
        );
    };
    let kb_per_s =
        [one, eight].map(|variant| (1 << 20) as f64 / for_a_gib(variant, memory.len(), |t| t.elapsed));
    let gained = change(eight, one, |turn| turn.elapsed)[0];
    println!("  {:<26}{:>12.0}{:>12.0}{gained:>+9.1}%", "throughput (KB/s)", kb_per_s[0], kb_per_s[1]);
    line("elapsed time of 1 GiB (s)", |turn| turn.elapsed, 3);
    line("cpu time of 1 GiB (s)", |turn| turn.cpu, 3);
    const COUNTED: [&str; 7] = [
        "folios out",
        "pages out",
        "pages of one word",
        "objects",
        "kept as they are",
        "bytes of them",
        "done by the device",
    ];
    let counts = |turns: &[Turn]| {
        let Turn { stored, calls, .. } = turns[0];
        let Stored { folios, pages, same_filled, objects, incompressible, bytes, .. } = stored;
        [folios, pages, same_filled, objects, incompressible, bytes, calls as usize]
    };
    for (what, (by_one, by_eight)) in COUNTED.iter().zip(counts(one).iter().zip(counts(eight))) {
        println!("  {what:<26}{by_one:>12}{by_eight:>12}");
    }
    println!("  {:<26}{:>12.2}", "compression ratio", (stored.pages * PAGE) as f64 / stored.bytes as f64);
}

/// A line of the table of all compressors: its name, KB/s and seconds of processor time for a GiB, in batches.
type Line = (String, f64, f64);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut memory = match arguments.next().filter(|path| path != "-") {
        Some(path) => std::fs::read(path).expect("FILE can be read"),
        None => made_up(),
    };
    memory.truncate(TOTAL_BYTES);
    let pages: f64 = arguments.next().map_or(4.0, |text| text.parse().expect("LATENCY_PAGES is a number"));
    let asked: Vec<String> = arguments.collect();
    let names: Vec<&str> =
        if asked.is_empty() { NAMES.to_vec() } else { asked.iter().map(String::as_str).collect() };
    for (folio, unit) in [(64 << 10, 1), (64 << 10, WINDOW_PAGES), (2 << 20, 1), (2 << 20, WINDOW_PAGES)] {
        let mut lines: Vec<Line> = Vec::new();
        let form = format!("{}K folios in units of {}K", folio >> 10, (unit * PAGE) >> 10);
        for name in &names {
            let compressor = Compressor::parse(name).expect("it is in the registry");
            let latency = name.starts_with("deflate-iaa").then(|| {
                let mut software = Variant::new(compressor, None);
                (0..4).for_each(|_| software.turn(&mut memory, folio, unit, false));
                let units = memory.len() / PAGE / unit;
                let unit_s =
                    median(software.counted(false).iter().map(|turn| turn.cpu).collect()) / units as f64;
                Duration::from_secs_f64(unit_s * pages)
            });
            let mut variant = Variant::new(compressor, latency);
            let until = Instant::now() + Duration::from_secs(SECONDS);
            while variant.turns[1].len() < 6 || Instant::now() < until {
                // Who begins changes.
                let first = variant.turns[0].len() % 2 == 1;
                for is_batched in [first, !first] {
                    variant.turn(&mut memory, folio, unit, is_batched);
                }
            }
            let expected = variant.turns[0][0].stored;
            assert!(variant.turns.iter().flatten().all(|turn| turn.stored == expected), "the same objects");
            let turns = [false, true].map(|is_batched| variant.counted(is_batched));
            let on = latency
                .map_or(String::new(), |l| format!(" on the model, {:.0} us a unit", l.as_secs_f64() * 1e6));
            show(&format!("{form}, {name}{on}"), turns, &memory);
            let [elapsed, cpu] = [|turn: &Turn| turn.elapsed, |turn: &Turn| turn.cpu]
                .map(|of| for_a_gib(turns[1], memory.len(), of));
            lines.push((format!("{name}{on}"), (1 << 20) as f64 / elapsed, cpu));
        }
        println!("\n{form}, in batches of 8, against {}", names[0]);
        println!("  {:<40}{:>14}{:>10}{:>16}", "", "throughput", "", "cpu of 1 GiB");
        let (_, base_kb, base_cpu) = &lines[0];
        for (name, kb, cpu) in &lines {
            let [gain, saved] = [kb / base_kb - 1.0, 1.0 - cpu / base_cpu].map(|part| part * 100.0);
            println!("  {name:<40}{kb:>9.0} KB/s{gain:>+9.0}%{cpu:>14.3} s{saved:>+9.0}%");
        }
    }
}
