//! A model of IAA: it takes the descriptors that the device takes, and writes the records that the device writes.
//!
//! The driver cannot tell the two apart: a model's [`Portal`](iaa::Portal) takes the same 64 bytes, and everything else
//! goes by addresses in memory. Only how one comes by a queue differs: from a [`Model`], not from /dev/iax. (Or by a
//! [`Tree`], a made-up sysfs, and [`Files`] beside it.)
//!
//! ```text
//!   Model --> Device iax1 --> queue wq1.0 (entries) --+
//!               |               queue wq1.1 ----------+--> engine: check the descriptor, read, compute, write,
//!               |                                     |            wait out the latency, write the record
//!               +-- Faults: what goes wrong, when     +--> engine
//! ```
//!
//! It is a crate of its own because it needs std, which no part of a library inside foreign processes may have: as a
//! Cargo feature of `iaa` it would be switched on for that library too as soon as both are built at once.
//!
//! What it holds to, by the public descriptions: layouts, alignments, opcodes, flags; a history of 4 KiB both ways;
//! sizes checked against the queue's; the output never larger than permitted, and the status that says so; page faults
//! where memory is missing; the checksums. What it makes up: how the device looks for matches (so its sizes are not the
//! device's), and its speed.
//!
//! - [`device`]: devices, queues, engines
//! - [`fault`]: what can go wrong
//! - `engine`: one descriptor, from the first check to the record
//! - [`mod@inflate`]: compressed data; deflating is done as the driver does it without a device
//! - `memory`: memory by address, with page faults
//! - [`files`]: queues as files, for other processes
//! - [`software`]: deflate on the CPU
//! - [`tree`]: sysfs as accel-config leaves it

pub mod device;
mod engine;
pub mod fault;
pub mod files;
pub mod inflate;
mod memory;
pub mod software;
pub mod tree;

pub use device::{DeviceConfig, Model};
pub use fault::Fault;
pub use files::Files;
pub use software::Zlib;
pub use tree::Tree;
