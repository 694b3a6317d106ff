//! What an engine opens while it may: descriptors stay what they are when rights have gone. An engine that sleeps has
//! nothing open of this until its program is about to give something up, or until it awakes.

use crate::pool::Mover;
use control::handover::{Areas, NEED_NS, Opener};
use control::run;
use memcg::Memcg;
use uffd::maps::Maps;
use uffd::pagemap::Pagemap;
use uffd::sys::{self, Errno, Fd, Result, consts::O_RDONLY};
use uffd::{Features, Memory, Userfault};

/// What an engine has opened; what was refused says why.
pub struct Descriptors {
    /// For the program's memory and the inactive list.
    pub events: Result<Userfault>,
    /// For what is dropped.
    pub quiet: Result<Userfault>,
    /// For the pool, with page tables to ask.
    pub pool: Result<Mover>,
    /// The page tables.
    pub pagemap: Result<Pagemap>,
    /// The mappings.
    pub maps: Result<Maps>,
    /// The memory itself.
    pub memory: Result<Memory>,
    /// What of it is of which kind (crawl.rs).
    pub smaps: Result<Fd>,
    /// What the run's swap areas take; `None` where it has none.
    pub areas: Option<Result<Areas>>,
}

impl Descriptors {
    /// Opens what can be had.
    pub fn open() -> Descriptors {
        let mut opener = Opener::new(NEED_NS);
        let has_areas = run::memcg().is_some_and(Memcg::has_areas);
        let events = opener.userfault(Features::Events);
        let quiet = opener.userfault(Features::Quiet);
        let pool = opener.userfault(Features::Quiet);
        Descriptors {
            events,
            quiet,
            pool: pool.and_then(|quiet| Ok(Mover { quiet, pagemap: opener.pagemap(0)? })),
            pagemap: opener.pagemap(1),
            maps: Maps::open(),
            memory: opener.memory(),
            smaps: sys::open(b"/proc/self/smaps\0", O_RDONLY),
            areas: has_areas.then(|| opener.areas()),
        }
    }
}

/// What helps where this call of an engine's has said this.
pub fn remedy(call: &str, errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM | Errno::EACCES if call == "userfaultfd" => {
            ", and `zfolio run` cannot hand over /dev/userfaultfd: give the user who runs it access \
             (setfacl -m u:USER:rw /dev/userfaultfd; in a container: docker run --device /dev/userfaultfd)"
        }
        Errno::EACCES if call == "/proc/self/pagemap" => {
            ": its program has given up root, or may not be dumped, and `zfolio run` may not look into it \
             (that takes root; in a container: docker run --cap-add SYS_PTRACE)"
        }
        _ => "",
    }
}
