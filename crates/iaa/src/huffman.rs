//! Prefix codes for deflate: lengths from counts, codes from lengths, and the header that tells a
//! reader of them (RFC 1951).
//!
//! The device compresses by whatever codes it is given. It counts symbols in a first pass; what is here makes codes of
//! the counts.

use crate::order;

/// Literals, the end of a block, and lengths.
pub const LITERALS_LENGTHS: usize = 286;
/// Distances.
pub const DISTANCES: usize = 30;
/// The symbol that ends a block.
pub const END_OF_BLOCK: usize = 256;
/// The longest code that deflate permits, in bits.
pub const LENGTH_MAX: u8 = 15;

/// The longest alphabet.
const SYMBOLS_MAX: usize = LITERALS_LENGTHS;
/// Symbols of the code in which a header gives lengths: 0 to 15, and three that repeat.
const LENGTH_SYMBOLS: usize = 19;
/// The order in which a header gives those symbols' own lengths. RFC 1951, 3.2.7.
pub const LENGTH_ORDER: [usize; LENGTH_SYMBOLS] =
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// Gives each symbol that occurs a length of 1 to `length_max` bits, and others 0, so that the sum over all is least,
/// or nearly so where `length_max` binds.
///
/// The code is always complete, as strict readers ask: where fewer than two symbols occur, others get a code as well.
pub fn lengths(counts: &[u32], length_max: u8, lengths: &mut [u8]) {
    let symbols = counts.len();
    assert!((2..=SYMBOLS_MAX).contains(&symbols) && lengths.len() == symbols);
    lengths.fill(0);
    let mut order = [0u16; SYMBOLS_MAX];
    let mut used = 0;
    for (symbol, _) in counts.iter().enumerate().filter(|(_, count)| **count != 0) {
        order[used] = symbol as u16;
        used += 1;
    }
    for symbol in 0..symbols as u16 {
        if used >= 2 {
            break;
        }
        if counts[symbol as usize] == 0 {
            order[used] = symbol;
            used += 1;
        }
    }
    let order = &mut order[..used];
    order::sort_by_key(order, |&symbol| (counts[symbol as usize], symbol));

    // The two-queue construction: leaves by count, and nodes, which are made in the order of their weights.
    let mut weights = [0u64; 2 * SYMBOLS_MAX];
    let mut parents = [0u16; 2 * SYMBOLS_MAX];
    for (leaf, &symbol) in order.iter().enumerate() {
        weights[leaf] = u64::from(counts[symbol as usize].max(1));
    }
    let (mut leaf, mut node) = (0, used);
    for made in used..2 * used - 1 {
        for _ in 0..2 {
            let take_leaf = leaf < used && (node >= made || weights[leaf] <= weights[node]);
            let child = if take_leaf { &mut leaf } else { &mut node };
            weights[made] += weights[*child];
            parents[*child] = made as u16;
            *child += 1;
        }
    }
    let mut depths = [0u8; 2 * SYMBOLS_MAX];
    for at in (0..2 * used - 2).rev() {
        // Far deeper than any code may be is deep enough, and cannot wrap round.
        depths[at] = (depths[parents[at] as usize] + 1).min(100);
    }
    let depths = &mut depths[..used];
    limit(depths, length_max);
    for (leaf, &symbol) in order.iter().enumerate() {
        lengths[symbol as usize] = depths[leaf];
    }
}

/// Shortens what is longer than `length_max`, and lengthens others until it is a prefix code again. `depths` goes from
/// the rarest symbol to the most frequent.
fn limit(depths: &mut [u8], length_max: u8) {
    let share = |depth: u8| 1u32 << (length_max - depth);
    let whole = 1u32 << length_max;
    let mut sum = 0;
    for depth in depths.iter_mut() {
        *depth = (*depth).min(length_max);
        sum += share(*depth);
    }
    // Too much was given away by cutting: the rarest symbols that can be longer become so.
    while sum > whole {
        let depth = depths.iter_mut().filter(|depth| **depth < length_max).max_by_key(|depth| **depth);
        let depth = depth.expect("2^15 codes of 15 bits are more than there are symbols");
        sum -= share(*depth) - share(*depth + 1);
        *depth += 1;
    }
    // That may have been more than was needed: the most frequent that can be shorter become so, until nothing is left
    // over.
    while sum < whole {
        let depth = depths.iter_mut().rev().find(|depth| share(**depth) <= whole - sum);
        let depth = depth.expect("a symbol of the greatest length takes the smallest share");
        sum += share(*depth);
        *depth -= 1;
    }
}

/// The canonical codes of these lengths, each as the device wants it: length in bits 18:15, the code's bits, the first
/// one on top, in bits 14:0. (QPL says so at `hw_compute_codes`; the kernel's table of fixed codes agrees.)
pub fn codes(lengths: &[u8], codes: &mut [u32]) {
    let mut counts = [0u32; LENGTH_MAX as usize + 1];
    lengths.iter().for_each(|&length| counts[length as usize] += 1);
    counts[0] = 0;
    let mut next = [0u32; LENGTH_MAX as usize + 1];
    for length in 1..next.len() {
        next[length] = (next[length - 1] + counts[length - 1]) << 1;
    }
    for (code, &length) in codes.iter_mut().zip(lengths) {
        *code = 0;
        if length != 0 {
            *code = u32::from(length) << 15 | next[length as usize];
            next[length as usize] += 1;
        }
    }
}

/// Bits into bytes, the lowest first.
pub struct BitWriter<'a> {
    bytes: &'a mut [u8],
    bits: usize,
    overflowed: bool,
}

impl<'a> BitWriter<'a> {
    /// Writes into `bytes`, which it clears.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        bytes.fill(0);
        BitWriter { bytes, bits: 0, overflowed: false }
    }

    /// Writes the lowest `count` bits of `value`, at most 32.
    pub fn put(&mut self, value: u32, count: u32) {
        if self.bits + count as usize > 8 * self.bytes.len() {
            self.overflowed = true;
            return;
        }
        for bit in 0..count {
            self.bytes[self.bits / 8] |= ((value >> bit & 1) as u8) << (self.bits % 8);
            self.bits += 1;
        }
    }

    /// Writes a code as [`codes`] gives it: its first bit first.
    pub fn put_code(&mut self, code: u32) {
        let length = code >> 15;
        self.put((code & 0x7fff).reverse_bits() >> (32 - length.max(1)), length);
    }

    /// Bits written; `None` if there was no room for all of them.
    pub fn finish(self) -> Option<usize> {
        (!self.overflowed).then_some(self.bits)
    }
}

/// The header of a last block with codes of these lengths. RFC 1951, 3.2.7.
pub fn write_header(literals: &[u8; LITERALS_LENGTHS], distances: &[u8; DISTANCES], out: &mut BitWriter<'_>) {
    let literals = &literals[..last_used(literals).max(257)];
    let distances = &distances[..last_used(distances).max(1)];

    // Runs of lengths: a symbol each, with what its extra bits say.
    let mut runs = [(0u8, 0u8); LITERALS_LENGTHS + DISTANCES];
    let mut run_count = 0;
    for part in [literals, distances] {
        let mut rest = part;
        while let Some(&length) = rest.first() {
            let same = rest.iter().take_while(|&&other| other == length).count();
            let (symbol, extra, taken) = match (length, same) {
                (0, 11..) => (18, same.min(138) - 11, same.min(138)),
                (0, 3..=10) => (17, same - 3, same),
                _ => (length, 0, 1),
            };
            runs[run_count] = (symbol, extra as u8);
            run_count += 1;
            rest = &rest[taken..];
            // What follows a length other than 0 may be "the same, 3 to 6 times".
            let mut more = if length == 0 { 0 } else { same - 1 };
            while more >= 3 {
                let times = more.min(6);
                runs[run_count] = (16, (times - 3) as u8);
                run_count += 1;
                rest = &rest[times..];
                more -= times;
            }
        }
    }
    let runs = &runs[..run_count];

    let mut counts = [0u32; LENGTH_SYMBOLS];
    runs.iter().for_each(|(symbol, _)| counts[*symbol as usize] += 1);
    let mut symbol_lengths = [0u8; LENGTH_SYMBOLS];
    lengths(&counts, 7, &mut symbol_lengths);
    let mut symbol_codes = [0u32; LENGTH_SYMBOLS];
    codes(&symbol_lengths, &mut symbol_codes);
    let given =
        LENGTH_ORDER.iter().rposition(|&symbol| symbol_lengths[symbol] != 0).map_or(4, |at| at + 1).max(4);

    out.put(0b101, 3);
    out.put(literals.len() as u32 - 257, 5);
    out.put(distances.len() as u32 - 1, 5);
    out.put(given as u32 - 4, 4);
    LENGTH_ORDER[..given].iter().for_each(|&symbol| out.put(u32::from(symbol_lengths[symbol]), 3));
    for &(symbol, extra) in runs {
        out.put_code(symbol_codes[symbol as usize]);
        out.put(u32::from(extra), [2, 3, 7].get((symbol as usize).wrapping_sub(16)).copied().unwrap_or(0));
    }
}

/// How many lengths there are up to the last that is not 0.
fn last_used(lengths: &[u8]) -> usize {
    lengths.iter().rposition(|&length| length != 0).map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Random;

    fn lengths_of(counts: &[u32], length_max: u8) -> Vec<u8> {
        let mut found = vec![0; counts.len()];
        lengths(counts, length_max, &mut found);
        let sum: f64 = found.iter().filter(|&&l| l != 0).map(|&l| 0.5f64.powi(l.into())).sum();
        assert_eq!(sum, 1.0, "complete: {counts:?} {found:?}");
        assert!(found.iter().all(|&l| l <= length_max), "{found:?}");
        for (count, length) in counts.iter().zip(&found) {
            assert!(*count == 0 || *length != 0, "{counts:?} {found:?}");
        }
        found
    }

    #[test]
    fn frequent_symbols_have_short_codes() {
        assert_eq!(lengths_of(&[5, 1, 2, 2], 15), [1, 3, 3, 2]);
        assert_eq!(lengths_of(&[1, 1, 1, 1], 15), [2, 2, 2, 2]);
        assert_eq!(lengths_of(&[0, 0, 7, 0], 15), [1, 0, 1, 0]);
        assert_eq!(lengths_of(&[0, 0, 0], 15), [1, 1, 0]);
    }

    #[test]
    fn codes_are_never_longer_than_permitted() {
        // Fibonacci counts make the deepest tree there is.
        let mut counts = vec![1u32, 1];
        while counts.len() < 40 {
            counts.push(counts[counts.len() - 1] + counts[counts.len() - 2]);
        }
        assert_eq!(lengths_of(&counts, 15)[39], 1);
        lengths_of(&counts[..19], 7);
        // Seeded at random, with most symbols rare.
        let mut random = Random(1);
        for round in 0..2000 {
            let counts: Vec<u32> = (0..LITERALS_LENGTHS)
                .map(|_| {
                    let word = random.word();
                    let shift = 33 + (word >> 58) % 31;
                    if round % 3 == 0 && word >> 60 < 8 { 0 } else { (word >> shift) as u32 & 0xf_ffff }
                })
                .collect();
            lengths_of(&counts, 15);
            lengths_of(&counts[..19], 7);
        }
    }

    /// RFC 1951, 3.2.2, has this example.
    #[test]
    fn codes_are_canonical() {
        let mut found = [0; 8];
        codes(&[3, 3, 3, 3, 3, 2, 4, 4], &mut found);
        let expected = [0b010, 0b011, 0b100, 0b101, 0b110, 0b00, 0b1110, 0b1111];
        assert_eq!(found.map(|code| code & 0x7fff), expected);
        assert_eq!(found.map(|code| code >> 15), [3, 3, 3, 3, 3, 2, 4, 4]);
    }

    #[test]
    fn bits_fill_bytes_from_below_and_codes_start_with_their_first_bit() {
        let mut bytes = [0xff; 2];
        let mut writer = BitWriter::new(&mut bytes);
        writer.put(0b1, 1);
        writer.put_code(3 << 15 | 0b110);
        writer.put(0xabc, 12);
        writer.put(0, 0);
        assert_eq!(writer.finish(), Some(16));
        assert_eq!(u16::from_le_bytes(bytes), 0xabc0 | 0b0111);
        let mut writer = BitWriter::new(&mut bytes);
        writer.put(0, 16);
        writer.put(0, 1);
        assert_eq!(writer.finish(), None);
    }
}
