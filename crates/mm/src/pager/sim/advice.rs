//! What the program advises of its memory: scenes, and advice in between in any run.

use super::Shared;
use super::run::Simulated;
use super::scene::{Scene, pages};
use crate::kernel::Message;
use crate::swap_map::{Entry, Kind};
use base::{Advice, Random};
use std::ops::Range;
use vmscan::PAGE;
use vmscan::heat::Heat;
use vmscan::watermark::UNKNOWN;

/// In one of ten turns somebody advises something of some of the program's memory, mapped or not.
pub fn advise(world: &Shared, pager: &mut Simulated, turn: usize) {
    let mut random = Random(turn as u64);
    if random.one_in(10) {
        let space = world.borrow().program.space();
        let start = space.start + random.below(space.len() / PAGE) * PAGE;
        let end = (start + (1 + random.below(40)) * PAGE).min(space.end);
        pager.advise(*random.pick(&Advice::ALL), start..end);
    }
}

/// Memory of which nothing goes out for want of room: so many pages are written.
pub(super) fn roomy(written: usize) -> Scene {
    let mut scene = Scene::of(written.max(128));
    scene.pager.limit.evict_by_marks();
    scene.pager.set_limit(1 << 30, 1, UNKNOWN);
    scene.write(pages(0..written));
    scene.go_on();
    assert!(are(&scene, 0..written, Kind::None));
    scene
}

/// True when all of them are so.
pub(super) fn are(scene: &Scene, range: Range<usize>, kind: Kind) -> bool {
    pages(range).step_by(PAGE).all(|at| scene.kind(at) == kind)
}

pub(super) fn counted(scene: &Scene) -> memcg::Counts {
    memcg::Counts::from(scene.pager.stat)
}

#[test]
fn what_is_to_go_out_goes_whatever_its_heat_and_the_limit_and_nothing_else_does() {
    let mut scene = roomy(64);
    scene.world.borrow_mut().memory.unmap(pages(20..24));
    let hot = pages(3..4).start;
    scene.pager.map.set(hot, scene.pager.map.get(hot).with_heat(Heat::HOT));
    scene.pager.advise(Advice::PageOut, pages(1..40));
    scene.go_on();
    assert!(are(&scene, 1..20, Kind::Stored) && are(&scene, 24..40, Kind::Stored));
    assert!(are(&scene, 0..1, Kind::None) && are(&scene, 40..64, Kind::None));
    assert_eq!(counted(&scene).advised_out, 35);
    assert!(!scene.pager.turn(64 * PAGE), "all is done");
    for part in [0..20, 24..64] {
        scene.reads_back(pages(part), 0);
    }
}

#[test]
fn advice_ends_with_the_mapping() {
    let mut scene = roomy(32);
    scene.pager.advise(Advice::PageOut, pages(0..32));
    // Unmapped, and mapped and written anew before the engine hears of it.
    scene.raise(Message::Unmap(pages(0..16)));
    scene.go_on();
    assert!(are(&scene, 0..16, Kind::None) && are(&scene, 16..32, Kind::Stored));
}

#[test]
fn what_is_needed_comes_in_whole_windows_and_in_pieces() {
    let mut scene = roomy(64);
    // Zeros, which come at their touch.
    assert!(scene.touch(pages(70..71).start, Some(0)).is_done());
    scene.pager.advise(Advice::PageOut, pages(0..80));
    scene.go_on();
    assert!(are(&scene, 0..64, Kind::Stored) && are(&scene, 70..71, Kind::Zero));
    scene.world.borrow_mut().memory.unmap(pages(40..44));
    scene.raise(Message::Unmap(pages(40..44)));
    scene.pager.advise(Advice::WillNeed, pages(16..60));
    scene.go_on();
    let is_out = |page: usize| scene.kind(pages(page..page + 1).start).is_out();
    assert!((16..60).all(|page| !is_out(page)) && (0..16).all(is_out));
    // The last window is whole.
    assert_eq!(counted(&scene).advised_in, 48 - 4);
    assert_eq!(counted(&scene).faults, 0);
    scene.reads_back(pages(0..40), 0);
    scene.reads_back(pages(44..64), 0);
}

#[test]
fn what_is_needed_and_has_no_room_waits_for_its_touch() {
    let mut scene = roomy(64);
    scene.pager.advise(Advice::PageOut, pages(0..64));
    scene.go_on();
    scene.pager.limit.marks_mut().low = 0;
    scene.pager.advise(Advice::WillNeed, pages(0..64));
    scene.go_on();
    assert_eq!((are(&scene, 0..64, Kind::Stored), counted(&scene).advised_in), (true, 0));
    scene.reads_back(pages(0..64), 0);
}

/// Of memory that must go what is cold goes first, hot or not, and nothing goes before it must.
#[test]
fn what_is_cold_goes_first_and_only_where_memory_must_go() {
    let mut scene = roomy(96);
    let cold = 40..72;
    for at in pages(cold.clone()).step_by(PAGE) {
        scene.pager.map.set(at, Entry::NONE.with_heat(Heat::HOT));
    }
    scene.world.borrow_mut().memory.unmap(pages(48..52));
    scene.pager.advise(Advice::Cold, pages(cold));
    scene.go_on();
    assert_eq!((are(&scene, 0..96, Kind::None), counted(&scene).advised_cold), (true, 0));
    assert_eq!(scene.pager.evict(28 * PAGE), 28 * PAGE);
    assert!(are(&scene, 40..48, Kind::Inactive) && are(&scene, 52..72, Kind::Inactive));
    assert!(are(&scene, 0..40, Kind::None) && are(&scene, 72..96, Kind::None));
    assert_eq!(counted(&scene).advised_cold, 28);
    scene.pager.evict(8 * PAGE);
    assert!(are(&scene, 0..8, Kind::Inactive), "the hand goes on as ever");
    for part in [0..48, 52..96] {
        scene.reads_back(pages(part), 0);
    }
}

#[test]
fn what_is_needed_is_cold_no_more() {
    let mut scene = roomy(64);
    scene.pager.advise(Advice::Cold, pages(32..64));
    scene.pager.advise(Advice::WillNeed, pages(32..64));
    scene.pager.evict(16 * PAGE);
    assert_eq!(counted(&scene).advised_cold, 0);
}
