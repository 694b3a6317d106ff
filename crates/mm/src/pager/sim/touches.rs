//! Where the kernel tells what is touched (UFFDIO_REGISTER_MODE_RWP, as its document has it): what is so in the
//! simulated memory, and scenes of what the hand makes of it.

use super::advice::{are, counted, roomy};
use super::huge::HUGE;
use super::memory::{Access, Memory, Page, Vma};
use super::program::BASE;
use super::scene::{SOMEBODY, Scene, pages};
use crate::kernel::Kernel;
use crate::swap_map::Kind;
use base::Advice;
use std::ops::Range;
use vmscan::PAGE;

impl Memory {
    /// True for a mapping of whose pages it is told whether they are touched.
    pub fn is_watched(&self, vma: &Vma) -> bool {
        self.tells_touches && vma.registered && !vma.engine
    }

    /// True for a page of which a write has to be told first. What is watched is not: the kernel itself gives it its
    /// rights back, as a thread ends too.
    pub fn has_writes_wait(&self, page: &Page) -> bool {
        page.protected && !self.tells_touches
    }

    /// Somebody touches a page that may be watched; of a huge page all is told as one.
    pub fn touched(&mut self, at: usize) {
        let block = at / HUGE * HUGE;
        let pages = if self.huge.contains(at) { block..block + HUGE } else { at..at + PAGE };
        self.pages_mut(pages).for_each(|page| page.protected = false);
    }
}

/// Pages that are registered, and nothing of them out.
fn registered(written: usize, tells_touches: bool) -> Scene {
    let mut scene = roomy(written);
    scene.world.borrow_mut().memory.tells_touches = tells_touches;
    assert!(scene.pager.register_each());
    scene
}

/// Somebody reads all of a range that is there, and nobody has to serve that.
fn touch(scene: &Scene, range: Range<usize>) {
    for at in pages(range).step_by(PAGE) {
        let access = scene.world.borrow_mut().memory.access(SOMEBODY, at, None);
        assert!(access.is_done(), "{at:#x}: {access:?}");
    }
}

/// The hand looks for so many pages.
fn search(scene: &mut Scene, wanted: usize) -> usize {
    scene.world.borrow_mut().calls = 0;
    scene.pager.reclaim.end_rest();
    scene.pager.reclaim.begin_search();
    scene.pager.evict(wanted * PAGE) / PAGE
}

#[test]
fn what_is_touched_stays_and_the_rest_goes() {
    let mut scene = registered(128, true);
    for _ in 0..3 {
        touch(&scene, 16..48);
        search(&mut scene, 12);
    }
    assert!(are(&scene, 16..48, Kind::None) && are(&scene, 0..16, Kind::Inactive));
    assert!(are(&scene, 48..128, Kind::Inactive));
    assert!(counted(&scene).referenced >= 32, "{:?}", counted(&scene));
    scene.reads_back(pages(0..128), 0);
}

/// The hand sees it by a touch of what it has taken.
#[test]
fn where_nothing_is_told_what_is_touched_goes_like_the_rest() {
    let mut scene = registered(128, false);
    touch(&scene, 16..48);
    search(&mut scene, 40);
    assert!(are(&scene, 0..40, Kind::Inactive));
    assert_eq!(counted(&scene).referenced, 0);
}

/// A touch counts once: what is not touched again goes when the hand comes by again.
#[test]
fn what_was_touched_once_goes_a_round_later() {
    let mut scene = registered(128, true);
    touch(&scene, 0..128);
    assert_eq!(search(&mut scene, 16), 128, "in its second round, and no run in part");
    assert_eq!(counted(&scene).referenced, 128);
}

/// Neither what the program has advised, nor where everything goes out all the time.
#[test]
fn what_is_to_go_out_goes_touched_or_not() {
    let mut scene = registered(64, true);
    touch(&scene, 0..64);
    scene.pager.advise(Advice::PageOut, pages(0..32));
    scene.go_on();
    assert!(are(&scene, 0..32, Kind::Stored) && are(&scene, 32..64, Kind::None));
    let mut scene = Scene::new();
    scene.world.borrow_mut().memory.tells_touches = true;
    scene.write(pages(0..32));
    assert!(scene.pager.register_each());
    touch(&scene, 0..32);
    scene.turn();
    assert!(are(&scene, 0..32, Kind::Inactive), "at once");
    scene.reads_back(pages(0..32), 0);
}

/// Where nearly all is touched again and again.
#[test]
fn what_is_touched_goes_once_enough_was_spared() {
    let mut scene = registered(128, true);
    touch(&scene, 0..128);
    while scene.pager.reclaim.lenience.spares(1 << 12) {}
    assert_eq!((search(&mut scene, 16), counted(&scene).referenced), (128, 0));
    assert!(scene.pager.reclaim.lenience.spares(1), "for each that goes some stay");
}

/// The thread that waits is about to write to it, and each page would be a fault once more.
#[test]
fn what_fresh_memory_comes_is_not_watched() {
    let mut scene = registered(2, true);
    let mut faults = 0;
    for at in pages(16..48).step_by(PAGE) {
        let page = scene.world.borrow().memory.page(at).copied();
        faults += page.is_none() as u32;
        assert!(page.is_none_or(|page| !page.protected), "{at:#x}");
        assert!(scene.touch(at, Some(7)).is_done());
    }
    assert!(faults < 32, "some came with another");
}

/// As the last pages of mappings, which never go.
#[test]
fn what_cannot_be_taken_is_not_spared() {
    let mut scene = registered(128, true);
    let change = |vma: &mut Vma| (vma.writable, vma.locked) = (false, true);
    scene.world.borrow_mut().memory.change(pages(100..128), change);
    scene.pager.reclaim.forget_areas();
    touch(&scene, 90..128);
    scene.pager.reclaim.go_on_from(BASE + 90 * PAGE);
    search(&mut scene, 16);
    assert_eq!(counted(&scene).referenced, 10);
}

#[test]
fn a_huge_page_of_which_something_is_touched_stays_whole() {
    let mut scene = registered(128, true);
    let whole = HUGE / PAGE;
    scene.world.borrow_mut().program.huge = true;
    scene.pager.limit.marks_mut().inactive = 1 << 30;
    for block in [0, 1] {
        assert!(scene.pager.kernel.lift_protection(pages(block * whole..(block + 1) * whole)).is_ok());
        assert!(scene.world.borrow_mut().memory.collapse(BASE + block * HUGE));
    }
    assert!(scene.pager.kernel.watch(pages(0..2 * whole)).is_ok());
    touch(&scene, 5..6);
    search(&mut scene, whole);
    assert!(are(&scene, 0..whole, Kind::None) && are(&scene, whole..2 * whole, Kind::Inactive));
    assert!(scene.world.borrow().memory.huge.contains(BASE));
    assert_eq!((counted(&scene).thp_swpout, counted(&scene).referenced), (1, whole as u64));
}

/// To watch a part of it would take it apart.
#[test]
fn a_huge_page_in_which_the_hand_stands_stays_whole() {
    let mut scene = registered(128, true);
    scene.world.borrow_mut().program.huge = true;
    assert!(scene.pager.kernel.lift_protection(pages(0..HUGE / PAGE)).is_ok());
    assert!(scene.world.borrow_mut().memory.collapse(BASE));
    touch(&scene, 2..3);
    scene.pager.reclaim.go_on_from(BASE + 5 * PAGE);
    search(&mut scene, 16);
    assert!(scene.world.borrow().memory.huge.contains(BASE) && are(&scene, 0..HUGE / PAGE, Kind::None));
    assert!(scene.world.borrow().memory.page(BASE).unwrap().protected, "all of it is watched");
}

/// Page tables have one bit for both.
#[test]
fn after_a_fork_no_write_waits_where_touches_are_told() {
    let mut scene = registered(64, true);
    touch(&scene, 0..64);
    let _child = scene.world.borrow_mut().memory.fork();
    scene.pager.share();
    assert!(!scene.world.borrow().memory.page(BASE).unwrap().protected, "nor is all of it watched");
    let access = scene.world.borrow_mut().memory.access(SOMEBODY, BASE, Some(7));
    assert_eq!(access, Access::Done(7));
    assert!(scene.pager.kernel.watch(pages(1..2)).is_ok());
    scene.pager.thaw();
    assert!(scene.world.borrow().memory.page(BASE + PAGE).unwrap().protected, "nobody has touched it");
    let mut scene = registered(64, false);
    let _child = scene.world.borrow_mut().memory.fork();
    scene.pager.share();
    let access = scene.world.borrow_mut().memory.access(SOMEBODY, BASE, Some(7));
    assert_eq!(access, Access::Fault);
}
