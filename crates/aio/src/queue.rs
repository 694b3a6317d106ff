//! Which request is where: waiting, with the kernel, or finished.
//!
//! The queue holds at most `entries` reads and as many writes. Of all these the kernel has at most `entries` at a time:
//!
//! - a read goes before each write that waits;
//! - writes have half of the places, so that a read finds one while the device is slow to write.

use crate::request::{Part, Request, TRIES, Way};
use crate::ring::{Ring, Room};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::sys::{self, Errno, Fd};
use core::fmt;
use core::marker::PhantomData;
use linux_raw_sys::general as g;

#[cfg(test)]
mod check;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// The queue holds as many requests of this kind as it may: reap some first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The most entries that io_uring has (IORING_MAX_ENTRIES).
const ENTRIES_MAX: u32 = 32768;

/// What executes the requests.
enum Executor {
    Ring(Ring),
    /// The thread itself, when it submits.
    Thread,
}

/// Requests of one kind. `held == waiting.len() + with_kernel +` those that are finished.
struct Lane {
    waiting: VecDeque<u32>,
    with_kernel: usize,
    held: usize,
}

impl Lane {
    fn new(most: usize) -> Lane {
        Lane { waiting: VecDeque::with_capacity(most), with_kernel: 0, held: 0 }
    }
}

/// Reads and writes of one thread, at any number of files. The crate's page says what it rests on.
///
/// After it is opened it allocates nothing. Requests end in any order: a read of what an unreaped write writes has the
/// old bytes, the new ones or some of both.
///
/// A queue stays with the thread that opened it:
///
/// ```compile_fail,E0277
/// fn sent<T: Send>() {}
/// sent::<aio::Queue>();
/// ```
pub struct Queue {
    executor: Executor,
    /// The most that the kernel has at a time, and the most of each lane.
    entries: usize,
    /// By number; the numbers of those that are `None` are in `free`.
    requests: Vec<Option<Request>>,
    free: Vec<u32>,
    reads: Lane,
    writes: Lane,
    /// What is written to the submission ring and not taken, the oldest first; empty between calls.
    pushed: VecDeque<u32>,
    finished: VecDeque<(u32, Result<usize, Errno>)>,
    /// The kernel takes requests from the thread that opened the ring alone (IORING_SETUP_SINGLE_ISSUER).
    thread: PhantomData<*mut ()>,
}

impl Queue {
    /// A queue on io_uring, which has at most `entries` requests with the kernel at a time (1 to 32768). For each
    /// result the kernel adds to the bell, an eventfd; it keeps a reference of its own.
    ///
    /// EPERM, EACCES, ENOSYS: io_uring is refused (seccomp, kernel.io_uring_disabled, a kernel without it).
    /// EINVAL: a kernel before 5.10, or `entries` out of range. ENOMEM, EMFILE: there is no memory or descriptor.
    pub fn open(entries: u32, bell: Option<&Fd>) -> Result<Queue, Errno> {
        Ok(Queue::new(entries, Executor::Ring(Ring::open(entries, bell, None, None)?)))
    }

    /// The same, and the kernel keeps the description of a file open until nothing of the queue is under way any more,
    /// however its process ends: what that has locked by it stays locked until then. The rings lie in `room`, which is
    /// for so many entries, or without one where the kernel maps them.
    pub fn open_keeping(
        entries: u32,
        bell: Option<&Fd>,
        kept: &Fd,
        room: Option<Room>,
    ) -> Result<Queue, Errno> {
        Ok(Queue::new(entries, Executor::Ring(Ring::open(entries, bell, Some(kept), room)?)))
    }

    /// A queue without io_uring: [`Queue::submit`] executes all requests before it returns, and their results are
    /// there to be reaped. So nobody needs to ring. `entries` is as for [`Queue::open`]; what is out of range becomes
    /// the next that is not.
    pub fn open_blocking(entries: u32) -> Queue {
        Queue::new(entries.clamp(1, ENTRIES_MAX), Executor::Thread)
    }

    fn new(entries: u32, executor: Executor) -> Queue {
        let (entries, all) = (entries as usize, 2 * entries);
        Queue {
            executor,
            entries,
            requests: (0..all).map(|_| None).collect(),
            free: (0..all).rev().collect(),
            reads: Lane::new(entries),
            writes: Lane::new(entries),
            pushed: VecDeque::with_capacity(entries),
            finished: VecDeque::with_capacity(all as usize),
            thread: PhantomData,
        }
    }

    /// Puts up a read of `bytes` from the offset `at` of a file. [`Queue::reap`] gives `token` back with the result:
    /// `Ok(bytes)`, or an error, and then the buffer's contents are unknown.
    ///
    /// EIO: the file ends before. EINVAL: offset, length or address is not aligned as the file wants it, or no file has
    /// the offset. Others are those of pread(2).
    ///
    /// # Safety
    /// Until the request is reaped or the queue is dropped:
    ///
    /// - `to` is good for writes of `bytes`, and nobody else uses the buffer;
    /// - the file stays open under its number: another file of that number would be read or written;
    /// - no process is forked that has the buffer copy-on-write (open(2) on O_DIRECT): it lies in shared memory or has
    ///   MADV_DONTFORK, where the process may fork;
    /// - no access to the buffer is a fault that this thread serves (userfaultfd).
    pub unsafe fn read(
        &mut self,
        token: u64,
        fd: &Fd,
        at: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), Full> {
        self.put_up(Way::Read, token, fd, at, to as usize, bytes)
    }

    /// Puts up a write of `bytes` to the offset `at` of a file, as [`Queue::read`] does a read. ENOSPC: the storage is
    /// full. After an error it is unknown which bytes were written.
    ///
    /// # Safety
    /// As for [`Queue::read`], but that `from` is good for reads, and that nobody writes to the buffer. The file is
    /// one that holds data ([`base::sys::DataFile`]): writing to it changes no memory of a process.
    pub unsafe fn write(
        &mut self,
        token: u64,
        fd: &Fd,
        at: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Full> {
        self.put_up(Way::Write, token, fd, at, from as usize, bytes)
    }

    fn put_up(
        &mut self,
        way: Way,
        token: u64,
        fd: &Fd,
        at: u64,
        address: usize,
        bytes: usize,
    ) -> Result<(), Full> {
        let most = self.entries;
        if self.lane(way).held == most {
            return Err(Full);
        }
        let slot = self.free.pop().expect("there are as many numbers as the lanes hold");
        self.lane(way).held += 1;
        let request =
            Request { token, way, fd: fd.raw(), at, address, bytes, done: 0, tries: 0, is_under_way: false };
        match request.foregone() {
            Some(result) => self.finished.push_back((slot, result)),
            None => self.lane(way).waiting.push_back(slot),
        }
        self.requests[slot as usize] = Some(request);
        Ok(())
    }

    fn lane(&mut self, way: Way) -> &mut Lane {
        match way {
            Way::Read => &mut self.reads,
            Way::Write => &mut self.writes,
        }
    }

    /// Requests that the kernel has, and those whose results it gave and nobody has looked at.
    pub fn under_way(&self) -> usize {
        self.reads.with_kernel + self.writes.with_kernel
    }

    /// Requests that were put up and are not reaped.
    pub fn unreaped(&self) -> usize {
        self.reads.held + self.writes.held
    }

    /// Hands what waits to the kernel, reads first, as far as there are places: one system call for all of it. Results
    /// may be there at once, also without the bell: reap until nothing comes before the bell is waited for.
    ///
    /// Where the kernel refuses the call, the requests end with its error. EAGAIN: it had no memory for them.
    pub fn submit(&mut self) {
        match self.executor {
            Executor::Thread => self.execute(),
            Executor::Ring(_) => {
                self.push_all();
                self.hand_over(0);
            }
        }
    }

    /// Submits what waits, and waits until there may be a result to reap, or nothing is under way: one system call for
    /// both. An error is that of io_uring_enter, and then nothing was waited for.
    pub fn wait(&mut self) -> Result<(), Errno> {
        if let Executor::Thread = self.executor {
            self.execute();
            return Ok(());
        }
        self.push_all();
        self.hand_over(if self.need_not_wait() { 0 } else { 1 });
        while !self.need_not_wait() {
            let Executor::Ring(ring) = &mut self.executor else { break };
            match ring.enter(1) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// True where a result is there, or none can come.
    fn need_not_wait(&self) -> bool {
        let has_results = matches!(&self.executor, Executor::Ring(ring) if ring.has_results());
        has_results || !self.finished.is_empty() || self.under_way() == 0
    }

    /// The result of a request that has ended, whole or with an error, and its token. Where there is none, what waits
    /// and now has a place has gone to the kernel, and so has the rest of what came short. The kernel rings for these.
    pub fn reap(&mut self) -> Option<(u64, Result<usize, Errno>)> {
        loop {
            if let Some((slot, result)) = self.finished.pop_front() {
                return Some(self.let_go(slot, result));
            }
            let Executor::Ring(ring) = &mut self.executor else { return None };
            match ring.pop() {
                Some((number, result)) => self.settle(number, result),
                None if self.go_on() => {}
                None => return None,
            }
        }
    }

    /// Has more results posted, or requests taken; false where there is nothing of the kind to do.
    fn go_on(&mut self) -> bool {
        let Executor::Ring(ring) = &mut self.executor else { return false };
        // The kernel sets the flag after it has put the work up: where the work was done in between, the flag stays.
        if ring.has_unposted() && ring.enter(0).is_ok() && ring.has_results() {
            return true;
        }
        self.push_all();
        let any = !self.pushed.is_empty();
        self.hand_over(0);
        any
    }

    /// Takes a result of the ring's.
    fn settle(&mut self, number: u64, result: Result<usize, Errno>) {
        let of = usize::try_from(number).ok().and_then(|slot| self.requests.get_mut(slot)?.as_mut());
        let Some(request) = of.filter(|request| request.is_under_way) else { return };
        let (slot, way) = (number as u32, request.way);
        request.is_under_way = false;
        let settled = request.settle(result);
        let lane = self.lane(way);
        lane.with_kernel -= 1;
        match settled {
            Some(result) => self.finished.push_back((slot, result)),
            // It has waited longest.
            None => lane.waiting.push_front(slot),
        }
    }

    /// Gives a request's number back.
    fn let_go(&mut self, slot: u32, result: Result<usize, Errno>) -> (u64, Result<usize, Errno>) {
        let request = self.requests[slot as usize].take().expect("what is finished is held");
        self.lane(request.way).held -= 1;
        self.free.push(slot);
        (request.token, result)
    }

    /// The next request that may go to the kernel.
    fn next(&mut self) -> Option<u32> {
        if self.under_way() == self.entries {
            return None;
        }
        self.reads.waiting.pop_front().or_else(|| {
            let may_write = self.writes.with_kernel < self.entries.div_ceil(2);
            may_write.then(|| self.writes.waiting.pop_front())?
        })
    }

    /// Writes to the submission ring what may go to the kernel.
    fn push_all(&mut self) {
        while let Some(slot) = self.next() {
            let Some(request) = &mut self.requests[slot as usize] else { continue };
            request.is_under_way = true;
            let (way, part) = (request.way, request.part());
            self.lane(way).with_kernel += 1;
            self.pushed.push_back(slot);
            if let Executor::Ring(ring) = &mut self.executor {
                // SAFETY: the contracts of `read` and `write`; the request is held until its result was popped.
                unsafe { ring.push(slot.into(), part) };
            }
        }
    }

    /// Has the kernel take what is on the submission ring, and wait until `wanted` results are there. What it refuses
    /// ends with the error; a signal ends the wait.
    fn hand_over(&mut self, wanted: u32) {
        let mut tries = 0;
        while let Executor::Ring(ring) = &mut self.executor
            && ring.pushed() > 0
        {
            match if wanted == 0 { ring.submit() } else { ring.enter(wanted) } {
                Ok(taken) if taken > 0 => drop(self.pushed.drain(..self.pushed.len().min(taken as usize))),
                Ok(_) | Err(Errno::EINTR | Errno::EAGAIN | Errno::EBUSY) if tries < TRIES => tries += 1,
                refused => {
                    ring.take_back();
                    self.refuse(refused.err().unwrap_or(Errno::EAGAIN));
                }
            }
        }
    }

    /// Ends what the kernel has not taken.
    fn refuse(&mut self, errno: Errno) {
        while let Some(slot) = self.pushed.pop_front() {
            let Some(request) = &mut self.requests[slot as usize] else { continue };
            request.is_under_way = false;
            let way = request.way;
            self.lane(way).with_kernel -= 1;
            self.finished.push_back((slot, Err(errno)));
        }
    }

    /// Executes all that waits, reads first.
    fn execute(&mut self) {
        while let Some(slot) = self.reads.waiting.pop_front().or_else(|| self.writes.waiting.pop_front()) {
            let Some(request) = &mut self.requests[slot as usize] else { continue };
            let result = loop {
                // SAFETY: the contracts of `read` and `write`.
                let result = unsafe { execute(request.part()) };
                if let Some(result) = request.settle(result) {
                    break result;
                }
            };
            self.finished.push_back((slot, result));
        }
    }
}

/// Executes a part.
///
/// # Safety
/// The buffer must be good for it. Of a write: the file holds data.
unsafe fn execute(part: Part) -> Result<usize, Errno> {
    let number = match part.way {
        Way::Read => g::__NR_pread64,
        Way::Write => g::__NR_pwrite64,
    };
    let registers = [part.fd as usize, part.address, part.bytes as usize, part.at as usize, 0, 0];
    // SAFETY: the caller's contract.
    unsafe { sys::syscall(number, registers) }
}

impl Drop for Queue {
    /// Waits until the kernel has nothing of it; what it never had is forgotten.
    fn drop(&mut self) {
        while self.under_way() > 0 {
            let Executor::Ring(ring) = &mut self.executor else { return };
            match ring.pop() {
                Some((number, result)) => self.settle(number, result),
                // Whatever this says, buffers that the kernel has cannot be let go.
                None => match ring.enter(1) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(_) => sys::sched_yield(),
                },
            }
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.executor {
            Executor::Ring(_) => "io_uring",
            Executor::Thread => "pread and pwrite",
        };
        write!(f, "{how}: {} unreaped, {} under way, of {}", self.unreaped(), self.under_way(), self.entries)
    }
}
