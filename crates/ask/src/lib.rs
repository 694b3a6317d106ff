//! A Unix socket at which an owner asks a line and is answered with one.
//!
//! ```text
//!   exchange ── connect ──> the socket, mode 0600 ── SO_PEERCRED: the owner or root? ── a line ──> act
//!        <── a line: an Answer ──────────────────────────────────────────────────────────────────────
//! ```
//!
//! - [`Server`]: who listens; [`Act`], [`Work`]: what comes of a line
//! - [`Answer`]: the line that comes back; [`exchange`]: who asks
//!
//! Nobody but the owner and root is served. This is safe because
//! 1. the socket is the owner's ([`listen`]), and the kernel lets nobody else connect who may not write to it;
//! 2. the kernel says which user has connected, also where the mode was changed.

mod answer;
mod client;
mod server;

pub use answer::{Answer, LINE_BYTES};
pub use client::exchange;
pub use server::{Act, Server, Work, listen};
