//! Reads and writes a device by 1 to N threads and prints what they move a second, and the ratio.
//!
//! `cargo run --release -p zram --example throughput -- [ALGORITHM] [MEBIBYTES] [THREADS] [FILE]`
//!
//! Without a file the device is written with a pattern of words that compresses about 4:1; with one, with the file's
//! pages, again and again. The device is written first, and so every write is an overwrite. Each figure is of half a
//! second; in parentheses are MB for each second of processor time, which a busy machine changes less.

use base::Random;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use zram::{BLOCK, Device};

/// How long each figure is measured.
const TIME: Duration = Duration::from_millis(500);

const KINDS: [&str; 4] = ["read", "randread", "write", "randwrite"];

/// Words of a small set, in an order that comes from the seed.
fn pattern(len: usize) -> Vec<u8> {
    let mut random = Random(1);
    let words: Vec<[u8; 8]> = (0..64).map(|_| random.word().to_le_bytes()).collect();
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        bytes.extend(random.pick(&words));
    }
    bytes.truncate(len);
    bytes
}

/// One thread's requests until `end`: how many bytes it was.
fn run(device: &Device, source: &[u8], kind: &str, unit: usize, thread: u64, end: &AtomicBool) -> u64 {
    let (mut worker, mut random) = (device.worker(), Random(thread));
    let count = (device.disksize_bytes() / unit as u64) as usize;
    let mut buffer = vec![0; unit];
    let mut at = random.below(count);
    let mut bytes = 0;
    while !end.load(Relaxed) {
        at = if kind.starts_with("rand") { random.below(count) } else { (at + 1) % count };
        let offset = (at * unit) as u64;
        if kind.ends_with("read") {
            device.read(&mut worker, offset, &mut buffer).expect("it was written");
        } else {
            let from = random.below((source.len() - unit) / BLOCK + 1) * BLOCK;
            device.write(&mut worker, offset, &source[from..from + unit]).expect("there is memory");
        }
        bytes += unit as u64;
    }
    bytes
}

/// What so many threads move, in MB/s, and in MB for each second of processor time.
fn measure(device: &Device, source: &[u8], kind: &str, unit: usize, threads: u64) -> (f64, f64) {
    let (end, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (began, cpu_ns) = (Instant::now(), base::sys::process_cpu_ns());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (end, bytes) = (&end, &bytes);
            scope.spawn(move || bytes.fetch_add(run(device, source, kind, unit, thread, end), Relaxed));
        }
        std::thread::sleep(TIME);
        end.store(true, Relaxed);
    });
    let megabytes = bytes.load(Relaxed) as f64 / 1e6;
    let cpu_s = (base::sys::process_cpu_ns() - cpu_ns) as f64 / 1e9;
    (megabytes / began.elapsed().as_secs_f64(), megabytes / cpu_s)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, default: &str| arguments.get(at).map_or(default, String::as_str).to_string();
    let algorithm = argument(0, "lz4");
    let mebibytes: usize = argument(1, "256").parse().expect("a number of MiB");
    let threads: u64 = argument(2, "2").parse().expect("a number of threads");
    let source = match arguments.get(3) {
        Some(path) => std::fs::read(path).expect("a file"),
        None => pattern(16 << 20),
    };
    assert!(source.len() >= 16 * BLOCK, "a file of 64 KiB at least");
    println!("{algorithm}, {mebibytes} MiB, MB/s by threads");
    for unit in [BLOCK, 16 * BLOCK] {
        let device = Device::new();
        device.set("comp_algorithm", &algorithm).expect("an algorithm");
        device.set("disksize", &format!("{mebibytes}M")).expect("memory for its table");
        let (mut worker, mut at) = (device.worker(), 0);
        for offset in (0..device.disksize_bytes()).step_by(unit) {
            at = if at + 2 * unit > source.len() { 0 } else { at + unit };
            device.write(&mut worker, offset, &source[at..at + unit]).expect("there is memory");
        }
        let stats = device.stats();
        let ratio = stats.orig_data_bytes as f64 / stats.mem_used_bytes as f64;
        println!("{} KiB, ratio {ratio:.2}", unit >> 10);
        for kind in KINDS {
            let figures = (1..=threads).map(|threads| measure(&device, &source, kind, unit, threads));
            let figures: Vec<String> = figures.map(|(wall, cpu)| format!("{wall:8.0} ({cpu:6.0})")).collect();
            println!("  {kind:10}{}", figures.concat());
        }
    }
}
