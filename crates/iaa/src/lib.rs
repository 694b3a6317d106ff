//! Intel's In-Memory Analytics Accelerator (IAA), driven from user space: raw deflate and CRCs, many units at a time.
//!
//! A [`Driver`] has the process's work queues, as accel-config set them up, and knows which CPU uses which. Each thread
//! has a [`Context`] with descriptors and memory, and gives it batches of [`Request`]s. What the device does not do,
//! for whatever reason, a [`Software`] of the caller's does, and it is counted why: a batch always ends, and each of
//! its units has its own result.
//!
//! ```text
//!   sysfs, topology --> Driver: queues, who uses which -----------+
//!                                                                 | the next queue: a look-up without a lock
//!   batch --Context::begin--> Flight --poll--> descriptors --> Portal --> device (or a model of it)
//!     |                         |  ^                                        |
//!     |                         |  +------ completion records <-------------+
//!     |                         v
//!     +---- results <------- Software: queue full, time-out, device gone, damaged, ...
//! ```
//!
//! ```
//! use iaa::{Config, Context, Driver, Outcome, Request};
//! use std::sync::Arc;
//!
//! let driver = Driver::open("", Config::default()).map_err(|errno| errno.to_string())?;
//! let software = Box::new(iaa_model::Zlib::default());
//! let mut context = Context::new(Arc::new(driver), software, 8, 4096)?;
//! let (page, mut room) = ([7; 4096], [0; 4096]);
//! let mut batch = [Request::new(&page, &mut room)];
//! context.compress(&mut batch);
//! assert!(matches!(batch[0].result, Ok(Outcome::Written(bytes)) if bytes < 100));
//! println!("{:?}", context.driver().stats());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Context::begin`] and [`Flight::poll`] are the same in parts: submit, do something else, ask.
//!
//! The result is raw deflate with a history of 4 KiB: any inflate reads it. The other way round the device reads what
//! any deflate wrote with a window of 4 KiB, and software the rest.
//!
//! **What this was tested with.** No such device was at hand. All that is here was run against `iaa-model`, which reads
//! the same descriptors and writes the same records by the public descriptions; ENQCMD's encoding, flag and addresses
//! against a signal handler that does what the instruction would. Only on a real machine can it be seen: the
//! instructions (`cpu`: MOVDIR64B, ENQCMD, UMWAIT) and the mapped portal, write(2) to a queue's file, sysfs as the
//! kernel makes it, what the device does beyond what is written down, and how fast all of it is.
//!
//! - [`descriptor`]: descriptors, completion records, opcodes, flags, status codes
//! - [`aecs`]: what a compression starts from: codes (fixed, dynamic, canned) and header
//! - `canned`: the canned codes that come with it
//! - [`huffman`]: codes from counts, and the header that tells of them
//! - [`mod@deflate`]: what the device does to data, on the CPU
//! - [`crc`]: CRCs of 64 bits
//! - [`cpu`]: the instructions
//! - [`portal`]: where descriptors go: mapped, by write(2), or anything else that takes them
//! - [`doors`]: the queues' files for who may open nothing else
//! - [`sysfs`]: which devices and queues there are
//! - [`topology`]: which CPU and which device is at which package
//! - [`queues`]: which queue serves which CPU
//! - [`queue`]: one open queue, its entries, how it is closed under its users
//! - [`driver`]: all queues of a process
//! - [`context`]: a thread's descriptors; `lanes`: the memory that the device writes to
//! - [`context::flight`]: a batch on its way, and what completions mean; `launch`: how it is submitted
//! - [`request`]: units, outcomes, errors, and the reasons to do without the device
//! - [`stats`]: counters by queue, device, CPU and reason
//! - `order`: sorting
//! - [`setup`]: what a machine has and lacks, for people

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod aecs;
mod canned;
pub mod context;
pub mod cpu;
pub mod crc;
pub mod deflate;
pub mod descriptor;
pub mod doors;
pub mod driver;
pub mod huffman;
mod lanes;
mod order;
pub mod portal;
pub mod queue;
pub mod queues;
pub mod request;
pub mod setup;
pub mod stats;
pub mod sysfs;
pub mod topology;

#[cfg(test)]
#[path = "../../zfolio/tests/skip/mod.rs"]
mod skip;

pub use context::Context;
pub use context::flight::Flight;
pub use crc::Crc64;
pub use driver::{Config, Driver, Mode, Opener};
pub use portal::{Gone, Portal};
pub use queue::Spec;
pub use queues::Policy;
pub use request::{Batch, Error, Operation, Outcome, Reason, Request, Requests, Software, Stage, Unit};

/// The device's history: no match reaches farther back, in bytes.
pub const WINDOW_BYTES: usize = 4096;
