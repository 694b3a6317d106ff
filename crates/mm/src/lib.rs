//! A live process: where each page of it is, how pages go out and come back, and what the kernel's events mean for
//! them.
//!
//! ```text
//!             events, faults                         jobs, results
//!   Kernel ───────────────────> Pager <───────────────────────> Store
//!   (userfaultfd, or simulated)   │                        (workers and pool, or simulated)
//!                                 ├── SwapMap       what is known of each page
//!                                 ├── InactiveList  pages on their way out, still as they were
//!                                 ├── Objects       what went out together, and who needs it (zswap)
//!                                 └── Regions, FaultQueue, Limit, Reclaim, SwapIn, Fresh, FetchAhead,
//!                                     Recompression, PoolLimit, CopyOnWrite, SharedStore
//! ```
//!
//! The world, by two traits, and what passes between: [`kernel`].
//!
//! Parts, each of which keeps its own invariants and knows no pager:
//! - [`swap_map`]: an entry for each page; it names an object (`zswap::objects`); [`inactive`]: where pages lie in
//!   between
//! - `regions`: what is registered, and what of that is in doubt; `quarantine`: what may be discarded just now
//! - `limit`: watermarks and footprint; `fault_queue`: threads that wait; `bell`: threads that ask
//! - `reclaim`: the clock hand; `areas`: where it may take something; `recompression`: its second hand
//! - `pool_limit`: how large the pool may be where there are swap areas
//! - `swapin`: how a page comes from its object; `fetch_ahead`: what is loaded early; `fresh`: what nobody has
//!   registered yet
//! - `advised`: what the program says of its memory
//! - `cow`: what a fork has left to several processes; [`shared_store`]: what of that is stored once
//! - `ranges`: sets of addresses
//!
//! [`pager`] has the parts and the turn. What it does is in files below it:
//! - `event`, `quiet`: unmap, remap, remove, and when none of that is under way
//! - `register`; out: `evict`, `move_out`, `deflate`, `recompress`, `write_back`
//! - in: `serve`, `activate`, `load`, `fill`, ahead `fetch`, all of it `home`; and slots in between: `stock`
//! - `advise`: out and in as the program says
//! - [`fork`]: what a child takes over; `share`: its pages, `log`: its objects; [`look`]: what the program asks
//!   about its pages
//! - `check`: what holds between the parts; `sim`: the simulator

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod advised;
mod areas;
mod bell;
mod cow;
mod fault_queue;
mod fetch_ahead;
mod fresh;
mod huge;
pub mod inactive;
pub mod kernel;
mod limit;
pub mod pager;
mod pool_limit;
mod quarantine;
pub mod ranges;
mod reclaim;
mod recompression;
mod regions;
pub mod shared_store;
mod shortage;
pub mod swap_map;
mod swapin;

pub use pager::{Config, Pager, fork, look, tell};
