//! Scenes of what comes back since much around it was asked for.

use super::advice::{are, counted, roomy};
use super::huge::HUGE;
use super::memory::Access;
use super::program::BASE;
use super::scene::{Scene, pages};
use crate::kernel::{Message, WINDOW_PAGES};
use crate::swap_map::Kind;
use base::Advice;
use vmscan::PAGE;
use vmscan::watermark::Watermarks;

/// Memory of which ten windows are out, with room for all of it; of eight of them a page was asked for.
fn asked() -> Scene {
    let mut scene = roomy(400);
    scene.pager.advise(Advice::PageOut, pages(0..160));
    scene.go_on();
    assert!(are(&scene, 0..160, Kind::Stored));
    for page in (0..8).map(|window| window * WINDOW_PAGES) {
        scene.turn();
        assert!(are(&scene, page..160, Kind::Stored), "each comes alone");
        scene.reads_back(pages(page..page + 1), 0);
    }
    scene
}

#[test]
fn a_region_comes_of_which_some_windows_were_asked_for() {
    let mut scene = asked();
    assert!(are(&scene, 113..160, Kind::Stored));
    scene.go_on();
    assert!(are(&scene, 0..160, Kind::Clean));
    assert_eq!((counted(&scene).prefetched, counted(&scene).faults), (152, 8));
    assert_eq!(counted(&scene).near_refaults, 0, "with so much room no memory is lacking");
    scene.reads_back(pages(0..160), 0);
    assert_eq!(counted(&scene).faults, 8);
}

#[test]
fn it_stays_out_where_the_room_is_gone() {
    let mut scene = asked();
    scene.pager.limit.marks_mut().low = 0;
    scene.go_on();
    assert_eq!((are(&scene, 113..160, Kind::Stored), counted(&scene).prefetched), (true, 0));
    scene.reads_back(pages(0..160), 0);
    assert_eq!(counted(&scene).prefetched, 0);
}

/// What it has is for others then.
#[test]
fn it_stays_out_where_somebody_wants_memory_out_or_the_process_waits_for_its_turn() {
    let asks: [fn(&mut Scene); 2] = [|scene| scene.pager.ask(Some(1 << 20)), |scene| scene.pager.park(true)];
    for ask in asks {
        let mut scene = asked();
        ask(&mut scene);
        scene.go_on();
        assert_eq!((are(&scene, 113..160, Kind::Stored), counted(&scene).prefetched), (true, 0));
        scene.pager.ask(None);
        scene.pager.park(false);
        scene.reads_back(pages(0..160), 0);
    }
}

/// The program's own advice is followed up to the low mark.
#[test]
fn it_stays_out_where_there_is_not_much_room_and_what_was_advised_comes() {
    let mut scene = asked();
    let footprint = scene.world.borrow().footprint();
    scene.pager.limit.marks_mut().low = footprint + 20 * PAGE;
    scene.pager.advise(Advice::WillNeed, pages(144..160));
    scene.go_on();
    assert!(are(&scene, 113..144, Kind::Stored) && are(&scene, 144..160, Kind::Clean));
    assert_eq!(counted(&scene).prefetched, 0);
}

#[test]
fn what_the_program_gives_up_meanwhile_does_not_come() {
    let mut scene = asked();
    scene.pager.advise(Advice::Cold, pages(144..160));
    for page in (0..8).map(|window| window * WINDOW_PAGES + 3) {
        scene.reads_back(pages(page..page + 1), 0);
    }
    scene.go_on();
    assert!(are(&scene, 144..160, Kind::Stored));
}

#[test]
fn what_is_damaged_and_not_asked_for_is_nobodys_loss() {
    let mut scene = asked();
    scene.world.borrow_mut().shelves.damage_all();
    scene.go_on();
    assert_eq!((are(&scene, 113..160, Kind::Stored), counted(&scene).decompress_fail), (true, 0));
}

#[test]
fn what_is_unmapped_meanwhile_does_not_come() {
    let mut scene = asked();
    scene.raise(Message::Unmap(pages(128..144)));
    scene.go_on();
    assert!(are(&scene, 128..144, Kind::None) && are(&scene, 144..160, Kind::Clean));
    assert_eq!(counted(&scene).prefetched, 136);
}

/// The same of huge pages, of which five are out whole; the first one has a page of zeros.
fn asked_of_huge() -> Scene {
    let mut scene = roomy(400);
    assert!(scene.touch(BASE + 5 * PAGE, Some(0)).is_done());
    scene.world.borrow_mut().program.huge = true;
    assert!((0..5).all(|number| scene.world.borrow_mut().memory.collapse(BASE + number * HUGE)));
    scene.pager.advise(Advice::PageOut, pages(0..160));
    scene.go_on();
    assert_eq!((counted(&scene).thp_swpout, scene.kind(BASE + 5 * PAGE)), (5, Kind::Zero));
    for page in (0..8).map(|window| window * WINDOW_PAGES) {
        scene.turn();
        scene.reads_back(pages(page..page + 1), 0);
    }
    assert_eq!(huge(&scene), []);
    scene
}

/// Which of the five are huge pages now.
fn huge(scene: &Scene) -> Vec<usize> {
    let world = scene.world.borrow();
    (0..5).filter(|number| world.memory.huge.contains(BASE + number * HUGE)).collect()
}

#[test]
fn what_was_huge_is_so_again_once_all_of_it_is_there() {
    for tells_touches in [false, true] {
        let mut scene = asked_of_huge();
        // What comes is watched then, and of that the kernel makes no huge page.
        scene.world.borrow_mut().memory.tells_touches = tells_touches;
        scene.go_on();
        assert_eq!(huge(&scene), [0, 1, 2, 3, 4], "{tells_touches}");
        let counts = counted(&scene);
        assert_eq!((counts.thp_collapse_alloc, counts.thp_swpin, counts.swpin_zero), (5, 0, 1));
        scene.reads_back(pages(6..160), 0);
        assert_eq!(scene.touch(BASE + 5 * PAGE, None), Access::Done(0));
    }
}

#[test]
fn what_was_huge_stays_in_parts_where_a_part_is_gone_or_the_kernel_makes_none_there() {
    let mut scene = asked_of_huge();
    scene.raise(Message::Remove(pages(40..41)));
    scene.go_on();
    assert_eq!(huge(&scene), [0, 2, 3, 4]);
    let mut scene = asked_of_huge();
    scene.world.borrow_mut().program.huge = false;
    scene.go_on();
    assert_eq!((huge(&scene), are(&scene, 6..160, Kind::Clean)), (vec![], true));
}

/// To make one would copy pages that are shared, and read those that the machine's swap has.
#[test]
fn what_was_huge_stays_in_parts_where_relatives_share_it_or_the_machine_swaps() {
    let reasons: [fn(&mut Scene); 2] = [
        |scene| scene.pager.cow.share(true),
        |scene| {
            let mut world = scene.world.borrow_mut();
            world.memory.page_mut(BASE + 399 * PAGE).expect("it was written").swapped = true;
        },
    ];
    for (number, reason) in reasons.into_iter().enumerate() {
        let mut scene = asked_of_huge();
        reason(&mut scene);
        scene.go_on();
        assert_eq!((huge(&scene), are(&scene, 6..160, Kind::Clean)), (vec![], true), "{number}");
    }
}

/// A huge page takes as much again until it is made.
#[test]
fn what_was_huge_stays_in_parts_where_there_is_no_room_for_another() {
    for (room, made) in [(0, 0), (1 << 20, 5)] {
        let mut scene = asked_of_huge();
        scene.world.borrow_mut().program.huge = false;
        scene.go_on();
        scene.world.borrow_mut().program.huge = true;
        // An eighth is free, or not quite.
        let low = scene.world.borrow().footprint() / 7 * 8 + room;
        *scene.pager.limit.marks_mut() = Watermarks { low, stock: 0, ..*scene.pager.marks() };
        scene.pager.huge.may_be_there(&pages(0..160));
        scene.go_on();
        assert_eq!((huge(&scene).len(), are(&scene, 6..160, Kind::Clean)), (made, true));
    }
}
