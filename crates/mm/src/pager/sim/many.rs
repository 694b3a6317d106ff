//! Scenes with thousands of mappings: how many of them are asked about.

use super::TICKS_PER_MS;
use super::scene::{Scene, pages};

/// Thousands of mappings that cannot be taken, with a page in each, behind a few pages that can.
fn thousands_of_mappings(count: usize) -> Scene {
    let mut scene = Scene::of(16 + count);
    scene.pager.limit.evict_by_marks();
    scene.write(pages(0..16 + count));
    scene.pager.let_go(pages(16..16 + count));
    let mut world = scene.world.borrow_mut();
    for page in 16..16 + count {
        // Neighbours that were alike would be one mapping.
        world.memory.change(pages(page..page + 1), |vma| {
            (vma.writable, vma.locked) = (false, page.is_multiple_of(2));
        });
    }
    (world.asked, world.ask_ticks) = (0, 1);
    drop(world);
    scene
}

/// The virtual clock goes on by so many milliseconds.
fn wait(scene: &Scene, ms: u64) {
    scene.world.borrow_mut().clock += ms * TICKS_PER_MS;
}

#[test]
fn what_cannot_be_taken_is_asked_about_in_a_small_part_of_the_time() {
    let mut scene = thousands_of_mappings(3000);
    let searches = 2000;
    for _ in 0..searches {
        let before = scene.world.borrow().asked;
        scene.pager.reclaim.end_rest();
        scene.pager.reclaim.begin_search();
        scene.pager.evict(1 << 20);
        let asked = scene.world.borrow().asked - before;
        assert!(asked <= 1024, "{asked} mappings in one search, for which somebody may wait");
        wait(&scene, 10);
    }
    let asked = scene.world.borrow().asked;
    assert!(asked > 3000, "{asked}: what is known is forgotten at last");
    // Each takes a tick of the clock, and the whole took so many.
    let all = scene.world.borrow().clock as usize;
    assert!(asked < all / 8, "{asked} of {all}");
    scene.reads_back(pages(0..3016), 0);
}

#[test]
fn all_mappings_are_registered_step_by_step() {
    let mut scene = thousands_of_mappings(3000);
    let last = pages(3015..3016);
    scene.world.borrow_mut().memory.change(last.clone(), |vma| (vma.writable, vma.locked) = (true, false));
    let (mut steps, began_ns) = (0, scene.pager.registered_ns());
    while scene.pager.registered_ns() == began_ns {
        let before = scene.world.borrow().asked;
        wait(&scene, 1000);
        scene.pager.register_all();
        let asked = scene.world.borrow().asked - before;
        assert!(asked <= 512, "{asked} mappings in one step");
        steps += 1;
        assert!(steps < 20);
    }
    assert!(steps > 3, "{steps}");
    assert!(scene.pager.regions().iter().any(|region| region.contains(&last.start)));
    // Of one that is told of no others are asked about.
    scene
        .world
        .borrow_mut()
        .memory
        .change(pages(2000..2001), |vma| (vma.writable, vma.locked) = (true, false));
    let before = scene.world.borrow().asked;
    assert!(scene.pager.register_now(&[pages(2000..2001)]));
    assert!(scene.pager.regions().iter().any(|region| region.contains(&pages(2000..2001).start)));
    assert!(scene.world.borrow().asked - before <= 17, "it and a few behind it");
}
