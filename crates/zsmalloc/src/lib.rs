//! Size-class allocator for compressed objects (the kernel's mm/zsmalloc.c, in a flat address space).
//!
//! An object has a [`Handle`] instead of an address, and so can be moved: [`Pool::compact`] fills the holes that freed
//! objects leave, and the memory behind them goes back to the kernel. A reader pins its object for as long as it looks.
//!
//! ```text
//!   Handle ---> handle table ---> object       zspage of one size class           arena
//!   4 bytes     pins, address,    16-aligned   +----+----+----+----+-...-+        2 MiB from the Backing,
//!               length                 `------>| 0  | 1  |    | 3  | idle|  ----> cut into units of 64 KiB;
//!               grows, never moves             +----+----+----+----+-...-+        a zspage takes 1, 2, 4 or 8
//!                                              `--- committed ----'
//! ```
//!
//! Where the memory goes, and what is done about it:
//! - *Rounding up to a class*: 511 classes, every 16 bytes up to 1 KiB and 64 to the octave from there to 128 KiB: 0.6
//!   % on average, 1.6 % at most from 1 KiB on. Above 128 KiB an object has a mapping of its own, rounded up to a page.
//! - *The end of a zspage*: each class has the number of slots that leaves least of its last page: 0.5 % at most.
//! - *Zspages that are not full yet*: the lowest free slot is taken first, and pages that no slot has reached are not
//!   committed. So a class with few objects costs what they need and half a page, and there can be many classes.
//! - *Holes*: filled by the next objects (the fullest zspage first), or by compaction.
//! - *Metadata* lies apart from the objects: 16 bytes a handle, 4 a slot, 56 a zspage.
//!
//! - `pool`: alloc, write, read, free
//! - `compact`: moves objects, gives memory back
//! - `freeze`: a pool that two processes have after a fork
//! - `stats`: what a pool holds, by class
//! - `handle`: the handle table; pins
//! - `class`: sizes, and how a class cuts its zspages
//! - `fullness`: the zspages of a class, in groups by how full they are
//! - `zspage`: one zspage
//! - `arena`: the address space that zspages lie in
//! - `backing`: where memory comes from; `anonymous`: from the kernel
//! - `backoff`: how a thread waits for a handle
//! - `check`: recomputes every counter and list

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod anonymous;
mod arena;
mod backing;
mod backoff;
mod check;
mod class;
mod compact;
mod freeze;
mod fullness;
mod handle;
#[cfg(test)]
mod model;
mod pool;
#[cfg(test)]
mod race;
mod stats;
mod zspage;

pub use anonymous::Anonymous;
pub use backing::Backing;
pub use compact::Compacted;
pub use fullness::GROUPS;
pub use handle::Handle;
pub use pool::{LEN_MAX_BYTES, Object, Pool};
pub use stats::ClassStat;

// The unit in which memory is committed.
use base::PAGE;
