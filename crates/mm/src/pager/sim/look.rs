//! Scenes of what a program asks about its pages, or has the kernel do with them.

use super::program::BASE;
use super::scene::{Scene, pages};
use crate::inactive::Use;
use crate::kernel::Message;
use crate::pager::look::OUT;
use crate::ranges::RangeSet;
use crate::swap_map::Kind;
use core::ops::Range;
use uffd::pagemap::PRESENT_BIT;
use vmscan::PAGE;

/// Zeros that a worker has begun to look at, and has not found to be zeros yet.
fn zeros_in_flight() -> Scene {
    let mut scene = Scene::new();
    for at in pages(0..16).step_by(PAGE) {
        assert!(scene.touch(at, Some(0)).is_done());
    }
    scene.turn();
    scene.turn();
    let slot = scene.pager.map.get(BASE).id() / 16;
    assert_eq!(scene.pager.inactive.slot(slot).used, Use::InFlight);
    scene.world.borrow_mut().step_worker(0);
    scene
}

#[test]
fn a_page_that_is_found_to_be_zeros_as_it_is_let_go_is_not_a_hole() {
    let mut scene = zeros_in_flight();
    scene.pager.let_go(pages(0..16));
    for at in pages(0..16).step_by(PAGE) {
        assert!(scene.world.borrow().memory.page(at).is_some(), "{at:#x}");
    }
}

#[test]
fn a_page_that_is_found_to_be_zeros_as_it_is_held_is_there() {
    let mut scene = zeros_in_flight();
    scene.world.borrow_mut().held = pages(0..16);
    assert_eq!(scene.pager.hold(pages(0..16), usize::MAX), pages(0..16).end);
    for at in pages(0..16).step_by(PAGE) {
        assert!(scene.world.borrow().memory.page(at).is_some_and(|page| !page.zero), "{at:#x}");
    }
}

#[test]
fn what_is_out_looks_swapped_and_what_was_never_touched_does_not() {
    let mut scene = Scene::new();
    scene.write(pages(0..8));
    for at in pages(8..10).step_by(PAGE) {
        assert!(scene.touch(at, Some(0)).is_done());
    }
    scene.go_on();
    assert_eq!(scene.kind(pages(8..9).start), Kind::Zero);
    scene.pager.pause(true);
    scene.reads_back(pages(2..3), 0);
    let mut entries = [1; 12];
    scene.pager.look(BASE, &mut entries);
    let back: Vec<bool> = entries.iter().map(|entry| *entry == PRESENT_BIT).collect();
    assert!(back[2] && entries[0] == OUT, "{entries:x?}");
    for (page, entry) in entries.iter().enumerate() {
        let expected = if page >= 10 {
            0
        } else if back[page] {
            PRESENT_BIT
        } else {
            OUT
        };
        assert_eq!(*entry, expected, "page {page}");
    }
}

#[test]
fn what_is_held_comes_home_and_stays_until_it_is_let_go() {
    let mut scene = Scene::new();
    scene.write(pages(0..40));
    assert!(scene.touch(pages(40..41).start, Some(0)).is_done());
    scene.go_on();
    let is_there =
        |scene: &Scene, page| scene.world.borrow().memory.page(pages(page..page + 1).start).is_some();
    assert!((0..41).all(|page| !is_there(&scene, page)));
    // As much as is asked for at a time, and what comes with it.
    scene.world.borrow_mut().held = pages(0..48);
    let upto = scene.pager.hold(pages(0..48), 4 * PAGE);
    assert!(upto > pages(0..4).end && upto < pages(0..40).end, "{upto:#x}");
    assert!(scene.pager.first_away(&(BASE..upto)).is_none());
    assert_eq!(scene.pager.hold(upto..pages(0..48).end, usize::MAX), pages(0..48).end);
    scene.go_on();
    for page in 0..41 {
        assert!(is_there(&scene, page), "{page}");
    }
    assert!(!scene.world.borrow().memory.page(pages(40..41).start).unwrap().zero, "a page of its own");
    assert!(!is_there(&scene, 41), "nobody has touched it");
    scene.world.borrow_mut().held = 0..0;
    scene.go_on();
    assert!((0..40).all(|page| !is_there(&scene, page)));
    scene.reads_back(pages(0..40), 0);
}

#[test]
fn what_is_pinned_stays_until_it_is_unmapped_and_moves_with_its_mapping() {
    let mut scene = Scene::of(48);
    scene.write(pages(0..48));
    scene.world.borrow_mut().pinned = RangeSet::from(pages(4..40));
    scene.go_on();
    let are_out =
        |scene: &Scene, range: Range<usize>| pages(range).step_by(PAGE).all(|at| scene.kind(at).is_out());
    let are_there = |scene: &Scene, range: Range<usize>| {
        pages(range).step_by(PAGE).all(|at| scene.world.borrow().memory.page(at).is_some())
    };
    assert!(are_out(&scene, 0..4) && are_there(&scene, 4..40) && are_out(&scene, 40..48));
    // Unmapped, and mapped and written anew before the engine hears of it.
    scene.raise(Message::Unmap(pages(4..8)));
    scene.turn();
    let to = pages(64..65).start;
    scene.world.borrow_mut().memory.remap(pages(32..40), to, 8 * PAGE, false);
    scene.raise(Message::Remap { from: pages(32..40), to });
    scene.raise(Message::Unmap(pages(32..40)));
    scene.go_on();
    assert!(are_out(&scene, 4..8) && are_there(&scene, 8..32) && are_there(&scene, 64..72));
    scene.reads_back(pages(0..32), 0);
    scene.reads_back(pages(64..72), 32 * PAGE as isize);
}

#[test]
fn a_program_is_told_where_its_pages_are() {
    let mut scene = Scene::new();
    scene.write(pages(0..40));
    assert!(scene.touch(pages(48..49).start, Some(0)).is_done());
    scene.go_on();
    scene.reads_back(pages(0..1), 0);
    let all = pages(0..64);
    let told = scene.pager.tell(all.clone());
    let brought = all.step_by(PAGE).filter(|&at| scene.world.borrow().memory.page(at).is_some()).count();
    assert!((1..=40).contains(&brought) && told.resident == brought * PAGE, "{told:?}");
    assert_eq!(told.resident + told.inactive + told.stored, 40 * PAGE, "{told:?}");
    assert_eq!((told.filled, told.swapped), (PAGE, 0), "{told:?}");
    assert!(told.pool > 0 && told.pool < told.stored, "{told:?}");
}
