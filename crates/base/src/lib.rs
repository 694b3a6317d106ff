//! The ground floor: what every other crate may use, and what uses none of them.
//!
//! Nothing here goes through libc: no errno, no thread-local storage, no lock, no allocation. Every call returns
//! what the kernel returned.
//!
//! - [`sys`]: mmap, madvise, futex, clone, ... as functions
//! - [`Fd`]: a descriptor, closed when dropped
//! - [`Mutex`]: a lock on a futex, for memory that no program's thread sees

#![cfg_attr(not(test), no_std)]

pub mod lock;
pub mod sys;

pub use lock::Mutex;
pub use sys::{Errno, Fd};

/// Bytes of a base page: 4 KiB on the only architecture so far, x86-64.
pub const PAGE: usize = 4096;
