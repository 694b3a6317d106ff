//! Two actors at the table, each of whose steps is one atomic access: all orders of steps with up to three changes from
//! one actor to the other, and a death after any step.

use super::{Burial, Row, Table, tests::table};
use crate::step::gate;
use core::sync::atomic::Ordering::SeqCst;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

/// Names of processes: rows 0 to 2 are theirs, in this order.
const A: u64 = 101;
const B: u64 = 102;
const C: u64 = 103;
const D: u64 = 104;

/// What an actor does, with the rows of A, B and C.
type Actor = fn(Table, [Row; 3]);

/// Whose turn it is: so many steps of one actor, then of the other, and so on; then all of what is left.
struct Turns {
    left: VecDeque<(usize, usize)>,
    is_done: [bool; 2],
    /// How many steps each has made.
    steps: [usize; 2],
    /// The first actor dies when its segments are over.
    kills: bool,
}

impl Turns {
    fn actor(&mut self) -> usize {
        while let Some((actor, steps)) = self.left.front() {
            if *steps > 0 && !self.is_done[*actor] {
                return *actor;
            }
            self.left.pop_front();
        }
        usize::from(self.is_done[0])
    }
}

/// Runs both in one order. Returns how many steps each made.
fn run(
    table: Table,
    rows: [Row; 3],
    actors: [Actor; 2],
    order: &[(usize, usize)],
    kills: bool,
) -> [usize; 2] {
    let turns = Turns { left: order.iter().copied().collect(), is_done: [false; 2], steps: [0; 2], kills };
    let shared = Arc::new((Mutex::new(turns), Condvar::new()));
    let threads = [0, 1].map(|own| {
        let (shared, actor) = (shared.clone(), actors[own]);
        std::thread::spawn(move || {
            let at_step = shared.clone();
            gate::at_each(move || {
                let mut turns = at_step.0.lock().unwrap();
                while turns.actor() != own {
                    turns = at_step.1.wait(turns).unwrap();
                }
                if turns.kills && own == 0 && turns.left.iter().all(|(actor, _)| *actor != 0) {
                    drop(turns);
                    gate::die();
                }
                turns.steps[own] += 1;
                if let Some((_, steps)) = turns.left.front_mut() {
                    *steps -= 1;
                    turns.actor();
                }
                at_step.1.notify_all();
            });
            let result = std::panic::catch_unwind(|| actor(table, rows));
            gate::at_none();
            shared.0.lock().unwrap().is_done[own] = true;
            shared.1.notify_all();
            if let Err(thrown) = result
                && !thrown.is::<gate::Killed>()
            {
                std::panic::resume_unwind(thrown);
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().expect("an actor keeps the rules"));
    shared.0.lock().unwrap().steps
}

/// What is there before a scene: rows of A, B and C, of which A has cluster 0 of two.
fn fresh(table: Table, before: Actor) -> [Row; 3] {
    table.words.iter().for_each(|word| word.store(0, SeqCst));
    table.shared.iter().for_each(|word| word.store(0, SeqCst));
    let rows = [A, B, C].map(|holder| table.take_row(holder).unwrap());
    assert!(table.claim_this(rows[0], 0));
    before(table, rows);
    rows
}

/// Runs two actors in all orders; where `kills`, the first one dies, and B buries it. Each time, `after` looks at what
/// has become of it.
fn all_orders(before: Actor, actors: [Actor; 2], kills: bool, after: Actor) {
    let table = table(2);
    let most = [0, 1].map(|first| {
        let rows = fresh(table, before);
        run(table, rows, actors, &[(first, usize::MAX)], false)
    });
    let most = [0, 1].map(|actor| most[0][actor].max(most[1][actor]));
    let mut orders = Vec::new();
    for i in 0..=most[0] {
        for j in 0..=most[1] {
            orders.extend((0..=most[0].saturating_sub(i)).map(|k| [(0, i), (1, j), (0, k)]));
            if !kills {
                orders.extend((1..=most[1]).map(|k| [(1, j), (0, i), (1, k)]));
            }
        }
    }
    assert!(orders.len() > 40, "{most:?} steps");
    for order in orders {
        let rows = fresh(table, before);
        run(table, rows, actors, &order, kills);
        let result = std::panic::catch_unwind(|| {
            if kills {
                table.bury_dead(B, |holder| holder != A, |_| ());
            }
            after(table, rows);
            table.check().unwrap();
        });
        assert!(result.is_ok(), "with the order {order:?}, death: {kills}");
    }
}

fn release_0(table: Table, row: Row) {
    table.release(row, 0);
}

/// True if cluster 0 is in use, and this row has it.
fn has_0(table: Table, row: Row) -> bool {
    table.has(row, 0) && table.free_clusters(0..1) == 0
}

const NOTHING: Actor = |_, _| ();
const SHARED: Actor = |t, [a, b, _]| t.copy_row(a, b);

#[test]
fn of_two_that_release_the_later_one_frees() {
    for kills in [false, true] {
        let actors: [Actor; 2] = [|t, [a, ..]| release_0(t, a), |t, [_, b, _]| release_0(t, b)];
        all_orders(SHARED, actors, kills, |t, _| assert_eq!(t.free_clusters(0..2), 2));
    }
}

#[test]
fn a_scan_sees_what_a_fork_hands_on_behind_it() {
    // A releases. Its scan may have passed the child's row when the copy comes, and come to the parent's after its
    // release: once with the child behind the parent, once in front of it.
    for kills in [false, true] {
        let down: [Actor; 2] = [
            |t, [a, ..]| release_0(t, a),
            |t, [_, b, c]| {
                t.copy_row(b, c);
                release_0(t, b);
            },
        ];
        all_orders(SHARED, down, kills, |t, [.., c]| assert!(has_0(t, c)));
        let up: [Actor; 2] = [down[0], |t, [_, b, c]| {
            t.copy_row(c, b);
            release_0(t, c);
        }];
        all_orders(|t, [a, _, c]| t.copy_row(a, c), up, kills, |t, [_, b, _]| assert!(has_0(t, b)));
    }
}

#[test]
fn a_parent_that_dies_in_a_fork_leaves_nothing() {
    // The child's row is still the parent's, or the child's, who has not run and dies with it.
    let actors: [Actor; 2] = [
        |t, [a, ..]| {
            let row = t.take_row(A).unwrap();
            t.copy_row(a, row);
            release_0(t, a);
            assert!(t.hand_row(row, A, A + 1000));
        },
        |t, [_, b, _]| release_0(t, b),
    ];
    all_orders(SHARED, actors, true, |t, _| {
        t.bury_dead(B, |holder| holder < 1000, |_| ());
        assert_eq!(t.free_clusters(0..2), 2);
    });
}

#[test]
fn a_cluster_is_claimed_by_one() {
    let actors: [Actor; 2] = [
        |t, [a, ..]| {
            let _ = t.claim_this(a, 1);
        },
        |t, [_, b, _]| {
            if t.claim_this(b, 1) {
                t.release(b, 1);
                t.claim_this(b, 1);
            }
        },
    ];
    all_orders(NOTHING, actors, false, |t, [a, b, _]| {
        let had = [a, b].iter().filter(|row| t.has(**row, 1)).count() as u32;
        assert_eq!(had + t.free_clusters(1..2), 1);
    });
    all_orders(NOTHING, actors, true, |t, [a, ..]| assert!(!t.has(a, 0) && !t.has(a, 1)));
}

#[test]
fn what_is_released_may_be_claimed_at_once() {
    let actors: [Actor; 2] = [
        |t, [a, ..]| release_0(t, a),
        |t, [_, b, _]| {
            let _ = t.claim_this(b, 0) || t.claim_this(b, 0);
        },
    ];
    for kills in [false, true] {
        all_orders(NOTHING, actors, kills, |t, [a, b, _]| {
            assert!(!t.has(a, 0) && (!t.has(b, 0) || has_0(t, b)))
        });
    }
}

#[test]
fn who_is_alone_adopts_and_keeps() {
    let actors: [Actor; 2] = [
        |t, [a, ..]| {
            if t.adopt(a, 0) {
                assert!(t.has(a, 0));
            }
        },
        |t, [_, b, _]| release_0(t, b),
    ];
    all_orders(
        |t, [a, b, _]| t.copy_row(a, b),
        actors,
        false,
        |t, [a, ..]| assert!(has_0(t, a) && t.adopt(a, 0)),
    );
}

#[test]
fn a_dead_process_is_buried_by_two_while_its_row_is_taken_again() {
    // A buries C; B does so too, and has another process take the row and claim. A's burial must not touch that.
    let actors: [Actor; 2] = [
        |t, [_, _, c]| {
            let _ = t.bury(c, C, A, |holder| holder != C, |_| ());
        },
        |t, [_, _, c]| {
            t.bury(c, C, B, |holder| holder != C, |_| ());
            if let Some(row) = t.take_row(D) {
                t.claim(row, 0..2, 0);
            }
        },
    ];
    let shared: Actor = |t, [a, _, c]| {
        t.copy_row(a, c);
        assert!(t.claim_this(c, 1));
    };
    for kills in [false, true] {
        all_orders(shared, actors, kills, |t, [.., c]| {
            t.bury(c, C, B, |holder| holder == B, |_| ());
            assert_ne!(t.holder(c), C);
            let has_d = |n: u16| t.holder(Row(n)) == D && t.has(Row(n), 1);
            assert!((2..4).any(has_d) || t.free_clusters(1..2) == 1);
        });
    }
}

#[test]
fn a_burial_that_was_cut_short_is_done_again() {
    let actors: [Actor; 2] = [
        |t, [_, _, c]| {
            let _ = t.bury(c, C, A, |holder| holder != C, |_| ());
        },
        |t, [_, b, _]| {
            let _ = t.claim(b, 0..2, 0);
        },
    ];
    let before: Actor = |t, [a, _, c]| {
        t.copy_row(a, c);
        t.release(a, 0);
        assert!(t.claim_this(c, 1));
    };
    all_orders(before, actors, true, |t, [_, b, c]| {
        let burial = t.bury(c, C, B, |holder| holder == B, |_| ());
        assert!(matches!(burial, Burial::Done(_) | Burial::Other) && t.holder(c) == 0);
        let had = (0..2).filter(|cluster| t.has(b, *cluster)).count() as u32;
        assert_eq!(t.free_clusters(0..2), 2 - had);
    });
}

#[test]
fn a_row_is_handed_on_whole_or_buried() {
    // The parent has died after it had forked, and the child takes its row over meanwhile.
    let before: Actor = |t, [a, _, c]| t.copy_row(a, c);
    let actors: [Actor; 2] = [
        |t, [_, _, c]| {
            let _ = t.bury(c, C, A, |holder| holder != C, |_| ());
        },
        |t, [_, _, c]| {
            if t.hand_row(c, C, D) {
                assert!(has_0(t, c));
            }
        },
    ];
    for kills in [false, true] {
        all_orders(before, actors, kills, |t, [.., c]| {
            // Whoever died in the middle of it, the next one ends it.
            t.bury(c, C, B, |holder| holder == B, |_| ());
            assert!(t.holder(c) == 0 || t.holder(c) == D && has_0(t, c));
        });
    }
}
