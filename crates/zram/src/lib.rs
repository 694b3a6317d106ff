//! zram in user space: a block device whose blocks live compressed in RAM, without a transport.
//!
//! ```text
//!   front ends, each thread with a Worker            users: set(name, value), show(name), tick(now)
//!          | read  write  discard  flush                  |
//!          v                                              v
//!   Device ----------------------------------------- attributes     (zram.rst has their names)
//!          |
//!   Disk   table: groups of 16 blocks, a lock each
//!          |        hole | one word | page of an object | page of an object in the backing device
//!          |                             |                       |
//!          |                      zsmalloc::Pool          swap::Area, sealed
//!          +-- zswap::Codec: pages to objects and back, a hash of each page
//! ```
//!
//! A block is 4 KiB, and 16 aligned blocks are a group. A write of a whole group becomes one object, which its blocks
//! share; any other block becomes an object of its own. A block that is overwritten leaves its object, and the last one
//! frees it. An object of which a quarter or less is still referred to is packed anew.
//!
//! A write compresses before it takes the group's lock, and then swaps entries. So a read waits for no compression. A
//! write of part of a block reads the block, compresses, and swaps only if the group is still what it has read.
//!
//! The crate uses [`zswap::Codec`] and [`zsmalloc::Pool`], and not zswap's table of objects: that table is one
//! thread's, and knows the pages of one process. Areas have no clusters here, because a device has its area alone.
//!
//! - `device`: [`Device`], the requests of front ends, and its attributes
//! - `worker`: [`Worker`], what one thread serves a device with
//! - `extent`: [`Extent`], which ranges hold data
//! - `error`: [`Error`]
//! - `disk`: a device that has a size: all that is done to blocks
//! - `group`: what is known of 16 blocks; `table`: all of them
//! - `request`: a request, cut where groups end
//! - `scratch`: contexts and buffers of one thread; `accelerator`: what does a context's work in the CPU's place
//! - `backing`: the backing device
//! - `log`: where a device tells what nobody asked for
//! - `settings`, `tunables`: what users choose before there is a size, and at any time
//! - `stats`: what is counted

#![forbid(unsafe_code)]

mod accelerator;
mod backing;
pub mod device;
mod disk;
pub mod error;
pub mod extent;
mod group;
mod log;
#[cfg(test)]
mod model;
mod request;
mod scratch;
mod settings;
pub mod stats;
mod table;
mod tunables;
pub mod worker;

pub use device::{ATTRIBUTES, Access, Attribute, Device};
pub use error::Error;
pub use extent::{Content, Extent};
pub use stats::Stats;
pub use worker::Worker;

/// Bytes of a block, the unit of all counters.
pub const BLOCK: usize = base::PAGE;

/// The most bytes of a device: its table of pieces takes 24 MiB then, before anything is written.
pub const DISKSIZE_MAX_BYTES: u64 = 16 << 40;
