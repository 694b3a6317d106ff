//! Tests of the engine's memory.

use super::*;
use memcg::ENGINE_ADDRESSES;
use uffd::maps::Maps;

/// There is one reservation, and one list of what children have.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// True when a copy of this process, in which `test` runs, ends well.
fn in_a_copy(test: impl FnOnce() -> bool) -> bool {
    // No other thread of this process holds it then: it would be held in the copy for ever.
    let held = OWN.lock();
    // SAFETY: the copy runs the test, which allocates nothing, and ends.
    let pid = unsafe { sys::syscall(NR_CLONE, [SIGCHLD as usize, 0, 0, 0, 0, 0]) }.unwrap();
    drop(held);
    if pid == 0 {
        let passes = test();
        // SAFETY: the process ends; the number of exit_group.
        let _ = unsafe { sys::syscall(231, [!passes as usize, 0, 0, 0, 0, 0]) };
    }
    let mut status = 0;
    assert_eq!(sys::wait4(pid as u32, &mut status, 0), Ok(pid));
    status == 0
}

/// How much of a range is mapped, and of that with access.
fn mapped(range: Range<usize>) -> (usize, usize) {
    let maps = Maps::open().unwrap();
    let (mut at, mut sums) = (range.start, (0, 0));
    while let Ok(Some(m)) = maps.query(at)
        && m.range.start < range.end
    {
        let bytes = m.range.end.min(range.end) - m.range.start.max(at);
        sums = (sums.0 + bytes, sums.1 + if m.protection != 0 { bytes } else { 0 });
        at = m.range.end;
    }
    sums
}

fn holds_one(at: usize) -> bool {
    // SAFETY: mapped, or it ends the copy.
    unsafe { (at as *const u8).read_volatile() == 1 }
}

#[test]
fn the_table_joins_neighbours_and_splits_again() {
    let mut t = RangeTable::new();
    for start in [10, 30, 20, 50] {
        assert!(t.enter(start, start + 10));
    }
    assert_eq!(t.ranges[..t.len], [(10, 40), (50, 60)]);
    t.leave(20, 30);
    assert_eq!(t.ranges[..t.len], [(10, 20), (30, 40), (50, 60)]);
    t.leave(10, 20);
    assert!(t.enter(40, 50));
    assert_eq!(t.ranges[..t.len], [(30, 60)]);
}

#[test]
fn mappings_are_aligned_writable_and_known() {
    let _alone = ALONE.lock();
    let at = map(3 * PAGE, 1 << 21).unwrap();
    assert_eq!(at % (1 << 21), 0);
    // SAFETY: inside the mapping.
    unsafe { ((at + 2 * PAGE) as *mut u8).write(1) };
    assert!(first_foreign(at..at + 3 * PAGE).is_empty());
    // SAFETY: nobody else has it.
    unsafe { unmap(at, 3 * PAGE) };
    assert_eq!(mapped(at..at + 3 * PAGE), (3 * PAGE, 0), "reserved again");
    assert!(first_foreign(at..at + 3 * PAGE).is_empty());
    assert_eq!(map(3 * PAGE, 1 << 21), Some(at));
}

#[test]
fn what_lies_between_the_engine_s_is_the_program_s() {
    let _alone = ALONE.lock();
    map(PAGE, PAGE).unwrap();
    let (first, last) = reservation::ranges().fold((usize::MAX, 0), |(first, last), range| {
        assert!(first_foreign(range.clone()).is_empty());
        assert_eq!(first_foreign(range.start - PAGE..range.end), range.start - PAGE..range.start);
        (first.min(range.start), last.max(range.end))
    });
    assert_eq!(first_foreign(0..1 << 47).start..first_foreign(0..1 << 47).end, 0..first);
    assert_eq!(first_foreign(last..1 << 47), last..1 << 47);
    let programs = sys::mmap(PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
    assert_eq!(first_foreign(programs..programs + PAGE), programs..programs + PAGE);
}

#[test]
fn what_moves_leaves_no_hole() {
    let _alone = ALONE.lock();
    let (from, to) = (map(4 * PAGE, PAGE).unwrap(), map(9 * PAGE, PAGE).unwrap());
    // SAFETY: mappings of this test's.
    unsafe {
        (from as *mut u8).write(1);
        assert!(remap(from..from + 4 * PAGE, to, 9 * PAGE));
    }
    assert!(holds_one(to));
    assert_eq!(
        (mapped(from..from + 4 * PAGE), mapped(to..to + 9 * PAGE)),
        ((4 * PAGE, 0), (9 * PAGE, 9 * PAGE))
    );
}

/// What the engine's heap grows by while a thread forks is there in the child, whose heap says so.
#[test]
fn what_is_mapped_while_a_child_is_let_in_is_let_in_too() {
    let _alone = ALONE.lock();
    let is_inherited = |at: usize| in_a_copy(|| mapped(at..at + PAGE) == (PAGE, PAGE));
    let_in(true);
    let (meanwhile, apart) = (map(PAGE, PAGE).unwrap(), map_apart(PAGE, PAGE).unwrap());
    assert_eq!((is_inherited(meanwhile), is_inherited(apart)), (true, false));
    let_in(false);
    assert!(!is_inherited(meanwhile) && !is_inherited(map(PAGE, PAGE).unwrap()));
}

/// A child's addresses are reserved as its parent's are, whatever it was that the parent kept to itself.
#[test]
fn a_child_has_what_it_takes_over_and_the_rest_is_reserved() {
    let _alone = ALONE.lock();
    let file = sys::memfd(c"common").unwrap();
    sys::ftruncate(&file, PAGE).unwrap();
    let common = map_for_all(PAGE, PROT_READ | PROT_WRITE, &file).unwrap();
    let (heritable, apart) = (map(PAGE, PAGE).unwrap(), map_apart(PAGE, PAGE).unwrap());
    for at in [common, heritable, apart] {
        // SAFETY: mappings of this test's.
        unsafe { (at as *mut u8).write(1) };
    }
    let reserved = || reservation::ranges().all(|range| mapped(range.clone()).0 == range.len());
    let is_there = |at: usize| mapped(at..at + PAGE).1 == PAGE;
    let kept = || core::iter::once(common..common + PAGE);
    let_in(true);
    assert!(in_a_copy(|| {
        let has_holes = !reserved();
        // SAFETY: the copy has one thread, and uses nothing else.
        unsafe { take_over(kept()) };
        let is_right = holds_one(common) && holds_one(heritable) && !is_there(apart) && reserved();
        // What it maps is where its parent's was that it has not got.
        has_holes && is_right && map(PAGE, PAGE).is_some_and(|at| at != common && at != heritable)
    }));
    let_in(false);
    assert!(in_a_copy(|| {
        // SAFETY: as above.
        unsafe { begin_anew(kept()) };
        holds_one(common) && !is_there(heritable) && !is_there(apart) && reserved()
    }));
}

/// The kernel chooses then, and in the moment in which a mapping has left its addresses something of the program's may
/// come there, which stays.
#[test]
fn where_all_its_addresses_are_taken_others_are_reserved() {
    let _alone = ALONE.lock();
    assert!(in_a_copy(|| {
        let (first, bytes) = (ENGINE_ADDRESSES.start, ENGINE_ADDRESSES.len());
        let nothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        // SAFETY: of the copy alone, which has no use for what is there.
        unsafe {
            forget();
            sys::mmap_at(first, bytes, PROT_NONE, nothing | MAP_FIXED, None).unwrap();
        }
        let at = map(3 * PAGE, PAGE).unwrap();
        let is_elsewhere =
            !(first..first + bytes).contains(&at) && first_foreign(at..at + 3 * PAGE).is_empty();
        let gap = at + PAGE..at + 2 * PAGE;
        // SAFETY: of the copy alone.
        unsafe {
            sys::mmap_at(gap.start, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, None).unwrap();
        }
        reservation::close_hole(gap.clone());
        is_elsewhere && first_foreign(at..at + 3 * PAGE) == gap && mapped(gap).1 == PAGE
    }));
}

/// Of a program that may map little, or locks all that it maps, the reservation takes no more than it must.
#[test]
fn it_grows_within_the_program_s_limits() {
    const SETRLIMIT: u32 = 160;
    const AS: usize = 9;
    const MEMLOCK: usize = 8;
    const MLOCKALL: u32 = 151;
    const FUTURE: usize = 2;
    let _alone = ALONE.lock();
    let limit = |what, bytes: usize| {
        let limits = [bytes; 2];
        // SAFETY: a limit of the copy alone.
        unsafe { sys::syscall(SETRLIMIT, [what, limits.as_ptr() as usize, 0, 0, 0, 0]) }.is_ok()
    };
    let size = || {
        let statm = sys::open(b"/proc/self/statm\0", O_RDONLY).unwrap();
        crate::footprint::sizes(&statm).0
    };
    // A child whose parent's engine was not limited has no more than it has use for.
    let kept = map(PAGE, PAGE).unwrap();
    let_in(true);
    assert!(in_a_copy(|| {
        let is_limited = limit(AS, size() + (64 << 20));
        // SAFETY: the copy has one thread, and uses nothing else.
        unsafe { begin_anew(core::iter::once(kept..kept + PAGE)) };
        let is_left = reservation::bytes() == PAGE && mapped(kept..kept + PAGE) == (PAGE, PAGE);
        is_limited && is_left && map(40 << 20, PAGE).is_some() && reservation::bytes() == PAGE + (40 << 20)
    }));
    let_in(false);
    assert!(in_a_copy(|| {
        let was = reservation::bytes();
        limit(AS, size() + (64 << 20))
            && map(40 << 20, PAGE).is_some()
            && reservation::bytes() - was <= 40 << 20
            && map(40 << 20, PAGE).is_none()
    }));
    assert!(in_a_copy(|| {
        // SAFETY: of the copy alone.
        let locks = unsafe { sys::syscall(MLOCKALL, [FUTURE, 0, 0, 0, 0, 0]) }.is_ok();
        let at = map(40 << 20, PAGE);
        locks
            && limit(MEMLOCK, 1 << 20)
            && at.is_some_and(|at| {
                let mut run = [uffd::pagemap::Run::default()];
                let pagemap = uffd::pagemap::Pagemap::open().unwrap();
                pagemap.present(at..at + (40 << 20), 1, &mut run).unwrap().0 == 0
            })
    }));
}

#[test]
fn no_thread_of_the_program_locks_while_its_engine_works() {
    let (program, other) = (100, 101);
    assert!(!may_lock(EngineState::Awake, program, program));
    assert!(may_lock(EngineState::Awake, program, other), "the engine, a worker, a child of fork");
    assert!(may_lock(EngineState::Asleep, program, program), "its engine is about to be started");
}
