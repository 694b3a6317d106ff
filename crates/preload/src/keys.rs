//! What an engine opens while it may: descriptors stay what they are when rights have gone. An engine that sleeps has nothing open of this until its program is about to
//! give something up, or until it awakes.

use crate::pool::Means;
use uffd::maps::Maps;
use uffd::pagemap::Pagemap;
use uffd::sys::{self, Result, consts::O_RDONLY};
use uffd::{Fd, Features, Memory, Userfault};

/// See the head of the file; what was refused says why.
pub struct Keys {
    /// For the program's memory and the stage.
    pub events: Result<Userfault>,
    /// For what is dropped.
    pub quiet: Result<Userfault>,
    /// For the pool, with page tables to ask.
    pub pool: Result<Means>,
    /// The page tables.
    pub pagemap: Result<Pagemap>,
    /// The mappings.
    pub maps: Result<Maps>,
    /// The memory itself.
    pub memory: Result<Memory>,
    /// What of it is of which kind (crawl.rs).
    pub smaps: Result<Fd>,
}

impl Keys {
    /// Opens what can be had.
    pub fn open() -> Keys {
        Keys {
            events: Userfault::open(Features::Events),
            quiet: Userfault::open(Features::Quiet),
            pool: Userfault::open(Features::Quiet)
                .and_then(|quiet| Pagemap::open().map(|pagemap| (quiet, pagemap))),
            pagemap: Pagemap::open(),
            maps: Maps::open(),
            memory: Memory::own(),
            smaps: sys::open(b"/proc/self/smaps\0", O_RDONLY),
        }
    }
}
