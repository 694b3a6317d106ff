//! Tests of the userfaultfd, on the kernel at hand.

use super::*;
use crate::pagemap::Run;
use crate::sys::consts::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn map(pages: usize) -> usize {
    sys::mmap(pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap()
}

/// None where this machine gives no right to userfaultfd; says so.
fn userfault() -> Option<Userfault> {
    match Userfault::open(Features::Events) {
        Ok(u) => Some(u),
        Err(errno) => {
            crate::skip::skip(&format!("userfaultfd is refused: {errno}"));
            None
        }
    }
}

#[test]
fn a_moved_page_is_a_fault_until_it_is_moved_back() {
    let Some(u) = userfault() else { return };
    let pagemap = Pagemap::open().unwrap();
    let (program, stage) = (map(4), map(4));
    // SAFETY: inside the mapping.
    unsafe { ((program + PAGE) as *mut u64).write(42) };
    u.register(program..program + 4 * PAGE).unwrap();
    u.register(stage..stage + 4 * PAGE).unwrap();
    // SAFETY: nobody but this test uses the mappings.
    let out = unsafe { u.move_pages(&pagemap, stage, program + PAGE, PAGE) };
    assert_eq!(out, Moved { bytes: PAGE, stop: None });
    std::thread::scope(|s| {
        // SAFETY: inside the mapping; the read waits for the move below.
        let reader = s.spawn(|| unsafe { ((program + PAGE) as *const u64).read_volatile() });
        let message = loop {
            if let Some(m) = u.next() {
                break m;
            }
        };
        let Message::Fault { at, write, protected, thread } = message else { panic!("{message:?}") };
        assert_eq!((at, write, protected), (program + PAGE, false, false));
        assert_ne!(thread, sys::gettid().unwrap() as u32);
        // SAFETY: as above.
        assert_eq!(unsafe { u.move_pages(&pagemap, program + PAGE, stage, PAGE) }.stop, None);
        assert_eq!(reader.join().unwrap(), 42);
    });
}

#[test]
fn who_writes_to_a_protected_page_waits() {
    let Some(u) = userfault() else { return };
    let pagemap = Pagemap::open().unwrap();
    let program = map(4);
    // SAFETY: inside the mapping.
    unsafe { (program as *mut u64).write(42) };
    u.register(program..program + 4 * PAGE).unwrap();
    u.protect(program..program + 4 * PAGE).unwrap();
    std::thread::scope(|s| {
        // SAFETY: inside the mapping; the write waits.
        let writer = s.spawn(|| unsafe {
            assert_eq!((program as *const u64).read_volatile(), 42, "a read does not");
            (program as *mut u64).write_volatile(43)
        });
        let message = loop {
            if let Some(m) = u.next() {
                break m;
            }
        };
        let Message::Fault { at, write, protected, .. } = message else { panic!("{message:?}") };
        assert_eq!((at, write, protected), (program, true, true));
        // Nor can it be made exclusive before.
        assert_eq!(sys::futex_touch(program), Err(Errno::EFAULT));
        u.unprotect(program..program + PAGE).unwrap();
        writer.join().unwrap();
    });
    assert_eq!(sys::futex_touch(program), Ok(()));
    assert_eq!(pagemap.shared(program..program + 4 * PAGE), Ok(0), "nobody else has it");
}

#[test]
fn a_silent_range_takes_pages_and_raises_no_fault() {
    let Some(u) = userfault() else { return };
    let pagemap = Pagemap::open().unwrap();
    let (program, stage) = (map(2), map(2));
    // SAFETY: inside the mapping.
    unsafe { (program as *mut u64).write(42) };
    u.register_silent(stage..stage + 2 * PAGE).unwrap();
    // SAFETY: nobody but this test uses the mappings.
    unsafe {
        assert_eq!(u.move_pages(&pagemap, stage, program, PAGE), Moved { bytes: PAGE, stop: None });
        assert_eq!((stage as *const u64).read_volatile(), 42);
        let hole = (stage + PAGE) as *mut u64;
        assert_eq!(hole.read_volatile(), 0, "nobody waits");
        hole.write_volatile(7);
        // What the kernel has put there, a zero page written to, can be moved on.
        u.register(program..program + 2 * PAGE).unwrap();
        let on = u.move_pages(&pagemap, program + PAGE, stage + PAGE, PAGE);
        assert_eq!(on, Moved { bytes: PAGE, stop: None });
        assert_eq!(((program + PAGE) as *const u64).read_volatile(), 7);
    }
    assert_eq!(u.next(), None);
}

#[test]
fn memory_that_is_out_is_an_error_in_proc_mem_and_nobody_waits() {
    let Some(u) = userfault() else { return };
    let pagemap = Pagemap::open().unwrap();
    let (program, stage) = (map(2), map(2));
    // SAFETY: inside the mapping.
    unsafe { (program as *mut u64).write(42) };
    u.register(program..program + 2 * PAGE).unwrap();
    u.register(stage..stage + 2 * PAGE).unwrap();
    let memory = sys::open(b"/proc/self/mem\0", O_RDONLY).unwrap();
    let mut word = [0; 8];
    assert_eq!(sys::pread(&memory, &mut word, program), Ok(8));
    assert_eq!(u64::from_ne_bytes(word), 42);
    // SAFETY: nobody but this test uses the mappings.
    let out = unsafe { u.move_pages(&pagemap, stage, program, PAGE) };
    assert_eq!(out, Moved { bytes: PAGE, stop: None });
    // Out, and never there.
    for at in [program, program + PAGE] {
        assert_eq!(sys::pread(&memory, &mut word, at), Err(Errno::EIO));
    }
    assert_eq!(u.next(), None);
}

/// Nobody reads: a clone that waited for its event would wait for ever. What the copy has is not registered there,
/// and what is kept out of it is missing.
#[test]
fn a_clone_waits_for_no_reader_and_the_copy_has_what_is_let_in() {
    let Some(u) = userfault() else { return };
    let pagemap = Pagemap::open().unwrap();
    let (program, stage) = (map(2), map(1));
    for page in 0..2 {
        // SAFETY: inside the mapping.
        unsafe { ((program + page * PAGE) as *mut u64).write(40 + page as u64) };
    }
    u.register(program..program + 2 * PAGE).unwrap();
    u.register_silent(stage..stage + PAGE).unwrap();
    // SAFETY: nobody but this test uses the mappings.
    assert_eq!(unsafe { u.move_pages(&pagemap, stage, program, PAGE) }.stop, None);
    let copy = || {
        // SAFETY: the copy reads memory, and ends.
        let pid = unsafe { sys::syscall(NR_CLONE, [SIGCHLD as usize, 0, 0, 0, 0, 0]) }.unwrap();
        if pid == 0 {
            // SAFETY: inside the mapping.
            let read = |page: usize| unsafe { ((program + page * PAGE) as *const u64).read_volatile() };
            sys::exit((read(0) + read(1)) as u32);
        }
        let mut status = 0;
        assert_eq!(sys::wait4(pid as u32, &mut status, 0), Ok(pid));
        status
    };
    assert_eq!(copy(), 41 << 8, "what is out reads as zeros in a copy that has the mapping");
    sys::madvise_keep(program, 2 * PAGE, MADV_DONTFORK).unwrap();
    assert_eq!(copy() & 0x7f, g::SIGSEGV);
    assert_eq!(u.next(), None);
}

#[test]
fn a_partial_move_says_how_far_and_why() {
    let Some(u) = userfault() else { return };
    let pagemap = Pagemap::open().unwrap();
    let (program, stage) = (map(4), map(4));
    for page in [0, 1, 3] {
        // SAFETY: inside the mapping.
        unsafe { ((program + page * PAGE) as *mut u64).write(1) };
    }
    u.register(stage..stage + 4 * PAGE).unwrap();
    // SAFETY: nobody but this test uses the mappings.
    let first = unsafe { u.move_pages(&pagemap, stage, program, 4 * PAGE) };
    assert_eq!(first.bytes, 2 * PAGE, "{first:?}");
    // SAFETY: as above.
    let hole = unsafe { u.move_pages(&pagemap, stage + 2 * PAGE, program + 2 * PAGE, PAGE) };
    assert_eq!(hole, Moved { bytes: 0, stop: Some(Errno::ENOENT) });
    // SAFETY: as above.
    let taken = unsafe { u.move_pages(&pagemap, stage, program + 3 * PAGE, PAGE) };
    assert_eq!(taken, Moved { bytes: 0, stop: Some(Errno::EEXIST) });
}

#[test]
fn events_come_and_stop_moves_until_they_are_read() {
    let Some(u) = userfault() else { return };
    let pagemap = Pagemap::open().unwrap();
    let (program, stage) = (map(4), map(4));
    // SAFETY: inside the mapping.
    unsafe { (program as *mut u64).write(1) };
    u.register(program..program + 4 * PAGE).unwrap();
    u.register(stage..stage + 4 * PAGE).unwrap();
    std::thread::scope(|s| {
        // SAFETY: the contents are this test's to discard.
        let discarder = s.spawn(|| unsafe { sys::madvise(program, 2 * PAGE, MADV_DONTNEED) });
        let mut stopped = false;
        let message = loop {
            // SAFETY: moving the page to and fro is this test's to do.
            let out = unsafe { u.move_pages(&pagemap, stage, program, PAGE) };
            stopped |= out.stop == Some(Errno::EAGAIN);
            if out.bytes > 0 {
                // SAFETY: as above.
                while unsafe { u.move_pages(&pagemap, program, stage, PAGE) }.bytes == 0 && u.fd.raw() >= 0 {
                    if let Some(m) = u.next() {
                        assert_eq!(m, Message::Remove(program..program + 2 * PAGE));
                        discarder.join().unwrap().unwrap();
                        return;
                    }
                }
            }
            if stopped && let Some(m) = u.next() {
                break m;
            }
        };
        assert_eq!(message, Message::Remove(program..program + 2 * PAGE));
        discarder.join().unwrap().unwrap();
    });
}

const HUGE: usize = 2 << 20;

/// Where a mapping of 2 MiB begins.
fn map_block() -> usize {
    map(2 * HUGE / PAGE).next_multiple_of(HUGE)
}

/// A huge page of sevens; none where this machine gives none, and says so.
fn huge_page(pagemap: &Pagemap) -> Option<usize> {
    let first = map_block();
    sys::madvise_keep(first, HUGE, MADV_HUGEPAGE).unwrap();
    // SAFETY: this test's own memory.
    unsafe { core::ptr::write_bytes(first as *mut u8, 7, HUGE) };
    if is_huge(pagemap, first) {
        return Some(first);
    }
    crate::skip::lacks("there are no huge pages");
    None
}

/// The kernel's version.
fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// True where all of a block is one huge page.
fn is_huge(pagemap: &Pagemap, block: usize) -> bool {
    let mut runs = [Run::default(); 2];
    let (found, _) = pagemap.present(block..block + HUGE, usize::MAX, &mut runs).unwrap();
    found == 1 && runs[0] == Run { start: block, end: block + HUGE, huge: true, touched: false }
}

/// Where page tables lie that are empty the kernel splits it, which takes 500 us and more instead of 4.
#[test]
fn a_huge_page_moves_whole_to_where_nothing_was_or_all_was_dropped_at_once() {
    let Ok(u) = Userfault::open(Features::Quiet) else {
        crate::skip::skip("userfaultfd is refused");
        return;
    };
    let pagemap = Pagemap::open().unwrap();
    let Some(page) = huge_page(&pagemap) else { return };
    let [stage, other] = [(); 2].map(|()| map_block());
    for block in [page, stage, other] {
        u.register(block..block + HUGE).unwrap();
    }
    let stays_whole = |to: usize, from: usize| {
        // SAFETY: this test's own memory, and nobody else uses it.
        let moved = unsafe { u.move_pages(&pagemap, to, from, HUGE) };
        assert_eq!((moved.bytes, moved.stop), (HUGE, None));
        is_huge(&pagemap, to)
    };
    assert!(stays_whole(stage, page) && stays_whole(page, stage), "to where nothing was, and back");
    // SAFETY: as above; a hole is filled.
    let copied = unsafe { u.copy(stage, page, PAGE) };
    assert_eq!((copied.bytes, is_huge(&pagemap, page)), (PAGE, true), "a page is copied out of it");
    // SAFETY: this test's own memory.
    let drop_in = |bytes| unsafe { sys::madvise(stage, bytes, MADV_DONTNEED) }.unwrap();
    drop_in(HUGE);
    // Linux 6.14 has begun to give an empty table back then (CONFIG_PT_RECLAIM).
    let gives_tables_back = kernel() >= (6, 14);
    assert_eq!(stays_whole(stage, page), gives_tables_back, "all was dropped at once");
    if !gives_tables_back {
        return;
    }
    assert!(stays_whole(other, stage));
    // SAFETY: as above.
    let copied = unsafe { u.copy(stage, other, PAGE) };
    assert_eq!(copied.bytes, PAGE);
    drop_in(PAGE);
    assert!(!stays_whole(stage, other), "a table was left, and it was split");
}

/// After a fork a page that was written to is this process's alone, and the first of its huge page may not be.
#[test]
fn a_page_of_a_shared_folio_is_moved_once_that_is_split() {
    unsafe extern "C" {
        safe fn fork() -> i32;
        safe fn _exit(status: i32) -> !;
    }
    let Ok(u) = Userfault::open(Features::Quiet) else {
        crate::skip::skip("userfaultfd is refused");
        return;
    };
    let (pagemap, stage) = (Pagemap::open().unwrap(), map(1));
    u.register(stage..stage + PAGE).unwrap();
    let Some(first) = huge_page(&pagemap) else { return };
    // From now on each of its pages is mapped by itself.
    // SAFETY: as above.
    unsafe { sys::madvise(first + HUGE - PAGE, PAGE, MADV_DONTNEED) }.unwrap();
    let child = fork();
    if child == 0 {
        _exit(0);
    }
    sys::wait4(child as u32, &mut 0, 0).unwrap();
    let page = first + 5 * PAGE;
    // SAFETY: nobody else uses them.
    let take = || unsafe { u.move_pages(&pagemap, stage, page, PAGE) };
    sys::futex_touch(page).unwrap();
    let mut moved = take();
    // A later kernel may ask the page itself.
    if moved.stop == Some(Errno::EBUSY) {
        sys::split_folio(page).unwrap();
        moved = take();
    }
    assert_eq!((moved.bytes, moved.stop), (PAGE, None));
    // SAFETY: it was moved there.
    assert_eq!(unsafe { *(stage as *const u8) }, 7);
}

/// A thread writes to pages all the while, each of which MADV_FREE has just marked as not written: what the processor
/// notes in the page tables disturbs the move.
#[test]
fn a_move_that_is_disturbed_says_all_that_it_moved() {
    // Without events: MADV_FREE would wait until somebody has read of it.
    let Ok(u) = Userfault::open(Features::Quiet) else {
        crate::skip::skip("userfaultfd is refused");
        return;
    };
    let pagemap = Pagemap::open().unwrap();
    const PAGES: usize = 16;
    let (program, stage) = (map(PAGES), map(PAGES));
    u.register(program..program + PAGES * PAGE).unwrap();
    u.register(stage..stage + PAGES * PAGE).unwrap();
    let (stop, end) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(2));
    let writes = |page: usize| {
        // SAFETY: inside the mapping; on a hole it waits until the page is back.
        unsafe { ((program + page * PAGE) as *mut u64).write_volatile(1) }
    };
    for page in 0..PAGES {
        u.zeropage(program + page * PAGE, PAGE);
    }
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Relaxed) {
                (0..PAGES).for_each(writes);
            }
        });
        let mut turn = 0u64;
        let (mut wrong, mut busy) = (None, 0);
        while Instant::now() < end && wrong.is_none() {
            turn += 1;
            // SAFETY: the contents are this test's to give up.
            unsafe { sys::madvise(program, PAGES * PAGE, MADV_FREE) }.unwrap();
            for _ in 0..turn % 300 {
                std::hint::spin_loop();
            }
            // SAFETY: the writer waits for what is away.
            let out = unsafe { u.move_pages(&pagemap, stage, program, PAGES * PAGE) };
            let there = |page: &usize| pagemap.is_present(stage + page * PAGE).unwrap();
            let come = (0..PAGES).filter(there).count() * PAGE;
            wrong = (come != out.bytes).then_some((turn, out, come));
            let mut back = 0;
            while back < PAGES {
                // SAFETY: as above.
                let moved =
                    unsafe { u.move_pages(&pagemap, program + back * PAGE, stage + back * PAGE, PAGE) };
                // ENOENT: still there, or given up and taken back by the kernel. EBUSY: not this process's alone, and
                // that may stay so.
                let is_given_up = matches!(moved.stop, Some(Errno::ENOENT | Errno::EBUSY));
                if is_given_up {
                    // SAFETY: as above.
                    unsafe { sys::madvise(stage + back * PAGE, PAGE, MADV_DONTNEED) }.unwrap();
                    u.zeropage(program + back * PAGE, PAGE);
                }
                busy += (moved.stop == Some(Errno::EBUSY)) as u64;
                back += (moved.bytes > 0 || is_given_up) as usize;
            }
        }
        stop.store(true, Relaxed);
        u.wake(program..program + PAGES * PAGE);
        assert_eq!(wrong, None, "turn, what it said, bytes that came");
        assert!(busy <= turn, "of 16 pages in each of {turn} turns {busy} were busy");
    });
}
