//! A census of all who may be about to discard pages: they are seen elsewhere, or have run for so long that they must
//! be done.
//!
//! A thread that is done with its MADV_DONTNEED or MADV_FREE cannot be told by its user time. Where the kernel counts
//! ticks, it divides what a thread has run in the proportion of the ticks that were in user mode: user time grows
//! within a system call too. What a thread has run in all is exact. So a thread is past the call
//! 1. when it sleeps, but not as who waits for a lock of the kernel's or for its event to be read does; or
//! 2. when it has run for longer than such a call takes, however much there was to discard.
//!
//! Processes that share the memory (children of vfork, and of clone with CLONE_VM) are in no list of the program's
//! threads: they are found as its children, and theirs.

use alloc::vec::Vec;
use control::line::Line;
use control::tasks::{TaskStat, parse_tid};
use core::fmt::Write;
use uffd::sys::{self, consts::*};
use uffd::{Errno, Fd, PAGE};

/// A discard runs for less than this, and for a millisecond more for each so many pages. (0.3 us a page were seen. What
/// a hypervisor takes away may count as run.)
const CALL_MS: u64 = 100;
/// See [`CALL_MS`].
const PAGES_EACH_MS: usize = 200;

/// What /proc counts in.
const TICK_MS: u64 = 10;

/// A thread: its process, 0 for the program itself, and its number.
type Thread = (u32, u32);

/// Those of whom nothing is known yet, and the ticks that they had run when the census began, as far as that is known.
#[derive(Default)]
pub struct Census {
    left: Vec<(Thread, Option<u64>)>,
    /// How many more show that a thread is past its call.
    ticks: u64,
}

impl Census {
    /// Lists all threads that use the memory of the process `pid`, whose /proc/PID/task is `tasks`. So many bytes are
    /// about to be discarded at most.
    pub fn begin(tasks: &Fd, pid: u32, bytes: usize) -> Census {
        let ms = CALL_MS + (bytes / PAGE / PAGES_EACH_MS) as u64;
        // What is shown is rounded, then and now.
        let mut census = Census { left: Vec::new(), ticks: ms.div_ceil(TICK_MS) + 2 };
        let mut children = Vec::new();
        census.add(tasks, 0, &mut children);
        let (own, mut next) = (sys::getpid().unwrap_or(0) as u32, 0);
        while next < children.len() {
            let child: u32 = children[next];
            next += 1;
            // The engine may be a child of its program, where that adopts orphans.
            if child == own || sys::same_vm(pid, child) == Ok(false) {
                continue;
            }
            let mut path = Line::default();
            let _ = write!(path, "../../{child}/task\0");
            if let Ok(theirs) = sys::open_at(tasks, path.as_str().as_bytes(), O_RDONLY | O_DIRECTORY) {
                census.add(&theirs, child, &mut children);
            }
        }
        census
    }

    /// Adds the threads of a process, and to `children` its children.
    fn add(&mut self, tasks: &Fd, process: u32, children: &mut Vec<u32>) {
        let _ = sys::read_dir(tasks, |name| {
            let Some(tid) = parse_tid(name) else { return };
            match look(tasks, tid) {
                Ok(Some((_, ticks))) => self.left.push(((process, tid), Some(ticks))),
                Ok(None) => return,
                Err(_) => self.left.push(((process, tid), None)),
            }
            add_children(tasks, tid, children);
        });
    }

    /// True when all of them are past their calls, or gone.
    pub fn is_done(&mut self, tasks: &Fd) -> bool {
        let ticks = self.ticks;
        self.left.retain_mut(|((process, tid), before)| {
            let found = if *process == 0 { look(tasks, *tid) } else { look_at_other(tasks, *process, *tid) };
            match found {
                Ok(Some((state, now))) => {
                    let since = now.saturating_sub(*before.get_or_insert(now));
                    matches!(state, b'R' | b'D') && since < ticks
                }
                Ok(None) => false,
                Err(_) => true,
            }
        });
        self.left.is_empty()
    }
}

/// A thread's state letter, and how many ticks it has run; `None` when it is gone.
fn look(tasks: &Fd, tid: u32) -> Result<Option<(u8, u64)>, Errno> {
    let Some(stat) = TaskStat::read(tasks, tid)? else { return Ok(None) };
    let ran = stat.number(14).zip(stat.number(15));
    stat.state().zip(ran).map(|(state, (user, system))| Some((state, user + system))).ok_or(Errno::EINVAL)
}

/// The same of another process's thread.
fn look_at_other(tasks: &Fd, process: u32, tid: u32) -> Result<Option<(u8, u64)>, Errno> {
    let mut path = Line::default();
    let _ = write!(path, "../../{process}/task\0");
    match sys::open_at(tasks, path.as_str().as_bytes(), O_RDONLY | O_DIRECTORY) {
        Ok(theirs) => look(&theirs, tid),
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Adds the numbers of the processes that a thread has made. Kernels without CONFIG_PROC_CHILDREN tell of none.
fn add_children(tasks: &Fd, tid: u32, children: &mut Vec<u32>) {
    let mut path = Line::default();
    let _ = write!(path, "{tid}/children\0");
    let Ok(file) = sys::open_at(tasks, path.as_str().as_bytes(), O_RDONLY) else { return };
    let (mut text, mut number) = ([0u8; 512], None);
    while let Ok(len @ 1..) = sys::read(&file, &mut text) {
        for &byte in &text[..len] {
            if byte.is_ascii_digit() {
                number = Some(number.unwrap_or(0) * 10 + u32::from(byte - b'0'));
            } else {
                children.extend(number.take());
            }
        }
    }
    children.extend(number);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn tasks() -> Fd {
        sys::open(b"/proc/self/task\0", O_RDONLY | O_DIRECTORY).unwrap()
    }

    #[test]
    fn a_thread_that_cannot_be_looked_at_is_not_taken_for_one_that_is_gone() {
        let tid = sys::gettid().unwrap() as u32;
        assert!(matches!(look(&tasks(), tid), Ok(Some((b'R', _)))));
        assert_eq!(look(&tasks(), u32::MAX), Ok(None));
        let no_directory = core::mem::ManuallyDrop::new(Fd::own(u32::MAX as usize));
        assert_eq!(look(&no_directory, tid), Err(Errno::EBADF));
    }

    #[test]
    fn a_child_that_has_memory_of_its_own_is_not_waited_for() {
        let mut child = Command::new("sleep").arg("100").stdout(Stdio::null()).spawn().unwrap();
        let mut all = Vec::new();
        Census::default().add(&tasks(), 0, &mut all);
        let census = Census::begin(&tasks(), std::process::id(), 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(all.contains(&child.id()), "{all:?}");
        assert!(census.left.iter().all(|((process, _), _)| *process != child.id()));
    }

    #[test]
    fn a_thread_that_computes_is_past_its_call_after_so_long() {
        let mut census = Census::begin(&tasks(), std::process::id(), 0);
        let own = sys::gettid().unwrap() as u32;
        census.left.retain(|((_, tid), _)| *tid == own);
        assert_eq!(census.left.len(), 1);
        assert!(!census.is_done(&tasks()), "it runs, and has not run for long");
        let mut rounds = 0u64;
        while !census.is_done(&tasks()) {
            rounds += 1;
        }
        assert!(rounds > 10, "{rounds}");
        assert!(Census::begin(&tasks(), 0, 1 << 30).ticks > 100, "more takes longer");
    }
}
