//! The two rings and the entries that io_uring shares with the kernel, and the system calls about them.
//!
//! ```text
//!   submission ring   head (kernel's) ... tail (ours): which of the entries (SQEs) to execute; here always in order
//!   completion ring   head (ours) ... tail (kernel's): results (CQEs)
//! ```
//!
//! The kernel reads the submission ring within io_uring_enter alone, since there is no thread of its own for it
//! (IORING_SETUP_SQPOLL). So entries that a call did not take can be taken back.

use crate::request::{Part, Way};
use base::PAGE;
use base::sys::{self, Errno, Fd, consts};
use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use linux_raw_sys::general as g;
use linux_raw_sys::io_uring as u;

/// How a ring is opened, the best first; a kernel says EINVAL to what it does not know.
///
/// - Linux 6.1: results are posted in this thread's calls of io_uring_enter alone; the submission ring's flags say when
///   some wait for that.
/// - 5.10: results are posted at the end of whatever system call the thread is in, which they interrupt
///   (io_uring_setup(2)).
///
/// Reads take the same time either way (docs/bench/2026-11-27-aio.md).
pub(crate) const SETUPS: [u32; 2] =
    [u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN | u::IORING_SETUP_TASKRUN_FLAG, 0];

/// What the ring executes, and nothing else.
const OPERATIONS: [u8; 2] = [u::io_uring_op::IORING_OP_READ as u8, u::io_uring_op::IORING_OP_WRITE as u8];

/// `struct io_uring_restriction`.
#[repr(C)]
struct Restriction {
    kind: u16,
    operation: u8,
    reserved: [u8; 13],
}

/// `struct io_uring_cqe`, of the usual size.
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// Memory of the user's for a ring, instead of mappings of its descriptor.
///
/// These lie where the kernel chooses, and nowhere else (EINVAL of mmap and mremap). In the address space of a program
/// that may be a place that the program has just given up, or that means something in a child.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    at: usize,
}

impl Room {
    /// How many bytes a queue of so many entries wants.
    pub const fn bytes(entries: u32) -> usize {
        let entries = entries.next_power_of_two() as usize;
        Room::rings_bytes(entries) + (entries * size_of::<u::io_uring_sqe>()).next_multiple_of(PAGE)
    }

    /// A page for what the kernel keeps beside the two rings is four times what it takes.
    const fn rings_bytes(entries: usize) -> usize {
        PAGE + (2 * entries * size_of::<Completion>() + entries * size_of::<u32>()).next_multiple_of(PAGE)
    }

    /// The room from `at` on, a multiple of the page.
    ///
    /// # Safety
    /// [`Room::bytes`] from there on are zeros, which can be written to, and nobody else's as long as the queue lives.
    /// No child has them (MADV_DONTFORK).
    pub unsafe fn new(at: usize) -> Room {
        Room { at }
    }

    /// The part for the two rings, and that for the entries.
    fn parts(self, entries: u32) -> [Mapping; 2] {
        let (rings, all) = (Room::rings_bytes(entries as usize), Room::bytes(entries));
        [(self.at, rings), (self.at + rings, all - rings)].map(|(at, bytes)| Mapping {
            at,
            bytes,
            is_in_room: true,
        })
    }
}

/// A part of the memory that is shared with the kernel.
struct Mapping {
    at: usize,
    bytes: usize,
    /// It is the user's.
    is_in_room: bool,
}

impl Mapping {
    /// A mapping of the ring's descriptor.
    fn new(fd: &Fd, offset: u32, bytes: usize) -> Result<Mapping, Errno> {
        let (prot, flags) = (g::PROT_READ | g::PROT_WRITE, g::MAP_SHARED | g::MAP_POPULATE);
        let registers = [0, bytes, prot as usize, flags as usize, fd.raw() as usize, offset as usize];
        // SAFETY: where no address is asked for the kernel takes one that nobody has.
        let at = unsafe { sys::syscall(g::__NR_mmap, registers) }?;
        let mapping = Mapping { at, bytes, is_in_room: false };
        sys::madvise_keep(at, bytes, consts::MADV_DONTFORK)?;
        Ok(mapping)
    }

    /// A place in it.
    fn place<T>(&self, offset: usize) -> *mut T {
        assert!(offset.is_multiple_of(align_of::<T>()) && offset + size_of::<T>() <= self.bytes);
        (self.at + offset) as *mut T
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the place is inside the mapping, which lives as long as the reference. All changes of the kernel's
        // there are of whole words.
        unsafe { AtomicU32::from_ptr(self.place(offset as usize)) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_in_room {
            // SAFETY: the mapping is the value's own, and references into it borrow the value.
            let _ = unsafe { sys::munmap(self.at, self.bytes) };
        }
    }
}

/// An open ring.
pub(crate) struct Ring {
    rings: Mapping,
    entries: Mapping,
    parameters: u::io_uring_params,
    /// Where the submission ring ends: entries before it are written. The kernel has taken all but the last `pushed`.
    tail: u32,
    pushed: u32,
    /// Where the completion ring begins.
    head: u32,
    fd: Fd,
}

impl Ring {
    /// Opens a ring, in the best way that the kernel knows. EPERM, EACCES, ENOSYS: it is refused.
    pub fn open(
        entries: u32,
        bell: Option<&Fd>,
        kept: Option<&Fd>,
        room: Option<Room>,
    ) -> Result<Ring, Errno> {
        let mut last = Errno::EINVAL;
        for setup in SETUPS {
            match Ring::open_as(entries, bell, kept, room, setup) {
                Err(Errno::EINVAL) => last = Errno::EINVAL,
                other => return other,
            }
        }
        Err(last)
    }

    /// Opens a ring with these flags.
    pub fn open_as(
        entries: u32,
        bell: Option<&Fd>,
        kept: Option<&Fd>,
        room: Option<Room>,
        setup: u32,
    ) -> Result<Ring, Errno> {
        // SAFETY: plain integers, of any value.
        let mut parameters: u::io_uring_params = unsafe { core::mem::zeroed() };
        parameters.flags = setup | u::IORING_SETUP_R_DISABLED;
        let room = room.map(|room| room.parts(entries.next_power_of_two()));
        if let Some([rings, entries]) = &room {
            parameters.flags |= u::IORING_SETUP_NO_MMAP;
            (parameters.cq_off.user_addr, parameters.sq_off.user_addr) = (rings.at as u64, entries.at as u64);
        }
        let registers = [entries as usize, &raw mut parameters as usize, 0, 0, 0, 0];
        // SAFETY: the kernel reads and writes the parameters, and makes a descriptor.
        let fd = Fd::own(unsafe { sys::syscall(g::__NR_io_uring_setup, registers) }?);
        if parameters.features & u::IORING_FEAT_SINGLE_MMAP == 0 {
            return Err(Errno::ENOSYS);
        }
        let sq_bytes = parameters.sq_off.array as usize + parameters.sq_entries as usize * size_of::<u32>();
        let cq_bytes =
            parameters.cq_off.cqes as usize + parameters.cq_entries as usize * size_of::<Completion>();
        let bytes = parameters.sq_entries as usize * size_of::<u::io_uring_sqe>();
        let [rings, entries] = match room {
            Some(room) if room[0].bytes < sq_bytes.max(cq_bytes) || room[1].bytes < bytes => {
                return Err(Errno::ENOSYS);
            }
            Some(room) => room,
            None => [
                Mapping::new(&fd, u::IORING_OFF_SQ_RING, sq_bytes.max(cq_bytes))?,
                Mapping::new(&fd, u::IORING_OFF_SQES, bytes)?,
            ],
        };
        for n in 0..parameters.sq_entries {
            rings.word(parameters.sq_off.array + 4 * n).store(n, Relaxed);
        }
        let ring = Ring { rings, entries, parameters, tail: 0, pushed: 0, head: 0, fd };
        ring.enable(bell, kept)?;
        Ok(ring)
    }

    /// Has it ring the bell, keep a file, execute reads and writes alone, and execute.
    fn enable(&self, bell: Option<&Fd>, kept: Option<&Fd>) -> Result<(), Errno> {
        if let Some(bell) = bell {
            let number = bell.raw();
            self.register(u::io_uring_register_op::IORING_REGISTER_EVENTFD, &raw const number as usize, 1)?;
        }
        if let Some(kept) = kept {
            let number = kept.raw();
            self.register(u::io_uring_register_op::IORING_REGISTER_FILES, &raw const number as usize, 1)?;
        }
        let kind = u::io_uring_register_restriction_op::IORING_RESTRICTION_SQE_OP as u16;
        let restrictions = OPERATIONS.map(|operation| Restriction { kind, operation, reserved: [0; 13] });
        let address = restrictions.as_ptr() as usize;
        self.register(u::io_uring_register_op::IORING_REGISTER_RESTRICTIONS, address, OPERATIONS.len())?;
        self.register(u::io_uring_register_op::IORING_REGISTER_ENABLE_RINGS, 0, 0)
    }

    fn register(&self, what: u::io_uring_register_op, address: usize, count: usize) -> Result<(), Errno> {
        let registers = [self.fd.raw() as usize, what as usize, address, count, 0, 0];
        // SAFETY: the kernel reads `count` of what is at the address, as both callers have it, and writes nothing.
        unsafe { sys::syscall(g::__NR_io_uring_register, registers) }.map(drop)
    }

    /// Writes an entry, for the next [`Ring::enter`]; `user_data` comes back with its result. No more entries may be
    /// under way than the ring was opened for.
    ///
    /// # Safety
    /// The part's buffer must stay, and be nobody's else, until its result was popped.
    pub unsafe fn push(&mut self, user_data: u64, part: Part) {
        assert!(self.pushed < self.parameters.sq_entries, "the submission ring has a place for each request");
        // SAFETY: plain integers, of any value.
        let mut entry: u::io_uring_sqe = unsafe { core::mem::zeroed() };
        entry.opcode = OPERATIONS[usize::from(part.way == Way::Write)];
        entry.fd = part.fd;
        entry.__bindgen_anon_1.off = part.at;
        entry.__bindgen_anon_2.addr = part.address as u64;
        entry.len = part.bytes;
        entry.user_data = user_data;
        let index = self.tail & (self.parameters.sq_entries - 1);
        let place = self.entries.place::<u::io_uring_sqe>(index as usize * size_of::<u::io_uring_sqe>());
        // SAFETY: the place is inside the mapping, and the kernel has taken what was there.
        unsafe { place.write_volatile(entry) };
        self.pushed += 1;
        self.set_tail(self.tail.wrapping_add(1));
    }

    fn set_tail(&mut self, tail: u32) {
        self.tail = tail;
        self.rings.word(self.parameters.sq_off.tail).store(tail, Release);
    }

    /// Entries that are written and not taken.
    pub fn pushed(&self) -> u32 {
        self.pushed
    }

    /// Takes the entries back that the kernel has not taken.
    pub fn take_back(&mut self) {
        let tail = self.tail.wrapping_sub(self.pushed);
        self.pushed = 0;
        self.set_tail(tail);
    }

    /// Has the kernel take the written entries, post what results it has, and wait until `wanted` are there; how many
    /// it took, the oldest first. EINTR: a signal ended the wait.
    pub fn enter(&mut self, wanted: u32) -> Result<u32, Errno> {
        self.call(wanted, u::IORING_ENTER_GETEVENTS)
    }

    /// Has the kernel take the written entries only; how many it took.
    pub fn submit(&mut self) -> Result<u32, Errno> {
        self.call(0, 0)
    }

    fn call(&mut self, wanted: u32, flags: u32) -> Result<u32, Errno> {
        let registers = [self.fd.raw() as usize, self.pushed as usize, wanted as usize, flags as usize, 0, 0];
        // SAFETY: the kernel changes the rings, whose words are atomics or read once, and buffers, as `push` allows.
        let taken = unsafe { sys::syscall(g::__NR_io_uring_enter, registers) }? as u32;
        self.pushed = self.pushed.saturating_sub(taken);
        Ok(taken)
    }

    /// The oldest result: the entry's `user_data`, and how many bytes it was.
    pub fn pop(&mut self) -> Option<(u64, Result<usize, Errno>)> {
        if !self.has_results() {
            return None;
        }
        let index = self.head & (self.parameters.cq_entries - 1);
        let offset = self.parameters.cq_off.cqes as usize + index as usize * size_of::<Completion>();
        // SAFETY: the place is inside the mapping, and the kernel wrote it before it moved the tail. Any integers are a
        // value of the type.
        let completion = unsafe { self.rings.place::<Completion>(offset).read_volatile() };
        self.head = self.head.wrapping_add(1);
        self.rings.word(self.parameters.cq_off.head).store(self.head, Release);
        let bytes = usize::try_from(completion.result);
        Some((completion.user_data, bytes.map_err(|_| Errno(completion.result.unsigned_abs() as u16))))
    }

    /// True where [`Ring::pop`] has one.
    pub fn has_results(&self) -> bool {
        self.rings.word(self.parameters.cq_off.tail).load(Acquire) != self.head
    }

    /// True where results wait to be posted by [`Ring::enter`], or have waited.
    pub fn has_unposted(&self) -> bool {
        self.rings.word(self.parameters.sq_off.flags).load(Acquire) & u::IORING_SQ_TASKRUN != 0
    }

    /// True where all of it lies in its user's memory.
    #[cfg(test)]
    pub fn is_in_room(&self) -> bool {
        self.rings.is_in_room && self.entries.is_in_room
    }

    /// Sets the flag of [`Ring::has_unposted`], as a kernel does late.
    #[cfg(test)]
    pub fn say_unposted(&self) {
        self.rings.word(self.parameters.sq_off.flags).fetch_or(u::IORING_SQ_TASKRUN, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Option<Ring> {
        let open = Ring::open(4, None, None, None);
        open.map_err(|errno| crate::skip::skip(&format!("no io_uring, {errno}: the ring was not tested")))
            .ok()
    }

    #[test]
    fn other_operations_than_reads_and_writes_are_refused() {
        let Some(mut ring) = ring() else { return };
        // The first kernel with restrictions, 5.10, has 34.
        for operation in 0..34 {
            let index = ring.tail & (ring.parameters.sq_entries - 1);
            // SAFETY: there is no buffer.
            unsafe { ring.push(7, Part { way: Way::Read, fd: -1, at: 0, address: 0, bytes: 0 }) };
            let place = ring.entries.place::<u8>(index as usize * size_of::<u::io_uring_sqe>());
            // SAFETY: the entry's operation, in the mapping.
            unsafe { place.write_volatile(operation) };
            assert_eq!(ring.enter(1), Ok(1));
            let expected = if OPERATIONS.contains(&operation) { Errno::EBADF } else { Errno::EACCES };
            assert_eq!(ring.pop(), Some((7, Err(expected))), "operation {operation}");
        }
    }

    #[test]
    fn no_child_has_the_rings() {
        let Some(ring) = ring() else { return };
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        for at in [ring.rings.at, ring.entries.at] {
            let (_, mapping) = smaps.split_once(&format!("{at:x}-")).expect("the ring is mapped");
            let flags = mapping.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
            assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
        }
    }
}
