//! What it costs to look whether a unit is noise, beside compressing it: `zswap::noise`, zstd:1 and lz4 on the same
//! units, in turns.
//!
//! `cargo run --release --package zswap --example noise -- FILE...`
//!
//! Each file by itself, and noise that is made up: 8 MiB spread over it. Processor time for a unit, the least of five
//! rounds. The look's share is of what compressing the same units takes, where it is not left out: on noise that is the
//! short time in which the compressor gives up. *Wrong* are units that look like noise and shrink by a thirty-second
//! with zstd:1, *missed* those that do not look so and do not shrink.

use acomp::{CompressRequest, Compressor, Context, Outcome};
use base::Random;
use std::hint::black_box;
use std::time::Duration;
use zswap::noise::looks_like_noise;

const BYTES: usize = 8 << 20;
const ROUNDS: usize = 5;

/// What this thread has had of a processor.
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

/// Compresses all, into as much room as is worth it; which units shrank.
fn compress(context: &mut Context, units: &[&[u8]], room: &mut [u8]) -> Vec<bool> {
    let shrinks = |unit: &&[u8]| {
        let mut batch = [CompressRequest::new(unit, &mut room[..unit.len() - unit.len() / 32])];
        context.compress(&mut batch);
        matches!(batch[0].result, Ok(Outcome::Shrunk(_)))
    };
    units.iter().map(shrinks).collect()
}

fn main() {
    let mut noise = vec![0; BYTES];
    Random(1).fill(&mut noise);
    let mut memories = vec![("noise".to_owned(), noise)];
    memories.extend(std::env::args().skip(1).map(|path| {
        let memory = std::fs::read(&path).expect("FILE can be read");
        (path.rsplit('/').next().unwrap_or(&path).trim_end_matches(".mem").to_owned(), memory)
    }));
    println!("| | unit | look | lz4 | its share | zstd:1 | its share | look like noise | wrong | missed |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (name, memory) in &memories {
        for unit in [4 << 10, 64 << 10] {
            let all = memory.len() / unit;
            let count = (BYTES / unit).min(all);
            let units: Vec<&[u8]> = (0..count).map(|at| &memory[at * all / count * unit..][..unit]).collect();
            let mut contexts =
                ["lz4", "zstd:1"].map(|text| Context::new(Compressor::parse(text).unwrap(), unit).unwrap());
            let mut room = vec![0; unit];
            let mut least = [Duration::MAX; 3];
            let (mut guesses, mut shrunk) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                for (way, least) in least.iter_mut().enumerate() {
                    let began = processor_time();
                    match way {
                        0 => guesses = units.iter().map(|unit| black_box(looks_like_noise(unit))).collect(),
                        _ => shrunk = compress(&mut contexts[way - 1], &units, &mut room),
                    }
                    *least = (*least).min(processor_time() - began);
                }
            }
            let [look, lz4, zstd] = least.map(|time| time.as_nanos() as f64 / count as f64);
            let counted = |guess: bool, shrinks: bool| {
                guesses.iter().zip(&shrunk).filter(|(a, b)| (**a, **b) == (guess, shrinks)).count()
            };
            println!(
                "| {name} | {}K | {look:.0} ns | {:.1} µs | {:.2} % | {:.1} µs | {:.2} % | {} of {count} | {} | {} |",
                unit >> 10,
                lz4 / 1e3,
                100.0 * look / lz4,
                zstd / 1e3,
                100.0 * look / zstd,
                guesses.iter().filter(|guess| **guess).count(),
                counted(true, true),
                counted(false, false),
            );
        }
    }
}
