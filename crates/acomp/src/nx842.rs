//! 842, the format of IBM's compression engines (NX) as the kernel's software reads and writes it: fast in hardware,
//! slow here.
//!
//! Written from the public description of the format; no code of the kernel's is in it. A stream is one of bits, the
//! highest of a byte first. Each code of 5 bits makes 8 bytes of plain data, a *group*:
//!
//! ```text
//!   0..24   two halves, 5 * first + second:    0 data, 32 bits
//!                                              1 data, 16 bits, and index of 2 bytes
//!                                              2 index of 2 bytes, and data, 16 bits
//!                                              3 two indexes of 2 bytes
//!                                              4 index of 4 bytes
//!   25      index of 8 bytes
//!   27      the last group again, once and as often as 6 bits say
//!   28      zeros
//!   29      3 bits: how many bytes follow, for a last group that is not whole (the software's alone)
//!   30      the end; CRC-32 of the plain data; zero bits up to a multiple of 8 bytes
//! ```
//!
//! Indexes of 2 and 8 bytes have 8 bits, those of 4 bytes have 9. They count pieces of their length in a ring through
//! which the plain data went: index i is the last piece before this group whose number is i in the bits that there are.

#![forbid(unsafe_code)]

mod decode;
mod encode;

use alloc::boxed::Box;

use crate::algorithm::Algorithm;
use crate::request::{Error, Outcome};
use crate::stream::Stream;
use decode::decode;
use encode::Encoder;

/// 842's line in the registry.
pub(crate) static ALGORITHM: Algorithm = Algorithm {
    name: "842",
    parameter: None,
    description: "slower and less dense than lz4 without IBM's hardware, for comparison with machines that have it",
    gives_up_early: |_| false,
    open: |_, _| Ok(Box::new(Nx842(Encoder::new()?))),
    part: |_, _| None,
    takes_device: false,
    with_dictionary: None,
};

/// Bytes of a group.
pub(crate) const GROUP_BYTES: usize = 8;

/// A piece of plain data to which an index leads.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) bytes: usize,
    pub(crate) index_bits: u32,
}

impl Piece {
    /// A quarter of a group.
    pub(crate) const QUARTER: Piece = Piece { bytes: 2, index_bits: 8 };
    /// Half a group.
    pub(crate) const HALF: Piece = Piece { bytes: 4, index_bits: 9 };
    /// A whole group.
    pub(crate) const GROUP: Piece = Piece { bytes: 8, index_bits: 8 };

    /// How far back an index leads, in bytes.
    pub(crate) const fn ring_bytes(self) -> usize {
        self.bytes << self.index_bits
    }
}

/// What makes half a group, in the order in which codes count it.
#[derive(Clone, Copy)]
pub(crate) enum Half {
    Data,
    DataIndex,
    IndexData,
    Indexes,
    Index,
}

impl Half {
    pub(crate) const ALL: [Half; 5] =
        [Half::Data, Half::DataIndex, Half::IndexData, Half::Indexes, Half::Index];
}

/// The first code that is not made of halves: an index of 8 bytes.
pub(crate) const CODE_GROUP: u32 = 25;
/// The last group again.
pub(crate) const CODE_REPEAT: u32 = 27;
/// Eight zeros.
pub(crate) const CODE_ZEROS: u32 = 28;
/// Fewer than eight bytes.
pub(crate) const CODE_SHORT: u32 = 29;
/// The end.
pub(crate) const CODE_END: u32 = 30;

/// Bits of a code.
pub(crate) const CODE_BITS: u32 = 5;
/// Bits that say how often more than once.
pub(crate) const REPEAT_BITS: u32 = 6;
/// Bits that say how many bytes the last group has.
pub(crate) const SHORT_BITS: u32 = 3;
/// Bits of the CRC.
pub(crate) const CRC_BITS: u32 = 32;
/// A stream is a multiple of these long.
pub(crate) const STREAM_ALIGN_BYTES: usize = 8;

/// A stream's state: it reads without any.
struct Nx842(Encoder);

impl Stream for Nx842 {
    fn compress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Outcome, Error> {
        Ok(self.0.encode(src, dst).map_or(Outcome::Incompressible, Outcome::Shrunk))
    }

    fn decompress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
        decode(src, dst, true).ok_or(Error::Damaged)
    }

    fn decompress_prefix(&mut self, src: &[u8], dst: &mut [u8], _full_len: usize) -> Result<(), Error> {
        decode(src, dst, false).ok_or(Error::Damaged)
    }
}

/// CRC-32 as the stream has it: the polynomial 0x04c11db7, the highest bit first, from 0 and not inverted.
pub(crate) fn crc(data: &[u8]) -> u32 {
    let (groups, rest) = data.as_chunks::<8>();
    let mut crc = 0u32;
    for group in groups {
        // Eight look-ups that do not wait for each other (Kounavis and Berry 2005).
        let word = u64::from_be_bytes(*group) ^ u64::from(crc) << 32;
        crc = 0;
        for (table, byte) in CRC_TABLES.iter().zip(word.to_le_bytes()) {
            crc ^= table[usize::from(byte)];
        }
    }
    for byte in rest {
        crc = crc << 8 ^ CRC_TABLES[0][usize::from((crc >> 24) as u8 ^ byte)];
    }
    crc
}

/// What a byte with so many bytes behind it adds to the CRC.
static CRC_TABLES: [[u32; 256]; 8] = crc_tables();

const fn crc_tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u32) << 24;
        let mut behind = 0;
        while behind < 8 {
            let mut bit = 0;
            while bit < 8 {
                crc = if crc >> 31 == 1 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 };
                bit += 1;
            }
            tables[behind][byte] = crc;
            behind += 1;
        }
        byte += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_is_the_one_of_the_bits() {
        let data: Vec<u8> = (0..100u32).map(|i| (i * 37 + 11) as u8).collect();
        for len in 0..data.len() {
            let mut expected = 0u32;
            for byte in &data[..len] {
                expected ^= u32::from(*byte) << 24;
                for _ in 0..8 {
                    expected = expected << 1 ^ if expected >> 31 == 1 { 0x04c1_1db7 } else { 0 };
                }
            }
            assert_eq!(crc(&data[..len]), expected, "{len} bytes");
        }
    }
}
