//! What an engine opens while it may: descriptors stay what they are when rights have gone. An engine that sleeps has nothing open of this until its program is about to
//! give something up, or until it awakes.

use crate::handover::{self, Handed};
use crate::pool::Means;
use uffd::maps::Maps;
use uffd::pagemap::Pagemap;
use uffd::sys::{self, Errno, Fd, Result, consts::O_RDONLY};
use uffd::{Features, Memory, Userfault};

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
        let mut maker = Maker::new(handover::NEED_NS);
        let events = maker.open(Features::Events);
        let quiet = maker.open(Features::Quiet);
        let pool = maker.open(Features::Quiet);
        Keys {
            events,
            quiet,
            pool: pool.and_then(|quiet| Pagemap::open().map(|pagemap| (quiet, pagemap))),
            pagemap: Pagemap::open(),
            maps: Maps::open(),
            memory: Memory::own(),
            smaps: sys::open(b"/proc/self/smaps\0", O_RDONLY),
        }
    }
}

/// Makes userfaultfds: with the process's own right, else by the device that `zfolio run` hands over.
struct Maker {
    ns: u64,
    /// Asked for once.
    device: Option<Result<Fd>>,
}

impl Maker {
    fn new(ns: u64) -> Maker {
        Maker { ns, device: None }
    }

    /// The error is what the process was refused with.
    fn open(&mut self, features: Features) -> Result<Userfault> {
        Userfault::open(features).or_else(|refused| {
            let ask = || handover::ask(self.ns).and_then(|Handed { device, .. }| device.ok_or(Errno::ENOENT));
            let device = self.device.get_or_insert_with(ask).as_ref().map_err(|_| refused)?;
            Userfault::open_by(device, features).map_err(|_| refused)
        })
    }
}

/// A userfaultfd as an engine has it for the program's memory, to see whether there is one to be had; `zfolio run` is waited for no longer than `ns`.
pub fn userfault(ns: u64) -> Result<Userfault> {
    Maker::new(ns).open(Features::Events)
}

/// What helps where this call of an engine's has said this.
pub fn remedy(call: &str, errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM | Errno::EACCES if call == "userfaultfd" => {
            ", and `zfolio run` cannot hand over /dev/userfaultfd: give the user who runs it access \
             (setfacl -m u:USER:rw /dev/userfaultfd; in a container: docker run --device /dev/userfaultfd)"
        }
        _ => "",
    }
}
