//! What random reads of a file take: on io_uring, waiting for it or for its bell, and by pread.
//!
//! `cargo run --release -p aio --example latency -- FILE [SECONDS]`
//!
//! The file is opened with O_DIRECT where its file system has that. For each length and depth, the ways take turns, so
//! that each meets the same machine. *us each* is the elapsed time by the number of reads; p50 and p99 are of single
//! reads, from being put up to being reaped. All ways read the same places; the last column is a hash of what they
//! read.

use aio::Queue;
use base::sys::{self, DataFile, consts};
use base::{Errno, Fd, Random};
use std::env;
use std::error::Error;
use std::time::{Duration, Instant};

/// How results are waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Wait,
    Bell,
    Pread,
}

const WAYS: [(Way, &str); 3] =
    [(Way::Wait, "io_uring"), (Way::Bell, "io_uring, bell"), (Way::Pread, "pread")];

/// Turns of each way. The reads of a turn are as many as fill its time by pread, and no more than these.
const TURNS: u64 = 5;
const READS_MAX: usize = 20_000;

/// What was measured of a way.
#[derive(Default)]
struct Measured {
    elapsed: Duration,
    each_ns: Vec<u64>,
    hash: u64,
}

/// What the reads are of.
struct Reads<'a> {
    file: &'a DataFile,
    buffers: usize,
    bytes: usize,
    depth: usize,
}

impl Reads<'_> {
    /// Makes the reads of a seed, at most `depth` at a time.
    fn make(
        &self,
        seed: u64,
        count: usize,
        queue: &mut Queue,
        bell: Option<&Fd>,
        to: &mut Measured,
    ) -> Result<(), Errno> {
        let places = self.file.size()? / self.bytes as u64;
        let mut random = Random(seed);
        let (mut idle, mut begun) = ((0..self.depth).collect::<Vec<_>>(), vec![Instant::now(); self.depth]);
        let (mut left, start) = (count, Instant::now());
        while left > 0 || idle.len() < self.depth {
            while let Some(buffer) = idle.pop_if(|_| left > 0) {
                let at = random.within(0..places) * self.bytes as u64;
                begun[buffer] = Instant::now();
                let memory = self.buffers + buffer * self.bytes;
                // SAFETY: each token has a part of the mapping of its own, which stays for good, as the file does.
                unsafe { queue.read(buffer as u64, self.file.fd(), at, memory as *mut u8, self.bytes) }
                    .expect("the queue has a place for each buffer");
                left -= 1;
            }
            match bell {
                None => queue.wait()?,
                Some(_) => queue.submit(),
            }
            let before = idle.len();
            loop {
                while let Some((token, result)) = queue.reap() {
                    result?;
                    let buffer = token as usize;
                    to.each_ns.push(begun[buffer].elapsed().as_nanos() as u64);
                    // SAFETY: the read is over; the part is aligned for a word.
                    let word = unsafe { ((self.buffers + buffer * self.bytes) as *const u64).read() };
                    to.hash = to.hash.wrapping_add(Random(word).word());
                    idle.push(buffer);
                }
                let Some(bell) = bell.filter(|_| idle.len() == before) else { break };
                sys::poll([bell], u64::MAX / 2)?;
                sys::read(bell, &mut [0; 8])?;
            }
        }
        to.elapsed += start.elapsed();
        Ok(())
    }
}

fn measure(reads: &Reads<'_>, turn: Duration) -> Result<[Measured; 3], Errno> {
    let bell = sys::eventfd()?;
    let entries = reads.depth as u32;
    let open = |way| match way {
        Way::Wait => Queue::open(entries, None),
        Way::Bell => Queue::open(entries, Some(&bell)),
        Way::Pread => Ok(Queue::open_blocking(entries)),
    };
    let mut first = Measured::default();
    let probe = 200;
    reads.make(1, probe, &mut open(Way::Pread)?, None, &mut first)?;
    let count = (turn.as_secs_f64() / (first.elapsed.as_secs_f64() / probe as f64)) as usize;
    let count = count.clamp(probe, READS_MAX);
    let mut all = <[Measured; 3]>::default();
    for seed in 1..=TURNS {
        for ((way, _), measured) in WAYS.into_iter().zip(&mut all) {
            let mut queue = open(way)?;
            reads.make(seed, count, &mut queue, (way == Way::Bell).then_some(&bell), measured)?;
        }
    }
    Ok(all)
}

fn main() -> Result<(), Box<dyn Error>> {
    const DEPTH_MAX: usize = 16;
    const BYTES_MAX: usize = 64 << 10;
    const O_DIRECT: u32 = 0o40000;
    let mut arguments = env::args().skip(1);
    let path = arguments.next().ok_or("usage: latency FILE [SECONDS]")?;
    let seconds: f64 = arguments.next().map_or(Ok(30.0), |text| text.parse())?;
    let name = format!("{path}\0");
    let open = |flags| sys::open(name.as_bytes(), consts::O_RDONLY | flags);
    let file = open(O_DIRECT).or_else(|_| open(0)).map_err(|errno| format!("{path}: {errno}"))?;
    let file = DataFile::new(file).map_err(|errno| format!("{path}: {errno}"))?;
    let (prot, flags) = (consts::PROT_READ | consts::PROT_WRITE, consts::MAP_SHARED | consts::MAP_ANONYMOUS);
    let buffers = sys::mmap(DEPTH_MAX * BYTES_MAX, prot, flags, None).map_err(|errno| errno.to_string())?;
    println!("{path}: {} MiB, alignment {}", file.size().unwrap_or(0) >> 20, file.align());
    println!("| KiB | depth | way | us each | p50 us | p99 us | of pread's time | hash |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let shapes = [(4 << 10, 1), (4 << 10, DEPTH_MAX), (BYTES_MAX, 1), (BYTES_MAX, DEPTH_MAX)];
    let turn = Duration::from_secs_f64(seconds / (shapes.len() * WAYS.len()) as f64 / TURNS as f64);
    for (bytes, depth) in shapes {
        let reads = Reads { file: &file, buffers, bytes, depth };
        let mut all = measure(&reads, turn).map_err(|errno| errno.to_string())?;
        let pread = all[2].elapsed.as_secs_f64();
        assert!(all.iter().all(|one| one.hash == all[0].hash), "the ways have read different bytes");
        for ((_, name), one) in WAYS.iter().zip(&mut all) {
            one.each_ns.sort_unstable();
            let count = one.each_ns.len();
            let at = |percent: usize| one.each_ns[count * percent / 100] as f64 / 1e3;
            let (elapsed, hash) = (one.elapsed.as_secs_f64(), one.hash);
            let (each, ratio) = (elapsed * 1e6 / count as f64, elapsed / pread);
            println!(
                "| {} | {depth} | {name} | {each:.1} | {:.1} | {:.1} | {ratio:.2} | {hash:016x} |",
                bytes >> 10,
                at(50),
                at(99),
            );
        }
    }
    Ok(())
}
