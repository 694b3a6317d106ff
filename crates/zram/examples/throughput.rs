//! Reads and writes a device by many threads, without a transport, and prints what they move a second: a device of this
//! crate, or a block device of the kernel's, the same requests in the same order. `bench/zram` compares the two.
//!
//! ```text
//! cargo run --release -p zram --example throughput -- [WORD=VALUE]...
//!
//!   algorithm=lz4      of a device of this crate
//!   device=/dev/zram1  a block device of that size instead
//!   mib=256            its size
//!   block=4096,65536   bytes of a request
//!   jobs=1,2           how many threads
//!   kinds=read,...     read, randread, write, randwrite, rw, randrw; `beside`: a random read while others write
//!   file=PATH          whose pages are written, again and again; else the five bytes of 0xbadc0ffee
//!   ms=500             how long each figure is measured
//! ```
//!
//! The device is written first, so that every write is an overwrite. Each line is an object of JSON. `mb_per_cpu_s` is
//! what is moved for each second of processor time, which a busy machine changes less. Of `beside`, `us` and `cpu_us`
//! are what a read takes of time and of its thread's processor time while `jobs` others write at random.

use base::{PAGE, Random};
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use zram::{Device, Worker};

/// The pattern of zram-perf-test.
const PATTERN: [u8; 5] = [0x0b, 0xad, 0xc0, 0xff, 0xee];

/// What is measured.
enum Target {
    Engine(Box<Device>),
    Kernel(File),
}

/// One thread's way to it.
enum Client<'a> {
    Engine(&'a Device, Box<Worker>),
    Kernel(&'a File),
}

impl Target {
    fn client(&self) -> Client<'_> {
        match self {
            Target::Engine(device) => Client::Engine(device, Box::new(device.worker())),
            Target::Kernel(file) => Client::Kernel(file),
        }
    }
}

impl Client<'_> {
    fn read(&mut self, at: u64, to: &mut [u8]) {
        match self {
            Client::Engine(device, worker) => device.read(worker, at, to).expect("it was written"),
            Client::Kernel(file) => file.read_exact_at(to, at).expect("it was written"),
        }
    }

    fn write(&mut self, at: u64, from: &[u8]) {
        match self {
            Client::Engine(device, worker) => device.write(worker, at, from).expect("there is memory"),
            Client::Kernel(file) => file.write_all_at(from, at).expect("there is memory"),
        }
    }
}

/// Bytes that begin where a page does, as direct requests want them.
struct Pages {
    bytes: Vec<u8>,
    begin: usize,
}

impl Pages {
    fn new(len: usize) -> Pages {
        let bytes = vec![0; len + PAGE];
        let begin = bytes.as_ptr().align_offset(PAGE);
        Pages { bytes, begin }
    }

    fn of(from: &[u8]) -> Pages {
        let mut pages = Pages::new(from.len());
        pages.get_mut().copy_from_slice(from);
        pages
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.begin..][..self.bytes.len() - PAGE]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        let len = self.bytes.len() - PAGE;
        &mut self.bytes[self.begin..][..len]
    }
}

/// What the command line says.
struct Options(Vec<(String, String)>);

impl Options {
    fn read() -> Options {
        let words = std::env::args().skip(1);
        let pair = |word: String| {
            let (name, value) = word.split_once('=').unwrap_or_else(|| panic!("{word}: not WORD=VALUE"));
            (name.to_string(), value.to_string())
        };
        Options(words.map(pair).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(word, _)| word == name).map(|(_, value)| value.as_str())
    }

    fn numbers(&self, name: &str, default: &str) -> Vec<usize> {
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{name}: {text} is no number"));
        self.get(name).unwrap_or(default).split(',').map(number).collect()
    }
}

/// One device under measurement.
struct Bench {
    target: Target,
    bytes: u64,
    source: Pages,
    time: Duration,
}

impl Bench {
    /// The pages that a request writes.
    fn some(&self, random: &mut Random, block: usize) -> &[u8] {
        let from = random.below((self.source.get().len() - block) / PAGE + 1) * PAGE;
        &self.source.get()[from..from + block]
    }

    /// Writes all of it.
    fn fill(&self, block: usize) {
        let (mut client, mut at) = (self.target.client(), 0);
        for offset in (0..self.bytes).step_by(block) {
            at = if at + 2 * block > self.source.get().len() { 0 } else { at + block };
            client.write(offset, &self.source.get()[at..at + block]);
        }
    }

    /// One thread's requests until `end`: how many.
    fn requests(&self, kind: &str, block: usize, thread: u64, end: &AtomicBool) -> u64 {
        let (mut client, mut random, mut buffer) = (self.target.client(), Random(thread), Pages::new(block));
        let count = self.bytes as usize / block;
        let (mut at, mut done) = (random.below(count), 0);
        let is_random = kind.starts_with("rand");
        while !end.load(Relaxed) {
            at = if is_random { random.below(count) } else { (at + 1) % count };
            let offset = (at * block) as u64;
            if kind.ends_with("read") || kind.ends_with("rw") && random.one_in(2) {
                client.read(offset, buffer.get_mut());
            } else {
                client.write(offset, self.some(&mut random, block));
            }
            done += 1;
        }
        done
    }

    /// What so many threads move: a line.
    fn moved(&self, kind: &str, block: usize, jobs: usize) -> String {
        let (end, requests) = (AtomicBool::new(false), AtomicU64::new(0));
        let (began, cpu_ns) = (Instant::now(), base::sys::process_cpu_ns());
        std::thread::scope(|scope| {
            for thread in 0..jobs {
                let (end, requests) = (&end, &requests);
                scope.spawn(move || {
                    requests.fetch_add(self.requests(kind, block, thread as u64, end), Relaxed)
                });
            }
            std::thread::sleep(self.time);
            end.store(true, Relaxed);
        });
        let megabytes = requests.load(Relaxed) as f64 * block as f64 / 1e6;
        let cpu_s = (base::sys::process_cpu_ns() - cpu_ns) as f64 / 1e9;
        let (wall, cpu) = (megabytes / began.elapsed().as_secs_f64(), megabytes / cpu_s);
        format!("\"mb_per_s\": {wall:.1}, \"mb_per_cpu_s\": {cpu:.1}")
    }

    /// What a random read takes while so many threads write: a line.
    fn beside(&self, block: usize, writers: usize) -> String {
        let end = AtomicBool::new(false);
        let (mut took_ns, mut cpu_ns, mut done) = (0, 0, 0);
        std::thread::scope(|scope| {
            for thread in 1..=writers {
                let end = &end;
                scope.spawn(move || self.requests("randwrite", block, thread as u64, end));
            }
            let (mut client, mut random) = (self.target.client(), Random(0));
            let mut buffer = Pages::new(block);
            let (began, cpu_began_ns) = (Instant::now(), thread_cpu_ns());
            while began.elapsed() < self.time {
                let offset = random.below(self.bytes as usize / block) * block;
                client.read(offset as u64, buffer.get_mut());
                done += 1;
            }
            (took_ns, cpu_ns) = (began.elapsed().as_nanos() as u64, thread_cpu_ns() - cpu_began_ns);
            end.store(true, Relaxed);
        });
        let us = |ns: u64| ns as f64 / 1e3 / done as f64;
        format!("\"us\": {:.2}, \"cpu_us\": {:.2}", us(took_ns), us(cpu_ns))
    }
}

/// The processor time of this thread, in nanoseconds.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The pages that are written.
fn source(options: &Options) -> Pages {
    let most = 256 << 20;
    let bytes = match options.get("file") {
        Some(path) => {
            let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            bytes[..(bytes.len() / PAGE * PAGE).min(most)].to_vec()
        }
        None => PATTERN.iter().copied().cycle().take(1 << 20).collect(),
    };
    assert!(bytes.len() >= 1 << 20, "a file of 1 MiB at least");
    Pages::of(&bytes)
}

/// A new device of this crate, or a block device, whatever it holds.
fn target(options: &Options, bytes: u64) -> Target {
    if let Some(path) = options.get("device") {
        let mut how = OpenOptions::new();
        let file = how.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        return Target::Kernel(file.unwrap_or_else(|error| panic!("{path}: {error}")));
    }
    let device = Device::new();
    device.set("comp_algorithm", options.get("algorithm").unwrap_or("lz4")).expect("an algorithm");
    device.set("disksize", &bytes.to_string()).expect("memory for its table");
    Target::Engine(Box::new(device))
}

fn main() {
    let options = Options::read();
    let bytes = (options.numbers("mib", "256")[0] as u64) << 20;
    let time = Duration::from_millis(options.numbers("ms", "500")[0] as u64);
    let kinds = options.get("kinds").unwrap_or("read,randread,write,randwrite,rw,randrw");
    for block in options.numbers("block", "4096,65536") {
        let bench = Bench { target: target(&options, bytes), bytes, source: source(&options), time };
        bench.fill(block);
        for kind in kinds.split(',') {
            for jobs in options.numbers("jobs", "1,2") {
                let figures = match kind {
                    "beside" => bench.beside(block, jobs),
                    _ => bench.moved(kind, block, jobs),
                };
                println!("{{\"block\": {block}, \"kind\": \"{kind}\", \"jobs\": {jobs}, {figures}}}");
            }
        }
        if let Target::Engine(device) = &bench.target {
            let stats = device.stats();
            let ratio = stats.orig_data_bytes as f64 / stats.mem_used_bytes as f64;
            println!("{{\"block\": {block}, \"ratio\": {ratio:.3}}}");
        }
    }
}
