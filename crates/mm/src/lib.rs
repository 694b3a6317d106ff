//! A live process: where each page of it is, how pages go out and come back, and what the kernel's events mean for them.
//!
//! ```text
//!             events, faults                         jobs, results
//!   Kernel ───────────────────> Pager <───────────────────────> Store
//!   (userfaultfd, or simulated)   │                        (workers and pool, or simulated)
//!                                 ├── SwapMap       what is known of each page
//!                                 ├── InactiveList    pages on their way out, still as they were
//!                                 └── Objects       what went out together, and who needs it
//! ```
//!
//! - [`kernel`]: the two traits, and what passes between
//! - [`swap_map`]: a page table of our own
//! - [`inactive`], [`object`]: what the swap map points to
//! - `areas`: where there is something to take
//! - [`pager`]: the state and its turn. `event`: unmap, remap, remove; `enroll`: what is registered; `evict`: out; `pack`: out once more, and smaller;
//!   `fault`: in; `fetch`: in, ahead; [`fork`]: what a child takes over; `shared`: what it has in common with its parent afterwards,
//!   [`family`]: and what of it is stored once for both; [`look`]: what the program asks about its pages; `check`: an invariant walker

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod areas;
mod bell;
mod cow;
mod fault_queue;
mod fetch_ahead;
mod fresh;
pub mod inactive;
pub mod kernel;
mod limit;
mod mask;
pub mod object;
pub mod pager;
mod quarantine;
mod ranges;
mod reclaim;
mod recompression;
mod regions;
pub mod shared_store;
pub mod swap_map;
mod swapin;

pub use pager::{Config, Pager, fork, look};
