//! Runs without a planted bug, which must pass.

use super::program::Habit;
use super::run::{Plan, Tally, run};
use vmscan::PAGE;

/// Seeds of each test. `ZFOLIO_SEEDS=from..to` runs others.
fn seeds() -> Vec<u64> {
    let given = std::env::var("ZFOLIO_SEEDS").ok();
    let bounds = given.as_deref().and_then(|s| s.split_once("..")).map(|(a, b)| (a.parse(), b.parse()));
    match bounds {
        Some((Ok(from), Ok(to))) => (from..=to).collect(),
        // And some that have failed once. What they failed by is in regions/scenes.rs and in moves.rs; of 10007 in
        // `learn_growth`, of 3036 in `Pager::has_displaced`, of 3936 in `FaultQueue::push`.
        _ => (1..=100).chain([367, 405, 1038, 1282, 1665, 3036, 3936, 10007]).collect(),
    }
}

fn all_pass(plan: impl Fn(u64) -> Plan) -> Tally {
    let (mut sum, mut failed, mut first) = (Tally::default(), Vec::new(), None);
    for seed in seeds() {
        let plan = plan(seed);
        let mut play = |plan: &Plan| match run(seed, plan) {
            Ok(tally) => Some(tally),
            Err(failure) => {
                failed.push(seed);
                first.get_or_insert(failure);
                None
            }
        };
        if let Some(tally) = play(&plan) {
            sum += tally;
        }
        // Some of them on a kernel that tells touches too, which are not counted.
        if seed.is_multiple_of(4) && !plan.touches {
            play(&Plan { touches: true, ..plan });
        }
    }
    println!("{sum:?}");
    if let Some(failure) = first {
        panic!("{failure}\n{} seeds fail: {failed:?}", failed.len());
    }
    sum
}

#[test]
fn everything_goes_out_all_the_time_and_nothing_is_lost() {
    all_pass(|seed| Plan { evict_all: true, ..Plan::any(seed) });
}

#[test]
fn watermarks_hold_the_program_and_nothing_is_lost() {
    all_pass(|seed| Plan { evict_all: false, ..Plan::any(seed) });
}

#[test]
fn what_is_touched_where_that_is_told_is_not_lost_either() {
    let sum = all_pass(|seed| Plan {
        touches: true,
        evict_all: seed % 5 == 0,
        huge: seed % 3 == 0,
        swaps: seed % 7 == 0,
        fork: if seed % 2 == 0 { 60 } else { 0 },
        retire: if seed % 3 == 1 { 40 } else { 0 },
        ..if seed % 4 == 1 { with_area(seed, 0) } else { Plan::any(seed) }
    });
    assert!(sum.referenced > 10_000 && sum.children > 0, "{sum:?}");
}

#[test]
fn what_comes_back_before_it_is_asked_for_is_what_went_out() {
    let sum = all_pass(|seed| Plan {
        roomy: true,
        evict_all: false,
        huge: seed % 3 == 0,
        advice: seed % 4 == 0,
        damage: if seed % 5 == 0 { 30 } else { 0 },
        park: if seed % 7 == 0 { 50 } else { 0 },
        fork: if seed % 2 == 0 { 70 } else { 0 },
        pages: 256 + seed as usize % 256,
        ..if seed % 6 == 0 { with_area(seed, 0) } else { Plan::any(seed) }
    });
    assert!(sum.prefetched > 1000 && sum.children > 0 && sum.collapsed > 0, "{sum:?}");
}

/// A plan with a swap area, and a pool that may be of no size, small, or as large as it likes.
fn with_area(seed: u64, faulty: usize) -> Plan {
    let plan = Plan::any(seed);
    let pool = [0, plan.pages * PAGE / 16, plan.pages * PAGE / 8, usize::MAX][seed as usize / 2 % 4];
    Plan { area: Some(faulty), pool, ..plan }
}

#[test]
fn what_is_in_an_area_comes_back() {
    let sum = all_pass(|seed| with_area(seed, 0));
    assert!(sum.written > 5_000 && sum.read > 8_000, "{sum:?}");
}

#[test]
fn an_area_that_fails_loses_nothing_in_silence() {
    let sum = all_pass(|seed| with_area(seed, 8));
    assert!(sum.lost > 0 && sum.read > 1000, "{sum:?}");
}

#[test]
fn relatives_read_what_either_has_in_an_area() {
    let sum =
        all_pass(|seed| Plan { fork: 40, retire: if seed % 3 == 0 { 90 } else { 0 }, ..with_area(seed, 0) });
    assert!(sum.children > 0 && sum.read > 5_000, "{sum:?}");
}

#[test]
fn what_the_program_advises_loses_nothing() {
    let sum = all_pass(|seed| Plan {
        advice: true,
        fork: if seed % 3 == 0 { 60 } else { 0 },
        retire: if seed % 5 == 0 { 40 } else { 0 },
        swaps: seed % 7 == 0,
        ..with_area(seed, 0)
    });
    assert!(sum.children > 0 && sum.read > 1000, "{sum:?}");
}

#[test]
fn everything_comes_home_and_goes_out_again() {
    all_pass(|seed| Plan { retire: 20, ..Plan::any(seed) });
}

#[test]
fn a_damaged_object_raises_sigbus_and_is_never_read() {
    let sum = all_pass(|seed| Plan { damage: 10, retire: 40, ..Plan::any(seed) });
    assert!(sum.lost > 0);
}

/// Of 20,000 seeds one (8060) meets the limit which regions.rs tells of.
#[test]
fn many_threads_that_move_their_memory_lose_nothing() {
    all_pass(|seed| Plan {
        threads: 8,
        pages: 64 + seed as usize % 256,
        habit: [Habit::Forks, Habit::Remaps][seed as usize % 2],
        evict_all: true,
        steps: 4000,
        ..Plan::any(seed)
    });
}

#[test]
fn locked_memory_that_grows_loses_nothing_and_stays_whole() {
    all_pass(|seed| Plan {
        pages: 64 + seed as usize % 256,
        habit: Habit::Locks,
        evict_all: true,
        ..Plan::any(seed)
    });
}

#[test]
fn who_has_to_wait_for_its_turn_loses_nothing() {
    all_pass(|seed| Plan {
        park: 6 + seed as usize % 90,
        retire: 50 * (seed as usize % 3),
        fork: if seed % 4 == 0 { 70 } else { 0 },
        steps: 1000,
        evict_all: seed % 2 == 0,
        ..Plan::any(seed)
    });
}

#[test]
fn a_pool_that_is_full_for_a_while_loses_nothing() {
    all_pass(|seed| Plan { tight: true, ..Plan::any(seed) });
}

#[test]
fn parent_and_child_each_have_all_of_it() {
    let sum = all_pass(|seed| Plan { fork: 30 + seed as usize % 50, steps: 1000, ..Plan::any(seed) });
    // Of 10,600 children (seeds 1000 to 2800) 24 to 27 are unclear; of 600 now and then three.
    assert!(sum.children > 500 && sum.unclear * 100 < sum.children, "{sum:?}");
}

#[test]
fn a_child_beside_threads_that_move_memory_has_all_of_it() {
    let sum = all_pass(|seed| Plan {
        fork: 30 + seed as usize % 50,
        habit: Habit::Remaps,
        steps: 1000,
        ..Plan::any(seed)
    });
    // Of 5,100 children (seeds 1000 to 2000) 29 are unclear; of 540 now and then six.
    assert!(sum.children > 500 && sum.unclear * 50 < sum.children, "{sum:?}");
}

#[test]
fn what_a_userfaultfd_of_the_programs_own_has_or_takes_is_whole() {
    all_pass(|seed| Plan {
        pages: 64 + seed as usize % 256,
        habit: Habit::Owns,
        evict_all: seed % 3 != 0,
        fork: if seed % 2 == 0 { 60 } else { 0 },
        ..Plan::any(seed)
    });
}

#[test]
fn what_the_machine_swaps_beneath_is_not_lost() {
    all_pass(|seed| Plan {
        swaps: true,
        fork: if seed % 2 == 0 { 60 } else { 0 },
        retire: if seed % 3 == 0 { 40 } else { 0 },
        ..Plan::any(seed)
    });
}

#[test]
fn huge_pages_go_out_and_come_back_and_nothing_is_lost() {
    let sum = all_pass(|seed| Plan {
        huge: true,
        steps: 2400,
        inactive_windows: 16 + seed as usize % 48,
        fork: if seed % 3 == 0 { 60 } else { 0 },
        retire: if seed % 4 == 0 { 40 } else { 0 },
        swaps: seed % 5 == 0,
        advice: seed % 7 == 0,
        ..Plan::any(seed)
    });
    assert!(sum.huge > 1000 && sum.split > 0 && sum.filled > 50, "{sum:?}");
}

/// Little memory, to which the threads come again.
#[test]
fn huge_pages_come_back_whole_beside_all_that_happens() {
    let sum = all_pass(|seed| Plan {
        huge: true,
        threads: 1 + seed as usize % 2,
        pages: 64 + seed as usize % 64,
        steps: 4000,
        evict_all: true,
        inactive: 0,
        inactive_windows: 16 + seed as usize % 48,
        damage: if seed % 5 == 0 { 30 } else { 0 },
        retire: if seed % 4 == 0 { 90 } else { 0 },
        ..Plan::any(seed)
    });
    assert!(sum.returned > 30, "{sum:?}");
}
