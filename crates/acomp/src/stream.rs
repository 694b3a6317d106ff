//! What an algorithm implements: a worker's stream of compressions, with all its memory.
//!
//! A [`Context`](crate::Context) has checked every length before a stream sees it: no unit is empty or longer than
//! the stream was opened for. An object to decompress is not to be trusted in any other way.

use alloc::sync::Arc;

use crate::request::Batch;
use crate::request::{Error, Outcome};

/// Requests in a batch where an algorithm works on one unit at a time: enough to have the next
/// unit's pages at hand, few enough to keep a fault that comes meanwhile from waiting.
const BATCH_SIZE: usize = 8;

/// One worker's state of an algorithm. It allocates nothing after it was opened.
pub(crate) trait Stream: Send {
    /// Compresses `src` into `dst`.
    fn compress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Outcome, Error>;

    /// Decompresses `src`, which must hold exactly `dst.len()` bytes.
    fn decompress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), Error>;

    /// Decompresses the first `dst.len()` of the `full_len` bytes that `src` holds; `dst` is shorter than that.
    fn decompress_prefix(&mut self, src: &[u8], dst: &mut [u8], full_len: usize) -> Result<(), Error>;

    /// How many requests make a good batch.
    fn batch_size(&self) -> usize {
        BATCH_SIZE
    }

    /// Begins a batch: those of its requests that are [`Error::NotRun`]. A device that works on many at once does it
    /// here, and in the three that follow; each gets the batch that was begun.
    fn submit(&mut self, _batch: &mut Batch<'_, '_>) {}

    /// Goes on with the batch, without waiting, and returns how many requests have no result yet.
    fn poll(&mut self, batch: &mut Batch<'_, '_>) -> usize {
        self.poll_units(batch)
    }

    /// Does the next few of a batch, one after the other, and returns how many are left.
    fn poll_units(&mut self, batch: &mut Batch<'_, '_>) -> usize {
        match batch {
            Batch::Compress(batch) => {
                let left = batch.iter_mut().filter(|request| request.result == Err(Error::NotRun));
                serve(left, |request| {
                    request.result = self.compress_unit(request.src, request.dst);
                })
            }
            Batch::Decompress(batch) => {
                let left = batch.iter_mut().filter(|request| request.result == Err(Error::NotRun));
                serve(left, |request| {
                    request.result = self.decompress_unit(request.src, request.dst);
                })
            }
        }
    }

    /// Waits for the whole batch, and calls `between` again and again meanwhile.
    fn wait(&mut self, batch: &mut Batch<'_, '_>, between: &mut dyn FnMut()) {
        while self.poll(batch) > 0 {
            between();
        }
    }

    /// Nobody waits for the batch any more.
    fn abandon(&mut self) {}

    /// Nothing urgent is to be done.
    fn rest(&mut self) {}

    /// A batch is over, and the next one not begun.
    fn look(&mut self) {}

    /// Works with the device from now on that `open` knows, to compress by such codes, on so many units at a time;
    /// false if there is none, or this is no algorithm for it.
    fn attach(
        &mut self,
        _open: &mut dyn FnMut(iaa::Mode) -> Option<Arc<iaa::Driver>>,
        _descriptors: usize,
    ) -> bool {
        false
    }
}

/// Serves the next few, and says how many are left.
fn serve<T>(mut left: impl Iterator<Item = T>, each: impl FnMut(T)) -> usize {
    left.by_ref().take(BATCH_SIZE).for_each(each);
    left.count()
}
