//! The codes of the mode "canned", made from samples of memory; and what each mode makes of memory that they were not
//! made from.
//!
//! `cargo run --release -p iaa --example canned -- FILE...` with dumps of private anonymous memory. Of each file every
//! other 64 KiB is a sample, and the rest is what the modes are tried on. The last lines are what stands in
//! src/canned.rs.

use iaa::aecs::{CompressState, Histogram};
use iaa::deflate;
use iaa::huffman::{self, BitWriter, DISTANCES, END_OF_BLOCK, LITERALS_LENGTHS};

const BLOCK: usize = 64 << 10;
const UNITS: [usize; 2] = [4 << 10, 64 << 10];
/// No code is longer: noise is not to become much longer than it is.
const LENGTH_MAX: u8 = 12;

/// Samples and trials of a file.
struct Memory {
    name: String,
    counts: Histogram,
    trials: Vec<Vec<u8>>,
}

fn read(path: String) -> Memory {
    let memory = std::fs::read(&path).expect("FILE can be read");
    let blocks: Vec<&[u8]> = memory.chunks_exact(BLOCK).collect();
    let mut counts = Histogram::EMPTY;
    for block in blocks.iter().step_by(2) {
        // Half of what goes out is pages, and half windows: a window counts as much as its pages do.
        block.chunks(UNITS[0]).chain([*block]).for_each(|unit| counts.add(&deflate::count(unit)));
    }
    let trials = blocks.into_iter().skip(1).step_by(2).map(<[u8]>::to_vec).collect();
    let name = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".mem").to_string();
    Memory { name, counts, trials }
}

type Lengths = ([u8; LITERALS_LENGTHS], [u8; DISTANCES]);

fn lengths(literals: &[u32], distances: &[u32]) -> Lengths {
    let mut lengths = ([0; LITERALS_LENGTHS], [0; DISTANCES]);
    huffman::lengths(literals, LENGTH_MAX, &mut lengths.0);
    huffman::lengths(distances, LENGTH_MAX, &mut lengths.1);
    lengths
}

fn header(lengths: &Lengths) -> (usize, [u8; 256]) {
    let mut bytes = [0; 256];
    let mut writer = BitWriter::new(&mut bytes);
    huffman::write_header(&lengths.0, &lengths.1, &mut writer);
    (writer.finish().expect("shorter than an accumulator"), bytes)
}

/// Bits of all units, headers included.
fn bits(lengths: &Lengths, counts: &Histogram) -> u64 {
    let sum = |counts: &[u32], lengths: &[u8]| -> u64 {
        counts.iter().zip(lengths).map(|(n, bits)| u64::from(*n) * u64::from(*bits)).sum()
    };
    let units = u64::from(counts.literals_lengths[END_OF_BLOCK]);
    sum(&counts.literals_lengths, &lengths.0)
        + sum(&counts.distances, &lengths.1)
        + units * header(lengths).0 as u64
}

/// Codes of which the header is short too: symbols that stand beside each other are taken to be equally frequent
/// wherever that is less in all.
fn train(counts: &Histogram) -> Lengths {
    let mut literals = counts.literals_lengths.map(|n| n.max(1));
    let mut distances = counts.distances.map(|n| n.max(1));
    let mut ends: Vec<usize> = (1..=LITERALS_LENGTHS).collect();
    let mut best = bits(&lengths(&literals, &distances), counts);
    for alphabet in [0, 1] {
        if alphabet == 1 {
            ends = (1..=DISTANCES).collect();
        }
        loop {
            let mut found: Option<(u64, usize, _, _)> = None;
            for at in 0..ends.len() - 1 {
                let from = if at == 0 { 0 } else { ends[at - 1] };
                let (mut l, mut d) = (literals, distances);
                let part =
                    if alphabet == 0 { &mut l[from..ends[at + 1]] } else { &mut d[from..ends[at + 1]] };
                let mean = part.iter().map(|n| u64::from(*n)).sum::<u64>() / part.len() as u64;
                part.fill(mean.max(1) as u32);
                let bits = bits(&lengths(&l, &d), counts);
                if bits <= best && found.is_none_or(|(least, ..)| bits < least) {
                    found = Some((bits, at, l, d));
                }
            }
            let Some((bits, at, l, d)) = found else { break };
            (best, literals, distances) = (bits, l, d);
            ends.remove(at);
        }
    }
    lengths(&literals, &distances)
}

fn state(lengths: &Lengths) -> CompressState {
    let mut state = CompressState::FIXED;
    huffman::codes(&lengths.0, &mut state.codes.literals_lengths);
    huffman::codes(&lengths.1, &mut state.codes.distances);
    let (bits, bytes) = header(lengths);
    (state.accumulated_bits, state.accumulator) = (bits as u32, bytes);
    state
}

/// Bytes of pages for each byte kept; what does not save a thirty-second is kept as it is.
fn ratio(memories: &[&Memory], unit: usize, compress: impl Fn(&[u8], &mut [u8]) -> Option<usize>) -> f64 {
    let (mut plain, mut kept, mut room) = (0, 0, vec![0; unit]);
    for page in memories.iter().flat_map(|memory| &memory.trials).flat_map(|block| block.chunks(unit)) {
        plain += page.len();
        kept += compress(page, &mut room[..page.len() - page.len() / 32]).unwrap_or(page.len());
    }
    plain as f64 / kept as f64
}

fn print(name: &str, memories: &[&Memory], canned: &CompressState, others: &CompressState) {
    for unit in UNITS {
        let by = |state: &CompressState| {
            ratio(memories, unit, |page, room| {
                deflate::compress(page, state, true, room).ok().map(|done| done.0)
            })
        };
        println!(
            "{name:<10}{:>6}K{:>9.3}{:>9.3}{:>12.3}{:>9.3}",
            unit >> 10,
            by(&CompressState::FIXED),
            by(canned),
            by(others),
            ratio(memories, unit, deflate::compress_unit)
        );
    }
}

fn main() {
    let memories: Vec<Memory> = std::env::args().skip(1).map(read).collect();
    assert!(!memories.is_empty(), "usage: canned FILE...");
    let sum = |keep: &dyn Fn(usize) -> bool| {
        let mut counts = Histogram::EMPTY;
        memories
            .iter()
            .enumerate()
            .filter(|(at, _)| keep(*at))
            .for_each(|(_, memory)| counts.add(&memory.counts));
        train(&counts)
    };
    let all = sum(&|_| true);
    println!("{:<10}{:>7}{:>9}{:>9}{:>12}{:>9}", "", "unit", "fixed", "canned", "of others", "dynamic");
    for (at, memory) in memories.iter().enumerate() {
        let others = if memories.len() > 1 { sum(&|other| other != at) } else { all };
        print(&memory.name, &[memory], &state(&all), &state(&others));
    }
    print("all", &memories.iter().collect::<Vec<_>>(), &state(&all), &state(&all));
    let (bits, bytes) = header(&all);
    println!("literals and lengths: {:?}\ndistances: {:?}", all.0, all.1);
    println!("header, {bits} bits: {:?}", &bytes[..bits.div_ceil(8)]);
}
