//! A unit of work in a batch: what goes in, where it goes, and what came of it.

use core::fmt;

/// One unit to compress.
pub struct CompressRequest<'a> {
    /// The plain bytes, at most the context's `unit_max`.
    pub src: &'a [u8],
    /// Where the object goes. Its length is what the unit must shrink to: one that needs more is
    /// [`Outcome::Incompressible`] (as may be one that needs all but 9 of the bytes, because zstd wants some room
    /// to spare). Its contents past the object, or after any other result, mean nothing.
    pub dst: &'a mut [u8],
    /// What came of it: [`Error::NotRun`] until the batch was given to a context.
    pub result: Result<Outcome, Error>,
    /// Where a device has it.
    pub(crate) stage: iaa::Stage,
}

impl<'a> CompressRequest<'a> {
    /// A request that has not run.
    pub fn new(src: &'a [u8], dst: &'a mut [u8]) -> Self {
        CompressRequest { src, dst, result: Err(Error::NotRun), stage: iaa::Stage::default() }
    }
}

/// What came of compressing a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object is the first so many bytes of `dst`.
    Shrunk(usize),
    /// The object does not fit into `dst`: the unit is better kept as it is.
    Incompressible,
}

/// One object to decompress.
pub struct DecompressRequest<'a> {
    /// The object, exactly as long as [`Outcome::Shrunk`] said.
    pub src: &'a [u8],
    /// Where the plain bytes go: exactly as long as the unit was. After an error its contents mean nothing.
    pub dst: &'a mut [u8],
    /// What came of it: [`Error::NotRun`] until the batch was given to a context.
    pub result: Result<(), Error>,
    /// Where a device has it.
    pub(crate) stage: iaa::Stage,
}

impl<'a> DecompressRequest<'a> {
    /// A request that has not run.
    pub fn new(src: &'a [u8], dst: &'a mut [u8]) -> Self {
        DecompressRequest { src, dst, result: Err(Error::NotRun), stage: iaa::Stage::default() }
    }
}

/// Why a context could not be made, or a request not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The request was not given to a context yet.
    NotRun,
    /// The allocator has not this many bytes for a workspace.
    NoMemory {
        /// What was asked for.
        bytes: usize,
    },
    /// A unit is longer than the context was made for, or a context was asked for longer units than there can be.
    UnitTooLong {
        /// The unit's length.
        bytes: usize,
        /// The longest that is accepted.
        unit_max: usize,
    },
    /// The object is no such algorithm's, is cut short, or does not hold exactly `dst.len()` bytes.
    Damaged,
    /// The dictionary is empty, too long or damaged.
    NoDictionary,
    /// What the compressor runs is not in this process's library ([`Part`](crate::Part)).
    NoCode,
    /// The algorithm failed for a reason of its own, which no input should be able to bring about.
    Algorithm {
        /// Its name.
        name: &'static str,
        /// Its error number.
        code: i32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotRun => f.write_str("the request was not given to a context"),
            Error::NoMemory { bytes } => write!(f, "no memory for a compressor's workspace of {bytes} bytes"),
            Error::UnitTooLong { bytes, unit_max } => {
                write!(f, "a unit of {bytes} bytes where at most {unit_max} are accepted")
            }
            Error::Damaged => f.write_str("the compressed object is damaged"),
            Error::NoDictionary => f.write_str("the dictionary is empty, too long or damaged"),
            Error::NoCode => f.write_str("the library was written without this compressor's code"),
            Error::Algorithm { name, code } => write!(f, "{name} failed with its error {code}"),
        }
    }
}

impl core::error::Error for Error {}

/// What a context is given: requests of one kind.
pub enum Batch<'b, 'd> {
    /// To compress.
    Compress(&'b mut [CompressRequest<'d>]),
    /// To decompress.
    Decompress(&'b mut [DecompressRequest<'d>]),
}
