//! What is counted of pages that go out.

use super::Shared;
use super::memory::{Access, Content};
use super::program::BASE;
use super::run::Simulated;
use super::scene::{SOMEBODY, Scene, pages};
use memcg::{Counts, PagesOut};
use vmscan::PAGE;

/// A page is stored in an object, or one word fills it: it is never counted as both, whatever lies beside it.
#[test]
fn what_one_word_fills_is_counted_as_that_alone() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    for page in 16..48 {
        let word = if page < 32 { 7 } else { 0 };
        scene.touch(BASE + page * PAGE, Some(word));
    }
    scene.touch(BASE + 3 * PAGE, Some(8));
    scene.go_on();
    assert_eq!(scene.pager.stored_bytes(), 48 * PAGE);
    let counts = Counts::from(scene.pager.stat);
    assert_eq!((counts.zswpout, counts.same_filled, counts.swpout_zero), (15, 33, 16));
    assert_eq!(counts.check(), Ok(()));
    let out = PagesOut { stored: 48, same_filled: 33, ..PagesOut::default() };
    assert_eq!((scene.pager.pages_out(), counts.balance()), (out, 48));
    // One page of each kind comes back, and what one word fills goes out again as that.
    for (page, content) in [(0, BASE as u64), (3, 8), (16, 7), (32, 0)] {
        assert_eq!(scene.touch(BASE + page * PAGE, Some(content)), Access::Done(content));
    }
    let counts = Counts::from(scene.pager.stat);
    assert!(counts.swpin_zero > 0 && counts.zswpin > 0, "{counts:?}");
    assert_eq!(counts.balance(), (scene.pager.stored_bytes() / PAGE) as i64);
    scene.go_on();
    assert_eq!(scene.pager.pages_out(), out, "all of it is out again");
}

/// What a run has counted of its area is what the area has seen.
pub fn counts_of_area(world: &Shared, pager: &Simulated) {
    let world = world.borrow();
    let Some(area) = &world.shelves.area else { return };
    let counts = Counts::from(pager.stat);
    let pages = |folios: &[u64]| folios.iter().enumerate().map(|(order, count)| count << order).sum::<u64>();
    assert_eq!([counts.zswpwb, pages(&counts.folios_swpin)], [area.pages_out, area.pages_in]);
    assert_eq!(pager.stat.writeback_ns.count(), area.whole_batches);
}

/// What has gone to an area is no longer in the pool, and what has come back from there is.
#[test]
fn what_is_in_an_area_is_counted_there() {
    let mut scene = Scene::with_area();
    scene.write(pages(0..64));
    scene.go_on();
    let out = scene.pager.pages_out();
    assert!(out.swapped > 0 && out.stored + out.swapped == 64, "{out:?}");
    let counts = Counts::from(scene.pager.stat);
    assert!(counts.zswpwb >= out.swapped as u64 && counts.pool_limit_hit > 0, "{counts:?}");
    scene.pager.pause(true);
    for at in pages(0..64).step_by(PAGE) {
        // It faults as long as what it asks for is being read.
        let is_there = (0..40).any(|_| {
            let access = scene.world.borrow_mut().memory.access(SOMEBODY, at, None);
            scene.turn();
            scene.world.borrow_mut().step_area();
            access == Access::Done(at as Content)
        });
        assert!(is_there, "{at:#x}");
    }
    counts_of_area(&scene.world, &scene.pager);
    assert_eq!(scene.pager.pages_out(), PagesOut::default());
    // Its misses were weighed.
    let (weighed, begun) = (scene.pager.balance, vmscan::balance::Balance::default());
    assert!(weighed.most_bytes(1 << 30) < begun.most_bytes(1 << 30), "{weighed:?}");
}
