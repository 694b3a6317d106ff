//! What this process may not open and `zfolio run` may: it is asked for it by a socket in the run's directory, and
//! sends descriptors to processes of its tree.
//!
//! Who asks has descriptors of its own, not the program's: an engine, or a process beside the program (`aside::aside`).
//! It asks only where it was refused before, since a filter of system calls may end it for that.

use crate::run;
use core::array;
use core::sync::atomic::{AtomicU32, Ordering::*};
use memcg::AREAS_MAX;
use uffd::pagemap::Pagemap;
use uffd::sys::{self, Errno, Result};
use uffd::{Fd, Features, Memory, Userfault, socket};

/// How long an answer may take, in nanoseconds: for who cannot do without, and for who only tries.
pub const NEED_NS: u64 = 10_000_000_000;
/// See [`NEED_NS`].
pub const TRY_NS: u64 = 1_000_000_000;

/// What `zfolio run` has handed over.
pub struct Handed {
    /// The run's page, and its beginning.
    pub page: Fd,
    /// See `page`.
    pub settings: Fd,
    /// /dev/userfaultfd, where `zfolio run` may open it.
    pub device: Option<Fd>,
    /// Page tables and memory of who asks, where the kernel keeps them from it and `zfolio run` may open them.
    pub own: Option<Own>,
    /// What the run's swap areas take, where it has one; until it is taken.
    pub areas: Option<Areas>,
}

/// What each process may open of itself, but one that has given up root, or is not dumpable: these files are root's
/// then. Each is there until it is taken.
pub struct Own {
    /// /proc/self/pagemap, once and once more.
    pub pagemaps: [Option<Fd>; 2],
    /// /proc/self/mem.
    pub memory: Option<Fd>,
}

/// The run's swap areas.
pub struct Areas {
    /// The file of swap's table, by a file description that nobody else has: locks by it are those of who asks.
    pub table: Fd,
    /// The file with the run's key, to be read.
    pub key: Fd,
    /// Each area's file, in the order of [`Settings::areas`](memcg::Settings::areas); those that are there come first.
    pub files: [Option<Fd>; AREAS_MAX],
}

/// How often who is sent nothing, or is interrupted, asks at most, and the pause between: a child that is refused once
/// is lost.
const TRIES: usize = 5;
const PAUSE_NS: u64 = 5_000_000;

/// Why nothing was handed over at the last time, as the kernel's number; 0 where something was.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// Why nothing was handed over at the last time.
pub fn refused() -> Option<Errno> {
    Some(Errno(REFUSED.load(Relaxed) as u16)).filter(|errno| errno.0 != 0)
}

/// Asks, and waits for no longer than `ns`. EACCES: this process is not of the tree.
pub fn ask(ns: u64) -> Result<Handed> {
    let end = sys::now_ns() + ns;
    let mut tries = 0;
    let handed = loop {
        let left = end.saturating_sub(sys::now_ns()).max(PAUSE_NS);
        tries += 1;
        match ask_once(left) {
            Err(Errno::EACCES | Errno::EINTR) if tries < TRIES => sys::sleep_ns(PAUSE_NS),
            handed => break handed,
        }
    };
    REFUSED.store(handed.as_ref().err().map_or(0, |errno| errno.0.into()), Relaxed);
    handed
}

fn ask_once(ns: u64) -> Result<Handed> {
    let mut path = [0; memcg::PATH_BYTES];
    let path = run::beside_library(memcg::HANDOVER_FILE, &mut path).ok_or(Errno::ENOENT)?;
    let socket = socket::connect(path, ns)?;
    let (what, files) = socket::receive::<{ memcg::HANDS_MAX }>(&socket)?;
    sorted(what, files.into_iter().flatten())
}

/// What descriptors are that have come together, by the byte that came with them.
fn sorted(what: u8, mut files: impl Iterator<Item = Fd>) -> Result<Handed> {
    let mut next = || files.next().ok_or(Errno::EACCES);
    let (page, settings) = (next()?, next()?);
    let device = (what & memcg::HANDS_DEVICE != 0).then(&mut next).transpose()?;
    let mut own = || Ok(Own { pagemaps: [Some(next()?), Some(next()?)], memory: Some(next()?) });
    let own = (what & memcg::HANDS_MEMORY != 0).then(&mut own).transpose()?;
    let mut all = || Ok(Areas { table: next()?, key: next()?, files: array::from_fn(|_| next().ok()) });
    let areas = (what & memcg::HANDS_AREAS != 0).then(&mut all).transpose()?;
    Ok(Handed { page, settings, device, own, areas })
}

/// Opens with the process's own right, or has what `zfolio run` hands over. Each error is what the process was refused
/// with.
pub struct Opener {
    ns: u64,
    /// `zfolio run` is asked for it once.
    handed: Option<Result<Handed>>,
}

impl Opener {
    /// One that waits for `zfolio run` for no longer than `ns`.
    pub fn new(ns: u64) -> Opener {
        Opener { ns, handed: None }
    }

    fn handed(&mut self) -> Option<&mut Handed> {
        self.answer().ok()
    }

    fn answer(&mut self) -> Result<&mut Handed> {
        let ns = self.ns;
        self.handed.get_or_insert_with(|| ask(ns)).as_mut().map_err(|errno| *errno)
    }

    /// A userfaultfd.
    pub fn userfault(&mut self, features: Features) -> Result<Userfault> {
        Userfault::open(features).or_else(|refused| {
            let device = self.handed().and_then(|handed| handed.device.as_ref()).ok_or(refused)?;
            Userfault::open_by(device, features).map_err(|_| refused)
        })
    }

    /// The page tables of this process: each of two.
    pub fn pagemap(&mut self, index: usize) -> Result<Pagemap> {
        Pagemap::open().or_else(|refused| {
            let own = self.handed().and_then(|handed| handed.own.as_mut()).ok_or(refused)?;
            own.pagemaps[index].take().map(Pagemap::opened).ok_or(refused)
        })
    }

    /// The memory of this process.
    pub fn memory(&mut self) -> Result<Memory> {
        Memory::own().or_else(|refused| {
            let own = self.handed().and_then(|handed| handed.own.as_mut()).ok_or(refused)?;
            own.memory.take().ok_or(refused).and_then(Memory::opened)
        })
    }

    /// What the run's swap areas take: only `zfolio run` has it, and it can be taken once. ENOENT: the run has no area,
    /// or it has been taken. EACCES: this process is not of the tree.
    pub fn areas(&mut self) -> Result<Areas> {
        self.answer()?.areas.take().ok_or(Errno::ENOENT)
    }
}

/// True where an engine would have what it cannot do without; `zfolio run` is waited for no longer than `ns`.
pub fn can_be_had(ns: u64) -> bool {
    let mut opener = Opener::new(ns);
    opener.pagemap(0).is_ok() && opener.memory().is_ok() && opener.userfault(Features::Events).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::{HANDS_AREAS, HANDS_DEVICE, HANDS_MAX, HANDS_MEMORY};

    /// So many files, and their numbers.
    fn files(count: usize) -> (Vec<Fd>, Vec<i32>) {
        let files: Vec<Fd> = (0..count).map(|_| sys::memfd(c"handed").unwrap()).collect();
        let numbers = files.iter().map(Fd::raw).collect();
        (files, numbers)
    }

    #[test]
    fn areas_come_behind_all_else_and_can_be_taken_once() {
        for (what, before) in [(0, 2), (HANDS_DEVICE, 3), (HANDS_MEMORY, 5), (HANDS_DEVICE | HANDS_MEMORY, 6)]
        {
            for count in [1, AREAS_MAX] {
                let (files, numbers) = files(before + 2 + count);
                assert!(files.len() <= HANDS_MAX);
                let handed = sorted(what | HANDS_AREAS, files.into_iter());
                let mut opener = Opener { ns: 0, handed: Some(handed) };
                let areas = opener.areas().unwrap();
                let seen = [&areas.table, &areas.key].into_iter().chain(areas.files.iter().flatten());
                assert!(seen.map(Fd::raw).eq(numbers[before..].iter().copied()), "{what} {count}");
                assert_eq!(opener.areas().err(), Some(Errno::ENOENT));
            }
        }
    }

    #[test]
    fn too_few_descriptors_are_an_error_and_no_area_is_none() {
        assert!(sorted(0, files(2).0.into_iter()).unwrap().areas.is_none());
        for count in 0..4 {
            let handed = sorted(HANDS_AREAS, files(count).0.into_iter());
            assert_eq!(handed.err(), Some(Errno::EACCES), "{count}");
        }
    }
}
