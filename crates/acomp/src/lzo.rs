//! LZO1X, and the kernel's variant of it with runs of zeros: `lzo` and `lzo-rle`, a little denser than LZ4 and slower.
//!
//! Both are written from the description of the stream in the kernel's Documentation/staging/lzo.rst; no code of any
//! LZO library is in them. An object is one stream. Its instructions are a copy of bytes that are there already, in
//! most cases with up to 3 literals after it, whose number S is in its last two bits:
//!
//! ```text
//!   first byte  17 V             version V of the format: 1 has runs of zeros. Left out, it is 0
//!               18..255          1 to 238 literals; another first byte is an instruction
//!   0000LLLL ..                  long literals, 4 and more: where none came before
//!   0000DDSS H                   copy 2, or 3 from further away: where literals came before (read, not written)
//!   01LDDDSS H, 1LLDDDSS H       copy 3 to 8 from at most 2 KiB back
//!   001LLLLL .. dddddSS DDDDDDDD copy any length from at most 16 KiB back
//!   0001HLLL .. dddddSS DDDDDDDD copy any length from at most 48 KiB back; from 16 KiB, the end
//!   00011LLL 111111SS 11111111 X version 1: a run of 4 to 2051 zeros
//! ```
//!
//! A length that does not fit into its L bits has them all zero, and goes on in bytes: 255 for each zero byte, and the
//! first other.

#![forbid(unsafe_code)]

mod decode;
mod encode;

use alloc::boxed::Box;

use crate::algorithm::Algorithm;
use crate::request::{Error, Outcome};
use crate::stream::Stream;
use decode::decode;
use encode::Encoder;

/// LZO's line in the registry.
pub(crate) static ALGORITHM: Algorithm = Algorithm {
    name: "lzo",
    parameter: None,
    description: "a little denser than lz4, and slower out and back",
    gives_up_early: |_| true,
    open: |_, _| Ok(Box::new(Lzo(Encoder::new(Version::Original)?))),
    part: |_, _| None,
    takes_device: false,
    with_dictionary: None,
};

/// LZO-RLE's line in the registry.
pub(crate) static ALGORITHM_RLE: Algorithm = Algorithm {
    name: "lzo-rle",
    parameter: None,
    description: "lzo with runs of zeros, for memory that holds many",
    gives_up_early: |_| true,
    open: |_, _| Ok(Box::new(Lzo(Encoder::new(Version::Rle)?))),
    part: |_, _| None,
    takes_device: false,
    with_dictionary: None,
};

/// Versions of the format. Either's streams are read by the same decoder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// LZO1X, as every LZO library reads and writes it.
    Original = 0,
    /// With runs of zeros.
    Rle = 1,
}

/// The first byte of a stream that names its version in the second.
pub(crate) const VERSION_MARK: u8 = 17;
/// A stream that names its version is at least so long: as the mark is an instruction too, which nothing shorter needs.
pub(crate) const VERSIONED_MIN_BYTES: usize = 5;
/// The end of a stream: a copy of 3 bytes from 16 KiB back by the instruction for what is further away.
pub(crate) const END: [u8; 3] = [0x11, 0, 0];
/// As far as instructions `01LDDDSS` and `1LLDDDSS` reach.
pub(crate) const NEAR_BYTES: usize = 2 << 10;
/// As far as `001LLLLL` reaches.
pub(crate) const MIDDLE_BYTES: usize = 16 << 10;
/// The distance that stands for a run of zeros; as far as `0001HLLL` reaches where there are none.
pub(crate) const FAR_BYTES: usize = 0xbfff;
/// A run of zeros that is short of this is none.
pub(crate) const RUN_MIN_BYTES: usize = 4;
/// The longest run of zeros: 11 bits say how much longer than the shortest it is.
pub(crate) const RUN_MAX_BYTES: usize = RUN_MIN_BYTES + 0x7ff;

/// A stream of either version.
struct Lzo(Encoder);

impl Stream for Lzo {
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
