//! Reads 842 streams. [`nx842`](crate::nx842) has the format.

#![forbid(unsafe_code)]

use crate::nx842::{
    CODE_BITS, CODE_END, CODE_GROUP, CODE_REPEAT, CODE_SHORT, CODE_ZEROS, CRC_BITS, GROUP_BYTES, Half, Piece,
    REPEAT_BITS, SHORT_BITS, STREAM_ALIGN_BYTES, crc,
};

/// Decodes a stream that holds exactly `dst.len()` bytes, if it is `whole`, or the first `dst.len()` of those that it
/// holds. None if it is no such stream.
pub(crate) fn decode(src: &[u8], dst: &mut [u8], whole: bool) -> Option<()> {
    let mut decoder = Decoder { src, at: 0, dst, made: 0 };
    match decoder.run()? {
        End::Room => (!whole).then_some(()),
        End::Stream => {
            let expected = decoder.take(CRC_BITS)? as u32;
            let bytes = decoder.at.div_ceil(8).next_multiple_of(STREAM_ALIGN_BYTES);
            let sound =
                decoder.made == decoder.dst.len() && bytes == src.len() && crc(decoder.dst) == expected;
            (whole && sound).then_some(())
        }
    }
}

/// Why a decoder stopped without a mistake in the stream.
enum End {
    /// The stream says that it ends.
    Stream,
    /// There are more bytes than there is room for.
    Room,
}

struct Decoder<'a> {
    src: &'a [u8],
    /// In bits.
    at: usize,
    dst: &'a mut [u8],
    /// In bytes: a multiple of a group's.
    made: usize,
}

impl Decoder<'_> {
    fn run(&mut self) -> Option<End> {
        loop {
            let code = self.take(CODE_BITS)? as u32;
            let (group, times) = match code {
                0..CODE_GROUP => {
                    let first = self.half(Half::ALL[code as usize / Half::ALL.len()])?;
                    let second = self.half(Half::ALL[code as usize % Half::ALL.len()])?;
                    (first << 32 | second, 1)
                }
                CODE_GROUP => (self.indexed(Piece::GROUP)?, 1),
                CODE_REPEAT => {
                    let times = 1 + self.take(REPEAT_BITS)?;
                    let last = self.dst.get(self.made.checked_sub(GROUP_BYTES)?..self.made)?;
                    (u64::from_be_bytes(*last.first_chunk()?), times)
                }
                CODE_ZEROS => (0, 1),
                CODE_SHORT => return self.short(),
                CODE_END => return Some(End::Stream),
                _ => return None,
            };
            for _ in 0..times {
                let room = &mut self.dst[self.made..];
                let Some(room) = room.first_chunk_mut() else {
                    let len = room.len();
                    room.copy_from_slice(&group.to_be_bytes()[..len]);
                    return Some(End::Room);
                };
                *room = group.to_be_bytes();
                self.made += GROUP_BYTES;
            }
        }
    }

    /// The last bytes, which are no group, and the end.
    fn short(&mut self) -> Option<End> {
        for _ in 0..self.take(SHORT_BITS)? {
            let byte = self.take(8)? as u8;
            let Some(room) = self.dst.get_mut(self.made) else { return Some(End::Room) };
            *room = byte;
            self.made += 1;
        }
        (self.take(CODE_BITS)? as u32 == CODE_END).then_some(End::Stream)
    }

    fn half(&mut self, half: Half) -> Option<u64> {
        Some(match half {
            Half::Data => self.take(32)?,
            Half::DataIndex => self.take(16)? << 16 | self.indexed(Piece::QUARTER)?,
            Half::IndexData => self.indexed(Piece::QUARTER)? << 16 | self.take(16)?,
            Half::Indexes => self.indexed(Piece::QUARTER)? << 16 | self.indexed(Piece::QUARTER)?,
            Half::Index => self.indexed(Piece::HALF)?,
        })
    }

    /// The piece to which the next bits lead.
    fn indexed(&mut self, piece: Piece) -> Option<u64> {
        let ring = piece.ring_bytes();
        let index = self.take(piece.index_bits)? as usize;
        let mut at = self.made / ring * ring + index * piece.bytes;
        if at >= self.made {
            at = at.checked_sub(ring)?;
        }
        // Groups are whole, and so nothing is past what was made.
        let bytes = self.dst.get(at..at + piece.bytes)?;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// The next bits, at most 32.
    fn take(&mut self, bits: u32) -> Option<u64> {
        let rest = self.src.get(self.at / 8..)?;
        let word = match rest.first_chunk() {
            Some(bytes) => u64::from_be_bytes(*bytes),
            None => {
                let mut bytes = [0; 8];
                bytes[..rest.len()].copy_from_slice(rest);
                u64::from_be_bytes(bytes)
            }
        };
        let (skipped, end) = (self.at % 8, self.at + bits as usize);
        if end > self.src.len() * 8 {
            return None;
        }
        self.at = end;
        Some(word << skipped >> (64 - bits))
    }
}
