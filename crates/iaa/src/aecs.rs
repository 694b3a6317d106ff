//! The engine's configuration and state ("AECS"): what a compression starts from, and the counts of its first pass.
//!
//! A state holds what stands before the data (the header of a deflate block) and the codes by which the data is
//! written. There are three ways to come by one:
//!
//! - *fixed*: the codes of RFC 1951, 3.2.6; a header of three bits; one pass.
//! - *dynamic*: the device first counts the symbols of the unit, and codes are made of the counts; two passes.
//! - *canned*: codes are made once, of counts from typical data ([`CompressState::CANNED`] are some for the memory of
//!   programs); one pass. Every unit has the header of those codes in front, so that anybody's inflate reads it. (The
//!   kernel's proposed "canned" mode leaves the header out, and its result is no deflate.)

use crate::huffman::{self, BitWriter, DISTANCES, END_OF_BLOCK, LITERALS_LENGTHS};

/// How often each symbol would be written. spec; QPL: `hw_iaa_histogram`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Histogram {
    /// Literals, the end of a block, and lengths.
    pub literals_lengths: [u32; LITERALS_LENGTHS],
    /// Reserved.
    pub reserved0: [u32; 2],
    /// Distances.
    pub distances: [u32; DISTANCES],
    /// Reserved.
    pub reserved1: [u32; 2],
}

const _: () = assert!(size_of::<Histogram>() == 1280);

impl Histogram {
    /// Nothing counted.
    pub const EMPTY: Histogram = Histogram {
        literals_lengths: [0; LITERALS_LENGTHS],
        reserved0: [0; 2],
        distances: [0; DISTANCES],
        reserved1: [0; 2],
    };

    /// Adds what was counted elsewhere.
    pub fn add(&mut self, other: &Histogram) {
        let ours = self.literals_lengths.iter_mut().chain(&mut self.distances);
        for (count, more) in ours.zip(other.literals_lengths.iter().chain(&other.distances)) {
            *count = count.saturating_add(*more);
        }
    }
}

/// What a compression starts from. uapi of the kernel's driver: `struct aecs_comp_table_record`; QPL:
/// `hw_iaa_aecs_compress`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct CompressState {
    /// The CRC-32 so far.
    pub crc32: u32,
    /// The XOR checksum so far.
    pub xor_checksum: u32,
    /// Reserved.
    pub reserved: [u32; 5],
    /// How many bits of the accumulator are valid.
    pub accumulated_bits: u32,
    /// Output that stands before what is compressed.
    pub accumulator: [u8; 256],
    /// The codes: length in bits 18:15, bits in 14:0; 0 for a symbol that has none.
    pub codes: Histogram,
}

const _: () = assert!(size_of::<CompressState>() == 0x620 && align_of::<CompressState>() == 32);
const _: () = assert!(core::mem::offset_of!(CompressState, codes) == 288);

impl CompressState {
    /// The fixed codes of RFC 1951, 3.2.6.
    pub const FIXED: CompressState = CompressState::fixed();

    const fn fixed() -> CompressState {
        let mut codes = Histogram::EMPTY;
        let mut symbol = 0;
        while symbol < LITERALS_LENGTHS as u32 {
            let (length, code) = match symbol {
                0..=143 => (8, 0x30 + symbol),
                144..=255 => (9, 0x190 + symbol - 144),
                256..=279 => (7, symbol - 256),
                _ => (8, 0xc0 + symbol - 280),
            };
            codes.literals_lengths[symbol as usize] = length << 15 | code;
            symbol += 1;
        }
        let mut distance = 0;
        while distance < DISTANCES {
            codes.distances[distance] = 5 << 15 | distance as u32;
            distance += 1;
        }
        let mut accumulator = [0; 256];
        // Last block: 1. Fixed codes: 01.
        accumulator[0] = 0b011;
        CompressState { crc32: 0, xor_checksum: 0, reserved: [0; 5], accumulated_bits: 3, accumulator, codes }
    }

    /// Codes for data in which symbols occur as often as `counts` says, or the fixed ones where those make less of it.
    ///
    /// A symbol that does not occur has no code: the state is good for the data that was counted.
    pub fn set_dynamic(&mut self, counts: &Histogram) {
        let mut literals = counts.literals_lengths;
        // Each block has its end, whether the device counted it or not.
        literals[END_OF_BLOCK] = literals[END_OF_BLOCK].max(1);
        let bits = |codes: &Histogram| {
            let sum = |counts: &[u32], codes: &[u32]| -> u64 {
                counts.iter().zip(codes).map(|(n, code)| u64::from(*n) * u64::from(code >> 15)).sum()
            };
            sum(&literals, &codes.literals_lengths) + sum(&counts.distances, &codes.distances)
        };
        if !self.set_codes(&literals, &counts.distances)
            || bits(&self.codes) + u64::from(self.accumulated_bits) >= bits(&Self::FIXED.codes) + 3
        {
            self.clone_from(&Self::FIXED);
        }
    }

    /// Codes for data like that of which `counts` is a sample. Every symbol has one, so that they are good for any
    /// data.
    pub fn canned(counts: &Histogram) -> CompressState {
        let mut state = Self::FIXED;
        // Symbols that the sample did not have are still thought to come, if rarely.
        if !state.set_codes(&counts.literals_lengths.map(|n| n.max(1)), &counts.distances.map(|n| n.max(1))) {
            state = Self::FIXED;
        }
        state
    }

    /// Sets codes and header; false if the header is longer than the accumulator.
    fn set_codes(&mut self, literals: &[u32; LITERALS_LENGTHS], distances: &[u32; DISTANCES]) -> bool {
        let mut literal_lengths = [0; LITERALS_LENGTHS];
        let mut distance_lengths = [0; DISTANCES];
        huffman::lengths(literals, huffman::LENGTH_MAX, &mut literal_lengths);
        huffman::lengths(distances, huffman::LENGTH_MAX, &mut distance_lengths);
        huffman::codes(&literal_lengths, &mut self.codes.literals_lengths);
        huffman::codes(&distance_lengths, &mut self.codes.distances);
        let mut writer = BitWriter::new(&mut self.accumulator);
        huffman::write_header(&literal_lengths, &distance_lengths, &mut writer);
        let bits = writer.finish();
        self.accumulated_bits = bits.unwrap_or(0) as u32;
        bits.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_codes_are_those_of_the_rfc() {
        let state = CompressState::FIXED;
        let mut lengths = [8u8; LITERALS_LENGTHS];
        lengths[144..256].fill(9);
        lengths[256..280].fill(7);
        // The RFC's alphabet has 288 symbols; the last two are never written, and their codes are the last of 8 bits.
        let mut all = lengths.to_vec();
        all.extend([8, 8]);
        let mut codes = [0; 288];
        huffman::codes(&all, &mut codes);
        assert_eq!(state.codes.literals_lengths[..], codes[..286]);
        assert_eq!(state.codes.literals_lengths[0], 0x40030, "as in the kernel's table");
        assert_eq!(state.codes.distances[29], 5 << 15 | 29);
        assert_eq!((state.accumulated_bits, state.accumulator[0]), (3, 0b011));
    }

    #[test]
    fn the_worst_header_still_fits_or_falls_back() {
        // Counts that give each symbol another length than its neighbour: no runs, and many length symbols.
        let mut counts = Histogram::EMPTY;
        for (at, count) in counts.literals_lengths.iter_mut().chain(&mut counts.distances).enumerate() {
            *count = 1 << (at * 7 % 15);
        }
        let state = CompressState::canned(&counts);
        assert!(state.accumulated_bits > 0 && state.accumulated_bits <= 8 * 256);
        assert!(state.codes.literals_lengths.iter().chain(&state.codes.distances).all(|&code| code != 0));
    }

    #[test]
    fn few_symbols_are_better_off_with_fixed_codes() {
        let mut counts = Histogram::EMPTY;
        counts.literals_lengths[65] = 3;
        let mut state = CompressState::FIXED;
        state.set_dynamic(&counts);
        assert_eq!(state, CompressState::FIXED);
        counts.literals_lengths[65] = 3000;
        state.set_dynamic(&counts);
        assert_ne!(state, CompressState::FIXED);
        assert_eq!(state.codes.literals_lengths[65] >> 15, 1);
        assert_ne!(state.codes.literals_lengths[END_OF_BLOCK], 0);
        assert_eq!(state.codes.literals_lengths[66], 0);
    }

    #[test]
    fn histograms_add_up() {
        let mut sum = Histogram::EMPTY;
        let mut one = Histogram::EMPTY;
        one.literals_lengths[3] = 5;
        one.distances[29] = u32::MAX;
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.literals_lengths[3], sum.distances[29]), (10, u32::MAX));
    }
}
