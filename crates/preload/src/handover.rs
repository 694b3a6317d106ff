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
}

/// Asks, and waits for no longer than `ns`. EACCES: this process is not of the tree.
pub fn ask(ns: u64) -> Result<Handed> {
    let mut path = [0; memcg::PATH_BYTES];
    let path = exec::beside_library(memcg::HANDOVER_FILE, &mut path).ok_or(Errno::ENOENT)?;
    let socket = socket::connect(path, ns)?;
    let [page, settings, device] = socket::receive(&socket)?;
    let (page, settings) = page.zip(settings).ok_or(Errno::EACCES)?;
    Ok(Handed { page, settings, device })
}
