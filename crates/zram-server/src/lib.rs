//! Serves a compressed block device. Whoever has the process calls [`start()`]: `zfolio zram serve` itself, or
//! nbdkit, which has loaded the plugin of the crate `zram-nbdkit`.
//!
//! ```text
//!   NBD: nbdkit's threads    virtio-blk, ublk: a thread a queue     zfolio zram set, show, list, reset
//!          |  plugin                   |  vhost_user, ublk                |  the crate ask
//!          v                           v                                  v
//!   Server  read write discard write_zeroes flush status           control: set, show
//!          |          Workers: one for each request under way             |
//!          v                                                              v
//!   zram::Device <--------------------------------------------------------+<-- tick, once a second
//! ```
//!
//! - [`options`]: what the user asks for, and how it is handed to nbdkit
//! - [`place`]: the device's number, and the directory with its control socket
//! - [`mod@start`]: how it begins
//! - [`workers`]: workers that are lent for a request; [`server`]: requests of all front ends, and the end
//! - `file`: the file of `--save`
//! - [`control`]: what is asked at the control socket
//! - `vhost_user`, `virtio_blk`: the front end of virtual machines
//! - `ublk`: the front end of this machine's kernel
//! - [`signals`]: SIGTERM and the like

pub mod control;
mod file;
pub mod options;
pub mod place;
pub mod server;
pub mod signals;
pub mod start;
mod ublk;
mod vhost_user;
mod virtio_blk;
pub mod workers;

pub use options::Options;
pub use server::{Refusal, Server};
pub use start::{Failure, start};
pub use zram::Content;
