//! Short runs of the model, one for each mistake that a random one found.

use super::model::{Op, run};
use std::ops::Range;
use std::vec::Vec;

/// A thread moves pages.
fn moves(thread: usize, from: Range<usize>, to: usize) -> Op {
    Op::Move { thread, from, to, grown: 0, keep: false }
}

/// A thread goes on until its next event has been read.
fn tells(thread: usize) -> [Op; 3] {
    [Op::Step(thread), Op::Read, Op::Step(thread)]
}

/// Two threads move side by side, so that the second's part looks as if it had been added to the first's; and then
/// it is taken by another.
#[test]
fn who_takes_the_place_of_one_that_looked_like_an_addition_is_known_to_be_there() {
    let mut ops = Vec::from([moves(1, 13..15, 17), moves(2, 11..13, 15)]);
    // The places are free; then both have come, and the second thread's call is not over.
    ops.extend([2, 1, 2, 1].into_iter().flat_map(tells));
    ops.extend(tells(1));
    ops.push(Op::Step(1));
    ops.push(Op::Move { thread: 1, from: 10..11, to: 17, grown: 0, keep: true });
    assert_eq!(run(&ops), Ok(()));
}

/// As before, but he moves on, and takes along what was out.
#[test]
fn who_moves_on_from_where_he_looked_like_an_addition_takes_his_own_along() {
    let mut ops = Vec::from([Op::Evict(5)]);
    ops.push(Op::Move { thread: 0, from: 3..6, to: 16, grown: 0, keep: true });
    ops.push(moves(4, 0..3, 13));
    ops.extend([4, 0, 4, 0].into_iter().flat_map(tells));
    ops.push(Op::Step(0));
    ops.push(moves(0, 18..20, 11));
    assert_eq!(run(&ops), Ok(()));
}

/// Whether the old mapping was kept cannot be seen where another has its place.
#[test]
fn what_is_added_is_known_also_where_another_has_the_old_place() {
    let mut ops = Vec::from([Op::Evict(7)]);
    ops.push(Op::Move { thread: 3, from: 6..10, to: 0, grown: 1, keep: false });
    ops.extend(tells(3));
    ops.push(moves(1, 11..12, 6));
    ops.extend([3, 3].into_iter().flat_map(tells));
    ops.extend([Op::Step(3), moves(3, 4..8, 10), moves(2, 1..2, 4)]);
    assert_eq!(run(&ops), Ok(()));
}

/// The limit that regions.rs tells of: page 9 is added to a mapping, where another thread has just left, and its
/// REMAP is read later.
#[test]
fn what_is_added_where_another_has_just_left_is_not_known() {
    let mut ops = Vec::from([moves(1, 7..11, 15)]);
    ops.push(Op::Move { thread: 0, from: 14..19, to: 8, grown: 1, keep: false });
    ops.extend([1, 0, 0, 1, 1].into_iter().flat_map(tells));
    ops.extend([Op::Evict(5), Op::Step(1), Op::Step(0), moves(4, 8..10, 16)]);
    ops.push(Op::Move { thread: 2, from: 4..9, to: 8, grown: 0, keep: true });
    assert!(run(&ops).is_err(), "this is no limit any more: say so in regions.rs");
}

/// Another limit: where it is in doubt whether there was a former owner, the new one moves on and keeps the old
/// mapping. His REMAP may as well be the former owner's.
#[test]
fn who_moves_on_in_doubt_and_keeps_the_old_mapping_leaves_his_own_behind() {
    let mut ops = Vec::from([Op::Evict(17), moves(0, 17..20, 3)]);
    ops.push(Op::Move { thread: 1, from: 15..16, to: 1, grown: 1, keep: false });
    ops.extend([1, 0, 1, 0, 0].into_iter().flat_map(tells));
    ops.extend([Op::Step(0), Op::Move { thread: 2, from: 3..4, to: 15, grown: 0, keep: true }]);
    assert!(run(&ops).is_err(), "this is no limit any more: say so in regions.rs");
}
