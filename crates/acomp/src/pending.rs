//! A batch that was submitted: the caller does something else, and asks now and then.

use crate::request::{Batch, CompressRequest, DecompressRequest, Error, Outcome};
use crate::stream::Stream;

/// A batch under way. Dropped, it leaves what is not done undone ([`Error::NotRun`]).
pub struct Pending<'b, 'd> {
    pub(crate) stream: &'b mut dyn Stream,
    pub(crate) batch: Batch<'b, 'd>,
}

impl Pending<'_, '_> {
    /// Goes on with the batch, and returns how many requests have no result yet.
    ///
    /// Where a device works on them this collects what it has done, without waiting. Else the next few are done here,
    /// no more than [`batch_size`](crate::Context::batch_size): so whoever has something urgent to look out for never
    /// waits for more than that.
    pub fn poll(&mut self) -> usize {
        self.stream.poll(&mut self.batch)
    }

    /// Waits until each request has its result.
    pub fn wait(self) {
        self.wait_with(&mut || {});
    }

    /// The same, and calls `between` again and again meanwhile, between one [`poll`](Pending::poll) and the next: for
    /// what is more urgent than the batch.
    pub fn wait_with(mut self, between: &mut dyn FnMut()) {
        self.stream.wait(&mut self.batch, between);
    }
}

impl Drop for Pending<'_, '_> {
    fn drop(&mut self) {
        self.stream.abandon();
    }
}

/// As the device's driver wants it.
impl iaa::Batch for Batch<'_, '_> {
    fn operation(&self) -> iaa::Operation {
        match self {
            Batch::Compress(_) => iaa::Operation::Compress,
            Batch::Decompress(_) => iaa::Operation::Decompress,
        }
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn count(&self) -> usize {
        match self {
            Batch::Compress(batch) => batch.len(),
            Batch::Decompress(batch) => batch.len(),
        }
    }

    fn unit(&mut self, at: usize) -> iaa::Unit<'_> {
        match self {
            Batch::Compress(batch) => {
                let CompressRequest { src, dst, stage, .. } = &mut batch[at];
                iaa::Unit { src, dst, stage }
            }
            Batch::Decompress(batch) => {
                let DecompressRequest { src, dst, stage, .. } = &mut batch[at];
                iaa::Unit { src, dst, stage }
            }
        }
    }

    fn finish(&mut self, at: usize, result: Result<iaa::Outcome, iaa::Error>) {
        let result = result.map_err(Error::from);
        match self {
            Batch::Compress(batch) => {
                batch[at].result = result.map(|outcome| match outcome {
                    iaa::Outcome::Written(bytes) => Outcome::Shrunk(bytes),
                    iaa::Outcome::Incompressible | iaa::Outcome::Checksum(_) => Outcome::Incompressible,
                });
            }
            Batch::Decompress(batch) => {
                let request = &mut batch[at];
                request.result = result.and_then(|outcome| match outcome {
                    iaa::Outcome::Written(bytes) if bytes == request.dst.len() => Ok(()),
                    _ => Err(Error::Damaged),
                });
            }
        }
    }
}

impl From<iaa::Error> for Error {
    fn from(error: iaa::Error) -> Error {
        match error {
            iaa::Error::NotRun => Error::NotRun,
            iaa::Error::Damaged => Error::Damaged,
            iaa::Error::UnitTooLong { bytes, unit_max } => Error::UnitTooLong { bytes, unit_max },
            iaa::Error::NoMemory { bytes } => Error::NoMemory { bytes },
        }
    }
}
