//! Tests of the board.

use super::*;
use std::collections::BTreeMap;
use zswap::{BATCH_MAX, New, Packed, PageMask, Priors};

fn board(slots: usize) -> Board {
    Board::map(slots, sys::eventfd().unwrap()).unwrap()
}

/// A job by its number: even ones are packed, odd ones unpacked.
fn work(number: usize) -> Work {
    match number % 2 {
        0 => {
            let priors = Priors::default();
            Work::Pack { at: number, pages: PageMask::page(0), unit: 1, priors, made_by: 0, is_plain: false }
        }
        _ => Work::Unpack { object: number, bytes: 0, fingerprint: 0, first: 0, pages: 0, to: 0 },
    }
}

/// What a worker makes of them: the number, in its parcel.
fn act(tasks: &mut [Option<Task<'_>>]) {
    for task in tasks.iter_mut().flatten() {
        task.reply = match *task.work {
            Work::Pack { at, .. } => {
                task.parcel.fill(at as u8);
                Reply::Packed(packed(at))
            }
            Work::Unpack { object, .. } => Reply::Unpacked(object.is_multiple_of(3)),
        };
    }
}

/// What is said of that.
fn packed(number: usize) -> Packed {
    let blob = New::Blob { fingerprint: number as u32, bytes: 1, data_pages: 16, compressed: true };
    Packed { objects: [Some(blob); 16], failed: number as u8, ..Packed::default() }
}

fn one() -> Hand {
    Hand::new(1)
}

fn is_answer(number: usize, reply: &Reply, parcel: &[u8]) -> bool {
    match reply {
        Reply::Packed(said) => {
            let is_its = parcel.len() >= PARCEL_MAX_BYTES && parcel.iter().all(|byte| *byte == number as u8);
            number.is_multiple_of(2) && *said == packed(number) && is_its
        }
        Reply::Unpacked(sound) => number % 2 == 1 && *sound == number.is_multiple_of(3),
    }
}

#[test]
fn a_job_that_is_given_and_withdrawn_many_times_needs_no_worker() {
    let board = board(4);
    for number in 0..100 {
        board.post(3, work(number));
        assert!(board.withdraw(3));
    }
    board.post(3, work(100));
    let mut hand = one();
    assert!(board.serve(&mut hand, act));
    assert!(!board.serve(&mut hand, act), "it was listed once");
    assert!(board.is_done(3) && !board.withdraw(3));
    assert!(board.answer(3, |answer, parcel| is_answer(100, answer, parcel)));
}

#[test]
fn without_a_parcel_no_job_is_begun() {
    let parcels = parcels(1, 1);
    let board = board(2 * parcels);
    for slot in 0..=parcels {
        board.post(slot as u32, work(2 * slot));
    }
    for _ in 0..parcels {
        assert!(board.serve(&mut one(), act));
    }
    assert!(!board.serve(&mut one(), act));
    assert!(board.withdraw(parcels as u32));
    board.post(parcels as u32, work(2 * parcels));
    assert!(board.answer(0, |answer, parcel| is_answer(0, answer, parcel)));
    assert!(board.serve(&mut one(), act));
}

/// Whoever waits for more results than there are parcels for would wait for ever.
#[test]
fn a_worker_that_has_no_parcel_wakes_the_pager() {
    let board = board(8);
    (0..8).for_each(|slot| board.post(slot, work(2 * slot as usize)));
    board.head().pager_wants.store(4, SeqCst);
    let mut hand = one();
    let has_rung = || sys::poll([board.bell()], 0).unwrap()[0];
    while board.serve(&mut hand, act) {}
    assert!((0..2).all(|slot| board.is_done(slot)) && !board.is_done(2) && !has_rung());
    board.wait(0, &hand, 1);
    assert!(has_rung() && !board.is_starving());
    // Who does not want to be woken is not.
    sys::read(board.bell(), &mut [0; 8]).unwrap();
    board.wait(0, &hand, 1);
    assert!(!has_rung());
}

#[test]
fn each_worker_that_is_ready_has_parcels() {
    let board = board(64);
    let count = |most| board.parcels_mask(most).count_ones() as usize;
    assert_eq!([1, BATCH_MAX].map(count), [2, 16]);
    for workers in 1..=WORKERS_MAX {
        board.report_ready();
        assert_eq!([1, BATCH_MAX].map(count), [2 * workers, (16 * workers).min(PARCELS)]);
    }
}

/// However many workers a device has, and however many jobs each of them puts there.
#[test]
fn a_load_finds_a_parcel_while_all_workers_have_batches() {
    let board = board(128);
    (0..WORKERS_MAX).for_each(|_| board.report_ready());
    (0..100).for_each(|slot| board.post(slot, work(2 * slot as usize)));
    for _ in 0..WORKERS_MAX {
        let taken = taken(&board, &mut Hand::new(BATCH_MAX)).len();
        assert!(taken >= BATCH_MAX - 1, "{taken}");
    }
    board.post(110, work(1));
    assert!(board.serve_load(BATCH_MAX, act) && board.is_done(110));
}

/// How many jobs a worker takes of those in these slots.
fn taken(board: &Board, hand: &mut Hand) -> Vec<u32> {
    let mut slots = Vec::new();
    board.serve(hand, |tasks| {
        slots.extend(tasks.iter().flatten().map(|task| task.slot));
        act(tasks);
    });
    slots
}

#[test]
fn several_jobs_are_taken_at_a_time_and_others_find_some() {
    let board = board(64);
    let untouched = board.apart_bytes();
    (0..20).for_each(|slot| board.post(slot, work(2 * slot as usize)));
    // Loads, which somebody waits for, are done first and by themselves.
    (40..43).for_each(|slot| board.post(slot, work(2 * slot as usize - 79)));
    let mut hand = Hand::new(8);
    assert_eq!(taken(&board, &mut hand), [40, 41, 42]);
    (40..43).for_each(|slot| assert!(board.is_done(slot)));
    // Whoever is the only worker takes as many as it can.
    assert_eq!(taken(&board, &mut hand), [0, 1, 2, 3, 4, 5, 6, 7]);
    // 20 from the first on, and 24 from the last on.
    let cells = 44 * size_of::<Cell>();
    assert_eq!(board.apart_bytes(), untouched + cells + 8 * PARCEL_BYTES, "no more was ever written to");
    // Of twelve, one of three workers takes four; and passes over what was withdrawn.
    (0..3).for_each(|_| board.report_ready());
    assert!(board.withdraw(9));
    assert_eq!(taken(&board, &mut hand), [8, 10, 11, 12]);
    assert!(board.is_done(8) && !board.is_done(13) && board.withdraw(13));
    for slot in [0, 1, 7, 8, 10, 12] {
        let number = 2 * slot as usize;
        assert!(board.answer(slot, |answer, parcel| is_answer(number, answer, parcel)));
    }
    // All parcels but those of jobs that nobody has taken the answer of are there again.
    assert_eq!(board.head.free.load(SeqCst).count_ones() as usize, PARCELS - 6);
}

#[test]
fn every_job_is_done_once_by_whoever_takes_it() {
    do_every_job_once(2, 1, |_| None);
}

#[test]
fn every_job_is_done_once_by_as_many_as_there_may_be() {
    do_every_job_once(WORKERS_MAX, 1, |_| None);
}

#[test]
fn every_job_is_done_once_where_several_are_taken_at_a_time() {
    do_every_job_once(2, BATCH_MAX, |_| None);
}

#[test]
fn every_job_is_done_once_while_more_and_fewer_workers_are_wanted() {
    do_every_job_once(4, 1, |random| random.is_multiple_of(97).then_some(random as usize / 97 % 5));
}

/// The others rest, without a parcel.
#[test]
fn who_is_not_wanted_is_not_called_and_has_no_parcel() {
    let board = board(8);
    (0..2).for_each(|_| board.report_ready());
    let mut hand = one();
    board.post(0, work(1));
    assert_eq!(taken(&board, &mut hand), [0]);
    assert!(hand.parcel.is_some() && board.is_wanted(1));
    board.want(1);
    assert!(board.is_wanted(0) && !board.is_wanted(1));
    board.rest(&mut hand);
    assert_eq!(board.head.free.load(SeqCst), u64::MAX);
    board.head.asleep.store(0b10, SeqCst);
    board.post(1, work(1));
    assert_eq!(board.head.asleep.load(SeqCst), 0b10);
    // There is work, and none for it.
    board.wait(1, &one(), 1);
    // One that still has a parcel looks again at once, and gives it back.
    let parcel = Some(0);
    board.wait(1, &Hand { parcel, ..one() }, 3_600_000_000_000);
    board.head.asleep.store(0b10, SeqCst);
    board.want(2);
    assert_eq!(board.head.asleep.load(SeqCst), 0, "it looks at once");
}

/// `wants` says of a random number how many workers are wanted from then on, if that changes.
fn do_every_job_once(workers: usize, most: usize, wants: impl Fn(u64) -> Option<usize>) {
    const SLOTS: usize = 12;
    // One that is not called would hold the test up.
    const NEVER_NS: u64 = 3_600_000_000_000;
    let board = board(SLOTS);
    std::thread::scope(|scope| {
        for number in 0..workers {
            scope.spawn(move || {
                let mut hand = Hand::new(most);
                board.report_ready();
                while board.head().stop.load(SeqCst) == 0 {
                    if !board.is_wanted(number) {
                        board.rest(&mut hand);
                    } else if board.serve(&mut hand, act) {
                        continue;
                    }
                    board.wait(number, &hand, NEVER_NS);
                }
            });
        }
        let (mut given, mut random, mut answered) = (BTreeMap::new(), 1u64, 0);
        let mut next = 0;
        while next < 100_000 || !given.is_empty() {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let slot = (random >> 33) as usize % SLOTS;
            wants(random >> 20).into_iter().for_each(|workers| board.want(workers));
            match given.get(&slot) {
                None if next < 100_000 => {
                    next += 1;
                    given.insert(slot, next);
                    board.post(slot as u32, work(next));
                }
                Some(&number) if board.is_done(slot as u32) => {
                    assert!(board.answer(slot as u32, |answer, parcel| is_answer(number, answer, parcel)));
                    given.remove(&slot);
                    answered += 1;
                }
                Some(_) if random >> 60 == 0 && board.withdraw(slot as u32) => {
                    given.remove(&slot);
                }
                _ => std::thread::yield_now(),
            }
        }
        board.end();
        assert!(answered > 10_000, "{answered} of {next} were done");
    });
}

/// A load that is put up while a worker has a batch on a device is done before the batch is.
#[test]
fn a_load_is_done_in_the_middle_of_a_batch() {
    let board = board(16);
    let mut hand = Hand::new(BATCH_MAX);
    (0..8).for_each(|slot| board.post(slot, work(2 * slot as usize)));
    let one_load = |number: usize| {
        board.serve_load(BATCH_MAX, |tasks| {
            let [Some(Task { work, .. })] = tasks else { panic!("one load is taken") };
            let (Work::Pack { at, .. } | Work::Unpack { object: at, .. }) = **work;
            assert_eq!(at, number);
            act(tasks);
        })
    };
    let is_right = |slot, number| board.answer(slot, |answer, parcel| is_answer(number, answer, parcel));
    assert!(!one_load(0), "stores wait");
    let free = || board.head().free.load(SeqCst).count_ones();
    assert!(board.serve(&mut hand, |tasks| {
        assert_eq!(tasks.iter().flatten().count(), 8);
        let free_before = free();
        board.post(9, work(9));
        board.post(10, work(11));
        assert!(one_load(9) && one_load(11) && !one_load(0));
        assert!(board.is_done(9) && board.is_done(10) && !board.is_done(0));
        assert!(is_right(9, 9) && is_right(10, 11));
        assert_eq!(free(), free_before, "a load gives its parcel back");
        // One that is a store by the time that it is begun: a newer job of the same slot, which stands where the old
        // one stood.
        board.post(11, work(13));
        assert!(board.withdraw(11));
        board.post(11, work(14));
        assert!(one_load(14) && board.is_done(11));
        assert_eq!(free(), free_before - 1);
        assert!(is_right(11, 14));
        assert_eq!(free(), free_before);
        // One that was withdrawn is nobody's.
        board.post(12, work(15));
        assert!(board.withdraw(12) && one_load(0) && !one_load(0));
        act(tasks);
    }));
    assert!((0..8).all(|slot| is_right(slot, 2 * slot as usize)));
    // Without a parcel nothing is begun, and nothing lost.
    let taken: Vec<u32> = std::iter::from_fn(|| board.take_parcel(BATCH_MAX)).collect();
    board.post(9, work(9));
    assert!(!one_load(9) && !board.is_done(9));
    taken.into_iter().for_each(|parcel| board.free_parcel(parcel));
    assert!(one_load(9) && is_right(9, 9));
}
