//! Scripted scenes of pages that come in, one for each bug that was found there.

use super::memory::{Access, Marker};
use super::program::BASE;
use super::scene::{SOMEBODY, Scene, pages};
use super::store::WORKERS;
use crate::inactive::Use;
use crate::swap_map::Kind;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::{PAGE, WINDOW};

#[test]
fn a_window_that_has_become_two_mappings_comes_in() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    assert_eq!(scene.kind(BASE), Kind::Stored);
    scene.world.borrow_mut().memory.change(pages(7..128), |vma| vma.writable = false);
    scene.reads_back(pages(0..16), 0);
}

#[test]
fn fresh_memory_beside_another_mapping_is_filled() {
    let mut scene = Scene::new();
    scene.write(pages(0..2));
    scene.go_on();
    scene.world.borrow_mut().memory.change(pages(20..24), |vma| vma.locked = true);
    for at in pages(16..32).step_by(PAGE) {
        assert!(scene.touch(at, (at / PAGE).is_multiple_of(2).then_some(7)).is_done());
    }
}

#[test]
fn read_ahead_leaves_guards_where_they_are() {
    let mut scene = Scene::new();
    scene.write(pages(0..2));
    scene.go_on();
    let guards = [pages(37..38).start, pages(52..53).start, pages(70..71).start];
    for guard in guards {
        scene.world.borrow_mut().memory.markers.insert(guard, Marker::Guard);
    }
    for at in pages(16..96).step_by(PAGE).filter(|at| !guards.contains(at)) {
        assert!(scene.touch(at, Some(7)).is_done());
    }
    for guard in guards {
        assert_eq!(scene.touch(guard, None), Access::Segv);
    }
}

#[test]
fn a_page_that_the_kernel_took_back_from_the_inactive_list_reads_as_zeros() {
    let mut scene = Scene::new();
    scene.write(pages(0..4));
    scene.turn();
    assert_eq!(scene.kind(BASE), Kind::Inactive);
    let slot = scene.pager.map.get(BASE).id() / 16;
    let gone = scene.pager.inactive.at(slot) + 2 * PAGE;
    scene.world.borrow_mut().memory.remove(gone).expect("it was there");
    scene.reads_back(pages(0..2), 0);
    assert_eq!(scene.touch(pages(2..3).start, None), Access::Done(0));
    scene.reads_back(pages(3..4), 0);
}

#[test]
fn a_page_that_vanishes_under_a_worker_is_zeros() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.turn();
    scene.turn();
    let slot = scene.pager.map.get(BASE).id() / 16;
    assert_eq!(scene.pager.inactive.slot(slot).used, Use::InFlight);
    let gone = scene.pager.inactive.at(slot) + 5 * PAGE;
    scene.world.borrow_mut().memory.remove(gone).expect("it was there");
    assert_eq!(scene.world.borrow_mut().memory.access(SOMEBODY, BASE, None), Access::Fault);
    for worker in (0..WORKERS).cycle().take(20) {
        scene.world.borrow_mut().step_worker(worker);
    }
    scene.turn();
    assert!(!scene.world.borrow().memory.blocked.contains(&SOMEBODY));
    scene.reads_back(pages(0..5), 0);
    assert_eq!(scene.touch(pages(5..6).start, None), Access::Done(0));
}

#[test]
fn who_misses_alone_gets_a_page_of_stock() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    let opened = |scene: &Scene| {
        let slots = scene.pager.inactive.slots().map(|slot| scene.pager.inactive.slot(slot));
        slots.filter(|s| s.used == Use::Opened).map(|s| s.present.count()).collect::<Vec<_>>()
    };
    scene.reads_back(pages(3..4), 0);
    assert_eq!(opened(&scene), [], "others may run: a copy");
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    scene.pager.set_alone(true);
    scene.reads_back(pages(3..4), 0);
    assert_eq!(opened(&scene), [15]);
    scene.reads_back(pages(0..16), 0);
}

/// Faults elsewhere until the last ones are forgotten, so that the next is alone in its window.
fn wander(scene: &mut Scene) {
    for window in 1..8 {
        for page in 0..5 {
            scene.pager.ahead.fault(BASE + (window * 64 + page * 1024) * PAGE);
        }
    }
}

#[test]
fn an_object_whose_pages_are_picked_one_by_one_is_split() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    assert_eq!((scene.pager.stored_bytes(), scene.world.borrow().shelves.objects()), (16 * PAGE, 1));
    for page in [3, 9] {
        wander(&mut scene);
        scene.reads_back(pages(page..page + 1), 0);
    }
    let kinds = |scene: &Scene, kind| (0..16).filter(|&p| scene.kind(BASE + p * PAGE) == kind).count();
    // Those that were not asked for are on the inactive list, and the object that nobody depends on is gone.
    assert_eq!((kinds(&scene, Kind::Inactive), kinds(&scene, Kind::Stored)), (14, 0));
    assert_eq!(scene.world.borrow().shelves.objects(), 0);
    scene.go_on();
    assert_eq!((scene.pager.stored_bytes(), scene.world.borrow().shelves.objects()), (16 * PAGE, 16));
    scene.reads_back(pages(0..16), 0);
}

#[test]
fn what_comes_with_a_page_on_trial_waits_to_be_asked_for_and_is_not_stored_anew() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    // The third fault in a window is for all of it, and the first such is a trial.
    for page in 0..2 {
        scene.pager.ahead.fault(BASE + page * PAGE);
    }
    scene.reads_back(pages(2..3), 0);
    let kinds = |scene: &Scene, kind| (0..16).filter(|&p| scene.kind(BASE + p * PAGE) == kind).count();
    assert_eq!([Kind::Clean, Kind::Inactive].map(|kind| kinds(&scene, kind)), [1, 15]);
    let slot = scene.pager.map.get(BASE).id() / 16;
    assert_eq!(scene.pager.inactive.slot(slot).tried.count(), 15);
    scene.reads_back(pages(7..8), 0);
    assert_eq!([Kind::Clean, Kind::Inactive].map(|kind| kinds(&scene, kind)), [2, 14]);
    assert_eq!(scene.pager.inactive.slot(slot).tried.count(), 14);
    scene.go_on();
    let reused = scene.pager.stat.clean_reused.load(Relaxed);
    assert_eq!((kinds(&scene, Kind::Stored), reused, scene.world.borrow().shelves.objects()), (16, 16, 1));
    scene.reads_back(pages(0..16), 0);
}

#[test]
fn where_most_are_split_the_first_page_splits() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    scene.pager.swapin.loads_of_single_pages(10_000);
    scene.reads_back(pages(3..4), 0);
    scene.go_on();
    assert_eq!((scene.pager.stored_bytes(), scene.world.borrow().shelves.objects()), (16 * PAGE, 16));
    scene.reads_back(pages(0..16), 0);
}

/// What a reader has caught up with is taken back from the worker, and the slot is stock as before.
#[test]
fn a_fetch_that_is_overtaken_leaves_its_slot_as_stock() {
    let mut scene = Scene::new();
    scene.write(pages(0..128));
    scene.go_on();
    let stock = scene.pager.inactive.stock_bytes();
    assert!(stock >= 4 * WINDOW, "{stock}");
    // The third fault brings the first window, the next one a stream, and no worker runs meanwhile.
    for at in [0, 1, 2, 16] {
        scene.reads_back(pages(at..at + 1), 0);
    }
    assert!(!scene.pager.ahead.under_way().is_empty());
    let before = scene.pager.inactive.stock_bytes();
    scene.reads_back(pages(32..33), 0);
    assert_eq!(scene.pager.inactive.stock_bytes(), before, "one back, one used");
    scene.reads_back(pages(0..128), 0);
}
