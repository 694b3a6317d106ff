//! Load control: which of too many processes may miss now, and which wait for their turn.
//!
//! Four compilers on two CPUs, each of which lacks a little of what it works on, take each other's pages: what goes out
//! is asked for again at once, and the CPUs are busy with misses. Two of them at a time would fit, and keep the CPUs as
//! busy with work. So while more processes run than there are CPUs, and refault what has just gone out, the youngest
//! are *parked*: a thread of theirs that misses waits, they claim no memory, and what they have goes to the others
//! (share.rs). Who does not miss runs on. The oldest come first since they end first, and what has ended needs not go
//! out. Kernels did so before they paged well, by swapping whole processes out.
//!
//! How many are parked at once follows from what they work on: as many as fit run, and what is left of the others,
//! which is what they make in the pool, must fit beside them. That is an estimate, and so as long as there are too many
//! misses some more are parked, and while there are few one more goes on if it fits.
//!
//! Invariants of [`Load::control`]:
//! 1. Nobody is parked while fewer than one process for each CPU run: what waits for a parked one, a lock or a pipe,
//!    does not run, and so lets it go on.
//! 2. Who has been parked for `MOST_MS` is due. Of those one after the other takes the place of another one that had
//!    `TURN_MS`, who has waited longest first; one in `TURN_MS` does even where nobody had. However many there are,
//!    each gets on.
//! 3. Nobody is parked who mostly waits to be asked: it answers others, who cannot wait so long.
//! 4. Nobody is parked for its own misses: what it has is for others, and without it they must have too many still.

/// Averages are over so many milliseconds.
const AVERAGE_MS: u64 = 300;

/// Who has not been busy for so many milliseconds does not run. Where the engines have the CPUs nobody seems to do
/// anything for a while, and where many want them looks come late: no look counts for more than so many.
const IDLE_MS: u64 = 100;
const LOOK_MS: u64 = 30;

/// So many near refaults in a second for each CPU are too many: they take about a twentieth of it.
const TOO_MANY: u64 = 400;

/// While there are too many misses, one in so many of those that run beyond the CPUs is parked, and one more.
const AT_ONCE: usize = 8;

/// So long after a change its effect is waited for.
const SETTLE_MS: u64 = 100;

/// For how long a process is parked before it is due, and what it has at least between two times. Measured with four
/// compilers on two CPUs: at 1000 a third of what is gained is lost again by moving memory to and fro, at 4000 hardly
/// more is gained.
const MOST_MS: u64 = 2000;
const TURN_MS: u64 = 1000;

/// Who is busy for less than one part in so many of the time, and does not miss, waits for something else.
const IDLE_PART: u64 = 8;

/// And who is busy for less than one part in so many of what it could have of the CPUs mostly waits to be asked: it
/// answers others, and is not parked.
const ANSWERS_PART: u64 = 2;

/// One process of those that share a limit, as it was since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entrant {
    /// Who began earlier has less.
    pub started: u64,
    /// For how long it has used processors, or waited for what it missed, in nanoseconds; of all its threads together.
    pub busy_ns: u64,
    /// Its faults, and those of them that are near refaults, in pages (share.rs).
    pub misses: u64,
    /// See `misses`.
    pub near: u64,
    /// All that it misses goes through its engine: it can be parked.
    pub is_managed: bool,
    /// Bytes that it would hold with all that it works on.
    pub wanted: u64,
    /// Bytes that are left of it while it waits, once what it has is out.
    pub least: u64,
    /// What is remembered from look to look.
    pub past: Past,
}

/// What is remembered of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// It is parked; what [`Load::control`] changes.
    pub is_parked: bool,
    /// For how long it has been so, or has not.
    for_ms: u64,
    /// For how long it has not been busy.
    idle_ms: u64,
    /// Thousandths of the time in which it is busy, averaged.
    busy: u64,
    /// Its near refaults in a second, averaged.
    near: u64,
    /// It was parked before.
    had_to_wait: bool,
}

impl Entrant {
    /// Takes note of what it did in `ms`.
    fn learn(&mut self, ms: u64) {
        let past = &mut self.past;
        if past.for_ms == 0 {
            // Who has just come is taken to be busy, or the next youngest would be parked in its place.
            past.busy = 1000;
        }
        past.for_ms = past.for_ms.saturating_add(ms);
        let busy = (self.busy_ns / ms / 1000).min(1000);
        let is_busy = self.misses > 0 || busy > 1000 / IDLE_PART;
        past.idle_ms = if is_busy { 0 } else { past.idle_ms + ms.min(LOOK_MS) };
        past.busy = average(past.busy, busy, ms, AVERAGE_MS);
        past.near = average(past.near, self.near * 1000 / ms, ms, AVERAGE_MS);
    }

    fn runs(&self) -> bool {
        !self.past.is_parked && self.past.idle_ms < IDLE_MS
    }

    /// Where each that runs could have so many thousandths of a CPU, and all have so many near refaults in a second, of
    /// which those of others are too many if they are more than `most`.
    fn may_be_parked(&self, part: u64, near: u64, most: u64) -> bool {
        let has_had_its_turn = !self.past.had_to_wait || self.past.for_ms >= TURN_MS;
        let relieves_others = near.saturating_sub(self.past.near) > most;
        self.is_managed
            && self.runs()
            && has_had_its_turn
            && relieves_others
            && self.past.busy >= part / ANSWERS_PART
    }

    fn set(&mut self, is_parked: bool) {
        // Who goes on runs, whatever was seen of it.
        self.past = Past { is_parked, for_ms: 0, idle_ms: 0, busy: 0, near: 0, had_to_wait: true };
    }
}

/// So many near refaults in a second take much of the CPUs.
fn too_many(cpus: usize) -> u64 {
    TOO_MANY * cpus as u64
}

/// Averages `new`, which was seen for `ms`, over `all_ms`.
fn average(old: u64, new: u64, ms: u64, all_ms: u64) -> u64 {
    let part = ms.min(all_ms);
    (new * part + old * (all_ms - part)) / all_ms
}

/// What is remembered of all of them together.
#[derive(Debug, Default)]
pub struct Load {
    /// Near refaults in a second, averaged.
    near: u64,
    settled_ms: u64,
    /// Since one that was due went on.
    due_ms: u64,
}

impl Load {
    /// Decides who is parked from now on; `ms` have passed since the last look, there are so many CPUs, and `usable`
    /// bytes for all. `is_roomy` says that nobody lacks memory.
    pub fn control(&mut self, ms: u64, cpus: usize, usable: u64, is_roomy: bool, all: &mut [Entrant]) {
        let ms = ms.max(1);
        self.near = average(self.near, all.iter().map(|e| e.near).sum::<u64>() * 1000 / ms, ms, AVERAGE_MS);
        self.settled_ms = self.settled_ms.saturating_add(ms);
        self.due_ms = self.due_ms.saturating_add(ms);
        for e in all.iter_mut() {
            e.learn(ms);
        }
        let (is_much, is_settled) = (too_many(cpus), self.settled_ms >= SETTLE_MS);
        if is_settled && longest(all).is_some_and(|e| e.past.for_ms >= MOST_MS) {
            // It takes another one's place, or waits until somebody has had its turn.
            if self.near <= is_much || self.park(cpus, cpus, all) || self.due_ms >= TURN_MS {
                self.due_ms = 0;
                self.set(longest(all), false);
            }
        }
        while running(all) < cpus && self.let_go_on(all) {}
        if !is_settled {
            return;
        }
        if is_roomy || self.near < is_much / 2 && fits_one_more(usable, all) {
            self.let_go_on(all);
        } else if self.near > is_much {
            let mut at_once = running(all).saturating_sub(cpus) / AT_ONCE + 1;
            while (at_once > 0 || held(all) > usable) && self.park(cpus, cpus + 1, all) {
                at_once = at_once.saturating_sub(1);
            }
        }
    }

    /// Parks the youngest that may be, where at least so many run; false when nobody may.
    fn park(&mut self, cpus: usize, least: usize, all: &mut [Entrant]) -> bool {
        let running = running(all);
        if running < least {
            return false;
        }
        let (part, most) = (1000 * cpus as u64 / running as u64, too_many(cpus));
        let youngest =
            all.iter_mut().filter(|e| e.may_be_parked(part, self.near, most)).max_by_key(|e| e.started);
        self.set(youngest, true)
    }

    /// Ends the oldest's wait; false when nobody waits.
    fn let_go_on(&mut self, all: &mut [Entrant]) -> bool {
        self.set(oldest(all), false)
    }

    fn set(&mut self, entrant: Option<&mut Entrant>, is_parked: bool) -> bool {
        let Some(entrant) = entrant else { return false };
        entrant.set(is_parked);
        self.settled_ms = 0;
        true
    }
}

fn running(all: &[Entrant]) -> usize {
    all.iter().filter(|e| e.runs()).count()
}

/// Who has waited longest.
fn longest(all: &mut [Entrant]) -> Option<&mut Entrant> {
    all.iter_mut().filter(|e| e.past.is_parked).max_by_key(|e| e.past.for_ms)
}

/// The oldest of those that wait.
fn oldest(all: &mut [Entrant]) -> Option<&mut Entrant> {
    all.iter_mut().filter(|e| e.past.is_parked).min_by_key(|e| e.started)
}

/// Bytes that all need together, once what those have who do not run is out.
fn held(all: &[Entrant]) -> u64 {
    all.iter().map(|e| if e.runs() { e.wanted } else { e.least }).sum()
}

/// True when all that the oldest of those that wait works on has room beside those that run.
fn fits_one_more(usable: u64, all: &mut [Entrant]) -> bool {
    let more = oldest(all).map_or(0, |e| e.wanted.saturating_sub(e.least));
    held(all) + more <= usable
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_MS: u64 = 10;

    /// Processes on some CPUs, each with what it works on and what is left to do; and memory for some of it, which all
    /// that run share evenly.
    struct Machine {
        cpus: usize,
        /// In pages.
        memory: u64,
        load: Load,
        all: Vec<Process>,
        ms: u64,
        takes_turns: bool,
    }

    #[derive(Clone, Copy, Debug)]
    struct Process {
        /// In pages.
        works_on: u64,
        resident: u64,
        /// CPU time, in nanoseconds.
        left_ns: u64,
        /// It runs so many milliseconds out of ten.
        works: u64,
        parked_ms: u64,
        longest_ms: u64,
        entrant: Entrant,
    }

    fn process(works_on: u64, seconds: u64) -> Process {
        Process {
            works_on,
            resident: 0,
            left_ns: seconds * 1_000_000_000,
            works: 10,
            parked_ms: 0,
            longest_ms: 0,
            // In pages, as the memory is, which is what there is besides the pools of those that wait.
            entrant: Entrant { is_managed: true, wanted: works_on, ..Entrant::default() },
        }
    }

    /// A miss takes so long, of a CPU.
    const MISS_NS: u64 = 80_000;
    /// Without a miss, so many pages are used in a millisecond that may be out.
    const USES: u64 = 100;

    impl Machine {
        fn new(cpus: usize, memory: u64, all: Vec<Process>) -> Machine {
            let mut machine = Machine { cpus, memory, load: Load::default(), all, ms: 0, takes_turns: true };
            let part = memory / machine.all.len() as u64;
            for (started, process) in (1..).zip(&mut machine.all) {
                process.entrant.started = started;
                process.resident = part.min(process.works_on);
            }
            machine
        }

        fn tick(&mut self) {
            self.ms += TICK_MS;
            let runs = |p: &Process| p.left_ns > 0 && !p.entrant.past.is_parked;
            let running = self.all.iter().filter(|p| runs(p)).count() as u64;
            for p in &mut self.all {
                (p.entrant.busy_ns, p.entrant.misses, p.entrant.near) = (0, 0, 0);
                if p.entrant.past.is_parked {
                    p.parked_ms += TICK_MS;
                    p.longest_ms = p.longest_ms.max(p.parked_ms);
                } else {
                    p.parked_ms = 0;
                }
                if !runs(p) {
                    p.resident = p.resident.saturating_sub(self.memory / 80);
                    continue;
                }
                p.resident = p.works_on.min(self.memory / running).min(p.resident + 300);
                let cpu = (TICK_MS * p.works * 100_000 * self.cpus as u64 / running)
                    .min(TICK_MS * p.works * 100_000);
                // Of what it uses so much is out.
                let out = 1000 - 1000 * p.resident / p.works_on;
                let for_each_ms = 1_000_000 + USES * out / 1000 * MISS_NS;
                let done = cpu * 1_000_000 / for_each_ms;
                p.left_ns = p.left_ns.saturating_sub(done);
                p.entrant.misses = done * USES / 1_000_000 * out / 1000;
                p.entrant.near = p.entrant.misses;
                p.entrant.busy_ns = cpu;
            }
            if self.takes_turns {
                let mut entrants: Vec<Entrant> = self.all.iter().map(|p| p.entrant).collect();
                self.load.control(TICK_MS, self.cpus, self.memory, false, &mut entrants);
                for (p, entrant) in self.all.iter_mut().zip(entrants) {
                    p.entrant = entrant;
                }
            }
        }

        /// How many milliseconds it takes until all are done.
        fn finish(mut self) -> (u64, Vec<Process>) {
            while self.all.iter().any(|p| p.left_ns > 0) {
                self.tick();
                assert!(self.ms < 10_000_000, "it never ends: {:?}", self.all);
            }
            (self.ms, self.all)
        }
    }

    #[test]
    fn what_does_not_fit_is_done_sooner_one_after_the_other() {
        let all = vec![process(15_000, 5); 4];
        let together = Machine { takes_turns: false, ..Machine::new(2, 32_000, all.clone()) }.finish().0;
        let (in_turn, all) = Machine::new(2, 32_000, all).finish();
        assert!(in_turn * 2 < together, "{in_turn} of {together} ms");
        assert!(all.iter().all(|p| p.longest_ms <= MOST_MS + TURN_MS / 2), "{all:?}");
        assert!(all[3].longest_ms > 0, "{all:?}");
    }

    #[test]
    fn where_all_fit_or_each_has_a_cpu_nobody_waits() {
        for (cpus, memory) in [(2, 64_000), (4, 32_000), (8, 1000)] {
            let (_, all) = Machine::new(cpus, memory, vec![process(15_000, 2); 4]).finish();
            assert!(all.iter().all(|p| p.longest_ms == 0), "{cpus}, {memory}: {all:?}");
        }
        let (_, all) = Machine::new(1, 1000, vec![process(15_000, 1)]).finish();
        assert_eq!(all[0].longest_ms, 0, "it is alone");
    }

    #[test]
    fn who_answers_others_is_not_parked() {
        let mut all = vec![process(15_000, 50); 4];
        all[3].works = 1;
        let mut machine = Machine::new(2, 32_000, all);
        // What has just come is not known yet.
        (0..300).for_each(|_| machine.tick());
        machine.all.iter_mut().for_each(|p| p.longest_ms = 0);
        (0..1000).for_each(|_| machine.tick());
        let all = machine.all;
        assert!(all[3].longest_ms == 0 && all[2].longest_ms > 0, "{all:?}");
    }

    /// A browser: one process lays a page out and lacks memory, some others have what they use, and wait for it.
    #[test]
    fn who_alone_refaults_is_not_parked() {
        let mut all: Vec<Entrant> = (1..5)
            .map(|started| Entrant {
                started,
                busy_ns: 6_000_000,
                is_managed: true,
                wanted: 40,
                ..Entrant::default()
            })
            .collect();
        (all[3].wanted, all[3].misses, all[3].near) = (260, 100, 100);
        let mut load = Load::default();
        for _ in 0..1000 {
            load.control(TICK_MS, 2, 290, false, &mut all);
            assert!(!all[3].past.is_parked);
        }
    }

    #[test]
    fn however_many_there_are_each_gets_on() {
        let mut machine = Machine::new(2, 40_000, vec![process(15_000, 1000); 30]);
        for _ in 0..6000 {
            machine.tick();
        }
        let done = machine.all.iter().map(|p| 1_000_000_000_000 - p.left_ns);
        assert!(done.clone().min() > Some(500_000_000), "{:?}", done.collect::<Vec<_>>());
        let round_ms = MOST_MS + 30 * TURN_MS;
        assert!(machine.all.iter().all(|p| p.longest_ms <= round_ms), "{:?}", machine.all);
    }

    #[test]
    fn of_many_as_many_are_parked_at_once_as_do_not_fit() {
        let one = Entrant { busy_ns: 500_000, misses: 20, near: 20, is_managed: true, ..Entrant::default() };
        let crowd = |least| -> Vec<Entrant> {
            (1..41).map(|started| Entrant { started, wanted: 14, least, ..one }).collect()
        };
        let parked_at_first = |least, usable| {
            let (mut load, mut all) = (Load::default(), crowd(least));
            while all.iter().all(|e| !e.past.is_parked) {
                load.control(TICK_MS, 2, usable, false, &mut all);
            }
            all.iter().filter(|e| e.past.is_parked).count()
        };
        assert_eq!(parked_at_first(0, 140), 30);
        assert_eq!(parked_at_first(4, 260), 30);
        assert_eq!(parked_at_first(4, 160), 38, "one for each CPU runs");
        assert_eq!(parked_at_first(4, 1000), 5, "by the misses it does not fit");
    }

    #[test]
    fn while_few_miss_one_more_goes_on_when_it_fits() {
        for (usable, parked_then) in [(250, 2), (350, 1), (400, 0)] {
            let (mut load, mut all) = four();
            for e in &mut all {
                (e.misses, e.near) = (1, 0);
            }
            load.near = 0;
            for _ in 0..100 {
                load.control(TICK_MS, 2, usable, false, &mut all);
            }
            assert_eq!(all.iter().filter(|e| e.past.is_parked).count(), parked_then, "{usable}");
        }
    }

    /// No two of them fit.
    const LITTLE: u64 = 150;

    /// Four that refault much, of which two are parked.
    fn four() -> (Load, Vec<Entrant>) {
        let mut load = Load::default();
        let one = Entrant {
            busy_ns: 5_000_000,
            misses: 100,
            near: 100,
            is_managed: true,
            wanted: 100,
            ..Entrant::default()
        };
        let mut all: Vec<Entrant> = (1..5).map(|started| Entrant { started, ..one }).collect();
        for _ in 0..100 {
            load.control(TICK_MS, 2, LITTLE, false, &mut all);
        }
        assert_eq!(parked(&all), [false, false, true, true]);
        (load, all)
    }

    fn parked(all: &[Entrant]) -> Vec<bool> {
        all.iter().map(|e| e.past.is_parked).collect()
    }

    #[test]
    fn who_waits_for_one_that_is_parked_lets_it_go_on() {
        let (mut load, mut all) = four();
        for e in &mut all {
            (e.busy_ns, e.misses, e.near) = (0, 0, 0);
        }
        for _ in 0..10 {
            load.control(TICK_MS, 2, LITTLE, false, &mut all);
        }
        assert_eq!(parked(&all), [false; 4]);
    }

    #[test]
    fn when_there_is_room_again_all_go_on() {
        let (mut load, mut all) = four();
        for _ in 0..30 {
            load.control(TICK_MS, 2, LITTLE, true, &mut all);
        }
        assert_eq!(parked(&all), [false; 4]);
    }

    #[test]
    fn who_is_not_managed_cannot_be_parked() {
        let (mut load, mut all) = four();
        all[3].is_managed = false;
        all[3].past.is_parked = false;
        for _ in 0..1000 {
            load.control(TICK_MS, 2, LITTLE, false, &mut all);
            assert!(!all[3].past.is_parked);
        }
    }
}
