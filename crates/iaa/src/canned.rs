//! The codes of the mode "canned": made once, of counts from the memory of python3, redis, cc1plus, node and java
//! (`examples/canned.rs`).
//!
//! They are part of the program, so that everybody compresses by the same ones at all times, and their header stands in
//! front of each object like any other, so that nobody needs to know them to read it.

use crate::aecs::CompressState;
use crate::huffman::{DISTANCES, LITERALS_LENGTHS};

/// Bits of the codes of literals, the end of a block, and lengths.
#[rustfmt::skip]
const LITERAL_BITS: [u8; LITERALS_LENGTHS] = [
    5, 7, 8, 8, 6, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9,
    7, 10, 10, 10, 10, 10, 10, 10, 8, 10, 10, 10, 10, 10, 10, 10, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 10, 10, 10, 10, 10, 10,
    7, 9, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 8, 10, 10, 10, 10, 10, 10, 10, 9, 10, 10, 10, 10, 10, 10, 10,
    8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 9, 9, 9, 9, 9, 10, 10, 10, 10, 10, 10,
    7, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10,
    8, 9, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 8, 10, 10, 10, 10, 10, 10, 10, 9, 10, 10, 10, 10, 10, 10, 10,
    8, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10,
    8, 9, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 9, 8, 8, 7, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9,
    9, 12, 4, 5, 5, 4, 4, 6, 6, 6, 6, 6, 8, 7, 7, 7, 7, 7, 8, 10, 10, 10, 10, 10, 11, 12, 12, 12, 12, 12,
];

/// Bits of the codes of distances.
#[rustfmt::skip]
const DISTANCE_BITS: [u8; DISTANCES] = [
    4, 11, 9, 7, 7, 4, 8, 5, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5, 7, 12, 12, 12, 12, 12, 12,
];

/// The header of a block that has these codes, and how many bits of it count.
const HEADER_BITS: u32 = 472;
#[rustfmt::skip]
const HEADER: [u8; 59] = [
    0xed, 0x3d, 0x03, 0x60, 0xa4, 0x57, 0xb7, 0x77, 0x92, 0x6f, 0x6d, 0x7b, 0x77, 0xea, 0xd4, 0x9f, 0x51, 0xce, 0xd6, 0x6e,
    0xea, 0xad, 0x63, 0x3b, 0x59, 0x95, 0x53, 0xdb, 0x76, 0xb6, 0x76, 0x53, 0x6f, 0x9d, 0xda, 0xb6, 0xb3, 0xb5, 0x37, 0x99,
    0xb5, 0xf7, 0x9d, 0x7b, 0xcf, 0xf9, 0x94, 0x51, 0xaa, 0xff, 0xe9, 0xfc, 0x3b, 0x73, 0x72, 0x8f, 0x75, 0x31, 0x8f,
];

impl CompressState {
    /// Codes that suit the memory of most programs. Every symbol has one, so that they are good for any data.
    pub const CANNED: CompressState = {
        let mut state = CompressState::FIXED;
        set(&LITERAL_BITS, &mut state.codes.literals_lengths);
        set(&DISTANCE_BITS, &mut state.codes.distances);
        let (head, _) = state.accumulator.split_at_mut(HEADER.len());
        head.copy_from_slice(&HEADER);
        state.accumulated_bits = HEADER_BITS;
        state
    };
}

/// What [`codes`](crate::huffman::codes) does, while compiling.
const fn set(bits: &[u8], codes: &mut [u32]) {
    let (mut length, mut next) = (1, 0);
    while length <= 15 {
        let mut symbol = 0;
        while symbol < bits.len() {
            if bits[symbol] as u32 == length {
                codes[symbol] = length << 15 | next;
                next += 1;
            }
            symbol += 1;
        }
        next <<= 1;
        length += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aecs::Histogram;
    use crate::huffman::{self, BitWriter};

    #[test]
    fn codes_and_header_are_those_of_the_lengths() {
        let state = CompressState::CANNED;
        let mut codes = Histogram::EMPTY;
        huffman::codes(&LITERAL_BITS, &mut codes.literals_lengths);
        huffman::codes(&DISTANCE_BITS, &mut codes.distances);
        assert_eq!(state.codes, codes);
        let mut header = [0; 256];
        let mut writer = BitWriter::new(&mut header);
        huffman::write_header(&LITERAL_BITS, &DISTANCE_BITS, &mut writer);
        assert_eq!((writer.finish(), header), (Some(state.accumulated_bits as usize), state.accumulator));
    }

    #[test]
    fn every_symbol_has_a_code_and_no_prefix_is_left_over() {
        for lengths in [&LITERAL_BITS[..], &DISTANCE_BITS] {
            assert!(lengths.iter().all(|bits| (1..=12).contains(bits)));
            assert_eq!(lengths.iter().map(|bits| 1 << (15 - bits)).sum::<u32>(), 1 << 15);
        }
    }
}
