//! Deflate with a history of 4 KiB, on the CPU: what the device writes, written where there is none.
//!
//! Symbols are counted, codes made of the counts (or the fixed ones, where those make less of it), and the data is
//! written by them: the device's two passes. The model of the device does each of them with this too.

use crate::WINDOW_BYTES;
use crate::aecs::{CompressState, Histogram};
use crate::huffman::END_OF_BLOCK;

/// First length of each length symbol from 257 on, and its extra bits. RFC 1951, 3.2.5.
pub const LENGTHS: [(u16, u8); 29] = {
    let mut table = [(0, 0); 29];
    let (mut symbol, mut first) = (0, 3);
    while symbol < 28 {
        let extra = if symbol < 8 { 0 } else { symbol as u8 / 4 - 1 };
        table[symbol] = (first, extra);
        first += 1 << extra;
        symbol += 1;
    }
    table[28] = (258, 0);
    table
};

/// First distance of each distance symbol, and its extra bits. RFC 1951, 3.2.5.
pub const DISTANCES: [(u16, u8); 30] = {
    let mut table = [(0, 0); 30];
    let (mut symbol, mut first) = (0, 1);
    while symbol < 30 {
        let extra = if symbol < 4 { 0 } else { symbol as u8 / 2 - 1 };
        table[symbol] = (first as u16, extra);
        first += 1 << extra;
        symbol += 1;
    }
    table
};

/// The symbol of a length of 3 to 258 bytes, from 0 on.
fn length_symbol(length: usize) -> usize {
    match length - 3 {
        255 => 28,
        from @ 0..8 => from,
        from => {
            let extra = from.ilog2() as usize - 2;
            4 * extra + (from >> extra)
        }
    }
}

/// The symbol of a distance of 1 to 32768 bytes.
fn distance_symbol(distance: usize) -> usize {
    match distance - 1 {
        from @ 0..4 => from,
        from => {
            let extra = from.ilog2() as usize - 1;
            2 * extra + (from >> extra)
        }
    }
}

const MATCH_MIN: usize = 4;
const MATCH_MAX: usize = 258;
const HASH_BITS: u32 = 12;

/// A literal, or so many bytes from so far back.
#[derive(Clone, Copy)]
enum Token {
    Literal(u8),
    Match { length: usize, distance: usize },
}

/// How many bytes are the same from two places on, at most so many; the first place is before the second.
fn common(data: &[u8], before: usize, at: usize, most: usize) -> usize {
    let (a, b) = (&data[before..before + most], &data[at..at + most]);
    let words = a.chunks_exact(8).zip(b.chunks_exact(8));
    for (word, (a, b)) in words.enumerate() {
        let [a, b] = [a, b].map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        if a != b {
            return 8 * word + ((a ^ b).trailing_zeros() / 8) as usize;
        }
    }
    let whole = most / 8 * 8;
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(a, b)| a == b).count()
}

/// Cuts the data into tokens: the last place with the same four bytes is the only one looked at.
fn tokens(data: &[u8], mut each: impl FnMut(Token)) {
    // One more than the place; 0 for none.
    let mut last = [0u32; 1 << HASH_BITS];
    let hash = |at: usize| {
        let word = u32::from_le_bytes(data[at..at + 4].try_into().expect("four bytes"));
        (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
    };
    // Places behind which there are four bytes.
    let end = (data.len() + 1).saturating_sub(MATCH_MIN);
    let mut at = 0;
    while at < end {
        let before = core::mem::replace(&mut last[hash(at)], at as u32 + 1) as usize;
        let length = match before.checked_sub(1) {
            Some(before) if at - before <= WINDOW_BYTES => {
                common(data, before, at, MATCH_MAX.min(data.len() - at))
            }
            _ => 0,
        };
        if length >= MATCH_MIN {
            each(Token::Match { length, distance: at + 1 - before });
            for skipped in at + 1..(at + length).min(end) {
                last[hash(skipped)] = skipped as u32 + 1;
            }
            at += length;
        } else {
            each(Token::Literal(data[at]));
            at += 1;
        }
    }
    data[at..].iter().for_each(|&byte| each(Token::Literal(byte)));
}

/// Counts the symbols, the end of the block as well. The data is shorter than 4 GiB.
pub fn count(data: &[u8]) -> Histogram {
    let mut counts = Histogram::EMPTY;
    tokens(data, |token| match token {
        Token::Literal(byte) => counts.literals_lengths[byte as usize] += 1,
        Token::Match { length, distance } => {
            counts.literals_lengths[257 + length_symbol(length)] += 1;
            counts.distances[distance_symbol(distance)] += 1;
        }
    });
    counts.literals_lengths[END_OF_BLOCK] += 1;
    counts
}

/// Why nothing came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// More output than there is room for.
    Overflow,
    /// A symbol has no code.
    NoCode,
    /// The state makes no sense.
    BadState,
}

/// Bits, the lowest first. What there is no room for is lost, and noticed at the end.
struct Output<'a> {
    room: &'a mut [u8],
    bytes: usize,
    pending: u64,
    pending_bits: u32,
    lacks_code: bool,
}

impl Output<'_> {
    /// At most 16 bits at a time.
    fn put(&mut self, value: u32, bits: u32) {
        self.pending |= u64::from(value) << self.pending_bits;
        self.pending_bits += bits;
        if self.pending_bits >= 32 {
            if let Some(room) = self.room.get_mut(self.bytes..self.bytes + 4) {
                room.copy_from_slice(&(self.pending as u32).to_le_bytes());
                self.bytes += 4;
                self.pending >>= 32;
                self.pending_bits -= 32;
            } else {
                self.put_bytes();
            }
        }
    }

    /// Writes whole bytes, as far as there is room.
    fn put_bytes(&mut self) {
        while self.pending_bits >= 8 {
            if let Some(byte) = self.room.get_mut(self.bytes) {
                *byte = self.pending as u8;
            }
            self.bytes += 1;
            self.pending >>= 8;
            self.pending_bits -= 8;
        }
    }

    fn put_code(&mut self, code: u32) {
        let length = code >> 15;
        if length == 0 || length > 15 {
            self.lacks_code = true;
        } else {
            self.put((code & 0x7fff).reverse_bits() >> (32 - length), length);
        }
    }
}

/// Compresses into `room` what a state's header and codes make of it. Returns how many bytes that are, and how many
/// bits of the last one count (0: all). The data is shorter than 4 GiB.
///
/// # Errors
/// See [`Failure`]. What lies in `room` then means nothing.
pub fn compress(
    data: &[u8],
    state: &CompressState,
    append_eob: bool,
    room: &mut [u8],
) -> Result<(usize, u8), Failure> {
    let header_bits = state.accumulated_bits as usize;
    if header_bits > 8 * state.accumulator.len() {
        return Err(Failure::BadState);
    }
    let mut output = Output { room, bytes: 0, pending: 0, pending_bits: 0, lacks_code: false };
    for (at, byte) in state.accumulator.iter().enumerate().take(header_bits.div_ceil(8)) {
        let bits = (header_bits - 8 * at).min(8) as u32;
        output.put(u32::from(*byte) & ((1 << bits) - 1), bits);
    }
    tokens(data, |token| match token {
        Token::Literal(byte) => output.put_code(state.codes.literals_lengths[byte as usize]),
        Token::Match { length, distance } => {
            let (l, d) = (length_symbol(length), distance_symbol(distance));
            output.put_code(state.codes.literals_lengths[257 + l]);
            output.put((length - usize::from(LENGTHS[l].0)) as u32, LENGTHS[l].1.into());
            output.put_code(state.codes.distances[d]);
            output.put((distance - usize::from(DISTANCES[d].0)) as u32, DISTANCES[d].1.into());
        }
    });
    if append_eob {
        output.put_code(state.codes.literals_lengths[END_OF_BLOCK]);
    }
    output.put_bytes();
    let bits = output.pending_bits as u8;
    output.put(0, (8 - output.pending_bits) % 8);
    output.put_bytes();
    match output {
        Output { lacks_code: true, .. } => Err(Failure::NoCode),
        Output { room, bytes, .. } if bytes > room.len() => Err(Failure::Overflow),
        Output { bytes, .. } => Ok((bytes, bits)),
    }
}

/// Compresses `src` into `dst` by the codes that suit it best, and returns the length; `None` if it does not fit.
pub fn compress_unit(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let mut state = CompressState::FIXED;
    state.set_dynamic(&count(src));
    compress(src, &state, true, dst).ok().map(|(bytes, _)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_those_of_the_rfc() {
        for length in 3..=258 {
            let expected = LENGTHS.iter().rposition(|&(first, _)| usize::from(first) <= length);
            assert_eq!(Some(length_symbol(length)), expected, "{length}");
        }
        for distance in 1..=32768 {
            let expected = DISTANCES.iter().rposition(|&(first, _)| usize::from(first) <= distance);
            assert_eq!(Some(distance_symbol(distance)), expected, "{distance}");
        }
        assert_eq!((LENGTHS[8], LENGTHS[27], LENGTHS[28]), ((11, 1), (227, 5), (258, 0)));
        assert_eq!((DISTANCES[4], DISTANCES[23], DISTANCES[29]), ((5, 1), (3073, 10), (24577, 13)));
    }

    #[test]
    fn common_bytes_are_counted_to_the_last() {
        for same in 0..40 {
            let mut data = [vec![7; same], vec![1], vec![7; same], vec![2]].concat();
            assert_eq!(common(&data, 0, same + 1, same + 1), same);
            data[same] = 2;
            assert_eq!(common(&data, 0, same + 1, same + 1), same + 1);
        }
    }

    #[test]
    fn no_byte_is_written_past_the_room() {
        let data: Vec<u8> = (0..3000u32).map(|n| (n * n / 32) as u8).collect();
        let mut room = vec![0; 4000];
        let whole = compress_unit(&data, &mut room).unwrap();
        let expected = room[..whole].to_vec();
        for most in (0..whole + 9).step_by(7).chain([whole - 1, whole]) {
            room.fill(0xa5);
            let found = compress_unit(&data, &mut room[..most]);
            assert_eq!(found, (most >= whole).then_some(whole));
            assert!(room[most..].iter().all(|byte| *byte == 0xa5), "{most}");
            assert!(found.is_none() || room[..whole] == expected);
        }
    }
}
