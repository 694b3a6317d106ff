//! Ranges that the program itself keeps out of its children (MADV_DONTFORK). The engine keeps more out while pages are away, and must know which
//! to give back before a fork.
//!
//! The hook of madvise posts what the program advises, and the engine alone keeps the table. No lock is shared: the posting thread may fault, on
//! its stack for instance, and only the engine could serve that. Ranges leave the table when their mapping goes: the kernel tells that of
//! those that are registered, as events. What was posted before an event is applied before it, what is posted after it, by a program
//! that maps and keeps out the range anew, later. Of ranges that are not registered nobody tells, and so the table is compared with the
//! kernel's own flags before a range is registered (`live.rs`).
//!
//! A thread that keeps a range out says so before the kernel knows it, and again after: whatever the engine does between, a fork of another thread's
//! included, leaves the range alone. Said only after, a fork that came between took the kernel's flag away, and the next child had the
//! range.
//!
//! Before there is an engine nobody reads, and nobody would tell of mappings that go. It is noted only that there was advice (`EARLY`), and the engine asks the
//! kernel for all of it when it awakes, before it registers anything ([`ask_kernel`]).

use crate::arena;
use crate::smaps;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::*};
use uffd::maps::Maps;
use uffd::sys::{self, Errno, consts::*};
use uffd::{Message, Mutex, PAGE};

/// What the program says of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Advice {
    /// Children have it.
    GiveBack,
    /// The kernel is about to be told that children do not have it; `KeepOut` or `Refused` follows.
    Begin,
    /// Children do not have it.
    KeepOut,
    /// The kernel did not want to know.
    Refused,
}

impl Advice {
    fn from_raw(raw: u8) -> Advice {
        [Advice::GiveBack, Advice::Begin, Advice::KeepOut, Advice::Refused][raw as usize]
    }
}

/// What is known.
struct Table {
    /// Kept out.
    kept: Vec<Range<usize>>,
    /// About to be, each by a thread that is in the call.
    begun: Vec<Range<usize>>,
}

impl Table {
    const fn new() -> Table {
        Table { kept: Vec::new(), begun: Vec::new() }
    }

    fn apply(&mut self, range: Range<usize>, advice: Advice) {
        if matches!(advice, Advice::KeepOut | Advice::Refused)
            && let Some(index) = self.begun.iter().position(|r| *r == range)
        {
            self.begun.swap_remove(index);
        }
        match advice {
            Advice::Begin => self.begun.push(range),
            Advice::Refused => {}
            Advice::GiveBack => subtract(&mut self.kept, &range),
            Advice::KeepOut => {
                subtract(&mut self.kept, &range);
                self.kept.push(range);
            }
        }
    }
}

/// The engine's; taken by no other process.
static TABLE: Mutex<Table> = Mutex::new(Table::new());

/// How much can be posted and not yet read.
const POSTS: usize = 64;

/// One advice: the turn in which it is full (its number and 1), and what it says.
struct Post {
    full: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    advice: AtomicU8,
}

/// A ring of posts: any thread of the program writes, the engine reads.
struct Box {
    posts: [Post; POSTS],
    written: AtomicUsize,
    read: AtomicUsize,
}

static BOX: Box = Box::new();

impl Box {
    const fn new() -> Box {
        let posts = [const {
            Post {
                full: AtomicUsize::new(0),
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                advice: AtomicU8::new(0),
            }
        }; POSTS];
        Box { posts, written: AtomicUsize::new(0), read: AtomicUsize::new(0) }
    }
}

/// Takes `hole` out of a list of ranges.
fn subtract(ranges: &mut Vec<Range<usize>>, hole: &Range<usize>) {
    for index in (0..ranges.len()).rev() {
        let r = ranges[index].clone();
        if r.end > hole.start && r.start < hole.end {
            ranges.swap_remove(index);
            ranges.extend(
                [r.start..hole.start, hole.end..r.end].into_iter().filter(|rest| rest.start < rest.end),
            );
        }
    }
}

/// The program has kept something out of its children while it had no engine.
static EARLY: AtomicBool = AtomicBool::new(false);

/// The program is about to keep something out of its children, and has no engine.
pub fn advised_early() {
    EARLY.store(true, SeqCst);
}

/// Enters what the kernel keeps out of children in the table, if there is something that nobody has posted. To be called before anything is registered, and so kept out
/// by us. Walks all page tables, once. An error leaves the table as it was.
pub fn ask_kernel() -> Result<(), Errno> {
    if !EARLY.load(SeqCst) {
        return Ok(());
    }
    collect();
    let mut found = Vec::new();
    smaps::each(|range, flags| found.extend(flags.is_kept_out().then_some(range)))?;
    let mut table = TABLE.lock();
    for range in found {
        let mut at = range.start;
        while at < range.end {
            let part = arena::first_foreign(at..range.end);
            at = part.end;
            if !part.is_empty() && !table.kept.contains(&part) {
                subtract(&mut table.kept, &part);
                table.kept.push(part);
            }
        }
    }
    Ok(())
}

/// The program gives advice on a range. `is_read`: there is an engine that will read it.
pub fn advised(range: Range<usize>, advice: Advice, is_read: impl Fn() -> bool) {
    let number = loop {
        let number = BOX.written.load(SeqCst);
        if number < BOX.read.load(Acquire) + POSTS {
            if BOX.written.compare_exchange(number, number + 1, SeqCst, Relaxed).is_ok() {
                break number;
            }
        } else if is_read() {
            sys::sched_yield();
        } else {
            return;
        }
    };
    let post = &BOX.posts[number % POSTS];
    post.start.store(range.start, Relaxed);
    post.end.store(range.end, Relaxed);
    post.advice.store(advice as u8, Relaxed);
    post.full.store(number + 1, Release);
}

/// Applies what was posted.
pub fn collect() {
    collect_to(BOX.written.load(SeqCst));
}

/// Applies what was posted, up to the post of this number.
fn collect_to(end: usize) {
    let mut number = BOX.read.load(Relaxed);
    if number >= end {
        return;
    }
    let mut table = TABLE.lock();
    while number < end {
        let post = &BOX.posts[number % POSTS];
        if post.full.load(Acquire) != number + 1 {
            return;
        }
        let range = post.start.load(Relaxed)..post.end.load(Relaxed);
        table.apply(range, Advice::from_raw(post.advice.load(Relaxed)));
        number += 1;
        BOX.read.store(number, Release);
    }
}

/// Reads a message, and follows what it says of mappings. `is_due`: a message is there already.
pub fn follow(is_due: impl FnOnce() -> bool, next: impl FnOnce() -> Option<Message>) -> Option<Message> {
    // Whoever caused an event that is due has posted before it, and posts nothing until it is read. Without an event what was posted before the look
    // is applied all the same: whoever posts waits for room in the box, and may do nothing that makes a message meanwhile.
    let written = BOX.written.load(SeqCst);
    if written > 0 {
        if !is_due() {
            collect_to(written);
            return None;
        }
        collect();
    }
    let message = next();
    let table = &mut TABLE.lock().kept;
    match &message {
        Some(Message::Unmap(range)) => subtract(table, range),
        Some(Message::Remap { from, to }) if !table.is_empty() => {
            let mut moved = table.clone();
            subtract(&mut moved, &(0..from.start));
            subtract(&mut moved, &(from.end..usize::MAX));
            subtract(table, &(*to..*to + from.len()));
            // The old address too, unless it is kept, empty: an UNMAP follows.
            table.extend(moved.into_iter().map(|r| r.start - from.start + to..r.end - from.start + to));
        }
        _ => {}
    }
    message
}

/// True when the table knows a part of a mapping; it may be stale.
pub fn knows(range: &Range<usize>) -> bool {
    collect();
    TABLE.lock().kept.iter().any(|r| r.end > range.start && r.start < range.end)
}

/// What the table says of a range is stale.
pub fn forget(range: &Range<usize>) {
    subtract(&mut TABLE.lock().kept, range);
}

/// Lets children have what of `range` the program does not keep from them itself.
pub fn give_back(range: Range<usize>) {
    each_inherited(range, |r| {
        let _ = sys::madvise_keep(r.start, r.len(), MADV_DOFORK);
    });
}

/// Calls `each` with the parts of `range` that the program lets its children have.
fn each_inherited(range: Range<usize>, each: impl FnMut(Range<usize>)) {
    collect();
    let mut inherited = alloc::vec![range];
    let table = TABLE.lock();
    for kept in table.kept.iter().chain(&table.begun) {
        subtract(&mut inherited, kept);
    }
    drop(table);
    inherited.into_iter().for_each(each);
}

/// True when all of a mapping is kept out of children already. Only smaps would tell, and walks all page tables for it: a second for node's 832
/// mappings. So its first page is kept out, which splits the mapping unless all of it was; if not, that is the caller's to undo.
pub fn is_kept_out(maps: &Maps, whole: &Range<usize>) -> Result<bool, Errno> {
    sys::madvise_keep(whole.start, PAGE, MADV_DONTFORK)?;
    let first = maps.query(whole.start)?.filter(|m| m.range.contains(&whole.start)).ok_or(Errno::EAGAIN)?;
    Ok(first.range.end > whole.start + PAGE)
}

/// In a child of fork: what was kept out is not there.
///
/// # Safety
/// The caller is the only thread.
pub unsafe fn reset() {
    // SAFETY: nobody else can hold a reference to the statics; the old list's memory has stayed with the parent.
    unsafe {
        (&raw const TABLE).cast_mut().write(Mutex::new(Table::new()));
        (&raw const BOX).cast_mut().write(Box::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one box.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn the_box_is_emptied_also_where_no_message_comes() {
        let _alone = ALONE.lock().expect("the other test passes");
        for page in 0..4 * POSTS {
            advised(page..page + 1, Advice::KeepOut, || unreachable!("the box is full"));
            assert!(follow(|| false, || unreachable!("nothing is due")).is_none());
        }
        assert!(knows(&(5..6)));
        forget(&(0..4 * POSTS));
        assert!(!knows(&(0..4 * POSTS)));
    }

    #[test]
    fn what_was_kept_out_before_there_was_an_engine_is_found() {
        let _alone = ALONE.lock().expect("the other test passes");
        let at = sys::mmap(4 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
        sys::madvise_keep(at + 4096, 8192, MADV_DONTFORK).unwrap();
        let range = at..at + (4 << 12);
        ask_kernel().unwrap();
        assert!(!knows(&range), "nobody has said anything");
        advised_early();
        ask_kernel().unwrap();
        assert_eq!(inherited(range.clone()), [at..at + 4096, at + 3 * 4096..at + 4 * 4096]);
        EARLY.store(false, SeqCst);
        forget(&(0..usize::MAX));
        // SAFETY: nobody uses it.
        unsafe { sys::munmap(at, range.len()) }.unwrap();
    }

    fn inherited(range: Range<usize>) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        each_inherited(range, |r| parts.push(r));
        parts.sort_by_key(|r| r.start);
        parts
    }

    #[test]
    fn what_the_program_keeps_to_itself_is_not_given_to_children() {
        let _alone = ALONE.lock().expect("the other test passes");
        let advised = |range, advice| advised(range, advice, || true);
        let follow = |next: &dyn Fn() -> Option<Message>| follow(|| true, next);
        advised(10..20, Advice::KeepOut);
        advised(40..50, Advice::KeepOut);
        advised(45..47, Advice::GiveBack);
        assert_eq!(inherited(0..60), [0..10, 20..40, 45..47, 50..60]);
        assert_eq!(inherited(12..18), []);
        // A mapping that takes the place of one that was kept out is inherited: it was not, and the child had a hole there.
        follow(&|| Some(Message::Unmap(0..45)));
        assert_eq!(inherited(0..60), [0..47, 50..60]);
        follow(&|| Some(Message::Remap { from: 46..49, to: 6 }));
        follow(&|| Some(Message::Unmap(46..49)));
        assert_eq!(inherited(0..60), [0..7, 9..49, 50..60]);
        advised(0..100, Advice::GiveBack);
        assert_eq!(inherited(0..60), std::vec![0..60]);
    }

    /// Between the two posts the kernel's flag may be there or not, and whoever asks it must not decide for the thread that sets it.
    #[test]
    fn what_is_about_to_be_kept_out_is_left_alone_until_it_is_decided() {
        let _alone = ALONE.lock().expect("the other test passes");
        let advised = |range, advice| advised(range, advice, || true);
        advised(10..20, Advice::Begin);
        assert!(!knows(&(10..20)));
        assert_eq!(inherited(0..30), [0..10, 20..30]);
        forget(&(0..30));
        assert_eq!(inherited(0..30), [0..10, 20..30]);
        advised(10..20, Advice::KeepOut);
        assert_eq!(inherited(0..30), [0..10, 20..30]);
        assert!(knows(&(10..20)));
        // Two threads at a time, one of them in vain.
        advised(12..14, Advice::Begin);
        advised(24..26, Advice::Begin);
        advised(24..26, Advice::Refused);
        advised(12..14, Advice::Refused);
        assert_eq!(inherited(0..30), [0..10, 20..30]);
        advised(0..100, Advice::GiveBack);
        assert_eq!(inherited(0..30), std::vec![0..30]);
    }

    #[test]
    fn a_mapping_that_is_kept_out_of_children_is_told_from_one_that_is_not() {
        let maps = Maps::open().unwrap();
        // Between two that nothing joins.
        let at = arena::map(5 << 16, 1 << 16).unwrap();
        let whole = at + (2 << 16)..at + (3 << 16);
        for gap in [at + (1 << 16), at + (3 << 16)] {
            // SAFETY: memory of this test alone.
            unsafe { sys::mprotect(gap, 1 << 16, 0) }.unwrap();
        }
        let advise =
            |range: &Range<usize>, advice| sys::madvise_keep(range.start, range.len(), advice).unwrap();
        advise(&whole, MADV_DOFORK);
        assert_eq!(is_kept_out(&maps, &whole), Ok(false));
        advise(&(whole.start..whole.start + PAGE), MADV_DOFORK);
        assert_eq!(maps.query(whole.start).unwrap().unwrap().range, whole, "whole again");
        advise(&whole, MADV_DONTFORK);
        assert_eq!(is_kept_out(&maps, &whole), Ok(true));
        assert_eq!(maps.query(whole.start).unwrap().unwrap().range, whole);
    }
}
