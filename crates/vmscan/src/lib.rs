//! Which memory goes out, how much of it, and how much comes back at a fault. Pure policy: events in, decisions out; no
//! system call, no clock of its own, no memory of the program. The pager in `mm` does what is decided here, and a
//! simulator can drive it from a seed.
//!
//! ```text
//!   footprint ──> watermark::Watermarks ──> how much to evict, compress, drop; whether fresh memory waits
//!   a user who wants memory out now ──> asked::Asked ──> what the footprint is to come down to, and until when
//!   look at the footprint ──> growth::Growth ──> how much comes that no fault tells of
//!   page met by the clock hand ──> heat::Heat ──> spare it once more, or take it
//!   page that was touched, where that is told ──> touches::Lenience ──> spare it, or take it all the same
//!   round of the hand in vain ──> rest::Rest ──> how long it rests
//!   fault ──> readahead::Readahead ──> this page, its window, or the windows after it too
//!   fault on what is out, where there is room ──> prefetch::Prefetch ──> whether the region around it comes too
//!   what each process of a run needs ──> share::divide ──> what each may use
//!   more processes than CPUs refault ──> load::Load ──> who waits for its turn
//!   threads that wait for room ──> hunger::Hunger ──> whether the process gets nowhere
//!   waits for pages against processor time ──> crawl::Crawl ──> whether the program crawls
//!   fault for which a window may come ──> returns::Returns ──> whether it comes whole
//!   page asked for that was out ──> balance::Balance ──> how much the pool takes where there are areas
//!   fate of what was read ahead ──> worth::Worth ──> whether to read beside a page from an area
//!   page out of an object of many ──> split::Splitting ──> whether each is to have an object of its own
//! ```

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod asked;
pub mod balance;
pub mod by_region;
pub mod crawl;
pub mod fates;
pub mod growth;
pub mod heat;
pub mod hunger;
pub mod load;
pub mod prefetch;
pub mod readahead;
pub mod rest;
pub mod returns;
pub mod share;
pub mod shrinker;
pub mod split;
pub mod touches;
pub mod watermark;
pub mod worth;

pub use base::PAGE;

/// Bytes of a window: the unit of compression, 16 pages, the knee of the ratio's curve (64 KiB).
pub const WINDOW: usize = 16 * PAGE;
/// Bytes of the largest folio.
pub const HUGE: usize = 2 << 20;
