//! The compressed cache: pages go in as objects, and come out equal or not at all.
//!
//! ```text
//!   store:  pages ── same-filled? ──> no data       (page.rs)
//!                 ── equal to the copy they were loaded from? ──> that copy again
//!                 ── noise? ──> the pages as they are             (noise.rs)
//!                 ── compress ── shrunk? ──> object, else the pages as they are
//!
//!   compress: a page by itself with the fast compressor, a window with the dense one   (choice.rs)
//!   object: [ header | 128-bit hash of each page | compressed pages ]   (layout.rs)
//! ```
//!
//! The hashes are keyed with a seed of the process, and serve twice: what is loaded is checked against them, and a page
//! that goes out again is recognised by them as unchanged, so that it need not be compressed again.
//!
//! - [`codec`]: [`Codec`], pages to objects and back, for those who have the bytes and not the pool: `pack`, `unpack`
//! - [`cache`]: [`Cache`], the objects in the pool
//! - [`objects`]: [`Objects`](objects::Objects), the entries: what each object holds, who names it, clean copies
//! - [`layout`]: how an object lies in the pool
//! - [`page`]: what can be said of a page without compressing it
//! - [`choice`]: what the user has pages compressed with: a compressor for each tier
//! - [`noise`]: what is not worth compressing, by a look at a part of it

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cache;
pub mod choice;
pub mod codec;
pub mod layout;
pub mod noise;
pub mod objects;
pub mod page;

pub use base::{Damaged, PAGE, PageMask};
pub use cache::{Cache, hash_in};
pub use choice::{Choice, Tier};
pub use codec::{BATCH_MAX, Codec, Load, New, PARCEL_MAX_BYTES, Packed, Priors, Window};

/// Pages of a window, the largest object.
pub const WINDOW_PAGES: usize = 16;
