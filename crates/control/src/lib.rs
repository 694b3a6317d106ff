//! What the program's threads and the engine of a process tell each other, and what both stand on.
//!
//! Everything here may run on a program's thread, at any instruction of the program: nothing allocates, touches
//! thread-local storage, or waits for whoever waits for it.
//!
//! ```text
//!   interpose (the program's threads)          engine (the engine and its workers)
//!              └───────────> control <────────────────┘
//! ```
//!
//! - [`state`]: the words that both read and write, and the requests that a thread has
//! - [`advice`]: what threads advise, and do not wait for
//! - [`fork_channel`]: what they tell each other for a fork
//! - [`page_tables`]: what the program is told of its page tables
//! - [`hooked`]: which of libc's system calls pass the library; [`blocks`]: where libc has its threads' control blocks
//! - [`hull`]: where memory was mapped
//! - [`log`]: the logs of what relatives store once, and who may write to them
//! - [`run`]: the run that the process belongs to; [`handover`]: what `zfolio run` opens for who may not
//! - [`messages`]: what is said to the user; [`mod@line`]: a line of text without an allocation
//! - [`arena`]: the engine's memory; [`reservation`]: which addresses it has; [`stack`]: stacks in it
//! - [`library`]: where the library lies
//! - [`footprint`]: how much memory a process holds; [`tasks`]: what the kernel tells of its threads

#![cfg_attr(not(test), no_std)]

pub mod advice;
pub mod arena;
pub mod blocks;
pub mod footprint;
pub mod fork_channel;
pub mod handover;
pub mod hooked;
pub mod hull;
pub mod library;
pub mod line;
pub mod log;
pub mod messages;
pub mod page_tables;
pub mod pinned;
pub mod reservation;
pub mod run;
pub mod stack;
pub mod state;
pub mod tasks;

pub use state::{
    CONTROL, Control, DOORBELL_BYTES, EngineState, Order, Request, Takeover, Taking, UNANSWERED,
};
