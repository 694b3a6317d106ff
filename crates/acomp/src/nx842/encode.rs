//! Writes 842 streams. [`nx842`](crate::nx842) has the format.
//!
//! Three hash tables say where a quarter, a half and a whole group of the same bytes were last. Each half is coded by
//! itself, as shortly as can be, unless the whole group is found.

#![forbid(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::UNIT_MAX_BYTES;
use crate::nx842::{
    CODE_BITS, CODE_END, CODE_GROUP, CODE_REPEAT, CODE_SHORT, CODE_ZEROS, CRC_BITS, GROUP_BYTES, Half, Piece,
    REPEAT_BITS, SHORT_BITS, STREAM_ALIGN_BYTES, crc,
};
use crate::request::Error;

/// Entries of each table: several for each index that there is.
const TABLE_LEN: usize = 1 << TABLE_BITS;
const TABLE_BITS: u32 = 11;
/// Bytes of an encoder's tables.
const TABLES_BYTES: usize = 3 * TABLE_LEN * size_of::<u32>();

/// The most times that one code repeats a group.
const REPEATS_MAX: usize = 1 << REPEAT_BITS;
/// So many groups of zeros are shorter one by one.
const ZEROS_FEW: usize = 2;

/// An encoder with its tables, which are never cleared: an entry is a position in all that was ever encoded.
pub(crate) struct Encoder {
    quarters: Table,
    halves: Table,
    groups: Table,
    /// Where the next unit begins; entries below it are of units before. More than 0.
    base: u32,
}

impl Encoder {
    pub(crate) fn new() -> Result<Encoder, Error> {
        Ok(Encoder {
            quarters: Table::new(Piece::QUARTER)?,
            halves: Table::new(Piece::HALF)?,
            groups: Table::new(Piece::GROUP)?,
            base: 1,
        })
    }

    /// Encodes `src` to the beginning of `dst`; none if it does not fit.
    pub(crate) fn encode(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        if self.base > u32::MAX - 2 * UNIT_MAX_BYTES as u32 {
            for table in [&mut self.quarters, &mut self.halves, &mut self.groups] {
                table.entries.fill(0);
            }
            self.base = 1;
        }
        let base = self.base;
        self.base += src.len() as u32;
        let mut out = Bits { dst, at: 0, held: 0, held_bits: 0 };
        let (groups, short) = src.as_chunks::<GROUP_BYTES>();
        let mut number = 0;
        while number < groups.len() {
            let group = groups[number];
            let same = groups[number..].iter().take_while(|other| **other == group).count();
            self.group(src, base, number * GROUP_BYTES, group, &mut out)?;
            number += same;
            repeat(group, same - 1, &mut out)?;
            // Where it was last, since what is further back is soon out of reach.
            self.enter(base, (number - 1) * GROUP_BYTES, group);
        }
        if !short.is_empty() {
            out.put(CODE_SHORT, CODE_BITS)?;
            out.put(short.len() as u32, SHORT_BITS)?;
            for byte in short {
                out.put(u32::from(*byte), 8)?;
            }
        }
        out.put(CODE_END, CODE_BITS)?;
        out.put(crc(src), CRC_BITS)?;
        out.finish()
    }

    /// Codes one group.
    fn group(&self, src: &[u8], base: u32, at: usize, group: [u8; 8], out: &mut Bits<'_>) -> Option<()> {
        let value = u64::from_be_bytes(group);
        if value == 0 {
            return out.put(CODE_ZEROS, CODE_BITS);
        }
        if let Some(index) = self.groups.find(src, base, at, value) {
            out.put(CODE_GROUP, CODE_BITS)?;
            return out.put(index, Piece::GROUP.index_bits);
        }
        let halves = [(value >> 32) as u32, value as u32];
        let plans = halves.map(|half| self.plan(src, base, at, half));
        out.put(plans[0].half as u32 * Half::ALL.len() as u32 + plans[1].half as u32, CODE_BITS)?;
        for plan in plans {
            out.put(plan.value, plan.bits)?;
        }
        Some(())
    }

    /// The shortest code of half a group.
    fn plan(&self, src: &[u8], base: u32, at: usize, value: u32) -> Plan {
        if let Some(index) = self.halves.find(src, base, at, value.into()) {
            return Plan { half: Half::Index, value: index, bits: Piece::HALF.index_bits };
        }
        let (first, second) = (value >> 16, value & 0xffff);
        let find = |quarter: u32| self.quarters.find(src, base, at, quarter.into());
        let index_bits = Piece::QUARTER.index_bits;
        match (find(first), find(second)) {
            (None, None) => Plan { half: Half::Data, value, bits: 32 },
            (None, Some(index)) => {
                Plan { half: Half::DataIndex, value: first << index_bits | index, bits: 16 + index_bits }
            }
            (Some(index), None) => {
                Plan { half: Half::IndexData, value: index << 16 | second, bits: index_bits + 16 }
            }
            (Some(one), Some(other)) => {
                Plan { half: Half::Indexes, value: one << index_bits | other, bits: 2 * index_bits }
            }
        }
    }

    /// Remembers a group and its pieces.
    fn enter(&mut self, base: u32, at: usize, group: [u8; 8]) {
        let value = u64::from_be_bytes(group);
        let at = base + at as u32;
        self.groups.enter(at, value);
        for half in 0..2 {
            self.halves.enter(at + 4 * half, value >> (32 - 32 * half) & 0xffff_ffff);
        }
        for quarter in 0..4 {
            self.quarters.enter(at + 2 * quarter, value >> (48 - 16 * quarter) & 0xffff);
        }
    }
}

/// How half a group is coded.
#[derive(Clone, Copy)]
struct Plan {
    half: Half,
    value: u32,
    bits: u32,
}

/// Codes `times` more of the group that was last.
fn repeat(group: [u8; 8], times: usize, out: &mut Bits<'_>) -> Option<()> {
    if group == [0; 8] && times <= ZEROS_FEW {
        for _ in 0..times {
            out.put(CODE_ZEROS, CODE_BITS)?;
        }
        return Some(());
    }
    let mut left = times;
    while left > 0 {
        let piece = left.min(REPEATS_MAX);
        out.put(CODE_REPEAT, CODE_BITS)?;
        out.put(piece as u32 - 1, REPEAT_BITS)?;
        left -= piece;
    }
    Some(())
}

/// Where pieces of one length were last.
struct Table {
    piece: Piece,
    entries: Box<[u32; TABLE_LEN]>,
}

impl Table {
    fn new(piece: Piece) -> Result<Table, Error> {
        let no_memory = Error::NoMemory { bytes: TABLES_BYTES };
        let mut entries = Vec::new();
        entries.try_reserve_exact(TABLE_LEN).map_err(|_| no_memory)?;
        entries.resize(TABLE_LEN, 0);
        Ok(Table { piece, entries: entries.into_boxed_slice().try_into().map_err(|_| no_memory)? })
    }

    /// By the product's upper bits (Knuth's multiplicative hash, with an odd number near the golden ratio of 2^64).
    fn slot(value: u64) -> usize {
        (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - TABLE_BITS)) as usize
    }

    fn enter(&mut self, at: u32, value: u64) {
        self.entries[Self::slot(value)] = at;
    }

    /// The index of a piece with this value in a group before `at`.
    fn find(&self, src: &[u8], base: u32, at: usize, value: u64) -> Option<u32> {
        let Piece { bytes, index_bits } = self.piece;
        let from = self.entries[Self::slot(value)].checked_sub(base)? as usize;
        if at - from > self.piece.ring_bytes() {
            return None;
        }
        let found = src[from..from + bytes].iter().fold(0, |found, byte| found << 8 | u64::from(*byte));
        (found == value).then_some((from / bytes) as u32 & ((1 << index_bits) - 1))
    }
}

/// A stream of bits, the highest of a byte first.
struct Bits<'a> {
    dst: &'a mut [u8],
    at: usize,
    /// The last so many bits, fewer than 32, that were not written yet.
    held: u64,
    held_bits: u32,
}

impl Bits<'_> {
    /// Writes the last `bits`, at most 32, of `value`, which has no others.
    fn put(&mut self, value: u32, bits: u32) -> Option<()> {
        self.held = self.held << bits | u64::from(value);
        self.held_bits += bits;
        if self.held_bits >= 32 {
            self.held_bits -= 32;
            *self.dst.get_mut(self.at..)?.first_chunk_mut()? =
                ((self.held >> self.held_bits) as u32).to_be_bytes();
            self.at += 4;
        }
        Some(())
    }

    /// Fills up with zeros, and says how long it has become.
    fn finish(mut self) -> Option<usize> {
        let bits = (self.at * 8) as u32 + self.held_bits;
        let mut padding = bits.next_multiple_of(8 * STREAM_ALIGN_BYTES as u32) - bits;
        while padding > 0 {
            let piece = padding.min(32);
            self.put(0, piece)?;
            padding -= piece;
        }
        Some(self.at)
    }
}
