//! One submitter and a device of eight engines: pages one at a time against batches, on the model. The tables have the
//! form of those of the kernel series "zswap compression batching", for folios of 64 KiB and 2 MiB that go out page by
//! page.
//!
//! `cargo run --release --package acomp --example batching [LATENCY_PAGES]`
//!
//! The model's latency is given as so many times what software takes for a page. It has computed all of it before
//! (`recall`), so that it takes hardly more of a CPU than the device, and what is shown is what batching does to
//! waiting, not how fast the device is. All variants take turns, and of each the quickest folio counts: what else the
//! machine does lengthens the others.

use acomp::{CompressRequest, Compressor, Context, Outcome};
use base::PAGE;
use iaa::topology::Topology;
use iaa::{Config, Driver};
use iaa_model::{DeviceConfig, Model};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TOTAL_BYTES: usize = 2 << 20;
/// How long turns are taken.
const SECONDS: u64 = 15;
/// Pages in a batch.
const BATCHES: [usize; 4] = [1, 4, 8, 512];

/// Memory as a program has it: pointers and small numbers.
fn memory() -> Vec<u8> {
    let mut seed = 1u64;
    let mut memory = Vec::with_capacity(TOTAL_BYTES);
    for word in 0..TOTAL_BYTES / 16 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        memory.extend((0x7f00_0000_0000 | (seed >> 50) << 4).to_le_bytes());
        memory.extend((word as u64 & 31).to_le_bytes());
    }
    memory
}

fn context() -> Context {
    let compressor = Compressor::parse("deflate-iaa").expect("it is in the registry");
    Context::new(compressor, PAGE).expect("memory")
}

/// All of the memory in folios, `batch` pages at a time: seconds of the quickest folio, and bytes that came of all.
fn all(context: &mut Context, memory: &[u8], folio: usize, batch: usize) -> (f64, usize) {
    let mut rooms = vec![[0u8; PAGE]; batch.min(folio / PAGE)];
    let (mut best, mut written) = (f64::MAX, 0);
    for folio in memory.chunks(folio) {
        let begun = Instant::now();
        for pages in folio.chunks(batch * PAGE) {
            let pages = pages.chunks(PAGE).zip(&mut rooms);
            let mut requests: Vec<_> = pages.map(|(page, room)| CompressRequest::new(page, room)).collect();
            context.compress(&mut requests);
            for request in &requests {
                let Ok(Outcome::Shrunk(bytes)) = request.result else { panic!("{:?}", request.result) };
                written += bytes;
            }
        }
        best = best.min(begun.elapsed().as_secs_f64());
    }
    (best, written)
}

/// A context with a device of its own.
struct OnDevice {
    context: Context,
    driver: Arc<Driver>,
    _model: Model,
    best: f64,
}

impl OnDevice {
    fn new(latency: Duration) -> OnDevice {
        let model =
            Model::new([DeviceConfig { engines: 8, latency, recall: true, ..DeviceConfig::default() }]);
        // Late is what other work on this machine makes late.
        let (mut context, mut driver) = (context(), None);
        assert!(context.attach(|config| {
            let config = Config { timeout_ns: 60_000_000_000, ..config };
            let it = driver.insert(Arc::new(Driver::new(config, Topology::read(""))));
            model.attach(it);
            driver.clone()
        }));
        OnDevice { context, driver: driver.expect("attached"), _model: model, best: f64::MAX }
    }
}

fn main() {
    let pages: f64 =
        std::env::args().nth(1).map_or(4.0, |text| text.parse().expect("LATENCY_PAGES is a number"));
    let memory = memory();
    let software = || all(&mut context(), &memory, 64 << 10, 8).0;
    let page_s = (0..20).map(|_| software()).fold(f64::MAX, f64::min) / 16.0;
    let latency = Duration::from_secs_f64(page_s * pages);
    println!("deflate-iaa in software: {:.0} KB/s, {:.0} us a page", 4.0 / page_s, page_s * 1e6);
    println!(
        "model: 1 device, 8 engines, latency {:.0} us ({pages} software pages), 1 submitter",
        latency.as_secs_f64() * 1e6
    );
    for folio in [64 << 10, 2 << 20] {
        let mut variants = BATCHES.map(|_| OnDevice::new(latency));
        let (mut bytes, mut round, until) = (0, 0, Instant::now() + Duration::from_secs(SECONDS));
        while round < 2 || Instant::now() < until {
            for (variant, batch) in variants.iter_mut().zip(BATCHES) {
                let (seconds, written) = all(&mut variant.context, &memory, folio, batch);
                // In the first round the model computes.
                if round > 0 {
                    variant.best = variant.best.min(seconds);
                }
                bytes = written;
                let calls = variant.driver.stats().calls();
                assert_eq!(calls.sw_comp_calls, 0, "the device did all of it: {:?}", variant.driver.stats());
            }
            round += 1;
        }
        let best = variants.map(|variant| variant.best);
        let row = |name: &str, values: [String; 4], change: f64| {
            let [one, four, eight, whole] = values;
            println!("  {name:<20}{one:>12}{four:>12}{eight:>12}{whole:>14}{change:>+15.0}%");
        };
        println!("\n{}K folios, deflate-iaa, the quickest of {}", folio >> 10, round * TOTAL_BYTES / folio);
        println!(
            "  {:<20}{:>12}{:>12}{:>12}{:>14}{:>16}",
            "", "sequential", "batches 4", "batches 8", "whole folios", "8 against 1"
        );
        let [one, _, eight, _] = best;
        let kb_per_s = |seconds: f64| format!("{:.0}", folio as f64 / 1024.0 / seconds);
        row("throughput (KB/s)", best.map(kb_per_s), 100.0 * (one / eight - 1.0));
        row("elapsed time (ms)", best.map(|s| format!("{:.2}", s * 1e3)), 100.0 * (eight / one - 1.0));
        println!("  {:<20}{:>12.2}", "compression ratio", TOTAL_BYTES as f64 / bytes as f64);
    }
}
