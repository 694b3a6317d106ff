//! The ground floor: what every other crate may use, and what uses none of them.
//!
//! - [`PAGE`], [`Folio`]: what moves
//! - [`PageMask`]: which pages of a folio
//! - [`Advice`]: what a program says of its memory
//! - [`Damaged`]: why stored pages cannot be restored
//! - [`sys`]: mmap, madvise, futex, clone, ... as functions
//! - [`Fd`]: a descriptor, closed when dropped
//! - [`Mutex`]: a lock on a futex, for memory that no program's thread sees
//! - [`Random`]: numbers from a seed
//!
//! Nothing here goes through libc: no errno, no thread-local storage. Nothing here allocates.

#![cfg_attr(not(test), no_std)]

mod advice;
mod damaged;
pub mod folio;
pub mod lock;
mod mask;
mod random;
pub mod sys;

pub use advice::Advice;
pub use damaged::Damaged;
pub use folio::Folio;
pub use lock::Mutex;
pub use mask::PageMask;
pub use random::Random;
pub use sys::{Errno, Fd};

/// Bytes of a base page: 4 KiB on the only architecture so far, x86-64.
pub const PAGE: usize = 4096;
