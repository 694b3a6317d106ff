//! What is done with an input that the fuzzer found (`make fuzz`), there and in the test that replays them.
//!
//! ```text
//!   [ level | kind | length, 2 | part, 2 | body ]
//! ```
//!
//! The body is an object that is to come to so many bytes, of which a prefix is asked for too; or, where the kind's
//! highest bit is set, what a unit of that length repeats, which is compressed at the level into room for a part of it.
//! The kind's lowest bits make the length shorter: most are to be short, since long ones take long.

use std::collections::BTreeMap;

use acomp::Compressor;

use super::fence::Bench;
use super::{Random, Samples, grown_bytes, object};

/// More than a block of zstd's, and more than lz4 reaches back.
const UNIT_MAX_BYTES: usize = 256 << 10;

/// The kind that asks for a round trip.
const ROUND_TRIP: u8 = 0x80;

/// What is compressed is no longer than this, at a level that looks for the best way far shorter: else nearly all of
/// the time goes into compressing, of which every input is harmless, and hostile objects have none.
const COMPRESSED_MAX_BYTES: usize = 64 << 10;
const SLOW_LEVEL: i32 = 10;
const SLOW_MAX_BYTES: usize = 8 << 10;

/// The target that is no algorithm by itself: zstd with a dictionary, which every object is compressed with.
pub const WITH_DICTIONARY: &str = "zstd-dict";

/// One algorithm, and what was opened of it so far.
pub struct Trials {
    usual: Compressor,
    /// What follows its name and level.
    dictionary: &'static str,
    benches: BTreeMap<i32, Bench>,
}

impl Trials {
    /// Of the algorithm of this name, or of that target.
    pub fn new(name: &str) -> Trials {
        let (name, dictionary) = if name == WITH_DICTIONARY { ("zstd", ",dict=FILE") } else { (name, "") };
        Trials { usual: Compressor::parse(name).unwrap(), dictionary, benches: BTreeMap::new() }
    }

    /// Tries one input. What the objects come to does not matter, only that nothing is touched that is nobody's
    /// business.
    pub fn run(&mut self, input: &[u8]) {
        let Some((&[level, kind, l0, l1, p0, p1], body)) = input.split_first_chunk() else { return };
        let length = u16::from_le_bytes([l0, l1]) as usize;
        let part = u16::from_le_bytes([p0, p1]) as usize + 1;
        let len = 1 + ((length * 4 + 3) >> (kind & 15));
        if kind & ROUND_TRIP == 0 {
            let prefix = (len * part).div_ceil(1 << 16);
            let _ = self.bench(self.usual.level()).survive(body, len, prefix);
        } else if !body.is_empty() {
            let level = self.level(level);
            // lz4's levels are the other way round: high ones are fast.
            let is_slow = level >= SLOW_LEVEL && self.usual.name() != "lz4";
            let len = len.min(if is_slow { SLOW_MAX_BYTES } else { COMPRESSED_MAX_BYTES });
            let mut unit = body.repeat(len.div_ceil(body.len()));
            unit.truncate(len);
            let room = (grown_bytes(len) * part).div_ceil(1 << 16);
            self.bench(level).round_trip(&unit, room);
        }
    }

    /// Inputs to begin with: objects of all levels, as they are.
    pub fn first_inputs(&mut self, random: &mut Random) -> Vec<Vec<u8>> {
        let mut inputs = Vec::new();
        for number in 0..64 {
            let len = 1 + random.below([20, 200, 2000, 20_000][number as usize % 4]);
            let unit = random.memory(len);
            let level = self.level(number);
            let object = object(&mut self.bench(level).context, &unit);
            let [l0, l1] = (len as u16 - 1).to_le_bytes();
            inputs.push([&[number, 2, l0, l1, 0xff, 0x7f], &object[..]].concat());
        }
        inputs.push([&[0, ROUND_TRIP, 0xff, 0xff, 0xff, 0xff], &random.text(1000)[..]].concat());
        inputs
    }

    fn level(&self, byte: u8) -> i32 {
        let algorithm = Compressor::ALL.iter().find(|a| a.name == self.usual.name()).unwrap();
        match &algorithm.parameter {
            None => 0,
            // lz4's acceleration.
            Some(parameter) if *parameter.accepted.end() > 1000 => 1 << (byte % 17),
            Some(parameter) => {
                // A mode, where these are words.
                parameter.accepted.start() + byte as i32 % parameter.accepted.clone().count() as i32
            }
        }
    }

    fn bench(&mut self, level: i32) -> &mut Bench {
        let name = self.usual.name();
        let algorithm = Compressor::ALL.iter().find(|a| a.name == name).unwrap();
        let dictionary = self.dictionary;
        let text = match &algorithm.parameter {
            Some(parameter) if level != self.usual.level() => {
                format!("{name}:{}{dictionary}", parameter.text(level))
            }
            _ => format!("{name}{dictionary}"),
        };
        self.benches.entry(level).or_insert_with(|| Bench::new(&text, UNIT_MAX_BYTES))
    }
}
