//! Decompression with a history of 4 KiB, and the device's names for what can be wrong.

use iaa::WINDOW_BYTES;
use iaa::deflate::{DISTANCES, LENGTHS};
use iaa::descriptor::error;
use iaa::huffman::{LENGTH_MAX, LENGTH_ORDER};

/// How far it came, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inflated {
    /// The plain bytes, at most as many as were permitted.
    pub bytes: Vec<u8>,
    /// Bytes of input used.
    pub used: usize,
    /// Why it ended.
    pub end: End,
}

/// Why decompression ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the end of block that was asked for.
    EndOfBlock,
    /// There is more output than permitted.
    Overflow,
    /// One of [`iaa::descriptor::error`].
    Error(u8),
}

struct Input<'a> {
    data: &'a [u8],
    bits: usize,
}

impl Input<'_> {
    fn bit(&mut self) -> Result<u32, End> {
        let byte = self.data.get(self.bits / 8).ok_or(End::Error(error::BAD_EOF))?;
        let bit = byte >> (self.bits % 8) & 1;
        self.bits += 1;
        Ok(bit.into())
    }

    fn take(&mut self, count: u32) -> Result<u32, End> {
        (0..count).try_fold(0, |value, at| Ok(value | self.bit()? << at))
    }
}

/// A code: how many symbols have each length, and the symbols in the codes' order.
struct Code {
    counts: [u16; LENGTH_MAX as usize + 1],
    symbols: Vec<u16>,
}

impl Code {
    /// None if more codes are asked for than there can be, or fewer: all prefixes must lead somewhere. A single code is
    /// permitted.
    fn new(lengths: &[u8]) -> Option<Code> {
        let mut counts = [0u16; LENGTH_MAX as usize + 1];
        lengths.iter().filter(|&&length| length != 0).for_each(|&length| counts[length as usize] += 1);
        let mut symbols: Vec<u16> = (0..lengths.len() as u16).filter(|&s| lengths[s as usize] != 0).collect();
        symbols.sort_by_key(|&symbol| lengths[symbol as usize]);
        let used: u32 = (1..=15).map(|length| u32::from(counts[length]) << (15 - length)).sum();
        (used == 1 << 15 || used < 1 << 15 && symbols.len() <= 1).then_some(Code { counts, symbols })
    }

    fn read(&self, input: &mut Input<'_>, wrong: u8) -> Result<usize, End> {
        let (mut code, mut first, mut index) = (0u32, 0u32, 0u32);
        for count in &self.counts[1..] {
            code |= input.bit()?;
            let count = u32::from(*count);
            if code < first + count {
                return Ok(self.symbols[(index + code - first) as usize].into());
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        Err(End::Error(wrong))
    }
}

fn fixed() -> (Code, Code) {
    let mut literals = [8u8; 288];
    literals[144..256].fill(9);
    literals[256..280].fill(7);
    (Code::new(&literals).expect("complete"), Code::new(&[5; 32]).expect("complete"))
}

fn dynamic(input: &mut Input<'_>) -> Result<(Code, Code), End> {
    let bad = End::Error(error::BAD_CODE_LENGTHS);
    let literals = 257 + input.take(5)? as usize;
    let distances = 1 + input.take(5)? as usize;
    if literals > 286 || distances > 30 {
        return Err(bad);
    }
    let mut lengths = [0u8; 19];
    for &symbol in &LENGTH_ORDER[..4 + input.take(4)? as usize] {
        lengths[symbol] = input.take(3)? as u8;
    }
    let code = Code::new(&lengths).ok_or(bad)?;
    let mut lengths = Vec::new();
    while lengths.len() < literals + distances {
        let (length, times) = match code.read(input, error::BAD_CODE_LENGTHS)? {
            16 => (*lengths.last().ok_or(bad)?, 3 + input.take(2)?),
            17 => (0, 3 + input.take(3)?),
            18 => (0, 11 + input.take(7)?),
            length => (length as u8, 1),
        };
        lengths.extend((0..times).map(|_| length));
    }
    if lengths.len() > literals + distances || lengths[256] == 0 {
        return Err(bad);
    }
    let (literals, distances) = lengths.split_at(literals);
    Ok((Code::new(literals).ok_or(bad)?, Code::new(distances).ok_or(bad)?))
}

/// Decompresses to at most `most` bytes. `to_final`: to the end of the last block, else to that of the first one.
pub fn inflate(data: &[u8], most: usize, to_final: bool) -> Inflated {
    let mut input = Input { data, bits: 0 };
    let mut bytes = Vec::with_capacity(most);
    let end = loop {
        match block(&mut input, &mut bytes, most) {
            Ok(is_final) if is_final || !to_final => break End::EndOfBlock,
            Ok(_) => {}
            Err(end) => break end,
        }
    };
    Inflated { bytes, used: input.bits.div_ceil(8), end }
}

/// One block; true if it is the last one.
fn block(input: &mut Input<'_>, bytes: &mut Vec<u8>, most: usize) -> Result<bool, End> {
    let is_final = input.bit()? == 1;
    let (literals, distances) = match input.take(2)? {
        0 => return stored(input, bytes, most).map(|()| is_final),
        1 => fixed(),
        2 => dynamic(input)?,
        _ => return Err(End::Error(error::INVALID_BLOCK_TYPE)),
    };
    loop {
        let symbol = literals.read(input, error::BAD_LITERAL_LENGTH)?;
        if symbol == 256 {
            return Ok(is_final);
        }
        if symbol < 256 {
            if bytes.len() == most {
                return Err(End::Overflow);
            }
            bytes.push(symbol as u8);
            continue;
        }
        let (first, extra) = *LENGTHS.get(symbol - 257).ok_or(End::Error(error::BAD_LITERAL_LENGTH))?;
        let length = usize::from(first) + input.take(extra.into())? as usize;
        let symbol = distances.read(input, error::BAD_DISTANCE_CODE)?;
        let (first, extra) = *DISTANCES.get(symbol).ok_or(End::Error(error::BAD_DISTANCE_CODE))?;
        let distance = usize::from(first) + input.take(extra.into())? as usize;
        if distance > WINDOW_BYTES {
            return Err(End::Error(error::BAD_DISTANCE));
        }
        if distance > bytes.len() {
            return Err(End::Error(error::REFERENCE_BEFORE_START));
        }
        for _ in 0..length {
            if bytes.len() == most {
                return Err(End::Overflow);
            }
            bytes.push(bytes[bytes.len() - distance]);
        }
    }
}

fn stored(input: &mut Input<'_>, bytes: &mut Vec<u8>, most: usize) -> Result<(), End> {
    input.bits = input.bits.next_multiple_of(8);
    let length = input.take(16)?;
    if input.take(16)? != !length & 0xffff {
        return Err(End::Error(error::INVALID_STORED_LENGTH));
    }
    for _ in 0..length {
        let byte = input.take(8)? as u8;
        if bytes.len() == most {
            return Err(End::Overflow);
        }
        bytes.push(byte);
    }
    Ok(())
}
