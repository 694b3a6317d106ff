//! Scripted scenes of pages that go out, one for each bug that was found there.

use super::memory::Content;
use super::program::BASE;
use super::scene::{Scene, pages};
use crate::inactive::Use;
use crate::kernel::{Kernel, Run};
use crate::swap_map::Kind;
use std::ops::Range;
use vmscan::PAGE;
use vmscan::heat::Heat;

#[test]
fn pages_that_could_not_be_discarded_are_tried_again() {
    let mut scene = Scene::new();
    // One part of a slot more than wait to be used.
    (0..5).for_each(|window| scene.write(pages(16 * window..16 * window + 9)));
    scene.world.borrow_mut().stubborn = true;
    scene.go_on();
    let slots: Vec<u32> = scene.pager.inactive.slots().collect();
    let used =
        |scene: &Scene| slots.iter().filter(|&&s| scene.pager.inactive.slot(s).used == Use::Waste).count();
    assert_eq!(used(&scene), 1);
    scene.world.borrow_mut().stubborn = false;
    scene.go_on();
    assert_eq!(used(&scene), 0);
    (0..5).for_each(|window| scene.reads_back(pages(16 * window..16 * window + 9), 0));
}

#[test]
fn a_full_pool_is_tried_again() {
    let mut scene = Scene::new();
    scene.write(pages(0..40));
    scene.world.borrow_mut().shelves.fill_up(u64::MAX);
    scene.go_on();
    assert_eq!(scene.pager.stored_bytes(), 0);
    scene.world.borrow_mut().shelves.fill_up(0);
    scene.go_on();
    assert_eq!(scene.pager.stored_bytes(), 40 * PAGE);
    scene.reads_back(pages(0..40), 0);
}

#[test]
fn an_empty_mapping_is_not_registered_by_the_hand() {
    let mut scene = Scene::new();
    scene.world.borrow_mut().memory.unmap(pages(64..80));
    scene.write(pages(0..4));
    scene.go_on();
    let world = scene.world.borrow();
    assert!(world.memory.vma(pages(0..1).start).is_some_and(|(_, vma)| vma.registered));
    assert!(world.memory.vma(pages(80..81).start).is_some_and(|(_, vma)| !vma.registered));
}

#[test]
fn pages_from_here_and_there_share_a_slot_and_become_objects_of_their_own() {
    let mut scene = Scene::new();
    for page in [2, 21, 40, 41, 77] {
        scene.write(pages(page..page + 1));
    }
    scene.pager.pause(false);
    scene.turn();
    let slots: std::collections::BTreeSet<u32> =
        [2, 21, 40, 41, 77].map(|p| scene.pager.map.get(BASE + p * PAGE).inactive_page().0).into();
    assert_eq!(slots.len(), 1, "{slots:?}");
    scene.go_on();
    assert_eq!((scene.pager.stored_bytes(), scene.world.borrow().shelves.objects()), (5 * PAGE, 5));
    for page in [77, 2, 40, 41, 21] {
        scene.reads_back(pages(page..page + 1), 0);
    }
}

/// Pages that went out one by one lie in an object each. Once nobody has asked for them in a long time, and the
/// pool is most of the memory, they are one object, like a window that went out whole.
#[test]
fn a_window_in_pieces_becomes_one_object_when_it_is_cold() {
    let mut scene = Scene::new();
    scene.pager.limit.marks_mut().dense = usize::MAX;
    for page in 0..16 {
        scene.write(pages(page..page + 1));
        scene.go_on();
    }
    assert_eq!(scene.objects_of(pages(0..16)), 16);
    scene.pager.limit.marks_mut().dense = 0;
    scene.go_on();
    assert_eq!(scene.objects_of(pages(0..16)), 16, "they went out a short time ago");
    for _ in 0..8 {
        scene.write(pages(32..64));
        scene.go_on();
    }
    assert_eq!(scene.objects_of(pages(0..16)), 1);
    scene.reads_back(pages(0..16), 0);
}

#[test]
fn windows_in_pieces_are_recompressed_where_nothing_else_would_make_room() {
    let mut scene = Scene::new();
    scene.pager.limit.marks_mut().dense = usize::MAX;
    for page in 0..16 {
        scene.write(pages(page..page + 1));
        scene.go_on();
    }
    assert_eq!(scene.objects_of(pages(0..16)), 16);
    scene.pager.limit.evict_by_marks();
    scene.pager.limit.marks_mut().high = 0;
    scene.go_on();
    assert_eq!(scene.objects_of(pages(0..16)), 1);
    scene.reads_back(pages(0..16), 0);
}

#[test]
fn what_is_left_unchanged_of_a_window_keeps_no_object_for_itself() {
    for (changed, objects) in [(1..16, 1), (12..16, 2)] {
        let mut scene = Scene::new();
        scene.pager.limit.marks_mut().dense = usize::MAX;
        scene.write(pages(0..16));
        scene.go_on();
        assert_eq!(scene.objects_of(pages(0..16)), 1);
        // The third fault brings all of it.
        for _ in 0..2 {
            scene.pager.ahead.fault(BASE);
        }
        scene.reads_back(pages(0..16), 0);
        scene.pager.pause(true);
        for at in pages(changed.clone()).step_by(PAGE) {
            assert!(scene.touch(at, Some(1 + at as Content)).is_done());
        }
        scene.pager.pause(false);
        scene.go_on();
        assert_eq!(scene.objects_of(pages(0..16)), objects);
        scene.reads_back(pages(changed), -1);
    }
}

/// What the kernel has swapped counts, and must not keep a limit full for ever.
#[test]
fn what_the_kernel_has_swapped_is_taken_where_there_is_nothing_else() {
    let mut scene = Scene::new();
    scene.pager.limit.evict_by_marks();
    scene.write(pages(0..32));
    for at in pages(0..16).step_by(PAGE) {
        scene.world.borrow_mut().memory.page_mut(at).expect("just written").swapped = true;
    }
    let mut taken = Vec::new();
    for second in 1..20 {
        scene.world.borrow_mut().clock = second * 1_000_000;
        let got = scene.pager.evict(8 * PAGE);
        if got > 0 {
            taken.push(got / PAGE);
        }
        if scene.kind(BASE) == Kind::None {
            let rest = pages(16..32).step_by(PAGE).filter(|&at| scene.kind(at) == Kind::None).count();
            assert!(rest + taken.iter().sum::<usize>() == 16, "what is there goes first: {taken:?}");
        }
    }
    assert_eq!(taken.iter().sum::<usize>(), 32);
    assert!(!scene.pager.kernel.is_swapped());
    assert_eq!(scene.pager.check(), Ok(()));
    scene.reads_back(pages(0..32), 0);
}

/// The kernel refuses to move pages of a large folio whose first page was shared, whoever has them now.
#[test]
fn pages_of_a_large_folio_go_out_once_it_is_split() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    for at in pages(0..16).step_by(PAGE) {
        scene.world.borrow_mut().memory.page_mut(at).expect("just written").bound = true;
    }
    for _ in 0..8 {
        scene.pager.evict(16 * PAGE);
    }
    assert!(pages(0..16).step_by(PAGE).all(|at| scene.kind(at) != Kind::None));
    scene.reads_back(pages(0..16), 0);
}

/// The hand remembers where there is nothing to take, and no event tells of a mapping that may be written to from
/// now on.
#[test]
fn what_is_registered_anew_can_be_taken_at_once() {
    let mut scene = Scene::new();
    scene.pager.limit.evict_by_marks();
    scene.write(pages(0..32));
    let protect = |scene: &Scene, writable| {
        scene.world.borrow_mut().memory.change(pages(16..32), |vma| vma.writable = writable);
    };
    protect(&scene, false);
    let taken = |scene: &mut Scene, found: Range<usize>| {
        let Range { start, end } = pages(found);
        let taken = scene.pager.evict_occupied(&Run { start, end, ..Run::default() }, &mut 0);
        (taken.bytes, taken.is_due)
    };
    assert_eq!(taken(&mut scene, 0..32), (16 * PAGE, false));
    protect(&scene, true);
    assert_eq!(taken(&mut scene, 16..32), (0, false), "not asked about again yet");
    assert!(scene.pager.register_each());
    assert_eq!(taken(&mut scene, 16..32), (16 * PAGE, false));
    assert_eq!(scene.pager.check(), Ok(()));
    scene.reads_back(pages(0..32), 0);
}

/// A program that goes through memory in order is not likely to want what it has just left before it has been
/// everywhere else.
#[test]
fn what_a_stream_has_passed_goes_out_first_and_what_is_hot_stays() {
    let mut scene = Scene::new();
    scene.write(pages(0..128));
    scene.go_on();
    // What it learnt as the pages were written is forgotten.
    scene.pager.ahead.forget_streams();
    scene.reads_back(pages(0..64), 0);
    scene.pager.limit.evict_by_marks();
    // The hand is about to take the windows that the stream reads now.
    scene.pager.reclaim.go_on_from(pages(48..49).start);
    // As after a long time, but for one page.
    let hot = pages(21..22).start;
    for at in pages(0..64).step_by(PAGE) {
        let (entry, heat) = (scene.pager.map.get(at), if at == hot { Heat::HOT } else { Heat::COLD });
        scene.pager.map.set(at, entry.with_heat(heat));
    }
    // Of the first window two pages: it was split before it was known for a stream's.
    assert_eq!(scene.pager.evict(32 * PAGE), (2 + 15 + 16) * PAGE);
    assert_eq!(scene.pager.check(), Ok(()));
    for at in pages(16..64).step_by(PAGE) {
        let gone = at < pages(48..49).start && at != hot;
        assert_eq!(scene.kind(at), if gone { Kind::Inactive } else { Kind::Clean }, "{at:#x}");
    }
    scene.reads_back(pages(0..128), 0);
}

/// What it holds beyond its limit nobody can take: to look for more at every turn took most of a CPU.
#[test]
fn the_hand_rests_where_there_is_nothing_to_take_until_something_comes_in() {
    const HELD: usize = 64 << 20;
    let mut scene = Scene::new();
    scene.write(pages(0..4));
    scene.go_on();
    scene.pager.limit.evict_by_marks();
    scene.pager.set_limit(HELD / 2, 1, vmscan::watermark::UNKNOWN);
    let turns = |scene: &mut Scene| {
        for _ in 0..20 {
            scene.world.borrow_mut().calls = 0;
            scene.pager.turn(HELD);
        }
        scene.pager.reclaim.rests(scene.pager.kernel.now_ns())
    };
    assert!(turns(&mut scene));
    scene.reads_back(pages(0..1), 0);
    assert!(!scene.pager.reclaim.rests(scene.pager.kernel.now_ns()));
    assert!(turns(&mut scene), "it has gone round again");
    assert_eq!(scene.kind(BASE), Kind::Inactive, "and found what came in");
}
