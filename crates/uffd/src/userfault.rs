//! The userfaultfd itself.

use crate::PAGE;
use crate::pagemap::Pagemap;
use crate::sys::{self, Errno, Fd, Result};
use core::ops::Range;
use linux_raw_sys::{general as g, ioctl as n};

const UFFDIO_MOVE: u32 = 0xc000_aa05 | (size_of::<g::uffdio_move>() as u32) << 16;
const UFFDIO_POISON: u32 = 0xc000_aa08 | (size_of::<g::uffdio_poison>() as u32) << 16;
const WRITEPROTECT_MODE_WP: u32 = 1;
/// UFFD_FEATURE_RWP, and UFFD_FEATURE_RWP_ASYNC (there is no message); UFFDIO_REGISTER_MODE_RWP, which excludes
/// UFFDIO_REGISTER_MODE_WP. See touches.rs.
const TOUCHES: u64 = 1 << 17 | 1 << 18;
/// See [`TOUCHES`].
const REGISTER_MODE_RWP: u32 = 1 << 3;
/// `_IO(0xAA, 0)` on /dev/userfaultfd.
const USERFAULTFD_IOC_NEW: u32 = 0xaa00;
const FLAGS: u32 = g::O_CLOEXEC | g::O_NONBLOCK;

/// The request numbers of UFFDIO_REGISTER and UFFDIO_MOVE, by which a program's own userfaultfd is recognised.
pub const REGISTER: u32 = n::UFFDIO_REGISTER;
/// See [`REGISTER`].
pub const MOVE: u32 = UFFDIO_MOVE;

/// What a descriptor is asked to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Features {
    /// Faults, and events for unmap, remap and remove: without all three, evicted pages would read as zeros somewhere.
    /// Not EVENT_FORK: every clone would wait until its event is read, the reader's own too.
    Events,
    /// Faults alone: for a zone of the engine's own that raises no event when it is dropped.
    Quiet,
}

/// What the kernel tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A thread waits for the page at this address, to write it or to read it.
    Fault {
        /// The address, rounded down to a page.
        at: usize,
        /// The access was a write.
        write: bool,
        /// The page is there, and protected.
        protected: bool,
        /// The thread.
        thread: u32,
    },
    /// The range is about to be discarded (MADV_DONTNEED, MADV_FREE, MADV_REMOVE).
    Remove(Range<usize>),
    /// The range has been unmapped.
    Unmap(Range<usize>),
    /// The range has moved to another address (mremap).
    Remap {
        /// Where it was.
        from: Range<usize>,
        /// Where it begins now.
        to: usize,
    },
    /// A message that was not asked for.
    Other(u8),
}

/// How far a move, copy or fill came: the bytes done, and what stopped it before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes from the start of the range.
    pub bytes: usize,
    /// Why it stopped; `None` when all was done.
    pub stop: Option<Errno>,
}

impl Moved {
    /// Nothing can be done before something else has happened.
    pub const NOTHING_YET: Moved = Moved { bytes: 0, stop: Some(Errno::EAGAIN) };
}

/// An open userfaultfd of this process.
pub struct Userfault {
    fd: Fd,
    /// The kernel says that it can tell which pages are touched; and what is registered is so that it does.
    pub(crate) has_touches: bool,
    pub(crate) tells_touches: bool,
}

impl Userfault {
    /// Opens a descriptor: the system call first, then /dev/userfaultfd. The error is that of the system call.
    pub fn open(features: Features) -> Result<Userfault> {
        // SAFETY: a new descriptor changes no memory.
        let fd = match unsafe { sys::syscall(g::__NR_userfaultfd, [FLAGS as usize, 0, 0, 0, 0, 0]) } {
            Ok(fd) => Fd::own(fd),
            Err(refused) => sys::open(b"/dev/userfaultfd\0", g::O_RDWR)
                .and_then(|device| Self::from_device(&device))
                .map_err(|_| refused)?,
        };
        Self::shake_hands(fd, features)
    }

    /// The same by an open /dev/userfaultfd, whoever has opened it: the kernel asks for no right any more.
    pub fn open_by(device: &Fd, features: Features) -> Result<Userfault> {
        Self::shake_hands(Self::from_device(device)?, features)
    }

    fn shake_hands(fd: Fd, features: Features) -> Result<Userfault> {
        let wanted = match features {
            Features::Events => {
                g::UFFD_FEATURE_EVENT_REMAP
                    | g::UFFD_FEATURE_EVENT_REMOVE
                    | g::UFFD_FEATURE_EVENT_UNMAP
                    | g::UFFD_FEATURE_THREAD_ID
            }
            Features::Quiet => 0,
        };
        // Refused, because the kernel does not know a feature, it can be tried again.
        let shake = |features| {
            let mut api = g::uffdio_api { api: 0xaa, features, ioctls: 0 };
            // SAFETY: the handshake writes the structure only.
            unsafe { sys::ioctl(&fd, n::UFFDIO_API, &mut api) }
        };
        let has_touches = features == Features::Events && shake(wanted as u64 | TOUCHES).is_ok();
        if !has_touches {
            shake(wanted as u64)?;
        }
        Ok(Userfault { fd, has_touches, tells_touches: false })
    }

    fn from_device(device: &Fd) -> Result<Fd> {
        // SAFETY: USERFAULTFD_IOC_NEW takes the flags by value and changes no memory.
        unsafe {
            sys::syscall(
                g::__NR_ioctl,
                [device.raw() as usize, USERFAULTFD_IOC_NEW as usize, FLAGS as usize, 0, 0, 0],
            )
        }
        .map(Fd::own)
    }

    /// The descriptor, to be polled.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// The next message, or `None`. Faults come before events whatever their order (man 2 ioctl_userfaultfd does not
    /// say so; tried). Once this returns an event, whoever caused it runs on.
    pub fn next(&self) -> Option<Message> {
        // SAFETY: all fields are integers, for which zero is a value.
        let mut msg: g::uffd_msg = unsafe { core::mem::zeroed() };
        // SAFETY: the structure is plain data of this many bytes.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut((&raw mut msg).cast::<u8>(), size_of::<g::uffd_msg>()) };
        if sys::read(&self.fd, bytes) != Ok(size_of::<g::uffd_msg>()) {
            return None;
        }
        // SAFETY: the kernel wrote the variant that `event` names.
        Some(unsafe {
            match msg.event as u32 {
                g::UFFD_EVENT_PAGEFAULT => Message::Fault {
                    at: msg.arg.pagefault.address as usize & !(crate::PAGE - 1),
                    write: msg.arg.pagefault.flags & g::UFFD_PAGEFAULT_FLAG_WRITE as u64 != 0,
                    protected: msg.arg.pagefault.flags & g::UFFD_PAGEFAULT_FLAG_WP as u64 != 0,
                    thread: msg.arg.pagefault.feat.ptid,
                },
                g::UFFD_EVENT_REMOVE => {
                    Message::Remove(msg.arg.remove.start as usize..msg.arg.remove.end as usize)
                }
                g::UFFD_EVENT_UNMAP => {
                    Message::Unmap(msg.arg.remove.start as usize..msg.arg.remove.end as usize)
                }
                g::UFFD_EVENT_REMAP => {
                    let (from, len) = (msg.arg.remap.from as usize, msg.arg.remap.len as usize);
                    Message::Remap { from: from..from + len, to: msg.arg.remap.to as usize }
                }
                other => Message::Other(other as u8),
            }
        })
    }

    /// True where the kernel says that it can tell which pages are touched.
    pub fn has_touches(&self) -> bool {
        self.has_touches
    }

    /// True where what is registered is so that it is told which pages are touched ([`Userfault::tell_touches`]).
    pub fn tells_touches(&self) -> bool {
        self.tells_touches
    }

    /// Registers a range for faults on missing pages and on protected ones; or for touches in the place of the latter,
    /// where these are told. EBUSY: another descriptor has it; EINVAL: it cannot be registered; ENOMEM: a hole; EAGAIN:
    /// an event is under way (of memory without access, where touches are told).
    pub fn register(&self, range: Range<usize>) -> Result<()> {
        let missing = g::UFFDIO_REGISTER_MODE_MISSING;
        if !self.tells_touches {
            return self.register_as(range, missing | g::UFFDIO_REGISTER_MODE_WP);
        }
        match self.register_as(range.clone(), missing | REGISTER_MODE_RWP) {
            // What may not be accessed at all (PROT_NONE) is refused; what was registered before it became that is so
            // still. (EAGAIN: an event is under way.)
            Err(Errno::EINVAL) => self.unprotect(range).map_err(|errno| match errno {
                Errno::EAGAIN => errno,
                _ => Errno::EINVAL,
            }),
            registered => registered,
        }
    }

    /// Registers a range so that pages can be moved there, and faults are served by the kernel as ever: a mode is
    /// needed, and nothing is ever write-protected.
    pub fn register_silent(&self, range: Range<usize>) -> Result<()> {
        self.register_as(range, g::UFFDIO_REGISTER_MODE_WP)
    }

    /// Has every write to a page that is in a registered range now be a fault first (200 MiB: 5 ms). Holes, and what
    /// comes to fill them, are not protected.
    pub fn protect(&self, range: Range<usize>) -> Result<()> {
        self.write_protect(range, WRITEPROTECT_MODE_WP)
    }

    /// Undoes `protect`, or `watch`, and wakes those who wait.
    pub fn unprotect(&self, range: Range<usize>) -> Result<()> {
        if self.tells_touches { self.protect_from_all(range, 0) } else { self.write_protect(range, 0) }
    }

    fn write_protect(&self, range: Range<usize>, mode: u32) -> Result<()> {
        let mut arg = g::uffdio_writeprotect { range: uffdio_range(&range), mode: mode as u64 };
        // SAFETY: what memory holds stays as it is.
        unsafe { sys::ioctl(&self.fd, n::UFFDIO_WRITEPROTECT, &mut arg) }.map(drop)
    }

    fn register_as(&self, range: Range<usize>, mode: u32) -> Result<()> {
        let mut arg = g::uffdio_register { range: uffdio_range(&range), mode: mode as u64, ioctls: 0 };
        // SAFETY: registering changes how faults are served, not what memory holds.
        unsafe { sys::ioctl(&self.fd, n::UFFDIO_REGISTER, &mut arg) }.map(drop)
    }

    /// Takes a range off the descriptor.
    pub fn unregister(&self, range: Range<usize>) -> Result<()> {
        // SAFETY: as for `register`; what is evicted there is the caller's to have brought back.
        unsafe { sys::ioctl(&self.fd, n::UFFDIO_UNREGISTER, &mut uffdio_range(&range)) }.map(drop)
    }

    /// Moves present pages from `src` to the registered holes at `dst`, and wakes those who wait for them.
    ///
    /// A move that stops short may have moved more than it says. Linux 6.18 (at least) keeps the EAGAIN of an attempt
    /// that somebody's access to the page has disturbed; the next attempt moves the page and is tried again all the
    /// same, finds the page in its own way, and EEXIST is reported without it. So the page tables are asked what has
    /// come after all: a page that is not at `src` and is at `dst`. A page that the kernel's own swap has is moved as a
    /// swap entry: it has come as much as one that is present.
    ///
    /// # Safety
    /// The pages leave `src`: whoever uses it must have been told.
    pub unsafe fn move_pages(&self, pagemap: &Pagemap, dst: usize, src: usize, bytes: usize) -> Moved {
        let mut arg =
            g::uffdio_move { dst: dst as u64, src: src as u64, len: bytes as u64, mode: 0, move_: 0 };
        // SAFETY: the caller's contract.
        let result = unsafe { sys::ioctl(&self.fd, UFFDIO_MOVE, &mut arg) };
        let told = moved(result, arg.move_, bytes);
        if told.stop.is_none() || told == Moved::NOTHING_YET {
            return told;
        }
        let is_there = |at| pagemap.has_page(at) == Ok(true);
        let has_come = |done: &usize| is_there(dst + done) && !is_there(src + done);
        let more = (told.bytes..bytes).step_by(PAGE).take_while(has_come).count() * PAGE;
        if more == 0 {
            return told;
        }
        let done = told.bytes + more;
        self.wake(dst + told.bytes..dst + done);
        Moved { bytes: done, stop: (done < bytes).then_some(Errno::EAGAIN) }
    }

    /// Copies `bytes` from `src` to the registered hole at `dst` in new pages, and wakes those who wait for them.
    ///
    /// # Safety
    /// `dst` must be memory that was evicted by the caller, or a hole: guard markers do not stop a copy.
    pub unsafe fn copy(&self, dst: usize, src: usize, bytes: usize) -> Moved {
        let mut arg =
            g::uffdio_copy { dst: dst as u64, src: src as u64, len: bytes as u64, mode: 0, copy: 0 };
        // SAFETY: the caller's contract.
        let result = unsafe { sys::ioctl(&self.fd, n::UFFDIO_COPY, &mut arg) };
        moved(result, arg.copy, bytes)
    }

    /// Maps the shared zero page into registered holes, and wakes those who wait for them.
    pub fn zeropage(&self, dst: usize, bytes: usize) -> Moved {
        let mut arg = g::uffdio_zeropage { range: uffdio_range(&(dst..dst + bytes)), mode: 0, zeropage: 0 };
        // SAFETY: a hole reads as zeros, whoever fills it.
        let result = unsafe { sys::ioctl(&self.fd, n::UFFDIO_ZEROPAGE, &mut arg) };
        moved(result, arg.zeropage, bytes)
    }

    /// Makes those who wait in a range look again.
    pub fn wake(&self, range: Range<usize>) {
        // SAFETY: changes no memory.
        let _ = unsafe { sys::ioctl(&self.fd, n::UFFDIO_WAKE, &mut uffdio_range(&range)) };
    }

    /// Makes every touch of a hole raise SIGBUS: for memory that is lost.
    ///
    /// # Safety
    /// The range must be lost indeed.
    pub unsafe fn poison(&self, range: Range<usize>) -> Result<()> {
        let mut arg = g::uffdio_poison { range: uffdio_range(&range), mode: 0, updated: 0 };
        // SAFETY: the caller's contract.
        unsafe { sys::ioctl(&self.fd, UFFDIO_POISON, &mut arg) }.map(drop)
    }
}

pub(crate) fn uffdio_range(range: &Range<usize>) -> g::uffdio_range {
    g::uffdio_range { start: range.start as u64, len: (range.end - range.start) as u64 }
}

/// Brings the kernel's three ways to say how far it came into one: all, a positive count with EAGAIN, or minus the
/// errno.
fn moved(result: Result<usize>, done: i64, bytes: usize) -> Moved {
    match result {
        Ok(_) => Moved { bytes, stop: None },
        Err(errno) if done > 0 => Moved { bytes: done as usize, stop: Some(errno) },
        // The count field carries the reason where the ioctl itself only says EAGAIN.
        Err(Errno::EAGAIN) if done < 0 => Moved { bytes: 0, stop: Some(Errno(-done as u16)) },
        Err(errno) => Moved { bytes: 0, stop: Some(errno) },
    }
}

#[cfg(test)]
mod tests;
