//! A unit of work, what came of it, and who does it where the device does not.

use crate::crc::Crc64;
use core::fmt;

/// What is to be done with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Plain bytes to raw deflate with a history of 4 KiB.
    Compress,
    /// Raw deflate to plain bytes.
    Decompress,
    /// A checksum of what goes in. Nothing is written to `dst`, which may be empty.
    Crc64(Crc64),
}

/// One unit.
pub struct Request<'a> {
    /// What goes in.
    pub src: &'a [u8],
    /// Where the result goes. Compressing: its length is what the unit must shrink to. What lies behind the result, and
    /// all of it after any other outcome, means nothing.
    pub dst: &'a mut [u8],
    /// What came of it: [`Error::NotRun`] until the batch is done.
    pub result: Result<Outcome, Error>,
    stage: Stage,
}

impl<'a> Request<'a> {
    /// A request that has not run.
    pub fn new(src: &'a [u8], dst: &'a mut [u8]) -> Self {
        Request { src, dst, result: Err(Error::NotRun), stage: Stage::default() }
    }
}

/// Where a request stands within its batch: for the driver to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stage(pub(crate) At);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum At {
    /// For a descriptor.
    Waiting,
    /// It has one.
    OnDevice,
    /// The CPU is to do it.
    Software(Reason),
    /// It has its result.
    #[default]
    Done,
}

/// A request of a batch.
pub struct Unit<'a> {
    /// What goes in.
    pub src: &'a [u8],
    /// Where the result goes.
    pub dst: &'a mut [u8],
    /// The driver's note, kept beside the request.
    pub stage: &'a mut Stage,
}

/// Requests for one operation, whatever they are made of. What is called again and again with the same number gives the
/// same.
pub trait Batch {
    /// What is to be done.
    fn operation(&self) -> Operation;
    /// How many there are.
    fn count(&self) -> usize;
    /// The request with this number.
    fn unit(&mut self, at: usize) -> Unit<'_>;
    /// What came of it.
    fn finish(&mut self, at: usize, result: Result<Outcome, Error>);
    /// What is decompressed fills its `dst`: anything shorter is wrong.
    fn is_exact(&self) -> bool {
        false
    }
}

impl<B: Batch> Batch for &mut B {
    fn operation(&self) -> Operation {
        (**self).operation()
    }

    fn count(&self) -> usize {
        (**self).count()
    }

    fn is_exact(&self) -> bool {
        (**self).is_exact()
    }

    fn unit(&mut self, at: usize) -> Unit<'_> {
        (**self).unit(at)
    }

    fn finish(&mut self, at: usize, result: Result<Outcome, Error>) {
        (**self).finish(at, result);
    }
}

/// Requests and their operation: a batch.
pub struct Requests<'c, 'd>(pub Operation, pub &'c mut [Request<'d>]);

impl Batch for Requests<'_, '_> {
    fn operation(&self) -> Operation {
        self.0
    }

    fn count(&self) -> usize {
        self.1.len()
    }

    fn unit(&mut self, at: usize) -> Unit<'_> {
        let Request { src, dst, stage, .. } = &mut self.1[at];
        Unit { src, dst, stage }
    }

    fn finish(&mut self, at: usize, result: Result<Outcome, Error>) {
        self.1[at].result = result;
    }
}

/// What came of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The first so many bytes of `dst` are the result.
    Written(usize),
    /// Compressing: it does not fit into `dst`.
    Incompressible,
    /// The CRC of `src`.
    Checksum(u64),
}

/// Why a unit has no result, or a context could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The batch was not run, or was dropped before this unit was done.
    NotRun,
    /// It is no raw deflate, or holds more than `dst` does. Software says so too: what the device refuses is tried
    /// there.
    Damaged,
    /// The plain unit is longer than the context was made for.
    UnitTooLong {
        /// Its length.
        bytes: usize,
        /// The longest that is accepted.
        unit_max: usize,
    },
    /// The allocator has not this many bytes.
    NoMemory {
        /// What was asked for.
        bytes: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotRun => f.write_str("the request was not run"),
            Error::Damaged => f.write_str("the compressed object is damaged"),
            Error::UnitTooLong { bytes, unit_max } => {
                write!(f, "a unit of {bytes} bytes where at most {unit_max} are accepted")
            }
            Error::NoMemory { bytes } => write!(f, "no memory for descriptors and buffers of {bytes} bytes"),
        }
    }
}

impl core::error::Error for Error {}

/// Raw deflate and CRCs on the CPU: what does the work that the device did not do.
pub trait Software {
    /// Compresses `src` into `dst` and returns the length; `None` if it does not fit. A history of more than 4 KiB is
    /// permitted, but what uses it is read by software only.
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize>;

    /// Decompresses `src` into `dst` and returns the length; `None` if it is damaged or does not fit.
    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize>;

    /// The CRC of `src`.
    fn crc64(&mut self, src: &[u8], crc: Crc64) -> u64 {
        crc.of(src)
    }
}

/// Why the CPU did a unit. Each is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is no queue for such work.
    NoQueue,
    /// All of the context's descriptors are lost: the device has never said that it is done with them.
    NoDescriptor,
    /// The queues took nothing, however often they were asked.
    Full,
    /// The unit is longer than the queue takes.
    TooLong,
    /// No completion in time.
    Timeout,
    /// The queue went away with the work.
    Gone,
    /// Page faults again and again, or at an address that was not given.
    PageFault,
    /// The device could not work on the data, such as a distance of more than 4 KiB.
    Data,
    /// Any other status: a descriptor that the device does not like, a broken device.
    Status,
    /// What came of it, or how long that is, is not the unit's.
    Verify,
}

impl Reason {
    /// All of them, in the order of their counters.
    pub const ALL: [Reason; 10] = [
        Reason::NoQueue,
        Reason::NoDescriptor,
        Reason::Full,
        Reason::TooLong,
        Reason::Timeout,
        Reason::Gone,
        Reason::PageFault,
        Reason::Data,
        Reason::Status,
        Reason::Verify,
    ];

    /// Its counter's name.
    pub fn name(self) -> &'static str {
        match self {
            Reason::NoQueue => "no_queue",
            Reason::NoDescriptor => "no_descriptor",
            Reason::Full => "queue_full",
            Reason::TooLong => "too_long",
            Reason::Timeout => "timeout",
            Reason::Gone => "queue_gone",
            Reason::PageFault => "page_fault",
            Reason::Data => "analytics_error",
            Reason::Status => "bad_status",
            Reason::Verify => "verify_failed",
        }
    }
}
