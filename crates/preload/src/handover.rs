//! What this process may not open and `zfolio run` may: it is asked for it by a socket in the run's directory, and sends descriptors to processes of its tree.
//!
//! Who asks has descriptors of its own, not the program's: an engine, or a process beside the program (`birth::aside`). It asks only where it was refused before, since a
//! filter of system calls may end it for that.

use crate::exec;
use uffd::sys::{Errno, Result};
use uffd::{Fd, socket};

/// How long an answer may take, in nanoseconds: for who cannot do without, and for who only tries.
pub const NEED_NS: u64 = 10_000_000_000;
/// See [`NEED_NS`].
pub const TRY_NS: u64 = 1_000_000_000;

/// See the head of the file.
pub struct Handed {
    /// The run's page, and its beginning.
    pub page: Fd,
    /// See `page`.
    pub settings: Fd,
    /// /dev/userfaultfd, where `zfolio run` may open it.
    pub device: Option<Fd>,
    /// Page tables and memory of who asks, where the kernel keeps them from it and `zfolio run` may open them.
    pub own: Option<Own>,
}

/// What each process may open of itself, but one that has given up root, or is not dumpable: these files are root's then. Each is there until it is taken.
pub struct Own {
    /// /proc/self/pagemap, once and once more.
    pub pagemaps: [Option<Fd>; 2],
    /// /proc/self/mem.
    pub memory: Option<Fd>,
}

/// Asks, and waits for no longer than `ns`. EACCES: this process is not of the tree.
pub fn ask(ns: u64) -> Result<Handed> {
    let mut path = [0; memcg::PATH_BYTES];
    let path = exec::beside_library(memcg::HANDOVER_FILE, &mut path).ok_or(Errno::ENOENT)?;
    let socket = socket::connect(path, ns)?;
    let (what, files) = socket::receive::<6>(&socket)?;
    let mut files = files.into_iter().flatten();
    let mut next = || files.next().ok_or(Errno::EACCES);
    let (page, settings) = (next()?, next()?);
    let device = (what & memcg::HANDS_DEVICE != 0).then(&mut next).transpose()?;
    let mut own = || Ok(Own { pagemaps: [Some(next()?), Some(next()?)], memory: Some(next()?) });
    let own = (what & memcg::HANDS_MEMORY != 0).then(&mut own).transpose()?;
    Ok(Handed { page, settings, device, own })
}
