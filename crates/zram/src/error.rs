//! Why a request or a command was not served.

use base::{Damaged, Errno};
use std::fmt;
use std::io;

/// Why a request or a command was not served. It prints as one line.
#[derive(Debug)]
pub enum Error {
    /// EINVAL: the range is not within the device.
    Outside {
        /// Where the request begins, in bytes.
        offset: u64,
        /// How long it is, in bytes.
        len_bytes: u64,
        /// How large the device is, in bytes.
        disksize_bytes: u64,
    },
    /// ENOSPC: the pool has no memory, or `mem_limit` is reached. The blocks hold what they held.
    NoSpace,
    /// ENOSPC: the backing device of this path has no room. What was to go there stays in memory.
    BackingFull(String),
    /// EIO: the object of this block is not what was stored, or the backing device does not give it.
    Damaged {
        /// The number of the block.
        block: u64,
        /// What is wrong with it.
        cause: Damaged,
    },
    /// ENXIO: the device has no disksize yet, or was reset.
    NotInitialised,
    /// EBUSY: this cannot be done now; the text says why.
    Busy(&'static str),
    /// EINVAL: an attribute does not take this value; the text says what it takes.
    Invalid {
        /// The attribute.
        attribute: String,
        /// The value, and why it is refused.
        why: String,
    },
    /// ENOMEM: there is no memory for tables or a compressor.
    NoMemory,
    /// The backing device, or the file of a dictionary, says this of a path.
    Path {
        /// The path.
        path: String,
        /// What is wrong.
        error: io::Error,
    },
    /// What is saved or loaded says this.
    Io(io::Error),
    /// EINVAL: what is loaded is no saved device; the text says what is wrong.
    NotSaved(&'static str),
}

impl Error {
    /// The error number that a front end tells its client.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Outside { .. } | Error::Invalid { .. } | Error::NotSaved(_) => Errno::EINVAL,
            Error::NoSpace | Error::BackingFull(_) => Errno::ENOSPC,
            Error::Damaged { .. } => Errno::EIO,
            Error::NotInitialised => Errno::ENXIO,
            Error::Busy(_) => Errno::EBUSY,
            Error::NoMemory => Errno::ENOMEM,
            Error::Path { error, .. } | Error::Io(error) => {
                error.raw_os_error().and_then(|number| number.try_into().ok()).map_or(Errno::EIO, Errno)
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Outside { offset, len_bytes, disksize_bytes } => {
                write!(f, "{len_bytes} bytes at {offset} are not within the device of {disksize_bytes} bytes")
            }
            Error::NoSpace => f.write_str("the pool has no memory for it, or mem_limit is reached"),
            Error::BackingFull(path) => write!(f, "{path}: the backing device is full"),
            Error::Damaged { block, cause } => write!(f, "block {block} cannot be read: {cause}"),
            Error::NotInitialised => f.write_str("the device has no disksize"),
            Error::Busy(why) => f.write_str(why),
            Error::Invalid { attribute, why } => write!(f, "{attribute}: {why}"),
            Error::NoMemory => f.write_str("there is no memory for tables or a compressor"),
            Error::Path { path, error } => write!(f, "{path}: {error}"),
            Error::Io(error) => error.fmt(f),
            Error::NotSaved(what) => write!(f, "not a saved device: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Path { error, .. } | Error::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<acomp::Error> for Error {
    fn from(_: acomp::Error) -> Error {
        Error::NoMemory
    }
}
