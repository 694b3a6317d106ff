//! The way of a folio into the pool, one unit at a time against batches: looked at, hashed, compressed, put into the pool. By software on the CPU, and by
//! deflate-iaa on a model of the device with eight engines. The tables have the form of those of the kernel series "zswap compression batching".
//!
//! `cargo run --release --package zswap --example store_path [FILE [LATENCY_PAGES]]`
//!
//! FILE is memory to store (a dump; made up without it). The variants take turns; medians. The hash is of all objects: batches make the same ones. The
//! model's latency is given as so many times what software takes for a page, and it has computed all before (`recall`): what it shows is what
//! batches do to waiting.

use acomp::{Compressor, Context};
use iaa::topology::Topology;
use iaa::{Config, Driver};
use iaa_model::{DeviceConfig, Model};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zsmalloc::Backing;
use zswap::{
    BATCH_MAX, Cache, Codec, New, PAGE, PARCEL_MAX_BYTES, Packed, Priors, WINDOW_PAGES, Window, With,
};

const WINDOW_BYTES: usize = WINDOW_PAGES * PAGE;
/// How much of the memory is stored in a turn.
const TOTAL_BYTES: usize = 8 << 20;
/// How long turns are taken, for each line.
const SECONDS: u64 = 10;

struct Heap;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 64 << 10).expect("a layout")
}

// SAFETY: zeroed memory of the allocator, aligned as asked, that stays until it is unmapped.
unsafe impl Backing for Heap {
    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: never of no bytes.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)) })
    }
    fn decommit(&self, _: NonNull<u8>, _: usize) {}
    fn unmap(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: as it was mapped.
        unsafe { dealloc(at.as_ptr(), layout(bytes)) }
    }
}

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

/// What a turn came to: seconds of each folio, bytes that were stored, a hash of them.
struct Turn {
    folios: Vec<f64>,
    bytes: usize,
    hash: u64,
}

/// A codec and a pool, and what its turns came to.
struct Variant {
    codec: Codec,
    cache: Cache<Heap>,
    parcels: Vec<Vec<u8>>,
    /// Windows that are packed together; 0 for one unit at a time.
    batch: usize,
    turns: Vec<Turn>,
    _device: Option<Model>,
}

impl Variant {
    fn new(compressor: Compressor, latency: Option<Duration>, batch: usize) -> Variant {
        let mut codec = Codec::new(compressor, 1, &[]).expect("memory");
        let device = latency.map(|latency| {
            let model =
                Model::new([DeviceConfig { engines: 8, latency, recall: true, ..DeviceConfig::default() }]);
            // Late is what other work on this machine makes late.
            let open = |config| {
                let config = Config { timeout_ns: 60_000_000_000, ..config };
                let driver = Arc::new(Driver::new(config, Topology::read("")));
                model.attach(&driver);
                Some(driver)
            };
            assert!(codec.attach(|context: &mut Context| context.attach(open)));
            model
        });
        let parcels = vec![vec![0; PARCEL_MAX_BYTES]; BATCH_MAX];
        Variant { codec, cache: Cache::new(Heap), parcels, batch, turns: Vec::new(), _device: device }
    }

    /// Takes the objects of a window in.
    fn store(cache: &Cache<Heap>, packed: &Packed, parcel: &[u8], bytes: &mut usize, hash: &mut u64) {
        let mut at = 0;
        for new in packed.objects.into_iter().flatten() {
            let New::Blob { bytes: length, fingerprint, .. } = new else { continue };
            let object = &parcel[at..][..length as usize];
            black_box(cache.store(object).expect("memory"));
            at += object.len();
            *bytes += object.len();
            *hash = (hash.rotate_left(7) ^ u64::from(fingerprint) ^ object.len() as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn turn(&mut self, memory: &mut [u8], folio: usize, unit: usize) {
        let priors = Priors::default();
        let mut turn = Turn { folios: Vec::new(), bytes: 0, hash: 0 };
        self.cache = Cache::new(Heap);
        for folio in memory.chunks_exact_mut(folio) {
            let begun = Instant::now();
            if self.batch == 0 {
                for window in folio.chunks_exact(WINDOW_BYTES) {
                    let parcel = &mut self.parcels[0];
                    let packed = self.codec.pack(window, u16::MAX, unit, &priors, With::default(), parcel);
                    Self::store(&self.cache, &packed, parcel, &mut turn.bytes, &mut turn.hash);
                }
            } else {
                for windows in folio.chunks_mut(self.batch * WINDOW_BYTES) {
                    let windows = windows.chunks_exact_mut(WINDOW_BYTES).zip(&mut self.parcels);
                    let mut windows: Vec<Window<'_>> = windows
                        .map(|(bytes, parcel)| {
                            let (pages, packed) = (u16::MAX, Packed::default());
                            Window { bytes, pages, unit, priors: &priors, parcel, packed }
                        })
                        .collect();
                    self.codec.pack_together(&mut windows);
                    for window in &windows {
                        Self::store(
                            &self.cache,
                            &window.packed,
                            window.parcel,
                            &mut turn.bytes,
                            &mut turn.hash,
                        );
                    }
                }
            }
            turn.folios.push(begun.elapsed().as_secs_f64());
        }
        self.turns.push(turn);
    }

    fn median(&self) -> f64 {
        // In the first turn the model computes.
        let mut folios: Vec<f64> = self.turns[1..].iter().flat_map(|turn| turn.folios.clone()).collect();
        folios.sort_by(f64::total_cmp);
        folios[folios.len() / 2]
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut memory = match arguments.next() {
        Some(path) => std::fs::read(path).expect("FILE can be read"),
        None => made_up(),
    };
    memory.truncate(TOTAL_BYTES);
    let pages: f64 = arguments.next().map_or(4.0, |text| text.parse().expect("LATENCY_PAGES is a number"));
    for name in ["zstd:1", "lz4", "deflate-iaa"] {
        let compressor = Compressor::parse(name).expect("it is in the registry");
        for (folio, unit) in [(64 << 10, 1), (2 << 20, 1), (2 << 20, WINDOW_PAGES)] {
            let latency = (name == "deflate-iaa").then(|| {
                let mut software = Variant::new(compressor, None, 0);
                (0..4).for_each(|_| software.turn(&mut memory, folio, unit));
                let unit_s = software.median() / (folio / PAGE / unit) as f64;
                Duration::from_secs_f64(unit_s * pages)
            });
            let mut variants = [0, 1, BATCH_MAX].map(|batch| Variant::new(compressor, latency, batch));
            let until = Instant::now() + Duration::from_secs(SECONDS);
            while variants[0].turns.len() < 4 || Instant::now() < until {
                variants.iter_mut().for_each(|variant| variant.turn(&mut memory, folio, unit));
            }
            let turns = || variants.iter().flat_map(|variant| &variant.turns);
            let (hash, bytes) = (variants[0].turns[0].hash, variants[0].turns[0].bytes);
            assert!(turns().all(|turn| turn.hash == hash), "the objects are the same");
            let [one, window, eight] = [0, 1, 2].map(|at| variants[at].median());
            let kb_per_s = |seconds: f64| folio as f64 / 1024.0 / seconds;
            println!(
                "\n{}K folios in units of {}K, {name}{}: median of {} folios, hash {hash:016x}",
                folio >> 10,
                (unit * PAGE) >> 10,
                latency.map_or(String::new(), |l| format!(
                    " on the model, {:.0} us a unit",
                    l.as_secs_f64() * 1e6
                )),
                (variants[0].turns.len() - 1) * (memory.len() / folio),
            );
            println!(
                "  {:<22}{:>12}{:>12}{:>12}{:>16}",
                "", "sequential", "a window", "8 windows", "8 against 1"
            );
            println!(
                "  {:<22}{:>12.0}{:>12.0}{:>12.0}{:>+15.1}%",
                "throughput (KB/s)",
                kb_per_s(one),
                kb_per_s(window),
                kb_per_s(eight),
                100.0 * (one / eight - 1.0)
            );
            println!(
                "  {:<22}{:>12.3}{:>12.3}{:>12.3}{:>+15.1}%",
                "elapsed time (ms)",
                one * 1e3,
                window * 1e3,
                eight * 1e3,
                100.0 * (eight / one - 1.0)
            );
            println!("  {:<22}{:>12.2}", "compression ratio", memory.len() as f64 / bytes as f64);
        }
    }
}
