//! Compression algorithms behind one batch interface.
//!
//! A [`Compressor`] is a name and, where there is one to choose, a level, as in `zstd:1`. Each worker opens a
//! [`Context`] of it: all memory that the algorithm ever needs is taken there and then, so that nothing on the way of a
//! page in or out allocates. A context is then given batches of requests, and each request carries its own result: one
//! that fails, or does not shrink, leaves its neighbours alone.
//!
//! ```text
//!   "zstd:1" --parse--> Compressor --Context::new--> Context --compress(batch)-----> each result: Shrunk(bytes)
//!                       (Copy)       (allocates,        |                                         Incompressible
//!                                     once)             |                                         Err(..)
//!                                                       +----decompress(batch)---> each result: Ok | Err(Damaged)
//!                                                       +----decompress_prefix---> the first bytes alone
//!
//!   registry: one line for each algorithm         stream: what an algorithm implements
//!     over C: lz4, lz4hc, zstd, deflate             (a trait, object-safe, batches with a default)
//!     in Rust: lzo, lzo-rle, 842, deflate-iaa
//! ```
//!
//! A *dictionary* is bytes that units are likely to have in common: what is compressed with it refers to it, and can be
//! read with the same one alone. A context gets it when it is made.
//!
//! To add an algorithm: one file that implements the stream and describes itself as an [`Algorithm`], and one line in
//! the registry. One that works on many units at once (a device) takes whole batches: the stream's `submit` and `poll`.
//!
//! [`Context::submit`] returns at once, and the caller asks now and then ([`Pending::poll`]): a device has done some of
//! the batch meanwhile, and any other algorithm does the next 8 units. A device is used only by contexts that were
//! attached to it ([`Context::attach`]), because it works in the address space of the process that opened it.
//!
//! The crate needs no libc: `tests/symbols.rs` holds the C libraries to `memcpy`, `memmove`, `memset` and
//! `memcmp`, and `tests/no_malloc.rs` shows that `malloc`, `calloc` and `free`, which they also name, are not reached.
//!
//! - [`mod@compressor`]: a name, a level and whether there is a dictionary, parsed and printed
//! - [`mod@context`]: a worker's context
//! - [`mod@kind`]: whose objects a context reads
//! - [`mod@request`]: a unit of work in a batch, its outcome, errors
//! - [`mod@pending`]: a batch under way
//! - `algorithm`: what is known of one; `registry`: the list of them
//! - `stream`: what an algorithm implements
//! - `workspace`: the memory that an algorithm works in; `part`: code that only some of them run
//! - `lz4`, `lz4hc`, `zstd`, `deflate`: the algorithms over a C library
//! - `deflate_iaa`: deflate by Intel's accelerator, or as it does it
//! - [`mod@device`]: how devices are used, parsed and printed
//! - `lzo`, with `encode` and `decode`: LZO1X and the kernel's variant with runs of zeros
//! - `nx842`, with `encode` and `decode`: IBM's 842

#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

extern crate alloc;

mod algorithm;
pub mod compressor;
pub mod context;
mod deflate;
mod deflate_iaa;
pub mod device;
pub mod kind;
mod lz4;
mod lz4hc;
mod lzo;
mod nx842;
mod part;
pub mod pending;
mod registry;
pub mod request;
mod stream;
mod workspace;
mod zstd;

pub use algorithm::{Algorithm, FILE_MAX_BYTES, Parameter, Said};
pub use compressor::{Compressor, ParseError};
pub use context::Context;
pub use deflate_iaa::open_device;
pub use device::{Device, QUEUES_MAX};
pub use iaa::doors;
pub use kind::Kind;
pub use part::Part;
pub use pending::Pending;
pub use registry::ALGORITHMS;
pub use request::{Batch, CompressRequest, DecompressRequest, Error, Outcome};

/// The longest unit that any context works on, in bytes: the largest folio.
pub const UNIT_MAX_BYTES: usize = 2 << 20;
