//! What the page says while processes come and go, and are killed at the wrong moment.

use super::*;
use base::sys::consts::{MAP_ANONYMOUS, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE};

fn memcg() -> Box<Memcg> {
    // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
    let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
    memcg.init(1 << 20, Settings::default());
    memcg
}

/// Claims a slot as a process of this name does.
fn process<'a>(m: &'a Memcg, pid: u32, name: &str) -> &'a Slot {
    let slot = m.claim(pid).unwrap();
    let mut bytes = [0; NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    slot.introduce(1, &bytes, 1000);
    assert!(slot.begin(pid, pid + 100_000));
    slot
}

/// Collects all that have ended: their figures, and what they said.
fn collected(m: &Memcg) -> Vec<(Process, Option<String>)> {
    let mut all = Vec::new();
    for slot in m.used() {
        m.collect(slot, |process, words| all.push((*process, words.map(str::to_string))));
    }
    all
}

fn sums(m: &Memcg) -> [u64; 4] {
    // Publishing what is published already changes nothing and returns the sums.
    let slot = m.claim(u32::MAX).unwrap();
    let sums = m.hold(slot, 0, [0; 4]);
    m.release(slot, 1);
    assert!(m.collect(slot, |_, _| ()));
    sums
}

#[test]
fn an_ended_process_leaves_its_figures_and_a_free_slot() {
    let m = memcg();
    let slot = process(&m, 7, "sort");
    slot.stat.faults.fetch_add(3, Relaxed);
    slot.stat.count_out(u16::MAX);
    slot.stat.count_out(0xf0ff);
    slot.stat.same_filled.fetch_add(5, Relaxed);
    slot.stat.count_in(3);
    slot.stat.fault_ns.record(1000);
    assert_eq!(m.publish(slot, 100, 300, 200, 50), 100);
    m.publish(slot, 90, 250, 150, 60);
    slot.row.store(3, Relaxed);
    m.release(slot, 5000);
    assert_eq!(slot.row.load(Relaxed), 3, "it is there until the figures are collected");
    assert_eq!(sums(&m), [0; 4], "what has ended holds nothing");
    assert_eq!(m.ended.faults.load(Relaxed) + slot.stat.faults.load(Relaxed), 3, "counted once at any time");

    let [(process, None)] = collected(&m)[..] else { panic!() };
    assert_eq!((process.pid, process.parent, process.name()), (7, 1, &b"sort"[..]));
    assert_eq!((process.footprint_peak_bytes, process.wanted_peak_bytes), (100, 300));
    assert_eq!((process.stored_peak_bytes, process.pool_at_peak_bytes), (200, 50));
    assert_eq!((process.pages_out, process.pages_in, process.faults), (16 + 12 + 5, 2, 3));
    assert_eq!((process.state, process.elapsed_ns(9999)), (State::Asleep, 4000));

    assert_eq!(m.ended.faults.load(Relaxed), 3);
    assert_eq!(m.ended.folios_zswpout.each_ref().map(|c| c.load(Relaxed))[..5], [0, 0, 1, 1, 1]);
    assert_eq!((m.ended.fault_ns.count(), m.ended.fault_ns.max()), (1, 1000));
    assert_eq!((m.peak_bytes.load(Relaxed), m.pool_at_peak_bytes.load(Relaxed)), (100, 50));
    let next = m.claim(8).unwrap();
    assert!(core::ptr::eq(next, slot));
    let next = next.process();
    assert_eq!((next.pid, next.name(), next.footprint_peak_bytes, next.faults), (8, &b""[..], 0, 0));
    assert_eq!((next.started_ns, next.ended_ns, next.state), (0, 0, State::Starting));
    assert_eq!(slot.row.load(Relaxed), 0);
}

#[test]
fn the_longest_fault_of_all_is_no_sum() {
    let m = memcg();
    for (pid, ns) in [(1, 700), (2, 900), (3, 800)] {
        let slot = process(&m, pid, "p");
        slot.stat.fault_ns.record(ns);
        m.release(slot, 1);
    }
    collected(&m);
    assert_eq!((m.ended.fault_ns.max(), m.ended.fault_ns.count()), (900, 3));
}

#[test]
fn slots_run_out_for_the_living_alone() {
    let m = memcg();
    for pid in 1..=SLOTS as u32 {
        process(&m, pid, "p");
    }
    assert!(m.claim(999).is_none());
    assert_eq!(m.living(), SLOTS);
    m.slots[3].stat.faults.fetch_add(5, Relaxed);
    m.release(&m.slots[3], 10);
    // Nobody has read its figures, and a living process needs the slot more than they do.
    let slot = m.claim(999).unwrap();
    assert!(core::ptr::eq(slot, &m.slots[3]));
    assert_eq!((m.unrecorded.load(Relaxed), m.ended.faults.load(Relaxed)), (1, 5));
    assert_eq!((slot.process().pid, slot.process().faults, slot.process().ended_ns), (999, 0, 0));
    assert!(m.claim(1000).is_none());
}

/// A file system that is full has no room for slots that were never used: what a touch would be a signal for.
#[test]
fn a_slot_without_room_is_nobodys() {
    let bytes = size_of::<Memcg>();
    let at = sys::mmap(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
    // SAFETY: mapped, zeroed, never unmapped; and all zeros is a value of every field.
    let m = unsafe { &mut *(at as *mut Memcg) };
    m.init(1 << 20, Settings::default());
    let is_inside = |room: &Range<usize>| room.end <= bytes;
    assert!(ROOMS.iter().all(is_inside) && ROOMS[0].end < ROOMS[1].start);
    // Each page that no room has is out of reach.
    let out_of_reach = at + ROOMS[0].end.next_multiple_of(PAGE)..at + ROOMS[1].start / PAGE * PAGE;
    // SAFETY: nothing is executed, and what is not there is touched by the kernel alone, which says so.
    let protect = |flags| unsafe { sys::mprotect(out_of_reach.start, out_of_reach.len(), flags) }.unwrap();
    protect(PROT_NONE);
    let roomy = (1..).take_while(|pid| m.claim(*pid).is_some()).count();
    assert!((SLOTS_AT_ONCE..SLOTS_AT_ONCE + 2).contains(&roomy), "{roomy}");
    assert!(m.used().len() == roomy && m.claim(1).is_none());
    protect(PROT_READ | PROT_WRITE);
    assert!((roomy..SLOTS).all(|_| m.claim(1).is_some()) && m.claim(1).is_none());
}

/// So are the counters of a CPU.
#[test]
fn a_cpu_without_room_is_counted_nowhere() {
    let bytes = size_of::<Memcg>();
    let at = sys::mmap(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
    // SAFETY: mapped, zeroed, never unmapped; and all zeros is a value of every field.
    let m = unsafe { &*(at as *const Memcg) };
    let out_of_reach = at + ROOMS[1].end.next_multiple_of(PAGE)..at + bytes;
    // SAFETY: nothing is executed, and what is not there is touched by the kernel alone, which says so.
    let protect = |flags| unsafe { sys::mprotect(out_of_reach.start, out_of_reach.len(), flags) }.unwrap();
    protect(PROT_NONE);
    let add = || m.accelerator.add_cpu(5000, [1; accelerator::CPU_COUNTERS]);
    add();
    assert_eq!(m.accelerator.cpus().count(), 0);
    protect(PROT_READ | PROT_WRITE);
    add();
    assert!(m.accelerator.cpus().eq([(5000, [1; accelerator::CPU_COUNTERS])]));
}

#[test]
fn last_words_are_kept_until_they_are_read() {
    let m = memcg();
    let first = process(&m, 1, "p");
    for pid in 2..=SLOTS as u32 {
        process(&m, pid, "p");
    }
    first.say("object lost");
    first.say("a consequence");
    first.state.store(State::Stopped as u32, Relaxed);
    m.release(first, 10);
    assert!(m.claim(999).is_none(), "words may be the reason why all went wrong");
    let all = collected(&m);
    assert_eq!((all[0].0.state, all[0].1.as_deref()), (State::Stopped, Some("object lost")));
    assert!(m.claim(999).unwrap().said(&mut [0; 512]).is_none());
}

#[test]
fn what_a_killed_process_held_is_taken_out_of_the_sums() {
    let m = memcg();
    let (killed, other) = (process(&m, 1, "killed"), process(&m, 2, "other"));
    m.publish(other, 10, 30, 20, 5);
    assert_eq!(m.publish(killed, 100, 300, 200, 50), 110);
    assert!(m.reap(killed, 77), "it did not die while it published");
    assert_eq!(sums(&m), [10, 30, 20, 5]);
    assert_eq!(collected(&m)[0].0.state, State::Killed);
    assert_eq!((m.peak_bytes.load(Relaxed), m.wanted_peak_bytes.load(Relaxed)), (110, 330));
}

/// Every instruction at which an engine can be killed while it publishes: after so many of its steps.
#[test]
fn sums_are_right_again_wherever_an_engine_dies() {
    for step in 0..=8 {
        let m = memcg();
        let (killed, other) = (process(&m, 1, "killed"), process(&m, 2, "other"));
        m.publish(other, 10, 30, 20, 5);
        m.publish(killed, 100, 300, 200, 50);
        // What `hold` does to publish 60, 400, 300, 70.
        killed.turn.fetch_add(1, Relaxed);
        let parts = [&killed.footprint_bytes, &killed.wanted_bytes, &killed.stored_bytes, &killed.pool_bytes];
        for (n, (value, change)) in [(60, -40i64), (400, 100), (300, 100), (70, 20)].into_iter().enumerate() {
            if 2 * n < step {
                parts[n].store(value, Relaxed);
            }
            if 2 * n + 1 < step {
                m.current.add_for_test(n, change as u64);
            }
        }
        assert!(!m.audit(), "step {step}: for all that is known it publishes this moment");
        assert!(!m.reap(killed, 77), "step {step}");
        assert!(m.audit());
        assert_eq!(sums(&m), [10, 30, 20, 5], "step {step}");
        assert!(m.audit());
        assert_eq!(sums(&m), [10, 30, 20, 5], "step {step}: an audit of what is right changes nothing");
    }
}

#[test]
fn a_sum_below_zero_reads_as_nothing() {
    let m = memcg();
    m.current.add_for_test(0, -5i64 as u64);
    assert_eq!(m.current.footprint(), 0);
    let slot = process(&m, 1, "p");
    assert_eq!(m.publish(slot, 3, 3, 0, 0), 0);
    assert_eq!(m.peak_bytes.load(Relaxed), 0);
    assert!(m.audit());
    assert_eq!(m.current.footprint(), 3);
}

#[test]
fn an_engine_that_comes_too_late_leaves_the_slot_to_its_owner() {
    let m = memcg();
    let slot = m.claim(1).unwrap();
    m.reap(slot, 5);
    assert!(!slot.begin(1, 100), "it has ended");
    collected(&m);
    assert!(core::ptr::eq(m.claim(2).unwrap(), slot));
    assert!(!slot.begin(1, 100), "it is another's");
    assert!(slot.begin(2, 200) && slot.state() == State::Asleep);
}

/// Engines that publish and end, killers, and `zfolio run`, all at once: no slot is anybody else's, and in the end
/// nothing is held.
#[test]
fn threads_come_and_go_while_figures_are_collected() {
    let m = memcg();
    let (rounds, publishers) = (2000, 4);
    let done = AtomicU32::new(0);
    let mut seen = 0;
    std::thread::scope(|scope| {
        for publisher in 1..=publishers {
            let (m, done) = (&m, &done);
            scope.spawn(move || {
                for round in 0..rounds {
                    let pid = publisher * 1_000_000 + round;
                    let slot = process(m, pid, "p");
                    slot.stat.faults.fetch_add(1, Relaxed);
                    for step in 1..=3 {
                        m.publish(slot, pid as u64 * step, pid as u64, 0, 0);
                        assert_eq!(slot.pid.load(Relaxed), pid);
                    }
                    if round % 3 == 0 { assert!(m.reap(slot, 9)) } else { m.release(slot, 9) }
                }
                done.fetch_add(1, Release);
            });
        }
        loop {
            let last = done.load(Acquire) == publishers;
            for (process, _) in collected(&m) {
                seen += 1;
                assert_eq!(process.footprint_peak_bytes, process.pid as u64 * 3, "a whole record");
                assert_eq!((process.faults, process.ended_ns), (1, 9));
            }
            m.audit();
            if last {
                break;
            }
        }
    });
    assert_eq!(seen + m.unrecorded.load(Relaxed), (rounds * publishers) as u64);
    assert_eq!(m.ended.faults.load(Relaxed), (rounds * publishers) as u64);
    assert_eq!((sums(&m), m.living()), ([0; 4], 0));
}

#[test]
fn a_message_is_cut_between_characters() {
    let m = memcg();
    let slot = m.claim(1).unwrap();
    slot.say(&"é".repeat(300));
    assert_eq!(slot.said(&mut [0; 512]).unwrap().chars().count(), 256);
    let text = "x".to_string() + &"é".repeat(300);
    let slot = m.claim(2).unwrap();
    slot.say(&text);
    assert_eq!(slot.said(&mut [0; 512]).unwrap().chars().count(), 256);
}

#[test]
fn a_family_is_known_until_the_last_but_one_has_ended() {
    let m = memcg();
    let slots = [1, 2, 3].map(|pid| m.claim(pid).unwrap());
    assert!(!m.has_family(slots[0]), "nobody has forked");
    m.join_family(slots[0], slots[1]);
    assert!(m.has_family(slots[0]) && m.has_family(slots[1]) && !m.has_family(slots[2]));
    m.join_family(slots[1], slots[2]);
    m.release(slots[0], 1);
    assert!(m.has_family(slots[1]), "a grandchild has what its parent had");
    m.release(slots[2], 1);
    assert!(!m.has_family(slots[1]));
}

#[test]
fn what_the_run_holds_is_read_without_the_page_too() {
    let m = memcg();
    m.publish(process(&m, 7, "sh"), 300, 900, 0, 0);
    m.publish(process(&m, 8, "sh"), 40, 90, 0, 0);
    m.division.unmanaged_bytes.store(5, Relaxed);
    let page = &raw const *m as *const u8;
    // SAFETY: what is asked for are words of the page.
    let word = |at| Some(unsafe { *page.add(at).cast::<u64>() });
    assert_eq!((m.used_bytes(), Memcg::used_of(word), Memcg::used_of(|_| None)), (345, 345, 0));
}

#[test]
fn gauges_are_in_the_order_of_their_table() {
    let m = memcg();
    let slot = process(&m, 7, "a");
    m.publish(slot, 100, 300, 200, 50);
    let out = PagesOut { stored: 7, same_filled: 6, incompressible: 5, swapped: 4 };
    m.publish_pages(slot, out.values().map(|pages| pages as u64));
    let expected = [
        ("footprint_bytes", 100),
        ("wanted_bytes", 300),
        ("stored_bytes", 200),
        ("pool_bytes", 50),
        ("stored_pages", 7),
        ("same_filled_pages", 6),
        ("stored_incompressible_pages", 5),
        ("swapped_pages", 4),
    ];
    let names = GAUGES.map(|gauge| gauge.name);
    for values in [slot.gauges(), m.current.values()] {
        assert!(names.into_iter().zip(values).eq(expected), "{values:?}");
    }
    for Gauge { name, unit, text } in GAUGES {
        assert!(name.ends_with(&format!("_{}", unit.name())) && !text.ends_with('.'), "{name}");
    }
    m.release(slot, 5);
    assert_eq!((slot.gauges(), m.current.values()), ([0; 8], [0; 8]), "what has ended holds nothing");
}

#[test]
fn the_total_has_the_living_and_those_that_have_ended() {
    let m = memcg();
    for (pid, ends) in [(1, true), (2, false), (3, true)] {
        let slot = process(&m, pid, "a");
        slot.stat.faults.fetch_add(pid.into(), Relaxed);
        slot.stat.fault_ns.record(pid.into());
        if ends {
            m.release(slot, 5);
        }
        let faults = m.total().faults.into_inner();
        collected(&m);
        assert_eq!(faults, m.total().faults.into_inner(), "it is the same when {pid} is collected");
    }
    assert_eq!((m.total().faults.into_inner(), m.total().fault_ns.count()), (6, 3));
}

#[test]
fn a_process_is_tuned_as_the_run_unless_it_has_a_word_of_its_own_which_its_children_inherit() {
    let m = memcg();
    let [parent, child] = [1, 2].map(|pid| process(&m, pid, "a"));
    let of = |slot: &Slot| (m.writes_back(slot), m.zswap_max_bytes(slot));
    assert_eq!(of(parent), (true, tunables::NO_MAX));
    m.tunables.writeback.store(0, Relaxed);
    m.tunables.zswap_max_bytes.store(100, Relaxed);
    assert_eq!(of(parent), (false, 100));
    for (writes, max) in [(true, 0), (false, 7), (true, tunables::NO_MAX)] {
        parent.tunables.set_writeback(Some(writes));
        parent.tunables.set_zswap_max(Some(max));
        m.join_family(parent, child);
        assert_eq!((of(parent), of(child)), ((writes, max), (writes, max)));
    }
    let number = parent.reclaim.ask(10).unwrap();
    m.release(parent, 5);
    collected(&m);
    let next = process(&m, 3, "b");
    assert!(std::ptr::eq(parent, next), "it has the same slot");
    assert_eq!(
        (of(next), next.reclaim.asked()),
        ((false, 100), None),
        "and nothing that was the other one's"
    );
    assert_eq!(next.reclaim.answer(number), (0, true));
}
