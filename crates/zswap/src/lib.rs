//! The compressed cache: pages go in as objects, and come out equal or not at all.
//!
//! ```text
//!   store:  pages ── same-filled? ──> no data       (page.rs)
//!                 ── equal to the copy they were loaded from? ──> that copy again
//!                 ── compress ── shrunk? ──> object, else the pages as they are
//!
//!   object: [ header | 128-bit hash of each page | compressed pages ]   (object.rs)
//! ```
//!
//! The hashes are keyed with a seed of the process, and serve twice: what is loaded is checked against them, and a page that
//! goes out again is recognised by them as unchanged, so that it need not be compressed again.
//!
//! - [`cache`]: [`Cache`], shared by all workers, and [`Worker`], the state of one
//! - [`object`]: the layout of an object
//! - [`page`]: what can be said of a page without compressing it

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cache;
pub mod object;
pub mod page;

pub use cache::{Cache, LoadError, Prior, Stored, Worker};

/// Bytes of a base page.
pub const PAGE: usize = 4096;
/// Pages of a window, the largest object.
pub const WINDOW_PAGES: usize = 16;
