//! The engine of a process: a process of its own that shares the program's memory and nothing else, and its workers.
//!
//! ```text
//!   engine process                                         worker processes
//!   process::main: asleep ──> awake: rounds::run           worker::main
//!        mm::Pager <── live::Live (userfaultfd)
//!           ├──── store::PageStore ───> zswap::Cache (the pool)
//!           └──── board::Board <────────────────────────> compress, decompress (zswap::Codec)
//! ```
//!
//! - [`process`]: the engine's process, asleep and awake; [`rounds`]: its loop; [`idle`]: how long it sleeps;
//!   [`placement`]: on which CPU it runs
//! - [`answer`]: what threads of the program ask for; [`fork`]: to stand still while one of them forks
//! - [`pager`]: the pager as it is in an engine; [`live`]: its kernel; [`store`]: its store; [`pool`]: the store's
//!   memory
//! - [`robust_lists`]: what of the program's threads must stay; [`dontfork`]: what the program keeps out of children;
//!   [`locked`]: locked memory; [`detach`]: how memory goes out that cannot be written to; [`smaps`]: the flags of
//!   mappings
//! - [`maker`]: what makes new objects; [`workers`]: the workers; [`worker`]: what one does; [`board`]: the jobs that
//!   they take; [`meter`]: what devices have done for one; [`processes`]: how workers and helpers are made
//! - [`watch`]: the program as the engine sees it; [`share`]: what of the limit is the process's; [`crawl`]: whether
//!   the program crawls; [`unhooked`]: copies of it that no hook saw; [`asked`]: what the user wants out now;
//!   [`pool_bounds`]: how large the pool may be beside swap areas
//! - [`follow`]: the engine gives up what its program gives up; [`creds`]: what that is; [`descriptors`]: what is
//!   opened before; [`filter`]: which system calls are left
//! - [`shared_store`]: what relatives store once; [`sharing`]: how that comes to be
//! - [`heap`]: what allocates in the engine's memory

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod answer;
mod areas;
pub mod asked;
pub mod board;
pub mod crawl;
pub mod creds;
pub mod descriptors;
pub mod detach;
pub mod dontfork;
pub mod filter;
pub mod follow;
pub mod fork;
pub mod heap;
pub mod idle;
pub mod live;
pub mod locked;
pub mod maker;
pub mod meter;
pub mod pager;
pub mod placement;
pub mod pool;
pub mod pool_bounds;
pub mod process;
pub mod processes;
pub mod robust_lists;
pub mod rounds;
pub mod share;
pub mod shared_store;
pub mod sharing;
pub mod smaps;
pub mod store;
pub mod unhooked;
pub mod watch;
pub mod worker;
pub mod workers;

#[cfg(test)]
#[path = "../../zfolio/tests/skip/mod.rs"]
mod skip;
