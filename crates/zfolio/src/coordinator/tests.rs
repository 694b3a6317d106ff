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

/// A child of vfork, and one of clone with CLONE_VM alone, list all of their parent's memory as theirs.
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
    assert_eq!(uffd::sys::wait4(pid, &mut 0, uffd::sys::consts::__WALL), Ok(pid as usize));
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
