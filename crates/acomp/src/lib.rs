//! Compression algorithms behind one batch interface.
//!
//! A [`Compressor`] is a name and a level, as in `zstd:1`. Each worker opens a [`Context`] of it: all
//! memory that the algorithm ever needs is taken there and then, so that nothing on the way of a page in or out allocates.
//! A context is then given batches of requests, and each request carries its own result: one that
//! fails, or does not shrink, leaves its neighbours alone.
//!
//! ```text
//!   "zstd:1" --parse--> Compressor --Context::new--> Context --compress(batch)-----> each result: Shrunk(bytes)
//!                       (Copy)       (allocates,        |                                         Incompressible
//!                                     once)             |                                         Err(..)
//!                                                       +----decompress(batch)---> each result: Ok | Err(Damaged)
//!                                                       +----decompress_prefix---> the first bytes alone
//!
//!   registry: one line for each algorithm         stream: what an algorithm implements
//!        lz4                zstd                    (a trait, object-safe, batches with a default)
//! ```
//!
//! To add an algorithm: one file that implements the stream and describes itself as an [`Algorithm`],
//! and one line in the registry. One that works on many units at once (a device) says so by the
//! stream's `batch_size` and takes whole batches; submit and poll belong beside them when the first such
//! algorithm arrives.
//!
//! The crate needs no libc: `tests/symbols.rs` holds the C libraries to `memcpy`, `memmove`, `memset` and
//! `memcmp`, and `tests/no_malloc.rs` shows that `malloc`, `calloc` and `free`, which they also name, are not reached.
//!
//! - [`mod@compressor`]: a name and a level, parsed and printed
//! - [`mod@context`]: a worker's context
//! - [`mod@request`]: a unit of work in a batch, its outcome, errors
//! - `registry`: the list of algorithms
//! - `stream`: what an algorithm implements
//! - `workspace`: the memory that an algorithm works in
//! - `lz4`, `zstd`: the algorithms, each over its C library

#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

extern crate alloc;

pub mod compressor;
pub mod context;
mod lz4;
mod registry;
pub mod request;
mod stream;
mod workspace;
mod zstd;

pub use compressor::{Compressor, ParseError};
pub use context::Context;
pub use registry::{ALGORITHMS, Algorithm};
pub use request::{CompressRequest, DecompressRequest, Error, Outcome};

/// The longest unit that any context works on, in bytes: the largest folio.
pub const UNIT_MAX_BYTES: usize = 2 << 20;
