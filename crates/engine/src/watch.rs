//! The program, as its engine watches it: whether it is gone, what it holds and may hold, how it calls itself.

use crate::creds;
use crate::descriptors::Descriptors;
use crate::filter::{self, Company, Phase};
use crate::follow::{self, Follower};
use crate::share::{self, Coordinator, Copies};
use control::footprint::{Status, footprint};
use control::line::Line;
use control::tasks;
use control::{CONTROL, Order};
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memcg::PagesOut;
use uffd::sys::{self, Errno, Fd, consts::*};

/// A program that is watched.
pub struct Watch {
    /// What the engine was started with.
    pub order: Order,
    /// The program's process.
    pub program: Fd,
    /// /proc/PID/statm of the program's memory.
    pub statm: Fd,
    /// /proc/PID/status of it.
    pub status: Status,
    /// /proc/PID/comm of the program, where there is one, and when to read it again.
    comm: Option<Fd>,
    comm_due_ns: u64,
    coordinator: Coordinator,
    /// What it copies of what relatives have too, while nobody is told of its writes.
    pub copies: Copies,
    /// The engine's process id.
    pub own_pid: u32,
    /// What it may do.
    rights: Follower,
    /// What was opened before it gave something up.
    opened: Option<Descriptors>,
    /// /proc has the program by its number.
    is_shown: bool,
    /// The engine began with a filter.
    pub was_filtered: bool,
    cpu_ns: u64,
}

impl Watch {
    /// Begins to watch. An error names what could not be had; ESRCH: the program has ended before.
    pub fn open(order: Order) -> Result<Watch, (&'static str, Errno)> {
        let program = sys::pidfd_open(order.pid).map_err(|e| ("pidfd_open", e))?;
        let statm = sys::open(b"/proc/self/statm\0", O_RDONLY).map_err(|e| ("/proc/self/statm", e))?;
        let mut status = Status::open();
        // Elsewhere its number is another process's.
        let seen = Some(order.pid).filter(|_| tasks::is_shown());
        let comm = seen.and_then(|pid| open_comm(pid).ok());
        order.slot.start.store(seen.and_then(share::started).unwrap_or(0), Relaxed);
        let coordinator = Coordinator::open(&order);
        let own_pid = sys::getpid().unwrap_or(0) as u32;
        let inherits = (CONTROL.inherits.swap(0, Relaxed) != 0)
            .then(|| footprint(&statm) + status.swapped_bytes(sys::now_ns(), order.memcg));
        if let Some(bytes) = inherits {
            // All that a child of fork has is its parent's too, until it writes, or the coordinator has looked.
            order.slot.share.excess_bytes.store(bytes as u64, Relaxed);
        }
        let copies = Copies::of(order.pid, inherits);
        let rights = Follower::open(seen, true);
        Ok(Watch {
            order,
            program,
            statm,
            status,
            comm,
            comm_due_ns: 0,
            coordinator,
            copies,
            own_pid,
            rights,
            opened: None,
            is_shown: seen.is_some(),
            was_filtered: creds::is_filtered(),
            cpu_ns: 0,
        })
    }

    /// Sees to it that the engine has no more rights than the program, now and then and when a thread asks for it:
    /// where there is something to give up, `act` does it.
    pub fn follow(&mut self, now_ns: u64, act: impl FnOnce(&Follower)) {
        self.look_at_rights(now_ns, |watch| act(&watch.rights));
    }

    /// The same for an engine that sleeps, or has no work: what it would need to awake is opened before.
    pub fn follow_asleep(&mut self, now_ns: u64) {
        if follow::asked().is_some() {
            self.open_descriptors();
        }
        self.look_at_rights(now_ns, |watch| {
            watch.open_descriptors();
            watch.rights.follow();
        });
    }

    fn look_at_rights(&mut self, now_ns: u64, act: impl FnOnce(&mut Watch)) {
        let asked = follow::asked();
        if asked.is_none() && !self.rights.is_due(now_ns) {
            return;
        }
        if self.rights.has_changed(now_ns) {
            act(self);
        }
        asked.into_iter().for_each(follow::answer);
    }

    fn open_descriptors(&mut self) {
        if self.opened.is_none() {
            self.opened = Some(Descriptors::open());
            self.filter(Phase::Bound);
        }
    }

    /// The engine makes the calls of this phase alone from now on. One that began with a filter has another only
    /// when all else has been found to go.
    pub fn filter(&self, phase: Phase) {
        if !self.was_filtered || phase == Phase::Manages {
            filter::enter(phase, Company { program: self.order.pid, engine: self.own_pid, doors: None });
        }
    }

    /// What an engine needs to awake.
    pub fn descriptors(&mut self) -> Descriptors {
        self.opened.take().unwrap_or_else(Descriptors::open)
    }

    /// The program has ended, or executes another one in a memory of its own.
    pub fn gone(&self) -> bool {
        if sys::poll([&self.program], 0) == Ok([true]) {
            return true;
        }
        let Some((word, value)) = self.order.main_thread else {
            // Nothing tells when it executes another program; where the kernel may not say it goes on.
            return sys::same_vm(self.own_pid, self.order.pid) == Ok(false) && !self.has_left_memory();
        };
        // SAFETY: the main thread's control block; its mapping outlives the thread, and is never evicted (a pin).
        if unsafe { (word as *const u32).read_volatile() } == value {
            return false;
        }
        // The main thread is gone, and has not got this memory any more. If others live on in it there is nothing else
        // that it has got; if not, another program runs under this number. In this order: whoever leaves its memory
        // between the two questions has none at the second.
        let has_another = match sys::same_vm(self.own_pid, self.order.pid) {
            Ok(same) => !same,
            Err(errno) => errno != Errno::ENOSYS,
        };
        has_another && !self.has_left_memory()
    }

    /// True for a process whose main thread has ended, or is about to, and uses no memory any more. In a PID namespace
    /// with another's /proc, where its number is another process's, nothing is managed, and so nothing is lost where it
    /// is taken to have executed a program.
    fn has_left_memory(&self) -> bool {
        let (mut path, mut text) = (Line::default(), [0; 2]);
        let _ = write!(path, "/proc/{}/statm\0", self.order.pid);
        let file = || sys::open(path.as_str().as_bytes(), O_RDONLY);
        self.is_shown && file().and_then(|file| sys::read(&file, &mut text)) == Ok(2) && text == *b"0 "
    }

    /// Sleeps until the program is gone, or for a time.
    pub fn sleep(&self, ns: u64) {
        match self.order.main_thread {
            // The kernel wakes this word as the thread ends or executes another program.
            Some((word, value)) => {
                let woken = sys::futex_wait(word as *const u32, value, Some(ns), true);
                if woken.is_ok() {
                    // The kernel wakes one sleeper: who joins the main thread must not miss it for us.
                    sys::futex_wake(word as *const u32, 1, true);
                } else if woken == Err(Errno::EAGAIN) {
                    // The main thread ended before others: wait for the process.
                    let _ = sys::poll([&self.program], ns);
                }
            }
            None => drop(sys::poll([&self.program], ns)),
        }
    }

    /// Bytes of private memory, what the machine's swap has of it included.
    pub fn footprint(&mut self) -> usize {
        footprint(&self.statm) + self.status.swapped_bytes(sys::now_ns(), self.order.memcg)
    }

    /// What of `footprint` bytes is counted with the process's relatives.
    pub fn excess(&self, footprint: usize) -> usize {
        share::excess(&self.order, footprint)
    }

    /// What this process may use, when it uses `own` bytes besides what is counted with its relatives.
    pub fn limit(&self, own: usize) -> usize {
        share::limit(&self.order, own)
    }

    /// The same while the engine sleeps.
    pub fn limit_asleep(&self, own: usize) -> usize {
        share::limit_asleep(&self.order, own)
    }

    /// Publishes what the process holds, would hold alone, has out, and has in the pool, in bytes; and what is out, in
    /// pages. Without what is counted with its relatives.
    pub fn publish(&mut self, footprint: usize, wanted: usize, stored: usize, pool: usize, pages: PagesOut) {
        let own = share::own_part(&self.order, footprint);
        let [holds, wanted, stored, pool] = [footprint, wanted, stored, pool].map(&own);
        self.order.memcg.publish(self.order.slot, holds, wanted, stored, pool);
        self.order.memcg.publish_pages(self.order.slot, pages.values().map(own));
        self.coordinator.watch(&self.order, &self.program);
    }

    /// Adds what the engine has used of a processor since the last time.
    pub fn count_cpu(&mut self) {
        let now = sys::process_cpu_ns();
        self.order.slot.stat.engine_cpu_ns.fetch_add(now - self.cpu_ns, Relaxed);
        self.cpu_ns = now;
    }

    /// For how long the program has used CPUs, in nanoseconds; `None` where nobody knows.
    pub fn ran_ns(&self) -> Option<u64> {
        cpu_ns_of(self.order.pid)
    }

    /// Looks now and then whether the program has given itself another name.
    pub fn note_name(&mut self, now_ns: u64) {
        let Some(comm) = self.comm.as_ref().filter(|_| now_ns >= self.comm_due_ns) else { return };
        let mut name = [0; memcg::NAME_BYTES];
        let read = sys::pread(comm, &mut name, 0);
        // A program that this process has begun to execute meanwhile is another one: it gets an engine and a slot of
        // its own.
        if let Ok(len @ 1..) = read
            && !self.gone()
        {
            // Instead of the line's end.
            name[len - 1] = 0;
            self.order.slot.rename(&name);
        }
        self.comm_due_ns = now_ns + NAME_NS;
    }
}

/// How often the program's name is read.
const NAME_NS: u64 = 1_000_000_000;

/// Opens the file with the program's name.
fn open_comm(pid: u32) -> Result<Fd, Errno> {
    let mut path = Line::default();
    let _ = write!(path, "/proc/{pid}/comm\0");
    sys::open(path.as_str().as_bytes(), O_RDONLY)
}

/// CPU nanoseconds of a process (all its threads, ended ones too); `None` where there is none.
fn cpu_ns_of(pid: u32) -> Option<u64> {
    // As clock_getcpuclockid(3) makes the number of the clock.
    const SCHED: u32 = 2;
    Some(sys::clock(!pid << 3 | SCHED)).filter(|&ns| ns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_used_a_processor_and_none_has_not() {
        let own = sys::getpid().unwrap() as u32;
        assert!(cpu_ns_of(own).is_some_and(|ns| ns <= sys::process_cpu_ns()));
        assert_eq!(cpu_ns_of(u32::MAX >> 4), None);
    }
}
