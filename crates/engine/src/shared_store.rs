//! What a family has in common on purpose: logs of compressed pages, each written by one engine and read by those of
//! all its descendants.
//!
//! ```text
//!   the owner's memory                       a child's memory
//!   [ head | record | record | ... ]   rw
//!   [ head | record | record | ... ]   r     [ head | record | record | ... ]   r, at the same address
//!            the same file without a name
//! ```
//!
//! The mapping that can be written to is kept out of children. Theirs is of a descriptor that was opened for reading
//! alone, so that no mprotect makes it more; and no descriptor is left. Before a process gives up rights it gives up
//! the mapping ([`log::seal`]): children that keep them read nothing that was written without.
//!
//! A record is never changed, and stays as long as one of the family may need it. This is safe because
//! 1. an owner empties its log only where no other process of the family lives, and nothing of its own depends on it
//!    ([`empty`]);
//! 2. whoever comes of a fork belongs to the family before it is cloned; only who is so small that it has no slot
//!    does not. It reads nothing before it has one, and looks then whether the log was emptied since it was cloned
//!    ([`begin`]): `LogHead::emptied` is counted before it is looked for the family once more.

use control::arena;
use control::line::Line;
use control::log::{self, LOG, Log, LogHead, LogRecord, stride, writing};
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memcg::{Memcg, Slot};
use uffd::PAGE;
use uffd::sys::{self, Errno, consts::*};
use zswap::PageMask;
use zswap::objects::Body;

/// A log is this part of the limit, at most.
const PART: usize = 4;

/// For the engine, as it starts: what this process has of its ancestors is read from the beginning, unless it is one
/// that takes over, whose parent's engine was copied with all that it had read; and it gets a log of its own, if that
/// is to be had. Who does not belong to the family, since its parent had ended before it could, has no part in its
/// logs.
pub fn begin(memcg: &Memcg, slot: &Slot, takes_over: bool) {
    log::begin();
    let is_relative = takes_over || slot.family.load(SeqCst) != 0;
    for log in LOG.iter().filter(|log| log.at.load(Relaxed) != 0) {
        let is_same = is_relative
            && log.head().is_some_and(|head| head.emptied.load(SeqCst) == log.emptied.load(Relaxed));
        if !is_same {
            log.drop_it();
        } else if !takes_over {
            log.read.store(PAGE, Relaxed);
        }
    }
    renew(memcg);
}

/// For the engine: a log of its own, where it has none that it can write to, and one is to be had. Who is forked from
/// now on has no more rights than this process.
pub fn renew(memcg: &Memcg) {
    // What is being closed this moment is its thread's.
    if log::is_writable() || !log::forget_writer() {
        return;
    }
    // Who may map no more than so much wants it for itself.
    if sys::is_address_space_limited() {
        return;
    }
    if let Some(own) = LOG.get(log::take_own()).filter(|log| log.len() <= PAGE) {
        own.drop_it();
    }
    let Some(place) = LOG.iter().position(|log| log.at.load(Relaxed) == 0) else { return };
    let own = &LOG[place];
    let size = (memcg.max_bytes.load(Relaxed) as usize / PART).next_multiple_of(PAGE);
    log::unseal();
    let Ok((read, write)) = create(size) else { return };
    own.size.store(size, Relaxed);
    own.emptied.store(0, Relaxed);
    own.read.store(PAGE, Relaxed);
    own.at.store(read, Release);
    log::open(place, write..write + size);
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
    unsafe { (*(write as *const LogHead)).len.store(PAGE as u64, Release) };
    match arena::map_for_all(size, PROT_READ, &reader) {
        Ok(read) => Ok((read, write)),
        Err(errno) => {
            // SAFETY: as above.
            unsafe { arena::unmap(write, size) };
            Err(errno)
        }
    }
}

/// Adds that these pages of a window are in an object of this fingerprint. False when the log is full, or there is
/// none.
pub fn add(window: usize, pages: PageMask, fingerprint: u32, object: &[u8]) -> bool {
    writing(|at, log| {
        let len = object.len() as u32;
        // SAFETY: where this log is mapped to be written to.
        unsafe { log.append(at, LogRecord::new(window, pages.to_u16(), fingerprint, len), object) }
    })
    .unwrap_or(false)
}

/// Calls `note` with window, pages, body, and whether it is a relative's, for records that were not read yet, up to
/// `most` of them. True when there are more.
pub fn read_new(most: usize, mut note: impl FnMut(usize, PageMask, Body, bool)) -> bool {
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
                at: (at / align_of::<LogRecord>()) as u32,
                fingerprint: record.fingerprint,
            };
            note(record.window as usize, record.pages.into(), body, place != log::own());
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
    LOG.get(log as usize)?.record(at as usize * align_of::<LogRecord>()).map(|(_, object)| object)
}

/// Bytes of this process's own log, and of those that it has read of its ancestors.
pub fn bytes() -> (usize, usize) {
    let own = log::own();
    let bytes = |log: &Log| log.len().saturating_sub(PAGE).next_multiple_of(PAGE);
    LOG.iter().enumerate().fold((0, 0), |(mine, theirs), (place, log)| {
        if place == own { (mine + bytes(log), theirs) } else { (mine, theirs + bytes(log)) }
    })
}

/// True when logs take so much that it is worth to bring home what is still needed of them, once there is no family any
/// more: one part in so many of what one can hold.
pub fn is_worth_leaving() -> bool {
    const WORTH: usize = 8;
    let (mine, theirs) = bytes();
    let size = LOG.iter().map(|log| log.size.load(Relaxed)).max().unwrap_or(0);
    mine + theirs > size / WORTH
}

/// Nothing of this process depends on a log any more, and it had no family a moment ago: empties its own, and gives up
/// the others.
pub fn empty(memcg: &Memcg, slot: &Slot) {
    let own = log::own();
    for (place, log) in LOG.iter().enumerate() {
        if place != own {
            log.drop_it();
        }
    }
    writing(|at, log| {
        // SAFETY: mapped as long as it is writable.
        let head = unsafe { &*(at as *const LogHead) };
        log.emptied.store(head.emptied.fetch_add(1, SeqCst) + 1, Relaxed);
        // Who has got a slot meanwhile, and looked before that was counted, may read it.
        if memcg.has_family(slot) {
            return;
        }
        head.len.store(PAGE as u64, SeqCst);
        log.read.store(PAGE, Relaxed);
        // Refused, the pages stay until they are written to again.
        // SAFETY: nobody depends on what is there.
        let _ = unsafe { sys::madvise(at + PAGE, log.size.load(Relaxed) - PAGE, MADV_REMOVE) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::Settings;
    use uffd::maps::Maps;

    fn read() -> Vec<(usize, PageMask, Body, bool)> {
        let mut found = Vec::new();
        while read_new(1, |window, pages, body, borrowed| found.push((window, pages, body, borrowed))) {}
        found
    }

    /// All in one: there is one list of logs in a process.
    #[test]
    fn what_is_told_is_read_until_the_log_is_closed_or_emptied() {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(4 << 20, Settings::default());
        let [slot, child] = [1, 2].map(|pid| memcg.claim(pid).unwrap());
        begin(&memcg, slot, false);
        let one = PageMask::page(0);
        assert!(add(0x10000, PageMask::from(0b101), 7, &[1; 100]) && add(0x20000, one, 8, &[2; 3]));
        let all = read();
        let windows: Vec<_> =
            all.iter().map(|&(window, pages, _, borrowed)| (window, pages.to_u16(), borrowed)).collect();
        assert_eq!(windows, [(0x10000, 0b101, false), (0x20000, 1, false)]);
        let objects = all.iter().map(|&(_, _, body, _)| match body {
            Body::Common { log, at, fingerprint } => (fingerprint, object(log, at).unwrap()),
            _ => panic!("{body:?}"),
        });
        assert_eq!(objects.collect::<Vec<_>>(), [(7, &[1u8; 100][..]), (8, &[2; 3])]);
        assert!(read().is_empty() && object(0, 3).is_none() && object(7, 600).is_none());
        let own = &LOG[log::own()];
        // SAFETY: a mapping of this test's.
        let opened = unsafe { sys::mprotect(own.range().start, PAGE, PROT_READ | PROT_WRITE) };
        assert_eq!(opened, Err(Errno::EACCES), "what children have cannot be made writable");

        // A child begins anew: it reads all of it once more, as a relative's.
        memcg.join_family(slot, child);
        begin(&memcg, child, false);
        assert_eq!(
            read().iter().map(|all| (all.0, all.3)).collect::<Vec<_>>(),
            [(0x10000, true), (0x20000, true)]
        );
        assert!(add(0x30000, one, 9, &[3; 10]));
        assert_eq!(read().iter().map(|all| (all.0, all.3)).collect::<Vec<_>>(), [(0x30000, false)]);
        begin(&memcg, child, true);
        assert!(read().is_empty(), "who has all that its parent knew reads on");

        // Rights are given up: nothing can be told, until there is another log.
        assert!(add(0x40000, one, 9, &[4; 10]));
        log::seal(sys::getppid().unwrap() as u32);
        assert!(add(0x50000, one, 9, &[5; 10]), "a child of vfork closes nothing of its parent's");
        let maps = Maps::open().unwrap();
        let place = log::writer();
        log::seal(sys::getpid().unwrap() as u32);
        assert!(!add(0x60000, one, 9, &[6; 10]));
        assert_eq!(read().len(), 2);
        // Nobody else gets its addresses, and another log does.
        let held = maps.query(place.start).unwrap().unwrap();
        assert!(held.range.start <= place.start && held.range.end >= place.end && !held.is_read_write());
        assert!(arena::first_foreign(place.clone()).is_empty());
        assert!(log::forget_writer());
        assert!(arena::first_foreign(place.clone()).is_empty());
        renew(&memcg);
        assert_eq!(log::writer().start, place.start);
        assert!(add(0x70000, one, 9, &[7; 10]));
        assert_eq!(read().len(), 1);

        // A log is full at last, and is not emptied while there is a family.
        while add(0x80000, one, 9, &[8; 3000]) {}
        assert!(bytes().0 > (1 << 20) - 3 * PAGE && is_worth_leaving());
        empty(&memcg, slot);
        assert!(bytes().0 > 0 && bytes().1 == 0, "ancestors' logs are given up, what a child may read stays");
        memcg.forgo(child);
        empty(&memcg, slot);
        assert_eq!(bytes(), (0, 0));
        assert!(add(0x90000, one, 9, &[9; 10]) && read().len() == 1);

        // Who was forked before that reads nothing of it, nor who has lost its family.
        for is_late in [true, false] {
            let child = memcg.claim(3).unwrap();
            if is_late {
                memcg.join_family(slot, child);
                LOG[log::own()].emptied.fetch_sub(1, Relaxed);
            }
            begin(&memcg, child, false);
            assert!(read().is_empty());
            assert!(add(0xa0000, one, 9, &[9; 10]) && read().len() == 1);
        }
    }
}
