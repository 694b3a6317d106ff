//! A trace: which page a program touched when, and how well each page compresses.
//!
//! Time is the program's own processor time, so that neither the recorder nor the machine's load is in it.
//!
//! ```text
//!   "zfolio trace 1\n"  then, compressed by zstd with a checksum, numbers of 1 to 10 bytes each:
//!     pages, then for each page  distance from the one before it, bytes alone, bytes in its window
//!     events, then for each event
//!       kind + 4 x touched page - page touched before it   a touch; kind 0 reads, 1 writes
//!       2 + 4 x microseconds                                the program ran for so long
//!       3 + 4 x first page, then how many                   pages are discarded
//! ```

use anyhow::{Context as _, Result, bail, ensure};
use std::path::Path;

const MAGIC: &[u8] = b"zfolio trace 1\n";

/// A page, by its place in the trace's list.
pub type PageId = u32;

/// A page that the program touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its address, in pages.
    pub number: u64,
    /// Bytes that it takes when compressed alone, by lz4; 0 where all of it is one word.
    pub alone_bytes: u32,
    /// Its part of what its window takes when compressed by zstd.
    pub dense_bytes: u32,
}

/// What the program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It touched a page.
    Touch { page: PageId, is_write: bool },
    /// It ran for so many microseconds.
    Ran { us: u32 },
    /// It gave these pages back: they read as zeros, if they are there at all.
    Discard { first: PageId, count: u32 },
}

/// A program's pages by their address, and what it did in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    pub pages: Vec<Page>,
    pub events: Vec<Event>,
}

impl Trace {
    /// The trace in a file.
    pub fn read(path: &Path) -> Result<Trace> {
        let file = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let trace = file.strip_prefix(MAGIC).context("it does not begin as a trace does").and_then(decode);
        trace.with_context(|| format!("{} is not a trace of this version", path.display()))
    }

    /// Writes it to a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut packed = zstd::bulk::Compressor::new(19)?;
        packed.include_checksum(true)?;
        let file = [MAGIC, &packed.compress(&encode(self))?].concat();
        std::fs::write(path, file).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The program's own processor time, in microseconds.
    pub fn ran_us(&self) -> u64 {
        let ran =
            self.events.iter().map(|event| if let Event::Ran { us } = event { u64::from(*us) } else { 0 });
        ran.sum()
    }

    /// The most pages that were there at a time: touched, and not yet discarded.
    pub fn footprint_pages(&self) -> usize {
        let (mut is_there, mut now, mut peak) = (vec![false; self.pages.len()], 0, 0);
        for event in &self.events {
            match *event {
                Event::Touch { page, .. } => {
                    now += usize::from(!std::mem::replace(&mut is_there[page as usize], true))
                }
                Event::Discard { first, count } => {
                    let gone = &mut is_there[first as usize..][..count as usize];
                    now -= gone.iter().filter(|is_there| **is_there).count();
                    gone.fill(false);
                }
                Event::Ran { .. } => {}
            }
            peak = peak.max(now);
        }
        peak
    }
}

fn encode(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, trace.pages.len() as u64);
    let mut before = 0;
    for page in &trace.pages {
        put(&mut bytes, page.number - before);
        put(&mut bytes, page.alone_bytes.into());
        put(&mut bytes, page.dense_bytes.into());
        before = page.number;
    }
    put(&mut bytes, trace.events.len() as u64);
    let mut before = 0;
    for event in &trace.events {
        match *event {
            Event::Touch { page, is_write } => {
                let distance = i64::from(page) - before;
                put(&mut bytes, ((distance << 1 ^ distance >> 63) as u64) << 2 | u64::from(is_write));
                before = page.into();
            }
            Event::Ran { us } => put(&mut bytes, u64::from(us) << 2 | 2),
            Event::Discard { first, count } => {
                put(&mut bytes, u64::from(first) << 2 | 3);
                put(&mut bytes, count.into());
            }
        }
    }
    bytes
}

fn decode(packed: &[u8]) -> Result<Trace> {
    let bytes = zstd::stream::decode_all(packed)?;
    let mut bytes = bytes.as_slice();
    let count = take(&mut bytes)?;
    ensure!(count <= u64::from(PageId::MAX), "it says that there are {count} pages");
    let (mut pages, mut number) = (Vec::new(), 0u64);
    for _ in 0..count {
        number = number.checked_add(take(&mut bytes)?).context("an address is too large")?;
        let [alone_bytes, dense_bytes] =
            [take(&mut bytes)?, take(&mut bytes)?].map(|bytes| bytes.min(4096) as u32);
        pages.push(Page { number, alone_bytes, dense_bytes });
    }
    let mut trace = Trace { pages, events: Vec::new() };
    let mut before = 0;
    for _ in 0..take(&mut bytes)? {
        trace.events.push(take_event(&mut bytes, trace.pages.len() as u64, &mut before)?);
    }
    ensure!(bytes.is_empty(), "{} bytes are left over", bytes.len());
    Ok(trace)
}

fn take_event(bytes: &mut &[u8], pages: u64, before: &mut i64) -> Result<Event> {
    let word = take(bytes)?;
    let (kind, value) = (word & 3, word >> 2);
    Ok(match kind {
        2 => Event::Ran { us: value.try_into()? },
        3 => {
            let count = take(bytes)?;
            ensure!(
                value.checked_add(count).is_some_and(|end| end <= pages),
                "no such pages: {count} from {value}"
            );
            Event::Discard { first: value as PageId, count: count as u32 }
        }
        _ => {
            *before = before.wrapping_add((value >> 1) as i64 ^ -((value & 1) as i64));
            ensure!((0..pages as i64).contains(before), "no such page: {before}");
            Event::Touch { page: *before as PageId, is_write: kind == 1 }
        }
    })
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Result<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().context("it ends too early")?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    bail!("a number has no end")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Random;

    fn random_trace(random: &mut Random) -> Trace {
        let mut number = 0x7_f000_0000;
        let pages = (0..1 + random.below(500)).map(|_| {
            let bits = random.below(30);
            number += 1 + random.below(1 << bits) as u64;
            Page { number, alone_bytes: random.below(4097) as u32, dense_bytes: random.below(4097) as u32 }
        });
        let pages: Vec<Page> = pages.collect();
        let count = pages.len();
        let events = (0..random.below(2000)).map(|_| match random.below(8) {
            0 => Event::Ran { us: random.below(1 << 20) as u32 },
            1 => {
                let first = random.below(count);
                Event::Discard { first: first as PageId, count: random.below(count - first + 1) as u32 }
            }
            kind => Event::Touch { page: random.below(count) as PageId, is_write: kind % 2 == 0 },
        });
        let events = events.collect();
        Trace { pages, events }
    }

    #[test]
    fn a_trace_reads_as_it_was_written() {
        let path = std::env::temp_dir().join(format!("replay-trace-{}", std::process::id()));
        for seed in 0..20 {
            let trace = random_trace(&mut Random(seed));
            trace.write(&path).unwrap();
            assert_eq!(Trace::read(&path).unwrap(), trace, "seed {seed}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_damaged_trace_is_refused() {
        let random = &mut Random(9);
        let bytes = encode(&random_trace(random));
        for end in 0..bytes.len() {
            let packed = zstd::bulk::compress(&bytes[..end], 1).unwrap();
            assert!(decode(&packed).is_err(), "{end} of {} bytes", bytes.len());
        }
        for _ in 0..2000 {
            let mut bytes = bytes.clone();
            let at = random.below(bytes.len());
            bytes[at] = random.below(256) as u8;
            // What is decoded names pages that are there: this must not panic.
            let _ = decode(&zstd::bulk::compress(&bytes, 1).unwrap()).map(|trace| trace.footprint_pages());
        }
        let missing = Trace::read(Path::new("/nonexistent/trace")).unwrap_err();
        assert_eq!(missing.to_string(), "cannot read /nonexistent/trace");
    }

    #[test]
    fn the_footprint_is_what_is_there_at_a_time() {
        let page = |number| Page { number, alone_bytes: 0, dense_bytes: 0 };
        let touch = |page| Event::Touch { page, is_write: true };
        let events =
            vec![touch(0), touch(1), Event::Discard { first: 0, count: 2 }, touch(2), touch(2), touch(0)];
        assert_eq!(Trace { pages: (1..4).map(page).collect(), events }.footprint_pages(), 2);
    }
}
