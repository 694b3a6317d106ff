//! Processes that come and go and use memory in different ways, from a seed, under the policy: engines that follow
//! their shares as fast as a real one can, and take from the pot as they grow.

use super::*;

const MIB: u64 = 1 << 20;
/// Time between two looks.
const TICK_MS: u64 = 10;
/// Pages that one process can have loaded in a tick, and bytes that it can make or its engine send out.
const LOADS: u64 = 300;
const STREAM: u64 = 20 * MIB;
const OUT: u64 = 8 * MIB;
/// What goes out takes up so little of what it was: 1 in 3.
const RATIO: u64 = 3;

/// A sequence of numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// What a process does with its memory.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// Nothing.
    Idle,
    /// Asks for pages of so many bytes, here and there.
    Random(u64),
    /// Goes through so many bytes again and again.
    Loop(u64),
    /// Makes fresh memory, for ever.
    Hog,
}

#[derive(Clone, Debug)]
struct Process {
    habit: Habit,
    /// Bytes of the program that are in memory, and out.
    resident: u64,
    stored: u64,
    /// Near refaults and faults so far.
    near_total: u64,
    miss_total: u64,
    member: Member,
}

impl Process {
    fn new(habit: Habit, resident: u64) -> Process {
        Process { habit, resident, stored: 0, near_total: 0, miss_total: 0, member: Member::default() }
    }

    fn footprint(&self) -> u64 {
        self.resident + self.stored / RATIO
    }

    /// What the engine lets it fill with fresh memory now: it is held at its share.
    fn room(&self) -> u64 {
        self.member.share.saturating_sub(self.footprint()).min(STREAM)
    }

    /// Loads `pages` that come back after `distance` others.
    fn load(&mut self, pages: u64, distance: u64) {
        let bytes = (pages * PAGE as u64).min(self.stored).min(self.room());
        let wanted = pages;
        let pages = bytes / PAGE as u64;
        self.member.waiting_ms = if wanted > 0 && pages == 0 { self.member.waiting_ms + TICK_MS } else { 0 };
        let near = distance <= self.resident / PAGE as u64;
        self.resident += bytes;
        self.stored -= bytes;
        self.member.misses += pages;
        self.miss_total += pages;
        if near {
            self.member.near += pages;
            self.member.distance += pages * distance;
            self.near_total += pages;
        }
    }

    /// One tick of its life, with so much in the pot; returns what it took of that.
    fn live(&mut self, pot: u64) -> u64 {
        let taken = (self.footprint() + STREAM).saturating_sub(self.member.share).min(pot);
        self.member.share += taken;
        self.send_out(pot - taken);
        let out = self.stored / PAGE as u64;
        match self.habit {
            Habit::Idle => {}
            Habit::Random(bytes) => {
                self.want(bytes);
                self.load((4 * LOADS * self.stored).div_ceil(bytes).min(LOADS), out);
            }
            Habit::Loop(bytes) => {
                self.want(bytes);
                self.load(if out > 0 { 4 * LOADS } else { 0 }, out);
            }
            Habit::Hog => {
                self.resident += self.room();
                self.member.misses += 100;
                // What is old it gives up.
                self.stored = self.stored.min(self.resident);
            }
        }
        self.member.footprint = self.footprint();
        self.member.kept_free = Process::kept_free(self.footprint() + self.footprint() / 8);
        self.member.wanted = if let Habit::Hog = self.habit { 1 << 40 } else { self.resident + self.stored };
        self.member.pool = self.stored / RATIO;
        taken
    }

    /// What its engine keeps free below a limit.
    fn kept_free(limit: u64) -> u64 {
        (limit / 12).min(9 * MIB)
    }

    /// The engine makes room below the share, as much as it can in a tick.
    fn send_out(&mut self, pot: u64) {
        let limit = self.member.share + pot;
        let over = self.footprint().saturating_sub(limit - Process::kept_free(limit));
        let sent = (over * RATIO / (RATIO - 1)).min(OUT).min(self.resident);
        self.resident -= sent;
        self.stored += sent;
    }

    /// Has memory of this size: grown, or given up.
    fn want(&mut self, bytes: u64) {
        let has = self.resident + self.stored;
        self.resident += bytes.saturating_sub(has).min(self.room());
        let less = has.saturating_sub(bytes).min(self.stored);
        self.stored -= less;
        self.resident = self.resident.min(bytes - self.stored.min(bytes));
    }
}

struct Run {
    usable: u64,
    pot: u64,
    processes: Vec<Process>,
}

impl Run {
    fn new(usable: u64, processes: &[Process]) -> Run {
        Run { usable, pot: usable, processes: processes.to_vec() }
    }

    fn held(&self) -> u64 {
        self.processes.iter().map(|p| p.member.held()).sum()
    }

    fn tick(&mut self) {
        for process in &mut self.processes {
            let pot = self.pot;
            self.pot -= process.live(pot);
        }
        let mut members: Vec<Member> = self.processes.iter().map(|p| p.member).collect();
        let before = members.clone();
        self.pot = divide(self.usable, TICK_MS, &mut members);
        self.check(&before, &members);
        for (process, member) in self.processes.iter_mut().zip(members) {
            process.member = Member { near: 0, distance: 0, misses: 0, ..member };
        }
    }

    /// The invariants of `divide`.
    fn check(&self, before: &[Member], after: &[Member]) {
        let sum = |members: &[Member]| members.iter().map(Member::held).sum::<u64>();
        let count = after.len() as u64;
        // Who has not even the least gets it at once.
        let poor = before.iter().filter(|m| m.share < LEAST_FLOOR).count() as u64;
        let bound = self.usable.max(sum(before)) + poor * LEAST_FLOOR;
        assert!(sum(after) + self.pot <= bound, "{} and {} of {}", sum(after), self.pot, self.usable);
        for (before, after) in before.iter().zip(after) {
            let bottom = before.bottom(before.floor(self.usable, count));
            assert!(after.share >= bottom.min(before.share), "it fell too far: {before:?} {after:?}");
        }
    }

    /// So many ticks; then, over as many again, the resident bytes of each on average.
    fn settle(&mut self, ticks: u64) -> Vec<u64> {
        (0..ticks).for_each(|_| self.tick());
        let mut sums = vec![0; self.processes.len()];
        for _ in 0..ticks {
            self.tick();
            assert!(self.held() <= self.usable, "{} of {}", self.held(), self.usable);
            sums.iter_mut().zip(&self.processes).for_each(|(sum, p)| *sum += p.resident);
        }
        sums.iter().map(|sum| sum / ticks).collect()
    }

    fn share(&self, i: usize) -> u64 {
        self.processes[i].member.share
    }
}

#[test]
fn a_process_alone_has_all() {
    let mut run = Run::new(256 * MIB, &[Process::new(Habit::Hog, MIB)]);
    run.settle(100);
    assert_eq!(run.share(0) + run.pot, 256 * MIB);
    let mut run = Run::new(256 * MIB, &[Process::new(Habit::Idle, MIB)]);
    run.settle(10);
    assert_eq!(run.share(0) + run.pot, 256 * MIB);
}

#[test]
fn while_there_is_enough_nobody_has_less_than_it_uses() {
    let mut run = Run::new(
        1 << 30,
        &[Process::new(Habit::Random(300 * MIB), MIB), Process::new(Habit::Random(200 * MIB), MIB)],
    );
    let resident = run.settle(100);
    assert_eq!(resident, [300 * MIB, 200 * MIB]);
    assert!(run.pot > 300 * MIB);
}

#[test]
fn idle_memory_goes_to_who_grows() {
    let mut run = Run::new(512 * MIB, &[Process::new(Habit::Idle, 400 * MIB), Process::new(Habit::Hog, MIB)]);
    run.settle(1000);
    assert!(run.share(0) < 200 * MIB, "{}", run.share(0) / MIB);
    assert!(run.share(1) > 300 * MIB, "{}", run.share(1) / MIB);
}

#[test]
fn a_working_set_that_fits_stays_beside_a_hog() {
    let set = 360 * MIB;
    for start in [[MIB, MIB], [MIB, 400 * MIB], [350 * MIB, 100 * MIB]] {
        let mut run = Run::new(
            512 * MIB,
            &[Process::new(Habit::Random(set), start[0]), Process::new(Habit::Hog, start[1])],
        );
        let resident = run.settle(3000);
        assert!(resident[0] > set / 100 * 95, "{start:?}: {} MiB", resident[0] / MIB);
        assert!(run.share(1) >= FLOOR);
        // And it is left in peace: of 1.2 million accesses in ten seconds next to none misses.
        let before = run.processes[0].miss_total;
        (0..1000).for_each(|_| run.tick());
        let missed = run.processes[0].miss_total - before;
        assert!(missed < 2000, "{missed} misses");
    }
}

#[test]
fn a_loop_that_does_not_fit_wins_nothing_from_one_that_does() {
    let set = 300 * MIB;
    let mut run = Run::new(
        512 * MIB,
        &[Process::new(Habit::Random(set), set), Process::new(Habit::Loop(600 * MIB), 100 * MIB)],
    );
    let resident = run.settle(3000);
    assert!(resident[0] > set / 100 * 90, "{} MiB", resident[0] / MIB);
}

#[test]
fn equal_needs_get_equal_parts() {
    for habit in [Habit::Hog, Habit::Random(300 * MIB), Habit::Loop(300 * MIB)] {
        let all: Vec<Process> = (1..=4).map(|n| Process::new(habit, n * 40 * MIB)).collect();
        let mut run = Run::new(512 * MIB, &all);
        run.settle(3000);
        let shares: Vec<u64> = (0..4).map(|i| run.share(i) / MIB).collect();
        assert!(shares.iter().all(|share| (60..=280).contains(share)), "{habit:?}: {shares:?}");
    }
}

#[test]
fn who_wants_little_has_all_of_it_at_once() {
    let mut run =
        Run::new(512 * MIB, &[Process::new(Habit::Hog, 500 * MIB), Process::new(Habit::Hog, 10 * MIB)]);
    run.settle(500);
    run.processes.push(Process::new(Habit::Random(60 * MIB), MIB));
    (0..100).for_each(|_| run.tick());
    assert_eq!(run.processes[2].resident, 60 * MIB, "a second was enough");
    (0..1000).for_each(|_| run.tick());
    assert_eq!(run.processes[2].stored, 0);
}

/// A browser's processes at two thirds of what they hold: most of them wait for something, and each of these has less
/// than its equal part.
#[test]
fn what_many_small_processes_leave_idle_goes_to_who_works() {
    let mut all: Vec<Process> = (0..9).map(|n| Process::new(Habit::Idle, (8 + n) * MIB)).collect();
    all.extend((0..3).map(|_| Process::new(Habit::Random(40 * MIB), 8 * MIB)));
    let mut run = Run::new(220 * MIB, &all);
    let resident = run.settle(3000);
    assert!(resident[9..].iter().all(|bytes| *bytes > 36 * MIB), "{resident:?}");
    // Who goes on has what it uses at once.
    run.processes[8].habit = Habit::Random(16 * MIB);
    (0..100).for_each(|_| run.tick());
    assert!(run.processes[8].resident > 15 * MIB, "{}", run.processes[8].resident / MIB);
}

/// A browser's zygotes: what most of them have is out, and nobody asks for it.
#[test]
fn who_is_quiet_has_no_more_than_it_uses() {
    let mut all: Vec<Process> = (0..10).map(|_| Process::new(Habit::Idle, 20 * MIB)).collect();
    all.push(Process::new(Habit::Random(400 * MIB), 8 * MIB));
    let mut run = Run::new(220 * MIB, &all);
    run.settle(3000);
    for process in &run.processes[..10] {
        let member = &process.member;
        let room = member.share - member.footprint;
        assert!(member.footprint < FLOOR && room <= member.kept_free.max(PARKED_FLOOR), "{process:?}");
    }
}

/// As much as its engine can follow, though it would have less than its equal part.
#[test]
fn who_waits_for_its_turn_gives_at_once() {
    let parked = Member {
        footprint: 100 * MIB,
        wanted: 100 * MIB,
        share: 100 * MIB,
        is_parked: true,
        ..Member::default()
    };
    let busy =
        Member { footprint: 20 * MIB, wanted: 200 * MIB, share: 20 * MIB, misses: 100, ..Member::default() };
    let mut members = [parked, busy];
    divide(120 * MIB, 100, &mut members);
    assert_eq!(members[0].share, 100 * MIB - LAG);
}

#[test]
fn shares_do_not_swing() {
    let different = [Habit::Random(300 * MIB), Habit::Random(250 * MIB), Habit::Hog, Habit::Idle];
    let near = [Habit::Random(300 * MIB), Habit::Random(290 * MIB)];
    for habits in [&different[..], &near] {
        let all: Vec<Process> = habits.iter().map(|&habit| Process::new(habit, 100 * MIB)).collect();
        let mut run = Run::new(512 * MIB, &all);
        run.settle(3000);
        let mut moved = 0;
        for _ in 0..1000 {
            let before: Vec<u64> = (0..all.len()).map(|i| run.share(i)).collect();
            run.tick();
            moved += (0..all.len()).map(|i| run.share(i).abs_diff(before[i])).sum::<u64>() / 2;
        }
        // In ten seconds next to nothing changes hands, to and fro.
        assert!(moved < 32 * MIB, "{habits:?}: {} MiB in 10 s", moved / MIB);
    }
}

#[test]
fn a_loop_that_nearly_fits_claims_less_than_a_working_set_that_does() {
    let set = 260 * MIB;
    let mut run = Run::new(
        512 * MIB,
        &[Process::new(Habit::Random(set), set), Process::new(Habit::Loop(330 * MIB), 240 * MIB)],
    );
    let resident = run.settle(3000);
    assert!(
        run.processes[1].near_total > 1_000_000,
        "its refaults are near: {}",
        run.processes[1].near_total
    );
    assert!(resident[0] > set / 100 * 90, "{} MiB", resident[0] / MIB);
}

#[test]
fn who_would_not_fit_with_all_that_there_is_gains_little() {
    let gain = |most| {
        let mut member =
            Member { share: 100 * MIB, near: 1000, distance: 1000 * 25_600, ..Member::default() };
        member.learn(1000, most);
        member.past.gain
    };
    // It would need another 100 MiB: a thousand near refaults in a second, each after 25,600 others.
    assert_eq!((gain(200 * MIB), gain(199 * MIB)), (39, 4));
}

#[test]
fn without_enough_for_anybody_each_has_the_least() {
    let all: Vec<Process> = (0..10).map(|_| Process::new(Habit::Hog, MIB)).collect();
    let mut run = Run::new(0, &all);
    for _ in 0..500 {
        run.tick();
        assert_eq!(run.pot, 0);
    }
    assert!((0..10).all(|i| run.share(i) == LEAST_FLOOR));
    assert_eq!(divide(100, 10, &mut []), 100);
}

#[test]
fn processes_that_come_and_go_keep_the_invariants_and_their_floor() {
    for seed in 1..=30 {
        let mut random = Random(seed);
        let usable = (64 + random.below(1000)) * MIB;
        let mut run = Run::new(usable, &[Process::new(Habit::Hog, MIB)]);
        let mut usable_now = usable;
        for tick in 0..3000u64 {
            if random.below(100) == 0 {
                // Whatever is out must have room beside the rest.
                let size = usable / 12 + random.below(usable / 12);
                let habit = match random.below(4) {
                    0 => Habit::Idle,
                    1 => Habit::Random(size),
                    2 => Habit::Loop(size),
                    _ => Habit::Hog,
                };
                let at = random.below(run.processes.len() as u64) as usize;
                match random.below(3) {
                    0 if run.processes.len() > 1 => drop(run.processes.swap_remove(at)),
                    1 => run.processes[at].habit = habit,
                    _ if run.processes.len() < 12 => run.processes.push(Process::new(habit, MIB)),
                    _ => {}
                }
            }
            if random.below(1000) == 0 {
                // What is not managed has grown, or shrunk.
                usable_now = usable / (1 + random.below(2));
            }
            run.usable = usable_now;
            run.tick();
            assert!(
                run.held() <= usable + run.processes.len() as u64 * LEAST_FLOOR,
                "seed {seed}, tick {tick}"
            );
        }
        // At rest each has its floor, and all of them no more than there is.
        (0..300).for_each(|_| run.tick());
        assert!(run.held() <= run.usable, "seed {seed}: {} of {}", run.held(), run.usable);
        let count = run.processes.len() as u64;
        for process in &run.processes {
            let floor = process.member.floor(run.usable, count).min(process.member.demand());
            assert!(process.member.share >= floor, "seed {seed}: {process:?}");
        }
    }
}
