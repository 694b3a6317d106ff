//! Tests of the coordinator: of what is counted, divided and ended.

use super::excess::*;
use super::*;
use memcg::Settings;

const MIB: u64 = 1 << 20;

fn memcg() -> &'static Memcg {
    // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
    let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
    memcg.init(1 << 30, Settings::default());
    Box::leak(memcg)
}

/// A parent of 200 MiB whose child has just been forked off, as their engines have published them: the child's is all
/// counted with the parent.
fn family(memcg: &'static Memcg) -> (Coordinator, &'static Slot, &'static Slot) {
    let coordinator = Coordinator::new(memcg, "/no/such/library.so".into(), None);
    let (parent, child) = (memcg.claim(u32::MAX - 1).unwrap(), memcg.claim(u32::MAX).unwrap());
    for slot in [parent, child] {
        assert!(slot.begin(slot.pid.load(Relaxed), 1));
    }
    memcg.publish(parent, 200 * MIB, 200 * MIB, 0, 0);
    parent.share.bytes.store(220 * MIB, SeqCst);
    child.share.bytes.store(8 * MIB, SeqCst);
    child.share.excess_bytes.store(200 * MIB, Relaxed);
    (coordinator, parent, child)
}

fn limits(slots: [&Slot; 2]) -> [u64; 2] {
    slots.map(|slot| slot.share.bytes.load(SeqCst) + slot.share.excess_bytes.load(Relaxed))
}

#[test]
fn what_is_counted_anew_takes_its_share_with_it_and_is_never_counted_twice() {
    let memcg = memcg();
    let (mut coordinator, parent, child) = family(memcg);
    let now = Instant::now();
    let before = limits([parent, child]);
    let found =
        [(0, parent), (1, child)].map(|(index, slot)| Found { index, slot, excess: 100 * MIB, copied: 0 });
    coordinator.recount(&found, now);
    assert_eq!(limits([parent, child]), before, "no engine has to make room");
    // The parent has not published yet.
    assert_eq!(child.share.excess_bytes.load(Relaxed), 200 * MIB);
    let member = coordinator.member(1, child);
    assert_eq!((member.footprint, member.share), (100 * MIB, 108 * MIB), "nobody else is given that");
    assert!(coordinator.is_waiting(now));
    memcg.publish(parent, 100 * MIB, 100 * MIB, 0, 0);
    assert!(!coordinator.is_waiting(now));
    assert_eq!(limits([parent, child]), before);
    assert_eq!(child.share.excess_bytes.load(Relaxed), 100 * MIB);
    memcg.publish(child, 100 * MIB, 100 * MIB, 0, 0);
    assert_eq!(memcg.peak_bytes.load(Relaxed), 200 * MIB);
}

/// A parent and its children, each with these pages of 1 MiB; the children share them with the parent until they have
/// copied them.
struct Forked {
    coordinator: Coordinator,
    slots: Vec<&'static Slot>,
    /// Who has a copy of his own of which page.
    copied: Vec<Vec<bool>>,
    now: Instant,
}

impl Forked {
    const PAGES: usize = 100;

    fn new(children: usize) -> Forked {
        let memcg = memcg();
        let mut coordinator = Coordinator::new(memcg, "/no/such/library.so".into(), None);
        let slots: Vec<&Slot> = (0..=children).map(|n| memcg.claim(u32::MAX - n as u32).unwrap()).collect();
        for slot in &slots[1..] {
            memcg.join_family(slots[0], slot);
        }
        for slot in &slots {
            slot.begin(slot.pid.load(Relaxed), 1);
        }
        coordinator.tree.processes = slots.iter().enumerate().map(|(n, slot)| process(slot, n > 0)).collect();
        let copied = vec![vec![false; Forked::PAGES]; slots.len()];
        let forked = Forked { coordinator, slots, copied, now: Instant::now() };
        for slot in &forked.slots[1..] {
            slot.share.excess_bytes.store(Forked::PAGES as u64 * MIB, SeqCst);
        }
        forked.publish();
        forked
    }

    fn publish(&self) {
        for slot in &self.slots {
            let own = Forked::PAGES as u64 * MIB - slot.share.excess_bytes.load(SeqCst);
            self.coordinator.memcg.publish(slot, own, own, 0, 0);
        }
    }

    /// Those that hold less than they knew say so; and then those that hold more.
    fn settle(&mut self) {
        self.publish();
        assert!(!self.coordinator.is_waiting(self.now));
        self.publish();
    }

    fn copy(&mut self, who: usize, page: usize) {
        let have = (0..self.slots.len()).filter(|&n| !self.copied[n][page]).count();
        if !std::mem::replace(&mut self.copied[who][page], true) && have > 1 {
            self.coordinator.memcg.count_copies(self.slots[who], MIB);
        }
    }

    /// What there is, and what counts.
    fn bytes(&mut self) -> [u64; 2] {
        let shared = (0..Forked::PAGES).filter(|&page| self.copied.iter().any(|own| !own[page])).count();
        let copies = self.copied.iter().flatten().filter(|is_copied| **is_copied).count();
        let slots = self.slots.iter().enumerate();
        let counted = slots.map(|(index, slot)| self.coordinator.member(index, slot).footprint).sum();
        [(shared + copies) as u64 * MIB, counted]
    }

    /// One look of the coordinator at them; `meanwhile` is called for each process that is walked.
    fn look(&mut self, mut meanwhile: impl FnMut()) {
        self.now += Duration::from_millis(200);
        let copied = &self.copied;
        let mut walk = |pid: u32| {
            meanwhile();
            let own = &copied[(u32::MAX - pid) as usize];
            let parts = own.iter().enumerate().map(|(page, &is_own)| {
                let sharing = copied.iter().filter(|other| !other[page]).count() as u64;
                if is_own { MIB } else { MIB / sharing }
            });
            Some((Forked::PAGES as u64 * MIB, parts.sum()))
        };
        self.coordinator.learn_excess(self.now, &mut walk);
    }
}

/// As the tree has it.
fn process(slot: &Slot, forked: bool) -> Process {
    let pid = slot.pid.load(Relaxed);
    let (name, private_bytes) = ("relative".to_string(), Forked::PAGES as u64 * MIB);
    Process { pid, own_pid: pid, parent: u32::MAX, name, start: 0, forked, private_bytes, shared_bytes: 0 }
}

#[test]
fn what_relatives_copy_is_counted_while_they_do() {
    let mut forked = Forked::new(4);
    let mut state = 7u64;
    for round in 0..1500 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        forked.copy(1 + (state >> 33) as usize % 4, (state >> 40) as usize % Forked::PAGES);
        forked.look(|| ());
        forked.settle();
        let [held, counted] = forked.bytes();
        // Parts are rounded down.
        assert!(counted.abs_diff(held) < MIB, "round {round}: {counted} bytes count of {held}");
    }
    assert!(forked.bytes()[0] > 380 * MIB);
}

#[test]
fn parts_of_who_does_not_count_yet_are_not_taken_off() {
    // One that is starting, and one that comes while page tables are walked.
    for comes_late in [false, true] {
        let mut forked = Forked::new(2);
        let child = forked.slots[2];
        let family = child.family.load(SeqCst);
        child.state.store(State::Starting as u32, SeqCst);
        let mut late = None;
        if comes_late {
            child.family.store(0, SeqCst);
            late = forked.coordinator.tree.processes.pop();
        }
        forked.look(|| child.family.store(family, SeqCst));
        forked.settle();
        assert_eq!(forked.bytes(), [100 * MIB; 2], "{comes_late}");
        forked.coordinator.tree.processes.extend(late);
        child.state.store(State::Asleep as u32, SeqCst);
        forked.look(|| ());
        forked.settle();
        let parts = forked.slots.iter().map(|slot| slot.footprint_bytes.load(Relaxed) / MIB);
        assert_eq!(parts.collect::<Vec<_>>(), [33; 3], "{comes_late}");
    }
}

/// A child of fork that is about to execute a program.
#[test]
fn a_part_of_who_has_no_slot_is_not_taken_off() {
    let mut forked = Forked::new(2);
    let child = forked.slots.pop().unwrap();
    forked.coordinator.memcg.forgo(child);
    forked.look(|| ());
    forked.settle();
    assert_eq!(forked.bytes()[1], 100 * MIB, "a third of each page is the child's");
    forked.coordinator.strangers = vec![(u32::MAX - 2, 34 * MIB)];
    forked.look(|| ());
    forked.settle();
    assert_eq!(forked.bytes()[1] / MIB, 66);
}

/// A child has half of its parent's memory as its own part, ends, and is still being taken down by its engine.
#[test]
fn what_a_relative_leaves_is_not_given_away_before_its_engine_is_gone() {
    leaves(true);
}

#[test]
fn what_a_process_leaves_is_not_given_away_before_its_engine_is_gone() {
    leaves(false);
}

fn leaves(are_related: bool) {
    let memcg = memcg();
    let (mut coordinator, parent, child) = family(memcg);
    if are_related {
        memcg.join_family(parent, child);
    }
    let (send, receive) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let engine = std::thread::Builder::new().name("zfolio-engine".into()).spawn(move || {
        tell.send(uffd::sys::gettid().unwrap() as u32).unwrap();
        let _ = receive.recv();
    });
    child.engine_pid.store(told.recv().unwrap(), Relaxed);
    for (slot, own) in [(parent, 100), (child, 100)] {
        memcg.publish(slot, own * MIB, own * MIB, 0, 0);
        slot.share.bytes.store(own * MIB, SeqCst);
        slot.share.excess_bytes.store(100 * MIB, Relaxed);
    }
    let mut tick = || {
        coordinator.next = Instant::now();
        coordinator.tick(&HashMap::new());
        // Whatever other tests of this process hold.
        let own = memcg.division.unmanaged_bytes.load(Relaxed);
        parent.share.bytes.load(SeqCst) + memcg.division.pot_bytes() + own
    };
    tick();
    memcg.release(child, 1);
    let usable = tick();
    assert!(
        usable <= 924 * MIB,
        "{usable} bytes are to be had, 100 MiB of which nobody knows whose they are"
    );
    drop(send);
    engine.unwrap().join().unwrap();
    // The kernel lists a thread for a moment longer than that.
    while descendants::is_engine(child.engine_pid.load(Relaxed)) {
        std::thread::yield_now();
    }
    assert!(tick() > 1000 * MIB);
}

#[test]
fn files_are_given_nothing_of_what_does_not_shrink_or_is_waited_for() {
    let memcg = memcg();
    let (coordinator, parent, child) = family(memcg);
    assert!(coordinator.can_give());
    memcg.publish(parent, 200 * MIB, 240 * MIB, 60 * MIB, 20 * MIB);
    assert!(coordinator.can_give());
    child.share.waiting_ms.store(URGENT_MS, Relaxed);
    assert!(!coordinator.can_give());
    child.share.waiting_ms.store(0, Relaxed);
    memcg.publish(parent, 200 * MIB, 210 * MIB, 60 * MIB, 50 * MIB);
    assert!(!coordinator.can_give());
}

#[test]
fn who_has_got_a_slot_since_the_look_counts_there_alone() {
    let memcg = memcg();
    let mut coordinator = Coordinator::new(memcg, "/no/such/library.so".into(), None);
    coordinator.strangers = vec![(7, 50 * MIB), (8, 3 * MIB)];
    let slot = memcg.claim(7).unwrap();
    let sum = || {
        coordinator.sum_strangers();
        memcg.division.unmanaged_bytes.load(Relaxed)
    };
    assert_eq!(sum(), 53 * MIB, "it has not said yet what it holds");
    memcg.publish(slot, 51 * MIB, 51 * MIB, 0, 0);
    assert_eq!(sum(), 3 * MIB);
}

/// A child of vfork, and one of clone with CLONE_VM alone, list all of their parent's memory as theirs: while they are
/// there, and where they have ended since.
#[test]
fn memory_that_a_child_shares_counts_with_its_parent() {
    extern "C" fn rest(_: usize) -> ! {
        uffd::sys::sleep_ns(60_000_000_000);
        uffd::sys::exit(0)
    }
    let coordinator = Coordinator::new(memcg(), "/no/such/library.so".into(), None);
    let mut stack = vec![0u128; 1 << 10];
    let top = stack.as_mut_ptr_range().end as usize;
    // SAFETY: the stack is the child's alone, and stays until the child has been waited for; `rest` uses no libc.
    let pid = unsafe { uffd::sys::clone(libc::CLONE_VM as u32, top, rest, 0) }.unwrap();
    let bytes_of = |parent, forked| {
        let name = "child".to_string();
        let (private_bytes, shared_bytes) = (3 * MIB, 0);
        let child =
            Process { pid, own_pid: pid, parent, name, start: 0, forked, private_bytes, shared_bytes };
        coordinator.bytes_of(&child)
    };
    let own = std::process::id();
    assert_eq!([bytes_of(own, true), bytes_of(1, true), bytes_of(own, false)], [0, 3 * MIB, 3 * MIB]);
    sys::kill(pid as sys::Pid, libc::SIGKILL);
    while descendants::process(pid).is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(bytes_of(own, true), 0, "it has not been waited for");
    assert_eq!(uffd::sys::wait4(pid, &mut 0, uffd::sys::consts::__WALL), Ok(pid as usize));
    assert_eq!(bytes_of(own, true), 0);
}

/// Whose namespace is gone keeps its slot, and the next container's first process has the same number.
#[test]
fn only_the_process_that_was_stopped_is_ended() {
    let memcg = memcg();
    let mut coordinator = Coordinator::new(memcg, "/no/such/library.so".into(), None);
    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let start = descendants::start(child.id()).unwrap();
    let slot = memcg.claim(1).unwrap();
    slot.state.store(State::Stopped as u32, SeqCst);
    let mut is_ended = |own_pid, slots_start| {
        slot.start.store(slots_start, Relaxed);
        let (pid, parent, name) = (child.id(), std::process::id(), "first".to_string());
        coordinator.tree.processes = vec![Process {
            pid,
            own_pid,
            parent,
            name,
            start,
            forked: false,
            private_bytes: 0,
            shared_bytes: 0,
        }];
        coordinator.end_stopped();
        std::thread::sleep(Duration::from_millis(20));
        child.try_wait().unwrap().is_some()
    };
    assert!(!is_ended(1, start - 1) && !is_ended(1, 0), "another namespace's");
    assert!(!is_ended(2, start), "another of its namespace");
    assert!(is_ended(1, start));
}

#[test]
fn it_is_not_waited_long_nor_for_the_dead() {
    for how in 0..2 {
        let memcg = memcg();
        let (mut coordinator, parent, child) = family(memcg);
        let now = Instant::now();
        let found = [(0, parent), (1, child)].map(|(index, slot)| Found {
            index,
            slot,
            excess: 100 * MIB,
            copied: 0,
        });
        coordinator.recount(&found, now);
        match how {
            0 => assert!(!coordinator.is_waiting(now + LONGEST_WAIT)),
            _ => {
                memcg.release(parent, 1);
                assert!(!coordinator.is_waiting(now));
            }
        }
        assert_eq!(child.share.excess_bytes.load(Relaxed), 100 * MIB);
    }
}

/// Library and shared page are memory of the run, and the limit is for all of it.
#[test]
fn the_files_of_the_run_count() {
    let dir = crate::rundir::RunDir::create(&[1; 1 << 20], 1 << 30, Settings::default(), &[]).unwrap();
    let coordinator = Coordinator::new(dir.memcg, dir.library_file(), None);
    let held = coordinator.files_bytes();
    let page = size_of::<Memcg>() as u64;
    assert!((MIB..MIB + page / 2).contains(&held), "the library and a part of the page: {held} bytes");
    assert!(dir.memcg.division.unmanaged_bytes.load(Relaxed) >= held);
    assert!(coordinator.usable() <= (1 << 30) - held);
}
