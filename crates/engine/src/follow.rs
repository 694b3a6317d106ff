//! The engine and its workers have no more rights than their program: what it gives up they give up.
//!
//! ```text
//!   program's thread: setuid ── asks, before and after ──> engine: opens what it needs, follows ──> workers: follow
//!                        └─ waits until all have ────────────────────────────────────────────────────┘
//! ```
//!
//! Anything in the program can write to the engine's memory, its stack included, and so could do whatever the engine
//! may do. A call that passes no hook is found by a look, a few times a second.
//!
//! What remains after that is enough: descriptors that are open stay what they are, signals go between processes of one
//! user, and where robust lists are is in libc's control blocks (robust_lists.rs), of which the kernel says nothing any
//! more.

use crate::creds::{self, CAP_SYS_NICE, Rights};
use control::CONTROL;
use control::line::Line;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use uffd::sys::{self, Fd, consts::*};

/// How often an engine looks by itself.
const LOOK_NS: u64 = 100_000_000;

/// For the engine: the number of what was asked for, if that is not done yet.
pub fn asked() -> Option<u32> {
    let asked = CONTROL.rights_asked.load(SeqCst);
    (asked != CONTROL.rights_done.load(SeqCst)).then_some(asked)
}

/// For the engine: it is done.
pub fn answer(asked: u32) {
    CONTROL.rights_done.store(asked, SeqCst);
    sys::futex_wake(CONTROL.rights_done.as_ptr(), u32::MAX >> 1, true);
}

/// For a process that follows the program `pid`.
pub struct Follower {
    pid: u32,
    /// /proc/PID/status of the program, and of this process; `None` where they cannot be had.
    files: Option<(Fd, Fd)>,
    /// This process's user namespace.
    space: [u8; 32],
    /// What the program had at the last look.
    seen: Option<(Rights, bool)>,
    looked_ns: u64,
    /// It has the program's memory, and not its own.
    is_in_program: bool,
}

impl Follower {
    /// Begins with the rights that the program has. Without its number, where /proc shows others, nothing is followed.
    pub fn open(pid: Option<u32>, is_in_program: bool) -> Follower {
        let pid = pid.unwrap_or(0);
        let mut path = Line::default();
        let _ = write!(path, "/proc/{pid}/status\0");
        let program = sys::open(path.as_str().as_bytes(), O_RDONLY);
        let own = sys::open(b"/proc/self/status\0", O_RDONLY);
        let files = program.and_then(|program| Ok((program, own?))).ok();
        let mut space = [0; 32];
        // Refused, no program is of this namespace: no capability is kept.
        let _ = sys::readlink(b"/proc/self/ns/user\0", &mut space);
        Follower { pid, files, space, seen: None, looked_ns: 0, is_in_program }
    }

    /// True when it has not looked for a while.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns - self.looked_ns > LOOK_NS
    }

    /// Looks; true when the program's rights are not what they were, and this process has others.
    pub fn has_changed(&mut self, now_ns: u64) -> bool {
        self.looked_ns = now_ns;
        let Some((program, own)) = &self.files else { return false };
        let now = Rights::of_process(self.pid, program).map(|rights| (rights, self.shares_namespace()));
        let Ok(now) = now else { return false };
        let before = self.seen.replace(now);
        before != Some(now) && Rights::read(own).is_ok_and(|own| own.exceed(&now.0, now.1))
    }

    /// Gives up what the program had given up at the last look.
    pub fn follow(&self) {
        let (Some((_, own)), Some((program, shares_namespace))) = (&self.files, &self.seen) else { return };
        let Ok(own) = Rights::read(own) else { return };
        let reduce = || creds::reduce(&own, program, *shares_namespace);
        if self.is_in_program { creds::with_looks_as_they_are(reduce) } else { reduce() }
    }

    /// True when this process may leave SCHED_IDLE, or make others leave it.
    pub fn may_lift(&self) -> bool {
        let own = self.files.as_ref().and_then(|(_, own)| Rights::read(own).ok());
        own.is_some_and(|own| own.has(CAP_SYS_NICE)) || sys::nice_limit() >= LIFTS
    }

    /// False when the program's capabilities are about another user namespace. Who may not ask has none.
    fn shares_namespace(&self) -> bool {
        let (mut path, mut space) = (Line::default(), [0; 32]);
        let _ = write!(path, "/proc/{}/ns/user\0", self.pid);
        sys::readlink(path.as_str().as_bytes(), &mut space).is_err() || space == self.space
    }
}

/// The RLIMIT_NICE that does so: nice 0.
const LIFTS: u64 = 20;
