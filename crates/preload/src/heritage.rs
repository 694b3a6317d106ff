//! What a family has in common on purpose: logs of compressed pages, each written by one engine and read by those of all its descendants.
//!
//! ```text
//!   the owner's memory                       a child's memory
//!   [ head | record | record | ... ]   rw
//!   [ head | record | record | ... ]   r     [ head | record | record | ... ]   r, at the same address
//!            the same file without a name
//! ```
//!
//! The mapping that can be written to is kept out of children. Theirs is of a descriptor that was opened for reading alone, so that no mprotect makes it more; and no
//! descriptor is left. Before a process gives up rights it gives up the mapping ([`seal`]): children that keep them read nothing that was written without.
//!
//! A record is never changed, and stays as long as one of the family may need it. This is safe because
//! 1. an owner empties its log only where no other process of the family lives, and nothing of its own depends on it ([`empty`]);
//! 2. whoever is born of a fork belongs to the family before it is cloned; only who is so small that it has no slot does not. It reads nothing before it has one,
//!    and looks then whether the log was emptied since its birth ([`begin`]): `Head::emptied` is counted before it is looked for the family once more.

use crate::arena;
use crate::line::Line;
use core::fmt::Write;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use memcg::{Memcg, Slot};
use mm::kernel::Body;
use uffd::PAGE;
use uffd::sys::{self, Errno, consts::*};

/// How many logs a process can have: its own, and its forebears'.
const LOGS: usize = 8;

/// A log is this part of the limit, at most.
const PART: usize = 4;

/// The first page of a log.
struct Head {
    /// Where the next record goes, in bytes from the beginning of the log.
    len: AtomicU64,
    /// How often it was emptied.
    emptied: AtomicU32,
}

/// What comes before the bytes of an object.
#[derive(Clone, Copy)]
#[repr(C)]
struct Record {
    window: u64,
    /// The object's pages, by their place in the window.
    pages: u16,
    _zeros: u16,
    fingerprint: u32,
    bytes: u32,
    _more: u32,
}

/// A log, as this process reads it. In a child all of it is as it was in its parent.
struct Log {
    /// Where it is mapped; 0 for none.
    at: AtomicUsize,
    size: AtomicUsize,
    /// How often it had been emptied when it was seen last.
    emptied: AtomicU32,
    /// How far it was read.
    read: AtomicUsize,
}

static LOG: [Log; LOGS] = [const { Log::none() }; LOGS];

/// Which of them is this process's own, [`LOGS`] for none; and where it can be written to, 0 for nowhere.
static OWN: AtomicUsize = AtomicUsize::new(LOGS);
static WRITABLE: AtomicUsize = AtomicUsize::new(0);

/// The engine writes to its log, and a thread of the program's wants that to end.
static WRITING: AtomicBool = AtomicBool::new(false);
static SEALED: AtomicBool = AtomicBool::new(false);

/// Where the engine has mapped its log to write to it, address and bytes, address 0 for nowhere; and whether a thread of the program's has closed that, so that its
/// place is all that is left.
static WRITER: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
static CLOSED: AtomicBool = AtomicBool::new(false);

impl Log {
    const fn none() -> Log {
        Log {
            at: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
            emptied: AtomicU32::new(0),
            read: AtomicUsize::new(0),
        }
    }

    fn head(&self) -> Option<&'static Head> {
        // SAFETY: mapped for as long as it is listed, which the engine alone changes.
        unsafe { (self.at.load(Acquire) as *const Head).as_ref() }
    }

    /// Bytes of it that are in use.
    fn len(&self) -> usize {
        let len = self.head().map_or(0, |head| head.len.load(Acquire) as usize);
        len.min(self.size.load(Relaxed))
    }

    fn range(&self) -> Range<usize> {
        let at = self.at.load(Acquire);
        at..at + if at == 0 { 0 } else { self.size.load(Relaxed) }
    }

    /// The record at an offset, and its object's bytes; `None` where there is no whole one.
    fn record(&self, at: usize) -> Option<(Record, &'static [u8])> {
        let (base, len, object) = (self.at.load(Acquire), self.len(), at + size_of::<Record>());
        if base == 0 || at < PAGE || !at.is_multiple_of(align_of::<Record>()) || object > len {
            return None;
        }
        // SAFETY: within the mapping, written before `len` was, and never changed.
        let record = unsafe { *((base + at) as *const Record) };
        let is_whole =
            record.pages != 0 && record.window % PAGE as u64 == 0 && record.bytes as usize <= len - object;
        if !is_whole {
            return None;
        }
        // SAFETY: as above.
        let bytes =
            unsafe { core::slice::from_raw_parts((base + object) as *const u8, record.bytes as usize) };
        Some((record, bytes))
    }

    fn drop_it(&self) {
        let range = self.range();
        self.at.store(0, Release);
        if !range.is_empty() {
            // SAFETY: nobody reads it any more.
            unsafe { arena::unmap(range.start, range.len()) };
        }
    }
}

/// How long a record is, with what it is filled up with.
fn stride(bytes: usize) -> usize {
    (size_of::<Record>() + bytes).next_multiple_of(align_of::<Record>())
}

/// For the engine, as it starts: what this process has of its forebears is read from the beginning, unless it is an heir, whose parent's engine was copied with all that it
/// had read; and it gets a log of its own, if that is to be had. Who does not belong to the family, since its parent had ended before it could, has no part in its logs.
pub fn begin(memcg: &Memcg, slot: &Slot, is_heir: bool) {
    OWN.store(LOGS, Relaxed);
    WRITABLE.store(0, Relaxed);
    WRITER.0.store(0, Relaxed);
    CLOSED.store(false, Relaxed);
    WRITING.store(false, Relaxed);
    let is_kin = is_heir || slot.family.load(SeqCst) != 0;
    for log in LOG.iter().filter(|log| log.at.load(Relaxed) != 0) {
        let is_same =
            is_kin && log.head().is_some_and(|head| head.emptied.load(SeqCst) == log.emptied.load(Relaxed));
        if !is_same {
            log.drop_it();
        } else if !is_heir {
            log.read.store(PAGE, Relaxed);
        }
    }
    renew(memcg);
}

/// For the engine: a log of its own, where it has none that it can write to, and one is to be had. Who is born from now on has no more rights than this process.
pub fn renew(memcg: &Memcg) {
    // What is being closed this moment is its thread's.
    if WRITABLE.load(SeqCst) != 0 || !forget_writer() {
        return;
    }
    // Who may map no more than so much wants it for itself.
    if sys::is_address_space_limited() {
        return;
    }
    if let Some(own) = LOG.get(OWN.swap(LOGS, Relaxed)).filter(|log| log.len() <= PAGE) {
        own.drop_it();
    }
    let Some(place) = LOG.iter().position(|log| log.at.load(Relaxed) == 0) else { return };
    let log = &LOG[place];
    let size = (memcg.max_bytes.load(Relaxed) as usize / PART).next_multiple_of(PAGE);
    SEALED.store(false, SeqCst);
    let Ok((read, write)) = create(size) else { return };
    log.size.store(size, Relaxed);
    log.emptied.store(0, Relaxed);
    log.read.store(PAGE, Relaxed);
    log.at.store(read, Release);
    OWN.store(place, SeqCst);
    WRITER.1.store(size, SeqCst);
    WRITER.0.store(write, SeqCst);
    WRITABLE.store(write, SeqCst);
    // A thread may give up rights this moment.
    if SEALED.load(SeqCst) {
        close();
    }
}

/// A file without a name, mapped to be read and to be written.
fn create(size: usize) -> Result<(usize, usize), Errno> {
    let file = sys::memfd(c"zfolio-family")?;
    sys::ftruncate(&file, size)?;
    let mut path = Line::default();
    let _ = write!(path, "/proc/self/fd/{}\0", file.raw());
    let reader = sys::open(path.as_str().as_bytes(), O_RDONLY)?;
    let write = arena::map_file(size, PROT_READ | PROT_WRITE, &file)?;
    // SAFETY: mapped a moment ago, and nobody else's.
    unsafe { (*(write as *const Head)).len.store(PAGE as u64, Release) };
    match arena::map_for_all(size, PROT_READ, &reader) {
        Ok(read) => Ok((read, write)),
        Err(errno) => {
            // SAFETY: as above.
            unsafe { arena::unmap(write, size) };
            Err(errno)
        }
    }
}

/// Where the logs are that this process reads, and its children after it.
pub fn ranges() -> impl Iterator<Item = Range<usize>> {
    LOG.iter().map(Log::range)
}

/// For a thread of the process `pid` that is about to give up rights: what children can read is not written to any more. In a child of vfork, which has its parent's memory,
/// nothing is done.
pub fn seal(pid: u32) {
    if sys::getpid() != Ok(pid as usize) {
        return;
    }
    SEALED.store(true, SeqCst);
    while WRITING.load(SeqCst) {
        sys::sched_yield();
    }
    close();
}

/// Nothing can be written to the log any more. Its addresses stay reserved, and the engine gives them back: its table,
/// which has them, has a lock that no thread of the program's may
/// take.
fn close() {
    let (at, bytes) = (WRITABLE.swap(0, SeqCst), WRITER.1.load(SeqCst));
    if at != 0 {
        // SAFETY: the engine writes only where it has found it not sealed, and has said so before.
        if unsafe { replace(at, bytes) }.is_ok() {
            CLOSED.store(true, SeqCst);
        } else {
            // Then there will be no other log.
            // SAFETY: as above.
            let _ = unsafe { sys::munmap(at, bytes) };
        }
    }
}

/// Puts an empty mapping in another's place, by a call that hardly a filter of system calls refuses. (A child that inherits it has an empty mapping more.)
///
/// # Safety
/// As for unmapping it.
unsafe fn replace(at: usize, bytes: usize) -> Result<(), Errno> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    // SAFETY: the caller's contract.
    unsafe { sys::mmap_at(at, bytes, PROT_NONE, flags, None) }
}

/// For the engine: gives back the place of a log that was closed. False where there is one that was not, or not quite.
fn forget_writer() -> bool {
    let at = WRITER.0.load(SeqCst);
    if at != 0 && !CLOSED.swap(false, SeqCst) {
        return false;
    }
    WRITER.0.store(0, SeqCst);
    if at != 0 {
        // SAFETY: nothing is there.
        unsafe { arena::unmap(at, WRITER.1.load(SeqCst)) };
    }
    true
}

/// Calls `write` with the address of this process's log, and its list entry; `None` where it has none that it may write to.
fn writing<T>(write: impl FnOnce(usize, &'static Log) -> T) -> Option<T> {
    WRITING.store(true, SeqCst);
    let (at, place) = (WRITABLE.load(SeqCst), OWN.load(SeqCst));
    let done = (at != 0 && place < LOGS && !SEALED.load(SeqCst)).then(|| write(at, &LOG[place]));
    WRITING.store(false, SeqCst);
    done
}

/// Tells the family that these pages of a window, by bit, are in an object of this fingerprint. False when the log is full, or there is none.
pub fn tell(window: usize, pages: u16, fingerprint: u32, object: &[u8]) -> bool {
    writing(|at, log| {
        let (len, size) = (log.len(), log.size.load(Relaxed));
        let stride = stride(object.len());
        if len < PAGE || stride > size - len {
            return false;
        }
        let bytes = object.len() as u32;
        let record = Record { window: window as u64, pages, _zeros: 0, fingerprint, bytes, _more: 0 };
        // SAFETY: within the mapping, where nobody reads before `len` says so; it is aligned.
        unsafe {
            ((at + len) as *mut Record).write(record);
            ((at + len + size_of::<Record>()) as *mut u8)
                .copy_from_nonoverlapping(object.as_ptr(), object.len());
            (*(at as *const Head)).len.store((len + stride) as u64, Release);
        }
        true
    })
    .unwrap_or(false)
}

/// Calls `heed` with window, pages, body, and whether it is a relative's, for records that were not read yet, up to `most` of them. True when there are more.
pub fn listen(most: usize, mut heed: impl FnMut(usize, u16, Body, bool)) -> bool {
    let mut left = most;
    for (place, log) in LOG.iter().enumerate() {
        while let Some((record, object)) = log.record(log.read.load(Relaxed)) {
            if left == 0 {
                return true;
            }
            left -= 1;
            let at = log.read.fetch_add(stride(object.len()), Relaxed);
            let body = Body::Common {
                log: place as u32,
                at: (at / align_of::<Record>()) as u32,
                fingerprint: record.fingerprint,
            };
            heed(record.window as usize, record.pages, body, place != OWN.load(Relaxed));
        }
    }
    false
}

/// Forgets how far logs were read: for who has just begun to keep account of pages.
pub fn read_anew() {
    LOG.iter().for_each(|log| log.read.store(PAGE, Relaxed));
}

/// The bytes of the object that a body names; `None` when there is none.
pub fn object(log: u32, at: u32) -> Option<&'static [u8]> {
    LOG.get(log as usize)?.record(at as usize * align_of::<Record>()).map(|(_, object)| object)
}

/// Bytes of this process's own log, and of those that it has read of its forebears.
pub fn bytes() -> (usize, usize) {
    let own = OWN.load(Relaxed);
    let bytes = |log: &Log| log.len().saturating_sub(PAGE).next_multiple_of(PAGE);
    LOG.iter().enumerate().fold((0, 0), |(mine, theirs), (place, log)| {
        if place == own { (mine + bytes(log), theirs) } else { (mine, theirs + bytes(log)) }
    })
}

/// True when logs take so much that it is worth to bring home what is still needed of them, once there is no family any more: one part in so many of what one can hold.
pub fn is_worth_leaving() -> bool {
    const WORTH: usize = 8;
    let (mine, theirs) = bytes();
    let size = LOG.iter().map(|log| log.size.load(Relaxed)).max().unwrap_or(0);
    mine + theirs > size / WORTH
}

/// Nothing of this process depends on a log any more, and it had no family a moment ago: empties its own, and gives up the others.
pub fn empty(memcg: &Memcg, slot: &Slot) {
    let own = OWN.load(Relaxed);
    for (place, log) in LOG.iter().enumerate() {
        if place != own {
            log.drop_it();
        }
    }
    writing(|at, log| {
        // SAFETY: mapped as long as it is writable.
        let head = unsafe { &*(at as *const Head) };
        log.emptied.store(head.emptied.fetch_add(1, SeqCst) + 1, Relaxed);
        // Who has got a slot meanwhile, and looked before that was counted, may read it.
        if memcg.has_family(slot) {
            return;
        }
        head.len.store(PAGE as u64, SeqCst);
        log.read.store(PAGE, Relaxed);
        // SAFETY: nobody depends on what is there.
        let _ = unsafe { sys::madvise(at + PAGE, log.size.load(Relaxed) - PAGE, MADV_REMOVE) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::Settings;
    use uffd::maps::Maps;

    fn heard() -> Vec<(usize, u16, Body, bool)> {
        let mut heard = Vec::new();
        while listen(1, |window, pages, body, borrowed| heard.push((window, pages, body, borrowed))) {}
        heard
    }

    /// All in one: there is one list of logs in a process.
    #[test]
    fn what_is_told_is_read_until_the_log_is_closed_or_emptied() {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(4 << 20, Settings::default());
        let [slot, child] = [1, 2].map(|pid| memcg.claim(pid).unwrap());
        begin(&memcg, slot, false);
        assert!(tell(0x10000, 0b101, 7, &[1; 100]) && tell(0x20000, 1, 8, &[2; 3]));
        let all = heard();
        let windows: Vec<_> =
            all.iter().map(|&(window, pages, _, borrowed)| (window, pages, borrowed)).collect();
        assert_eq!(windows, [(0x10000, 0b101, false), (0x20000, 1, false)]);
        let objects = all.iter().map(|&(_, _, body, _)| match body {
            Body::Common { log, at, fingerprint } => (fingerprint, object(log, at).unwrap()),
            _ => panic!("{body:?}"),
        });
        assert_eq!(objects.collect::<Vec<_>>(), [(7, &[1u8; 100][..]), (8, &[2; 3])]);
        assert!(heard().is_empty() && object(0, 3).is_none() && object(7, 600).is_none());
        let own = &LOG[OWN.load(Relaxed)];
        // SAFETY: a mapping of this test's.
        let opened = unsafe { sys::mprotect(own.range().start, PAGE, PROT_READ | PROT_WRITE) };
        assert_eq!(opened, Err(Errno::EACCES), "what children have cannot be made writable");

        // A child begins anew: it reads all of it once more, as a relative's.
        memcg.join_family(slot, child);
        begin(&memcg, child, false);
        assert_eq!(
            heard().iter().map(|all| (all.0, all.3)).collect::<Vec<_>>(),
            [(0x10000, true), (0x20000, true)]
        );
        assert!(tell(0x30000, 1, 9, &[3; 10]));
        assert_eq!(heard().iter().map(|all| (all.0, all.3)).collect::<Vec<_>>(), [(0x30000, false)]);
        begin(&memcg, child, true);
        assert!(heard().is_empty(), "who has all that its parent knew reads on");

        // Rights are given up: nothing can be told, until there is another log.
        assert!(tell(0x40000, 1, 9, &[4; 10]));
        seal(sys::getppid().unwrap() as u32);
        assert!(tell(0x50000, 1, 9, &[5; 10]), "a child of vfork closes nothing of its parent's");
        let maps = Maps::open().unwrap();
        let place = WRITER.0.load(Relaxed)..WRITER.0.load(Relaxed) + WRITER.1.load(Relaxed);
        seal(sys::getpid().unwrap() as u32);
        assert!(!tell(0x60000, 1, 9, &[6; 10]));
        assert_eq!(heard().len(), 2);
        // Nobody else gets its addresses, and another log does.
        let held = maps.query(place.start).unwrap().unwrap();
        assert!(held.range.start <= place.start && held.range.end >= place.end && !held.is_read_write());
        assert!(arena::first_foreign(place.clone()).is_empty());
        assert!(forget_writer());
        assert!(arena::first_foreign(place.clone()).is_empty());
        renew(&memcg);
        assert_eq!(WRITER.0.load(Relaxed), place.start);
        assert!(tell(0x70000, 1, 9, &[7; 10]));
        assert_eq!(heard().len(), 1);

        // A log is full at last, and is not emptied while there is a family.
        while tell(0x80000, 1, 9, &[8; 3000]) {}
        assert!(bytes().0 > (1 << 20) - 3 * PAGE && is_worth_leaving());
        empty(&memcg, slot);
        assert!(bytes().0 > 0 && bytes().1 == 0, "forebears' logs are given up, what a child may read stays");
        memcg.forgo(child);
        empty(&memcg, slot);
        assert_eq!(bytes(), (0, 0));
        assert!(tell(0x90000, 1, 9, &[9; 10]) && heard().len() == 1);

        // Who was born before that reads nothing of it, nor who has lost its family.
        for is_late in [true, false] {
            let child = memcg.claim(3).unwrap();
            if is_late {
                memcg.join_family(slot, child);
                LOG[OWN.load(Relaxed)].emptied.fetch_sub(1, Relaxed);
            }
            begin(&memcg, child, false);
            assert!(heard().is_empty());
            assert!(tell(0xa0000, 1, 9, &[9; 10]) && heard().len() == 1);
        }
    }
}
