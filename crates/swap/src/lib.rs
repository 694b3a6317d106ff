//! Swap areas: where what leaves RAM lies, who may refer to it, and how it is sealed.
//!
//! ```text
//!   object ──> seal ──> take(order) ──> write ──> fill ──> Place      (out)
//!   Place ──> read ──> open ──> object                                (in)
//!   Place ──> release ──> slots ──> discard                           (gone)
//!
//!   one process:   slots::Slots    which slots of its clusters are free; no lock, no sharing
//!   the whole run: table::Table    whose each cluster is, which processes may refer to it; atomics
//!   the disk:      area::Area      bytes at an offset
//! ```
//!
//! A slot is 4 KiB, a cluster 512 slots. Slots are numbered through all areas of a run.
//!
//! - [`place`]: [`Place`], where an object lies
//! - [`table`]: [`Table`], clusters and processes of the run
//! - [`slots`]: [`Slots`], the clusters of one process
//! - [`area`]: [`Area`], what stores bytes: a file or a block device
//! - [`contents`]: what an area holds before it is one, and how it is emptied of what was written
//! - [`fate`]: how often reads and writes fail, and which, by a seed; [`faulty`]: an area that does
//! - [`seal`]: encryption, and whether an object is the one that was written

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod area;
pub mod contents;
pub mod fate;
pub mod faulty;
pub mod place;
pub mod seal;
pub mod slots;
mod step;
pub mod table;

pub use area::{Area, FileArea};
pub use place::Place;
pub use slots::{Run, Slots};
pub use table::{Row, Table};

/// Bytes of a slot.
pub const SLOT: usize = base::PAGE;
/// Slots of a cluster.
pub const CLUSTER: u32 = 512;
/// Bytes of a cluster.
pub const CLUSTER_BYTES: u64 = CLUSTER as u64 * SLOT as u64;
/// The most clusters that a run may have: 16 TiB less one, so that the slot after the last one has a number too.
pub const CLUSTERS_MAX: u32 = (1 << 23) - 1;

/// Says what is wrong, for walkers.
fn ensure(
    is_right: bool,
    wrong: impl FnOnce() -> alloc::string::String,
) -> Result<(), alloc::string::String> {
    if is_right { Ok(()) } else { Err(wrong()) }
}
