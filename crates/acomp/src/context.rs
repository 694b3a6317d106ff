//! A worker's context: a compressor with all the memory that it will ever need.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::UNIT_MAX_BYTES;
use crate::compressor::Compressor;
use crate::pending::Pending;
use crate::request::{Batch, CompressRequest, DecompressRequest, Error, Outcome};
use crate::stream::Stream;

/// A compressor ready to work, made up front and kept by one worker.
///
/// [`Context::new`] allocates; no other method does, but for those that look for a device's queues, and none blocks, so
/// that a fault can be served by it. It reads objects of its own algorithm alone, of any level, that were compressed
/// with the same dictionary, or like it without one.
pub struct Context {
    stream: Box<dyn Stream>,
    compressor: Compressor,
    unit_max: usize,
}

impl Context {
    /// Makes a context for units of up to `unit_max` bytes, with all the memory that it will ever need from the global
    /// allocator. What a context that only decompresses does not touch stays unbacked.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]; [`Error::UnitTooLong`] if `unit_max` is more than [`UNIT_MAX_BYTES`];
    /// [`Error::NoDictionary`] if the compressor has a dictionary: [`Context::with_dictionary`] takes it;
    /// [`Error::NoCode`] if this process's library was written without what it runs.
    pub fn new(compressor: Compressor, unit_max: usize) -> Result<Context, Error> {
        Context::with_dictionary(compressor, unit_max, &[])
    }

    /// The same with a copy of this dictionary, which a compressor that has none ignores.
    ///
    /// # Errors
    ///
    /// As for [`Context::new`]; [`Error::NoDictionary`] if the dictionary is empty, longer than
    /// [`FILE_MAX_BYTES`](crate::FILE_MAX_BYTES), or damaged.
    pub fn with_dictionary(
        compressor: Compressor,
        unit_max: usize,
        dictionary: &[u8],
    ) -> Result<Context, Error> {
        check_length(unit_max, UNIT_MAX_BYTES)?;
        if compressor.part().is_some_and(|part| !part.is_there()) {
            return Err(Error::NoCode);
        }
        let level = compressor.level();
        let stream = match &compressor.algorithm.with_dictionary {
            Some(with) if compressor.has_dictionary() => (with.open)(level, unit_max, dictionary)?,
            _ => (compressor.algorithm.open)(level, unit_max)?,
        };
        Ok(Context { stream, compressor, unit_max })
    }

    /// The compressor that this is a context of.
    pub fn compressor(&self) -> Compressor {
        self.compressor
    }

    /// How many requests make a good batch; more and fewer are served as well.
    pub fn batch_size(&self) -> usize {
        self.stream.batch_size()
    }

    /// Has a device do the work of [`compress`](Context::compress), [`decompress`](Context::decompress) and
    /// [`submit`](Context::submit) from now on, if this is an algorithm for one and `open` comes by it
    /// ([`open_device`](crate::open_device)), with the settings that the compressor says. False if not: then all is as
    /// it was.
    ///
    /// The device works in the address space of whoever opened it: a context that is attached must be given up in a
    /// child of fork.
    pub fn attach(&mut self, mut open: impl FnMut(iaa::Config) -> Option<Arc<iaa::Driver>>) -> bool {
        let device = self.compressor.device();
        self.stream.attach(&mut |mode| open(device.config(mode)), device.descriptors())
    }

    /// For who has nothing urgent to do: lets go of a device's queue that has stopped answering, which may take as long
    /// as the device does, and [looks](Context::look) for others. Costs nothing where there is no device.
    pub fn rest(&mut self) {
        self.stream.rest();
    }

    /// For who goes from one batch to the next without rest: looks once a second whether a device's queues have come or
    /// gone. Costs nothing where there is no device.
    pub fn look(&mut self) {
        self.stream.look();
    }

    /// Compresses each request's `src` into its `dst` and sets its `result`, whatever it was before.
    ///
    /// A request's result is [`Error::UnitTooLong`] where its `src` is longer than `unit_max`. An empty
    /// `src` is incompressible.
    pub fn compress(&mut self, batch: &mut [CompressRequest<'_>]) {
        self.submit(Batch::Compress(batch)).wait();
    }

    /// Decompresses each request's `src` into its `dst` and sets its `result`, whatever it was before.
    ///
    /// A request's result is [`Error::Damaged`] where `src` is not an object of this algorithm that holds exactly
    /// `dst.len()` bytes (no object holds none), and [`Error::UnitTooLong`] where `dst` is longer than
    /// `unit_max`. Whatever `src` is, nothing outside `dst` is written and nothing outside `src` is read.
    /// (A device does not notice bytes behind the object's end.)
    pub fn decompress(&mut self, batch: &mut [DecompressRequest<'_>]) {
        self.submit(Batch::Decompress(batch)).wait();
    }

    /// Begins what [`compress`](Context::compress) or [`decompress`](Context::decompress) do, and returns at once. The
    /// results come with [`Pending::poll`].
    pub fn submit<'b, 'd>(&'b mut self, mut batch: Batch<'b, 'd>) -> Pending<'b, 'd> {
        match &mut batch {
            Batch::Compress(batch) => {
                for request in batch.iter_mut() {
                    request.result = match check_length(request.src.len(), self.unit_max) {
                        Err(error) => Err(error),
                        Ok(()) if request.src.is_empty() || request.dst.is_empty() => {
                            Ok(Outcome::Incompressible)
                        }
                        Ok(()) => Err(Error::NotRun),
                    };
                }
            }
            Batch::Decompress(batch) => {
                for request in batch.iter_mut() {
                    request.result = match check_length(request.dst.len(), self.unit_max) {
                        Err(error) => Err(error),
                        Ok(()) if request.dst.is_empty() => Err(Error::Damaged),
                        Ok(()) => Err(Error::NotRun),
                    };
                }
            }
        }
        self.stream.submit(&mut batch);
        Pending { stream: &mut *self.stream, batch }
    }

    /// Decompresses the first `dst.len()` of the `full_len` bytes that `src` holds, and of the rest as
    /// little as the algorithm can.
    ///
    /// lz4, lz4hc, lzo, lzo-rle and 842 stop at the byte; zstd at the end of a block, of which one is up to 128 KiB of
    /// plain bytes; deflate and deflate-iaa do not stop before the end. What lies behind goes unread: an object damaged
    /// only there is not found out.
    ///
    /// # Errors
    ///
    /// As for [`Context::decompress`]; [`Error::UnitTooLong`] also if `dst` is longer than `full_len`.
    pub fn decompress_prefix(&mut self, src: &[u8], dst: &mut [u8], full_len: usize) -> Result<(), Error> {
        check_length(full_len, self.unit_max)?;
        check_length(dst.len(), full_len)?;
        match dst.len() {
            0 => Err(Error::Damaged),
            len if len == full_len => self.stream.decompress_unit(src, dst),
            _ => self.stream.decompress_prefix(src, dst, full_len),
        }
    }
}

/// Refuses a unit of `bytes` where at most `unit_max` are accepted.
fn check_length(bytes: usize, unit_max: usize) -> Result<(), Error> {
    if bytes <= unit_max { Ok(()) } else { Err(Error::UnitTooLong { bytes, unit_max }) }
}
