//! What an algorithm implements: a worker's stream of compressions, with all its memory.
//!
//! A [`Context`](crate::Context) has checked every length before a stream sees it: no unit is empty or longer than
//! the stream was opened for. An object to decompress is not to be trusted in any other way.

use crate::request::{CompressRequest, DecompressRequest, Error, Outcome};

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

    /// Serves each request of the batch. A device that works on many at once does it here.
    fn compress(&mut self, batch: &mut [CompressRequest<'_>]) {
        for request in batch.iter_mut().filter(|request| request.result == Err(Error::NotRun)) {
            request.result = self.compress_unit(request.src, request.dst);
        }
    }

    /// Serves each request of the batch. A device that works on many at once does it here.
    fn decompress(&mut self, batch: &mut [DecompressRequest<'_>]) {
        for request in batch.iter_mut().filter(|request| request.result == Err(Error::NotRun)) {
            request.result = self.decompress_unit(request.src, request.dst);
        }
    }
}
