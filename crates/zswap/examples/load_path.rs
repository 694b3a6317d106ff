//! The way of objects back to pages, one at a time against eight: decompressed and compared with their hashes. By
//! software on the CPU, and by deflate-iaa on a model of the device with eight engines, as `store_path` has it: it
//! shows what batches do to waiting, not how fast the device is.
//!
//! `cargo run --release --package zswap --example load_path [LATENCY_OBJECTS]`
//!
//! The model takes so many times what software takes for an object. Both ways take turns; medians of a batch of eight
//! objects.

use acomp::{Compressor, Context};
use iaa::topology::Topology;
use iaa::{Config, Driver};
use iaa_model::{DeviceConfig, Model};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zswap::{BATCH_MAX, Codec, Damaged, Load, New, PAGE, PARCEL_MAX_BYTES, Priors, WINDOW_PAGES};

const WINDOWS: usize = 64;
/// How long turns are taken, for each line.
const SECONDS: u64 = 8;

/// An object and what it is known by.
type Object = (Vec<u8>, u32);

/// Memory as a program has it, pointers and small numbers, as objects of so many pages.
fn objects(codec: &mut Codec, unit: usize) -> Vec<Object> {
    let (mut seed, mut objects) = (1u64, Vec::new());
    for _ in 0..WINDOWS {
        let mut window = Vec::new();
        while window.len() < WINDOW_PAGES * PAGE {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            window.extend((0x7f00_0000_0000 | (seed >> 50) << 4).to_le_bytes());
            window.extend((window.len() as u64 & 31).to_le_bytes());
        }
        let mut parcel = vec![0; PARCEL_MAX_BYTES];
        let packed =
            codec.pack_one(&mut window, u16::MAX.into(), unit, &Priors::default(), false, &mut parcel);
        let mut at = 0;
        for new in packed.objects.into_iter().flatten() {
            let New::Blob { bytes, fingerprint, .. } = new else { continue };
            objects.push((parcel[at..][..bytes as usize].to_vec(), fingerprint));
            at += bytes as usize;
        }
    }
    objects
}

/// Loads all objects, so many at a time, and adds the seconds of each eight.
fn all(codec: &mut Codec, objects: &[Object], unit: usize, together: bool, times: &mut Vec<f64>) {
    let mut rooms = vec![vec![0; unit * PAGE]; BATCH_MAX];
    for eight in objects.chunks_exact(BATCH_MAX) {
        let begun = Instant::now();
        if together {
            let mut loads: Vec<Load<'_>> = eight
                .iter()
                .zip(&mut rooms)
                .map(|((object, fingerprint), to)| Load {
                    object,
                    fingerprint: *fingerprint,
                    first: 0,
                    to,
                    result: Err(Damaged::Stream),
                })
                .collect();
            codec.unpack_all(&mut loads, &mut || {});
            loads.iter().for_each(|load| load.result.expect("a sound object"));
        } else {
            for ((object, fingerprint), to) in eight.iter().zip(&mut rooms) {
                codec.unpack(object, *fingerprint, 0, to).expect("a sound object");
            }
        }
        times.push(begun.elapsed().as_secs_f64());
    }
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let factor: f64 =
        std::env::args().nth(1).map_or(4.0, |text| text.parse().expect("LATENCY_OBJECTS is a number"));
    println!("{:<44}{:>14}{:>14}{:>12}", "8 objects, ms", "one at a time", "together", "throughput");
    for name in ["zstd:1", "lz4", "deflate-iaa"] {
        for unit in [1, WINDOW_PAGES] {
            let new =
                || Codec::new(Compressor::parse(name).expect("in the registry"), 1, &[]).expect("memory");
            let objects = objects(&mut new(), unit);
            let latency = (name == "deflate-iaa").then(|| {
                let mut times = Vec::new();
                (0..4).for_each(|_| all(&mut new(), &objects, unit, false, &mut times));
                Duration::from_secs_f64(median(&times) / BATCH_MAX as f64 * factor)
            });
            let mut ways = [false, true].map(|together| {
                let mut codec = new();
                let device = latency.map(|latency| {
                    let config = DeviceConfig { latency, recall: true, ..DeviceConfig::default() };
                    let model = Model::new([config]);
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
                // In the first turn the model computes.
                all(&mut codec, &objects, unit, together, &mut Vec::new());
                (together, codec, device, Vec::new())
            });
            let until = Instant::now() + Duration::from_secs(SECONDS);
            while Instant::now() < until {
                for (together, codec, _, times) in &mut ways {
                    all(codec, &objects, unit, *together, times);
                }
            }
            let [one, eight] = ways.map(|(.., times)| median(&times));
            let model = latency.map_or(String::new(), |latency| format!(" on the model, {latency:.0?} each"));
            println!(
                "{:<44}{:>14.3}{:>14.3}{:>+11.1}%",
                format!("{}K, {name}{model}", (unit * PAGE) >> 10),
                one * 1e3,
                eight * 1e3,
                100.0 * (one / eight - 1.0)
            );
        }
    }
}
