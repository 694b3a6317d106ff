//! Scripted scenes of threads that wait: for room, for their turn, for an answer, or for an event to be read.

use super::TICKS_PER_MS;
use super::memory::{Access, Content};
use super::program::BASE;
use super::run::DOORBELL;
use super::scene::{SOMEBODY, Scene, pages};
use super::store::Object;
use crate::kernel::{Kernel, Message, WINDOW_PAGES};
use crate::swap_map::Kind;
use vmscan::PAGE;
use zswap::objects::Body;

#[test]
fn who_waited_for_room_where_nothing_is_any_more_is_not_hungry_later() {
    let mut scene = Scene::new();
    let limit = 16 << 20;
    *scene.pager.limit.marks_mut() = vmscan::watermark::Watermarks::new(limit, 1, vmscan::watermark::UNKNOWN);
    for second in [1, 50] {
        scene.world.borrow_mut().clock = second * 1_000_000;
        scene.pager.faults.wait(crate::fault_queue::Fault {
            at: BASE,
            write: true,
            protected: false,
            since_ns: 0,
            extent: None,
            has_read: false,
        });
        scene.pager.turn(2 * limit);
        assert!(scene.pager.faults.has_waiting(), "there is room");
        let now = scene.pager.kernel.now_ns();
        assert!(scene.pager.hungry_ns(now) < 1_000_000_000, "{second}");
        assert!(scene.pager.faults.forget(&pages(0..1)));
        scene.pager.turn(0);
    }
}

#[test]
fn who_has_to_wait_for_its_turn_waits_until_then_and_is_counted() {
    let mut scene = Scene::new();
    scene.write(pages(0..4));
    scene.go_on();
    assert!(scene.pager.stored_bytes() > 0);
    scene.pager.park(true);
    let access = scene.world.borrow_mut().memory.access(SOMEBODY, BASE, None);
    assert_eq!(access, Access::Fault);
    scene.go_on();
    assert!(scene.world.borrow().memory.blocked.contains(&SOMEBODY), "it is served before its turn");
    assert_eq!((scene.pager.waiting_since_ns(), scene.pager.wants_results()), (None, 0), "it lacks no room");
    scene.world.borrow_mut().clock += 1000;
    scene.pager.park(false);
    scene.turn();
    assert!(!scene.world.borrow().memory.blocked.contains(&SOMEBODY));
    assert!(scene.pager.stat.parked_ns.load(std::sync::atomic::Ordering::Relaxed) > 0);
    scene.reads_back(pages(0..4), 0);
    // Not those that retire: all comes home.
    scene.go_on();
    scene.pager.park(true);
    scene.world.borrow_mut().memory.access(SOMEBODY, BASE, None);
    scene.turn();
    scene.pager.retire();
    assert!(!scene.world.borrow().memory.blocked.contains(&SOMEBODY));
}

/// A signal has interrupted it in its fault, say, and another thread has unmapped the page.
#[test]
fn a_fault_that_waits_for_its_turn_is_forgotten_with_its_mapping() {
    let mut scene = Scene::new();
    scene.write(pages(0..4));
    scene.go_on();
    scene.pager.park(true);
    scene.world.borrow_mut().memory.access(SOMEBODY, BASE, None);
    scene.turn();
    scene.world.borrow_mut().memory.unmap(pages(0..4));
    scene.raise(Message::Unmap(pages(0..4)));
    scene.turn();
    assert!(!scene.world.borrow().memory.blocked.contains(&SOMEBODY), "it is not let go on");
    scene.pager.park(false);
    assert!(scene.pager.faults.is_empty());
}

#[test]
fn what_mremap_added_to_a_mapping_is_unregistered_too() {
    let mut scene = Scene::new();
    scene.world.borrow_mut().memory.unmap(pages(32..128));
    scene.write(pages(0..4));
    scene.go_on();
    scene.pager.pause(true);
    // Moved and grown; the event names the old length alone, and then the old part goes.
    scene.world.borrow_mut().memory.remap(pages(16..20), pages(64..65).start, 8 * PAGE, false);
    scene.raise(Message::Remap { from: pages(16..20), to: pages(64..65).start });
    scene.turn();
    scene.raise(Message::Unmap(pages(16..20)));
    scene.turn();
    scene.world.borrow_mut().memory.unmap(pages(64..68));
    scene.raise(Message::Unmap(pages(64..68)));
    scene.turn();
    scene.pager.retire();
    let world = scene.world.borrow();
    assert!(world.memory.vmas().all(|(_, vma)| vma.engine || !vma.registered));
}

/// mremap grows a locked mapping: it fills page 100, for which a thread waits here, before the event comes that
/// stops everything else.
fn mremap_fills_first(scene: &mut Scene) {
    let at = pages(100..101).start;
    assert_eq!(scene.world.borrow_mut().memory.access(SOMEBODY, at, Some(1)), Access::Fault);
    let memory = &mut scene.world.borrow_mut().memory;
    memory.changing += 1;
    memory.fills_first = Some(at);
}

#[test]
fn guards_where_a_mapping_has_left_do_not_empty_it_where_it_went() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    {
        let memory = &mut scene.world.borrow_mut().memory;
        memory.unmap(pages(64..80));
        memory.remap(pages(0..16), pages(64..65).start, 16 * PAGE, false);
    }
    mremap_fills_first(&mut scene);
    // Its event is not read yet when another thread, which has the place now, asks that it be forgotten.
    scene.raise(Message::Remap { from: pages(0..16), to: pages(64..65).start });
    scene.pager.disown(pages(0..16));
    scene.reads_back(pages(64..80), 64 * PAGE as isize);
}

#[test]
fn the_doorbell_is_answered_while_mremap_waits_for_its_own_fill() {
    let mut scene = Scene::new();
    scene.write(pages(0..2));
    scene.go_on();
    assert_eq!(scene.world.borrow_mut().memory.access(SOMEBODY, DOORBELL, None), Access::Fault);
    scene.pager.settle();
    mremap_fills_first(&mut scene);
    scene.pager.answer();
    assert_eq!(scene.world.borrow().memory.changing, 0);
}

/// Who is woken may come to its read of the bell much later.
#[test]
fn a_bell_stays_full_for_who_has_rung_and_is_empty_for_the_next() {
    let mut scene = Scene::new();
    for ring in 0..3 * WINDOW_PAGES {
        let bell = |ring: usize| DOORBELL + ring % WINDOW_PAGES * PAGE;
        let touch =
            |scene: &mut Scene, ring| scene.world.borrow_mut().memory.access(SOMEBODY, bell(ring), None);
        assert_eq!(touch(&mut scene, ring), Access::Fault);
        scene.pager.settle();
        assert!(scene.pager.has_rung());
        scene.pager.answer();
        assert!(!scene.pager.has_rung());
        for late in ring - ring.min(3)..=ring {
            assert_eq!(touch(&mut scene, late), Access::Done(0), "ring {late} at ring {ring}");
        }
    }
}

#[test]
fn a_range_that_is_let_go_is_home_and_empty_of_us() {
    let mut scene = Scene::new();
    scene.write(pages(0..32));
    scene.go_on();
    scene.write(pages(40..44));
    scene.turn();
    mremap_fills_first(&mut scene);
    let range = pages(8..42);
    scene.pager.let_go(range.clone());
    assert_eq!(scene.pager.check(), Ok(()));
    let mut world = scene.world.borrow_mut();
    for at in pages(8..32).chain(pages(40..42)).step_by(PAGE) {
        assert_eq!(world.memory.access(SOMEBODY, at, None), Access::Done(at as Content), "{at:#x}");
    }
    assert!(world.memory.vmas_in(range).iter().all(|(found, vma)| {
        !vma.registered || found.end <= pages(8..42).start || found.start >= pages(8..42).end
    }));
    drop(world);
    scene.reads_back(pages(0..32), 0);
}

#[test]
fn a_page_of_zeros_that_is_let_go_is_not_a_hole() {
    let mut scene = Scene::new();
    for at in pages(0..4).step_by(PAGE) {
        assert!(scene.touch(at, Some(0)).is_done());
    }
    scene.go_on();
    assert_eq!(scene.kind(BASE), Kind::Zero);
    scene.pager.let_go(pages(0..4));
    for at in pages(0..4).step_by(PAGE) {
        assert!(scene.world.borrow().memory.page(at).is_some(), "{at:#x}");
    }
}

/// A child knows of nothing that is out, and so has registered nothing: its writes to what its parent has too are
/// told all the same.
#[test]
fn what_is_not_registered_yet_is_protected_too() {
    let mut scene = Scene::new();
    scene.pager.pause(true);
    scene.write(pages(0..32));
    scene.world.borrow_mut().memory.change(pages(0..128), |vma| vma.registered = false);
    scene.pager.regions.unregister(&(0..1 << 47));
    let _child = scene.world.borrow_mut().memory.fork();
    scene.pager.share();
    let world = scene.world.borrow();
    assert!(pages(0..32).step_by(PAGE).all(|at| world.memory.page(at).is_some_and(|page| page.protected)));
}

/// A page of an area is wanted, for whose object the pool has no memory: how often it has been read.
fn reads(scene: &Scene) -> usize {
    scene.world.borrow().shelves.area.as_ref().expect("there is an area").read
}

/// A scene in which somebody waits for a page that is in an area, while the pool has no memory.
fn short_of_memory() -> Scene {
    let mut scene = Scene::with_area();
    scene.write(pages(0..16));
    scene.go_on();
    scene.go_on();
    assert_eq!(scene.world.borrow().shelves.objects(), 0, "the pool of no size has something");
    scene.world.borrow_mut().shelves.fill_up(u64::MAX);
    let access = scene.world.borrow_mut().memory.access(SOMEBODY, BASE, None);
    assert_eq!(access, Access::Fault);
    scene
}

/// So many milliseconds pass, with a turn in each; and what was asked of the area is done in it.
fn pass(scene: &mut Scene, ms: usize) {
    for _ in 0..ms {
        scene.world.borrow_mut().clock += TICKS_PER_MS;
        scene.turn();
        scene.world.borrow_mut().step_area();
    }
}

#[test]
fn what_the_pool_has_no_memory_for_is_read_again_after_rests_that_double() {
    let mut scene = short_of_memory();
    pass(&mut scene, 4000);
    // Six rests up to 32 ms, and those of 64 ms, each of which is found to be over a turn or two later.
    let read = reads(&scene);
    assert!((6 + 4000 / 70..6 + 4000 / 60).contains(&read), "read {read} times in four seconds");
    assert!(scene.world.borrow().memory.blocked.contains(&SOMEBODY));
    let now = scene.pager.kernel.now_ns();
    assert!(
        scene.pager.waiting_since_ns().is_some_and(|since| now - since > 3_900_000_000),
        "nobody is told"
    );
    assert!(scene.pager.hungry_ns(now) > 3_900_000_000, "it is stopped too late, or never");
    // There is memory from now on, and the next try finds that out.
    scene.world.borrow_mut().shelves.fill_up(0);
    pass(&mut scene, 80);
    assert!(!scene.world.borrow().memory.blocked.contains(&SOMEBODY), "it was not tried again");
    scene.turn();
    assert_eq!((scene.pager.waiting_since_ns(), scene.pager.hungry_ns(now)), (None, 0));
}

#[test]
fn what_the_pool_has_no_memory_for_is_read_again_when_something_was_freed() {
    let mut scene = short_of_memory();
    pass(&mut scene, 1000);
    let read = reads(&scene);
    let handle = {
        let shelves = &mut scene.world.borrow_mut().shelves;
        shelves.fill_up(0);
        shelves.take_in(Object { pages: Vec::from([1]), damaged: false }, 0).unwrap()
    };
    let body = Body::Blob { handle, fingerprint: 1, bytes: 1024 };
    let id = scene.pager.objects.insert(body, 1, 0);
    scene.pager.objects.retain(id, true);
    scene.pager.objects.release(id, true);
    pass(&mut scene, 4);
    assert_eq!(reads(&scene), read + 1);
    assert!(!scene.world.borrow().memory.blocked.contains(&SOMEBODY), "it waits for a rest to end");
}
