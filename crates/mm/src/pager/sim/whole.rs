//! Scripted scenes of huge pages: how they go and come whole, and what keeps them from it.

use super::huge::HUGE;
use super::memory::Access;
use super::program::BASE;
use super::scene::{SOMEBODY, Scene, pages};
use crate::inactive::Use;
use crate::kernel::Message;
use crate::swap_map::Kind;
use memcg::Counts;
use vmscan::{PAGE, WINDOW};

/// Pages of a huge one.
const PAGES: usize = HUGE / PAGE;

/// A huge page that was written to, and nothing out.
fn a_huge_page() -> Scene {
    let mut scene = Scene::new();
    scene.write(pages(0..PAGES));
    scene.world.borrow_mut().program.huge = true;
    assert!(scene.world.borrow_mut().memory.collapse(BASE));
    scene
}

/// The same on the inactive list, where it stays.
fn a_huge_page_on_the_list() -> Scene {
    let mut scene = a_huge_page();
    scene.pager.limit.marks_mut().inactive = 1 << 30;
    scene.turn();
    assert_eq!(scene.kind(BASE), Kind::Inactive);
    scene
}

fn is_huge(scene: &Scene) -> bool {
    scene.world.borrow().memory.huge.contains(BASE)
}

fn counts(scene: &Scene) -> Counts {
    Counts::from(scene.pager.stat)
}

#[test]
fn a_huge_page_goes_out_whole_and_comes_back_whole() {
    let mut scene = a_huge_page();
    for times in 1..4 {
        scene.go_on();
        assert_eq!(scene.pager.stored_bytes(), HUGE);
        assert_eq!(scene.objects_of(pages(0..PAGES)), HUGE / WINDOW);
        // Every other time one page comes alone where everything goes out all the time.
        scene.pager.huge.take_turns();
        scene.pager.huge.take_turns();
        assert!(scene.touch(BASE + 5 * PAGE, None).is_done());
        assert!(is_huge(&scene), "{times}");
        scene.pager.huge.take_turns();
        assert_eq!((counts(&scene).thp_swpin, counts(&scene).thp_swpout_fallback), (times, 0));
    }
    scene.reads_back(pages(0..PAGES), 0);
}

#[test]
fn a_huge_page_that_is_touched_on_the_list_goes_back_whole() {
    let mut scene = a_huge_page_on_the_list();
    let waits = scene.world.borrow_mut().memory.access(SOMEBODY, BASE + 3 * PAGE, None);
    assert_eq!(waits, Access::Fault);
    // As where its window is asked for.
    let entry = scene.pager.map.get(BASE + 3 * PAGE);
    scene.pager.settle();
    scene.pager.activate(BASE + 3 * PAGE, entry, vmscan::readahead::Extent::Window);
    assert!(is_huge(&scene) && scene.kind(BASE) == Kind::None);
    assert_eq!((counts(&scene).thp_swpout, counts(&scene).pgactivate), (1, PAGES as u64));
    scene.reads_back(pages(0..PAGES), 0);
}

/// And what is left of it goes on, and is gone when the last window is.
#[test]
fn a_page_of_one_that_is_in_part_compressed_is_copied() {
    let mut scene = a_huge_page_on_the_list();
    scene.pager.deflate(WINDOW);
    (0..40).for_each(|_| scene.world.borrow_mut().step_worker(0));
    scene.pager.pause(true);
    scene.turn();
    assert_eq!([0, 16].map(|page| scene.kind(BASE + page * PAGE)), [Kind::Stored, Kind::Inactive]);
    assert!(scene.touch(BASE + 20 * PAGE, None).is_done());
    assert!(scene.pager.inactive.spent_bytes() > 0);
    scene.pager.limit.marks_mut().inactive = 0;
    scene.pager.pause(false);
    scene.go_on();
    assert_eq!((scene.pager.stored_bytes(), scene.pager.inactive.spent_bytes()), (HUGE, 0));
    let list = &scene.pager.inactive;
    assert!(list.slots().all(|slot| !matches!(list.slot(slot).used, Use::Inactive | Use::InFlight)));
    scene.reads_back(pages(0..PAGES), 0);
}

/// Of which a thread throws a page away, has one held, or a device has one.
#[test]
fn a_huge_page_of_which_one_must_stay_is_taken_apart() {
    let page = BASE + 7 * PAGE;
    let reasons: [fn(&mut Scene, usize); 3] = [
        |scene, page| {
            scene.pager.pause(true);
            scene.raise(Message::Remove(page..page + PAGE));
            scene.pager.settle();
        },
        |scene, page| scene.world.borrow_mut().held = page..page + PAGE,
        |scene, page| scene.world.borrow_mut().memory.page_mut(page).expect("it was written").pins = 1,
    ];
    for (number, reason) in reasons.into_iter().enumerate() {
        let mut scene = a_huge_page();
        reason(&mut scene, page);
        scene.pager.evict(HUGE);
        let counts = counts(&scene);
        assert_eq!((counts.thp_swpout, counts.thp_swpout_fallback), (0, 1), "{number}");
        assert_eq!([page, page + PAGE].map(|at| scene.kind(at)), [Kind::None, Kind::Inactive], "{number}");
    }
}

/// Which a stream of writes comes to, where the kernel would make a huge page.
#[test]
fn fresh_memory_is_made_of_what_has_gone_out() {
    let mut scene = a_huge_page();
    scene.pager.huge.is_wanted = true;
    scene.go_on();
    let before = scene.world.borrow().memory.resident();
    assert_eq!(scene.pager.inactive.stock_bytes(), HUGE);
    assert_eq!(scene.touch(pages(32..33).start, Some(7)), Access::Done(7));
    assert!(scene.world.borrow().memory.huge.contains(pages(32..33).start));
    assert_eq!(counts(&scene).thp_fault_alloc, 1);
    assert_eq!(scene.world.borrow().memory.resident(), before, "no page more");
    for at in pages(33..64).step_by(PAGE) {
        assert_eq!(scene.touch(at, None), Access::Done(0));
    }
    scene.reads_back(pages(0..PAGES), 0);
}
