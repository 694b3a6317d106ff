//! Reads LZO streams of either version. [`lzo`](crate::lzo) has the format.

#![forbid(unsafe_code)]

use crate::lzo::{MIDDLE_BYTES, RUN_MIN_BYTES, VERSION_MARK, VERSIONED_MIN_BYTES, Version};

/// Bytes that are copied at a time.
const STEP: usize = 16;

/// The longest that a copy with literals after it becomes by copying whole steps: below it lengths need not be looked
/// at.
const SLACK: usize = 2 * STEP;

/// Decodes a stream that holds exactly `dst.len()` bytes, if it is `whole`, or the first `dst.len()` of those that it
/// holds. None if it is no such stream.
pub(crate) fn decode(src: &[u8], dst: &mut [u8], whole: bool) -> Option<()> {
    let mut decoder = Decoder { src, at: 0, dst, made: 0 };
    match decoder.run() {
        // An end that is reached before all bytes are made, or with something behind it, is none.
        Some(End::Stream) => {
            (whole && decoder.made == decoder.dst.len() && decoder.at == src.len()).then_some(())
        }
        Some(End::Room) => (!whole && decoder.made == decoder.dst.len()).then_some(()),
        None => None,
    }
}

/// Why a decoder stopped without a mistake in the stream.
enum End {
    /// The stream says that it ends.
    Stream,
    /// There are more bytes than there is room for.
    Room,
}

/// What the last instruction had for literals: it decides what an instruction `0000....` means.
#[derive(Clone, Copy)]
enum After {
    None,
    /// One to three.
    Few,
    /// Four and more.
    Many,
}

struct Decoder<'a> {
    src: &'a [u8],
    at: usize,
    dst: &'a mut [u8],
    made: usize,
}

/// Returns from the function if the step came to an end.
macro_rules! step {
    ($step:expr) => {
        if let Some(end) = $step? {
            return Some(end);
        }
    };
}

impl Decoder<'_> {
    fn run(&mut self) -> Option<End> {
        let has_runs = self.version()? == Version::Rle as u8;
        let mut after = After::None;
        let first = *self.src.get(self.at)?;
        if first > VERSION_MARK {
            self.at += 1;
            let len = usize::from(first - VERSION_MARK);
            step!(self.literals(len));
            after = if len < 4 { After::Few } else { After::Many };
        }
        loop {
            let code = self.byte()?;
            let (distance, len, literals) = match code {
                0..16 => match after {
                    After::None => {
                        let len = 3 + self.length(code, 15)?;
                        step!(self.literals(len));
                        after = After::Many;
                        continue;
                    }
                    After::Few => ((self.byte()? << 2) + (code >> 2) + 1, 2, code & 3),
                    After::Many => ((self.byte()? << 2) + (code >> 2) + 2049, 3, code & 3),
                },
                16..32 => {
                    let far = code & 8 != 0;
                    // A run is told by the two bytes right after the instruction, whatever they would be to another.
                    if far && has_runs && self.peek()? & 0xfffc == 0xfffc {
                        let literals = self.byte()? & 3;
                        self.at += 1;
                        let len = (self.byte()? << 3 | code & 7) + RUN_MIN_BYTES;
                        step!(self.zeros(len));
                        step!(self.few_literals(literals));
                        after = if literals == 0 { After::None } else { After::Few };
                        continue;
                    }
                    let len = 2 + self.length(code & 7, 7)?;
                    let word = self.word()?;
                    if word >> 2 == 0 && !far {
                        return (code == 0x11 && word == 0).then_some(End::Stream);
                    }
                    (MIDDLE_BYTES + (code & 8) * (MIDDLE_BYTES / 8) + (word >> 2), len, word & 3)
                }
                32..64 => {
                    let len = 2 + self.length(code & 31, 31)?;
                    let word = self.word()?;
                    ((word >> 2) + 1, len, word & 3)
                }
                _ => ((self.byte()? << 3) + (code >> 2 & 7) + 1, (code >> 5) + 1, code & 3),
            };
            step!(self.copy(distance, len));
            step!(self.few_literals(literals));
            after = if literals == 0 { After::None } else { After::Few };
        }
    }

    /// The version that the stream says at its beginning, if it does; none where that is not known.
    fn version(&mut self) -> Option<u8> {
        let mut version = Version::Original as u8;
        if self.src.len() >= VERSIONED_MIN_BYTES && self.src[0] == VERSION_MARK {
            version = self.src[1];
            self.at = 2;
        }
        (version <= Version::Rle as u8).then_some(version)
    }

    /// The next byte.
    fn byte(&mut self) -> Option<usize> {
        let byte = *self.src.get(self.at)?;
        self.at += 1;
        Some(byte.into())
    }

    /// The next two bytes, the low one first, which stay.
    fn peek(&self) -> Option<usize> {
        let bytes = self.src.get(self.at..self.at + 2)?;
        Some(usize::from(bytes[0]) | usize::from(bytes[1]) << 8)
    }

    /// The next two bytes, the low one first.
    fn word(&mut self) -> Option<usize> {
        let word = self.peek()?;
        self.at += 2;
        Some(word)
    }

    /// A length of which the instruction has `bits`; where they are zero it goes on in bytes, and is more than `most`.
    fn length(&mut self, bits: usize, most: usize) -> Option<usize> {
        if bits > 0 {
            return Some(bits);
        }
        let mut len = most;
        loop {
            match self.byte()? {
                // It cannot overflow: no object is as long as that.
                0 => len += 255,
                last => return Some(len + last),
            }
        }
    }

    /// How much of `len` there is room for, and whether that is all of it.
    fn fit(&self, len: usize) -> (usize, Option<End>) {
        let room = self.dst.len() - self.made;
        if len <= room { (len, None) } else { (room, Some(End::Room)) }
    }

    /// Up to three literals.
    fn few_literals(&mut self, len: usize) -> Option<Option<End>> {
        if let (Some(from), Some(to)) =
            (self.src.get(self.at..self.at + 4), self.dst.get_mut(self.made..self.made + 4))
        {
            to.copy_from_slice(from);
            self.at += len;
            self.made += len;
            return Some(None);
        }
        self.literals(len)
    }

    fn literals(&mut self, len: usize) -> Option<Option<End>> {
        if len <= STEP
            && let (Some(from), Some(to)) =
                (self.src.get(self.at..self.at + STEP), self.dst.get_mut(self.made..self.made + STEP))
        {
            to.copy_from_slice(from);
            self.at += len;
            self.made += len;
            return Some(None);
        }
        let (len, end) = self.fit(len);
        let from = self.src.get(self.at..self.at.checked_add(len)?)?;
        self.dst[self.made..self.made + len].copy_from_slice(from);
        self.at += len;
        self.made += len;
        Some(end)
    }

    fn zeros(&mut self, len: usize) -> Option<Option<End>> {
        let (len, end) = self.fit(len);
        self.dst[self.made..self.made + len].fill(0);
        self.made += len;
        Some(end)
    }

    fn copy(&mut self, distance: usize, len: usize) -> Option<Option<End>> {
        let from = self.made.checked_sub(distance)?;
        if distance >= STEP && self.dst.len() - self.made >= len + SLACK {
            let (mut from, mut to) = (from, self.made);
            self.made += len;
            while to < self.made {
                let step: [u8; STEP] = *self.dst.get(from..)?.first_chunk()?;
                *self.dst.get_mut(to..)?.first_chunk_mut()? = step;
                (from, to) = (from + STEP, to + STEP);
            }
            return Some(None);
        }
        let (len, end) = self.fit(len);
        let to = self.made;
        self.made += len;
        match distance {
            1 => {
                let byte = self.dst[from];
                self.dst[to..to + len].fill(byte);
            }
            _ if distance >= len => self.dst.copy_within(from..from + len, to),
            // The copy reads what it has written: each round has twice as much to copy.
            _ => {
                let mut done = 0;
                while done < len {
                    let piece = (distance + done).min(len - done);
                    self.dst.copy_within(from..from + piece, to + done);
                    done += piece;
                }
            }
        }
        Some(end)
    }
}
