//! Writes LZO streams of either version. [`lzo`](crate::lzo) has the format.
//!
//! A hash table says where four bytes were seen last; what is found there is extended as far as it goes and taken.
//! Where nothing is found for long the search takes longer steps.

#![forbid(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::UNIT_MAX_BYTES;
use crate::lzo::{
    END, FAR_BYTES, MIDDLE_BYTES, NEAR_BYTES, RUN_MAX_BYTES, RUN_MIN_BYTES, VERSION_MARK, Version,
};
use crate::request::Error;

/// Bits of a hash, of four bytes.
const HASH_BITS: u32 = 13;
const TABLE_LEN: usize = 1 << HASH_BITS;
/// Bytes of an encoder's table.
const TABLE_BYTES: usize = TABLE_LEN * size_of::<u32>();

/// The last bytes of a unit are not searched for: whole words can be read before them.
const TAIL_BYTES: usize = 8;
/// Zeros that are worth a run: for fewer a copy is as short.
const RUN_WORTH_BYTES: usize = 16;
/// After so many steps without a match, as a power of two, a step becomes a byte longer.
const PATIENCE_BITS: u32 = 5;
/// Literals that are copied without looking at their number.
const STEP: usize = 16;

/// An encoder with its table, which is never cleared: an entry is a position in all that was ever encoded.
pub(crate) struct Encoder {
    version: Version,
    table: Box<[u32; TABLE_LEN]>,
    /// Where the next unit begins; entries below it are of units before. More than 0.
    base: u32,
}

impl Encoder {
    pub(crate) fn new(version: Version) -> Result<Encoder, Error> {
        let mut table = Vec::new();
        let no_memory = Error::NoMemory { bytes: TABLE_BYTES };
        table.try_reserve_exact(TABLE_LEN).map_err(|_| no_memory)?;
        table.resize(TABLE_LEN, 0);
        let table = table.into_boxed_slice().try_into().map_err(|_| no_memory)?;
        Ok(Encoder { version, table, base: 1 })
    }

    /// Encodes `src`, which is not empty, to the beginning of `dst`; none if it does not fit.
    pub(crate) fn encode(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        if self.base > u32::MAX - 2 * UNIT_MAX_BYTES as u32 {
            self.table.fill(0);
            self.base = 1;
        }
        let base = self.base;
        self.base += src.len() as u32;
        let mut out = Output { dst, at: 0, literals_at: None };
        if self.version == Version::Rle {
            out.put(&[VERSION_MARK, Version::Rle as u8])?;
        }
        let anchor = self.search(src, base, &mut out)?;
        out.literals(src, anchor, src.len())?;
        out.put(&END)?;
        Some(out.at)
    }

    /// Writes everything but the last literals, and says where they begin.
    fn search(&mut self, src: &[u8], base: u32, out: &mut Output<'_>) -> Option<usize> {
        let has_runs = self.version == Version::Rle;
        let reach = if has_runs { FAR_BYTES - 1 } else { FAR_BYTES };
        let mut anchor = 0;
        // The first byte of a stream is a number of literals, so that there must be one.
        let mut at = 1;
        while at + TAIL_BYTES <= src.len() {
            let four = load(src, at);
            let word = u32::from_le_bytes(four);
            if word == 0 && has_runs {
                let end = at + same_len(&src[at..], None);
                let start = start_of_zeros(src, anchor.max(1), at);
                if end - start >= RUN_WORTH_BYTES {
                    out.literals(src, anchor, start)?;
                    out.zeros(end - start)?;
                    (anchor, at) = (end, end);
                    continue;
                }
            }
            let entry = &mut self.table[hash(word)];
            let seen = *entry;
            *entry = base + at as u32;
            let from = seen.wrapping_sub(base) as usize;
            if seen < base || at - from > reach || load(src, from) != four {
                at += 1 + ((at - anchor) >> PATIENCE_BITS);
                continue;
            }
            let distance = at - from;
            let mut end = at + 4;
            end += same_len(&src[end..], Some(&src[from + 4..]));
            let mut start = at;
            while start > anchor.max(distance) && src[start - 1] == src[start - 1 - distance] {
                start -= 1;
            }
            out.literals(src, anchor, start)?;
            let len = out.copy(distance, end - start, has_runs)?;
            at = start + len;
            anchor = at;
            if at + TAIL_BYTES <= src.len() {
                let before = u32::from_le_bytes(load(src, at - 2));
                self.table[hash(before)] = base + at as u32 - 2;
            }
        }
        Some(anchor)
    }
}

/// The four bytes at a position.
fn load(src: &[u8], at: usize) -> [u8; 4] {
    let bytes = &src[at..at + 4];
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

/// By the product's upper bits (Knuth's multiplicative hash, with a prime near the golden ratio of 2^32).
fn hash(word: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

/// How many bytes two slices have in common at their beginnings, or how many of one are zero.
fn same_len(ours: &[u8], theirs: Option<&[u8]>) -> usize {
    let (words, _) = ours.as_chunks::<8>();
    let mut len = 0;
    match theirs {
        Some(theirs) => {
            for (a, b) in words.iter().zip(theirs.as_chunks::<8>().0) {
                let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
                if differ != 0 {
                    return len + (differ.trailing_zeros() / 8) as usize;
                }
                len += 8;
            }
            len + ours[len..].iter().zip(&theirs[len..]).take_while(|(a, b)| a == b).count()
        }
        None => {
            for a in words {
                let word = u64::from_le_bytes(*a);
                if word != 0 {
                    return len + (word.trailing_zeros() / 8) as usize;
                }
                len += 8;
            }
            len + ours[len..].iter().take_while(|byte| **byte == 0).count()
        }
    }
}

/// Where the zeros before `at` begin, at `first` at the earliest.
fn start_of_zeros(src: &[u8], first: usize, at: usize) -> usize {
    let mut start = at;
    while start > first && src[start - 1] == 0 {
        start -= 1;
    }
    start
}

struct Output<'a> {
    dst: &'a mut [u8],
    at: usize,
    /// The byte whose last two bits say how many literals come after the last instruction.
    literals_at: Option<usize>,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.dst.get_mut(self.at..self.at + bytes.len())?.copy_from_slice(bytes);
        self.at += bytes.len();
        Some(())
    }

    /// `len`, more than `most`, as zero bits in the instruction leave it: in bytes.
    fn put_length(&mut self, len: usize, most: usize) -> Option<()> {
        let rest = len - most - 1;
        let zeros = rest / 255;
        self.dst.get_mut(self.at..self.at + zeros)?.fill(0);
        self.at += zeros;
        self.put(&[(rest % 255 + 1) as u8])
    }

    /// The literals from `start` to `end`.
    fn literals(&mut self, src: &[u8], start: usize, end: usize) -> Option<()> {
        let len = end - start;
        match (len, self.literals_at) {
            (0, _) => return Some(()),
            // Nothing was written before.
            (1..=238, None) => self.put(&[VERSION_MARK + len as u8])?,
            (1..=3, Some(at)) => self.dst[at] |= len as u8,
            (4..=18, _) => self.put(&[(len - 3) as u8])?,
            _ => {
                self.put(&[0])?;
                self.put_length(len - 3, 15)?;
            }
        }
        if len <= STEP
            && let (Some(from), Some(to)) =
                (src.get(start..start + STEP), self.dst.get_mut(self.at..self.at + STEP))
        {
            to.copy_from_slice(from);
            self.at += len;
            return Some(());
        }
        self.put(&src[start..end])
    }

    /// A copy of `len` bytes, 4 or more, from `distance` back, and how many of them it is.
    fn copy(&mut self, distance: usize, mut len: usize, has_runs: bool) -> Option<usize> {
        if distance <= NEAR_BYTES && len <= 8 {
            let far = distance - 1;
            self.literals_at = Some(self.at);
            self.put(&[((len - 1) << 5 | (far & 7) << 2) as u8, (far >> 3) as u8])?;
            return Some(len);
        }
        let far = if distance <= MIDDLE_BYTES {
            self.put_copy(32, len - 2, 31)?;
            distance - 1
        } else {
            // Its length's last byte and its distance's first could be taken for a run of zeros.
            if has_runs && distance & 0x803f == 0x803f && (261..=264).contains(&len) {
                len = 260;
            }
            let far = distance - MIDDLE_BYTES;
            self.put_copy(16 | (far >> 11 & 8) as u8, len - 2, 7)?;
            far & (MIDDLE_BYTES - 1)
        };
        self.literals_at = Some(self.at);
        self.put(&[(far << 2) as u8, (far >> 6) as u8])?;
        Some(len)
    }

    /// An instruction with a length, in the instruction if it is at most `most`.
    fn put_copy(&mut self, code: u8, len: usize, most: usize) -> Option<()> {
        if len <= most {
            return self.put(&[code | len as u8]);
        }
        self.put(&[code])?;
        self.put_length(len, most)
    }

    /// `len` zeros, 4 or more.
    fn zeros(&mut self, mut len: usize) -> Option<()> {
        while len > 0 {
            // What is left must not be too short for a run of its own.
            let piece = if len <= RUN_MAX_BYTES { len } else { RUN_MAX_BYTES.min(len - RUN_MIN_BYTES) };
            let more = piece - RUN_MIN_BYTES;
            self.literals_at = Some(self.at + 1);
            self.put(&[0x18 | (more & 7) as u8, 0xfc, 0xff, (more >> 3) as u8])?;
            len -= piece;
        }
        Some(())
    }
}
