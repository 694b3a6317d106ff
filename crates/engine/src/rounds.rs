//! The pager's loop, one round after the other, from when memory is managed until the program is gone.

use crate::answer::{answer, enroll, take_advice};
use crate::asked::UnderWay;
use crate::board::Board;
use crate::crawl::{Backing, Crawling};
use crate::idle::{self, IdleSleep};
use crate::pager::Engine;
use crate::placement::{Faults, Placement};
use crate::pool_bounds::Tending;
use crate::shared_store;
use crate::sharing::Sharer;
use crate::store::PageStore;
use crate::unhooked::UnhookedCopies;
use crate::watch::Watch;
use crate::workers;
use control::CONTROL;
use control::arena;
use control::footprint::sizes;
use control::line::Line;
use core::fmt::Write;
use core::mem;
use core::sync::atomic::Ordering::*;
use memcg::{Memcg, Slot};
use uffd::sys::{self, CpuSet, consts::*};
use vmscan::growth::Growth;
use vmscan::watermark::Watermarks;
use zswap::objects::Contents;

/// So much may be mapped and not be registered: one part in so many of what the process may still grow by, and this in
/// any case.
const AHEAD_PART: usize = 2;
/// See `AHEAD_PART`.
pub const AHEAD_LEAST: usize = 1 << 20;

/// How long the pager polls without sleeping after it has served a fault: about what a wake-up on another CPU costs.
const SPIN_NS: u64 = 30_000;

/// True where others want every CPU: one that polls is taken from them.
fn is_crowded(memcg: &Memcg) -> bool {
    memcg.division.processes_per_cpu() > 0
}

/// How often the kernel is asked how much memory the process holds; in between the pager keeps count of what it does
/// itself. What comes about without it, at 3 or 4 bytes in a nanosecond, must be found before it is an eighth of what
/// lies between the high mark and the limit, where that takes 100 µs or more.
fn look_ns(marks: &Watermarks) -> u64 {
    ((marks.limit - marks.high) as u64 / 32).clamp(100_000, 250_000)
}

/// How often figures are published.
const PUBLISH_NS: u64 = 2_000_000;

/// Test mode: the times between two rounds in which everything goes out. Most are short, so that pages go and come
/// often; but a thread must come past its instruction or system call, with all the pages that this needs, however
/// seldom it gets a processor: each time is half as frequent as one of half its length, up to 100 ms. While nothing
/// comes or goes each is twice as long as it would have been the last time: the engines of processes that wait leave
/// the CPUs to those that do not (two trees of five processes took over 200 s beside each other, of which each takes
/// 10 s alone; now 7 to 10 s).
struct Rests {
    random: u64,
    until_ns: u64,
    /// What had come and gone by the last one, and how many have ended since without any more.
    moved: u64,
    still: u32,
}

impl Rests {
    const SHORTEST_NS: u64 = 100_000;
    const DOUBLINGS: u32 = 10;

    fn new(seed: u32) -> Rests {
        Rests { random: seed as u64, until_ns: 0, moved: 0, still: 0 }
    }

    /// `moved` counts what has come and gone so far.
    fn begin(&mut self, now: u64, moved: u64) {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let doublings = ((self.random >> 33) as u32).trailing_zeros();
        self.still = if moved == self.moved { self.still + 1 } else { 0 };
        self.moved = moved;
        self.until_ns = now + (Self::SHORTEST_NS << (doublings + self.still).min(Self::DOUBLINGS));
    }

    /// Something comes: the next time is a short one.
    fn disturb(&mut self, now: u64) {
        if mem::take(&mut self.still) > 0 {
            self.until_ns = self.until_ns.min(now + Self::SHORTEST_NS);
        }
    }
}

/// Test mode: when all that the pager keeps count of is recomputed. It takes time in proportion to all memory that is
/// out.
#[derive(Default)]
struct Checks {
    next_ns: u64,
}

impl Checks {
    /// One part of the time in so many, and how long it is from one to the next at least.
    const SHARE: u64 = 32;
    const LEAST_NS: u64 = 10_000_000;

    /// Recomputes it if it is time; the program is stopped where something does not hold.
    fn check(&mut self, watch: &Watch, pager: &Engine) {
        let began = sys::now_ns();
        if began < self.next_ns {
            return;
        }
        if let Err(words) = pager.check() {
            let mut line = Line::default();
            let _ = write!(
                line,
                "the engine's book-keeping is wrong: {words}; process {} was stopped",
                watch.order.pid
            );
            stop(watch, line.as_str());
        }
        watch.order.slot.stat.checks.fetch_add(1, Relaxed);
        let end = sys::now_ns();
        self.next_ns = end + ((end - began) * Self::SHARE).max(Self::LEAST_NS);
    }
}

/// Which CPUs the run could use as it began, and may use now.
fn cpus_of_run(memcg: &Memcg) -> [CpuSet; 2] {
    memcg
        .division
        .affinity
        .each_ref()
        .map(|words| CpuSet::of_words(words.iter().map(|word| word.load(Relaxed))))
}

/// The pager's loop.
pub fn run(watch: &mut Watch, board: Board, workers: &[u32], pager: &mut Engine) {
    let mut rounds = Rounds::new(watch, board, workers);
    while rounds.turn(watch, pager) {}
}

/// What the loop keeps from one round to the next.
struct Rounds {
    memcg: &'static Memcg,
    slot: &'static Slot,
    board: Board,
    /// Test mode: everything goes out.
    evict_all: bool,
    full_ns: u64,
    placement: Placement,
    /// What is counted with relatives, and what the machine's swap has, in bytes, at the last look; and when that was.
    excess: usize,
    swapped: usize,
    looked_ns: u64,
    /// The process's own memory as it was found there, for the next round.
    seen: Option<usize>,
    published_ns: u64,
    /// How many faults there were, and when the last one was seen.
    faults: u64,
    fault_ns: u64,
    growth: Growth,
    rests: Rests,
    checks: Checks,
    tidied: Tidied,
    idle: IdleSleep,
    unhooked: UnhookedCopies,
    sharer: Sharer,
    crawling: Crawling,
    tending: Tending,
    request: UnderWay,
}

impl Rounds {
    fn new(watch: &Watch, board: Board, workers: &[u32]) -> Rounds {
        let (memcg, slot) = (watch.order.memcg, watch.order.slot);
        Rounds {
            memcg,
            slot,
            board,
            evict_all: memcg.settings.evict_all != 0,
            full_ns: memcg.settings.full_timeout_ms.max(1000) as u64 * 1_000_000,
            placement: Placement::new(workers, CONTROL.may_yield.load(Relaxed) != 0, cpus_of_run(memcg)[0]),
            excess: 0,
            swapped: 0,
            looked_ns: 0,
            seen: None,
            published_ns: 0,
            faults: 0,
            fault_ns: 0,
            growth: Growth::default(),
            rests: Rests::new(memcg.settings.seed),
            checks: Checks::default(),
            tidied: Tidied::default(),
            idle: IdleSleep::default(),
            unhooked: UnhookedCopies::default(),
            sharer: Sharer::default(),
            crawling: Crawling::default(),
            tending: Tending::default(),
            request: UnderWay::default(),
        }
    }

    /// One round; false when the program is gone.
    fn turn(&mut self, watch: &mut Watch, pager: &mut Engine) -> bool {
        let now = sys::now_ns();
        let mut own = self.seen.take().unwrap_or_else(|| pager.usage().footprint);
        pager.park(self.memcg.is_led() && now < self.slot.share.parked_until_ns.load(Relaxed));
        let rests_now = self.evict_all && now < self.rests.until_ns;
        pager.pause(!CONTROL.is_forkless() || rests_now);
        // The engine may have had no CPU since the last round, and what was in the pot then may be gone.
        pager.set_limit(watch.limit(own), self.memcg.division.processes_per_cpu(), self.growth.most());
        let mut busy = self.work(now, own, watch, pager);
        // Who waits goes first: the kernel takes some microseconds to tell.
        if now - self.looked_ns > look_ns(pager.marks()) {
            self.looked_ns = now;
            let known = pager.usage().footprint;
            own = self.look(now, known, watch, pager);
            self.seen = Some(own);
            busy |= !self.evict_all && own > known.max(pager.marks().low);
        }
        if now - self.published_ns > PUBLISH_NS {
            self.published_ns = now;
            if !self.report(now, own, watch, pager) {
                return false;
            }
        }
        self.choose_cpu(now, pager);
        if self.evict_all {
            self.checks.check(watch, pager);
            self.rest(rests_now, busy, watch, pager);
        } else if !self.tidied.tidy(now, now - self.fault_ns, pager.store_mut()) && !busy {
            self.sleep(now, own, watch, pager);
        }
        true
    }

    /// Asks the kernel how much memory the process holds, of which the pager knows of `known` bytes: what is its own.
    fn look(&mut self, now: u64, known: usize, watch: &mut Watch, pager: &mut Engine) -> usize {
        let (mapped, private) = sizes(&watch.statm);
        self.swapped = watch.status.swapped_bytes(now, self.memcg);
        pager.kernel_mut().is_swapped = self.swapped > 0;
        let footprint = private + self.swapped + self.board.apart_bytes();
        self.slot.share.board_bytes.store(self.board.shared_bytes() as u64, Relaxed);
        self.excess = watch.excess(footprint);
        self.growth.found((footprint - self.excess).saturating_sub(known), now);
        let own = footprint - self.excess;
        pager.mapped(mapped.saturating_sub(arena::mapped_bytes()), CONTROL.mapped_bytes.load(Relaxed));
        let room = if self.evict_all { 0 } else { pager.marks().limit.saturating_sub(own) };
        CONTROL.ahead_bytes.store((room / AHEAD_PART).max(AHEAD_LEAST), Relaxed);
        // There may have been more room when it was mapped.
        if CONTROL.is_ahead() {
            enroll(pager);
        }
        own
    }

    /// Does what there is to do: faults, room, what threads ask for, what relatives are told. False when that was
    /// nothing.
    fn work(&mut self, now: u64, own: usize, watch: &mut Watch, pager: &mut Engine) -> bool {
        take_advice(pager);
        let registered_ns = pager.registered_ns();
        let mut busy = pager.turn(own);
        if pager.registered_ns() != registered_ns {
            CONTROL.enrolled_bytes.store(pager.registered_bytes(), Relaxed);
        }
        let (placement, board) = (&mut self.placement, &self.board);
        // Who has asked for it has rung.
        watch.follow(now, |rights| {
            // Who may not leave SCHED_IDLE any more afterwards would be it for ever.
            placement.leave(now);
            rights.follow();
            if !rights.may_lift() {
                placement.bar();
            }
            board.have_followed();
        });
        if pager.has_rung() {
            answer(watch, pager);
            // Faults may have been read meanwhile, and nobody tells of them again.
            busy = true;
        }
        busy | (!pager.is_paused() && self.sharer.turn(self.memcg, self.slot, pager))
    }

    /// Publishes figures, and looks whether the program may go on; false when it is gone.
    fn report(&mut self, now: u64, own: usize, watch: &mut Watch, pager: &mut Engine) -> bool {
        let (memcg, slot) = (self.memcg, self.slot);
        publish(watch, pager, own, self.excess);
        let waiting_ms =
            pager.waiting_since_ns().map_or(0, |since| 1 + now.saturating_sub(since) / 1_000_000);
        slot.share.waiting_ms.store(waiting_ms, Relaxed);
        self.placement.follow_run(cpus_of_run(memcg)[1]);
        self.board.want(workers::wanted(memcg, self.placement.cpus()));
        self.tending.tend(now, memcg, slot, pager);
        self.request.tend(now, own, slot, pager);
        watch.count_cpu();
        watch.note_name(now);
        self.unhooked.look(memcg, watch.order.pid);
        if watch.gone() {
            self.unhooked.look(memcg, watch.order.pid);
            // To take all of it down needs a CPU, and others wait for the memory.
            self.placement.leave(now);
            return false;
        }
        let (full_ns, crawling) = (self.full_ns, &mut self.crawling);
        let hungry_ns = if pager.waiting_since_ns().is_some() { pager.hungry_ns(now) } else { 0 };
        if !self.evict_all
            && memcg.lets_out()
            && let Some(why) = crawling.look(now, watch, pager, own, hungry_ns >= full_ns / 2)
        {
            stop(watch, why.as_str());
        }
        if let Some(since) = pager.waiting_since_ns() {
            // The reason is worth a while, but not for ever.
            let gets_nowhere = hungry_ns >= if crawling.knows() { full_ns } else { 2 * full_ns };
            full(watch, pager, now.saturating_sub(since), gets_nowhere, crawling);
        }
        if workers::one_has_died() {
            stop(watch, workers::DEATH);
        }
        if (pager.store().is_frozen || pager.shares()) && !memcg.has_family(slot) {
            pager.thaw();
        }
        true
    }

    /// Chooses the CPU that the engine runs on, by the faults that there were.
    fn choose_cpu(&mut self, now: u64, pager: &mut Engine) {
        let (slot, head) = (self.slot, self.board.head());
        let out = slot.stat.faults.load(Relaxed);
        let faults = out + slot.stat.fresh_faults.load(Relaxed);
        if faults != self.faults {
            (self.faults, self.fault_ns) = (faults, now);
        }
        let (thread, switches) = pager.kernel().faulters();
        if head.called.swap(0, AcqRel) != 0 {
            self.placement.leave(now);
        }
        let faults = Faults { all: faults, out, switches, read: slot.stat.pswpin.load(Relaxed), thread };
        self.placement.choose(now, faults, |tid| pager.kernel().cpu_of(tid));
        pager.set_alone(self.placement.is_taken());
        let alarm = (pager.marks().max + self.excess).saturating_sub(self.board.apart_bytes() + self.swapped);
        head.alarm.store(if self.placement.is_taken() { alarm } else { 0 }, Relaxed);
    }

    /// Test mode: lets pages come in for a while.
    fn rest(&mut self, rests_now: bool, busy: bool, watch: &Watch, pager: &Engine) {
        if !rests_now {
            let stat = &self.slot.stat;
            let moved = stat.pgdeactivate.load(Relaxed) + stat.pgactivate.load(Relaxed);
            self.rests.begin(sys::now_ns(), self.faults + moved);
        } else if busy {
            self.rests.disturb(sys::now_ns());
        } else {
            let until =
                pager.store().area_due_ns().map_or(self.rests.until_ns, |due| due.min(self.rests.until_ns));
            let time = until.saturating_sub(sys::now_ns());
            let _ = sys::poll([pager.kernel().fd(), &watch.program], time);
        }
    }

    /// With nothing to do: sleeps until there is, or goes on polling where a fault may follow the last one at once.
    fn sleep(&mut self, now: u64, own: usize, watch: &Watch, pager: &mut Engine) {
        if now - self.fault_ns <= SPIN_NS && self.placement.is_apart() && !is_crowded(self.memcg) {
            return;
        }
        let (board, head) = (&self.board, self.board.head());
        let urgent = pager.is_awaited() || pager.is_paused();
        let room = watch.limit(own).saturating_sub(own) as u64;
        let time =
            if urgent { idle::LEAST_NS } else { self.idle.next(room, own, self.faults, watch.ran_ns()) };
        let (thread, _) = pager.kernel().faulters();
        self.placement.follow(now, || pager.kernel().cpu_of(thread));
        // For what nobody has been asked for it would wait in vain, and never sleep.
        let wants = pager.wants_results().min(pager.store().given());
        head.pager_wants.store(wants as u32, SeqCst);
        // What was done before this is not counted, and workers may wait for the parcels that it is in.
        let is_short = pager.store().under_way() < wants || wants > 0 && board.is_starving();
        let time = if is_short || pager.kernel().has_early() { 0 } else { time };
        let due = pager.store().area_due_ns();
        let time = due.map_or(time, |due| time.min(due.saturating_sub(sys::now_ns())));
        let woken = sys::poll([pager.kernel().fd(), board.bell(), &watch.program], time);
        head.pager_wants.store(0, SeqCst);
        if woken.is_ok_and(|[_, bell, _]| bell) {
            let _ = sys::read(board.bell(), &mut [0; 8]);
        }
    }
}

/// Publishes what the process holds: `own` bytes, and `excess` that are counted with its relatives. A relative's log
/// counts there, its own with what is in its pool.
fn publish(watch: &mut Watch, pager: &Engine, own: usize, excess: usize) {
    let (log, ancestors) = shared_store::bytes();
    let share = &watch.order.slot.share;
    share.log_bytes.store(log as u64, Relaxed);
    share.read_bytes.store(ancestors as u64, Relaxed);
    let marks = pager.marks();
    share.kept_free_bytes.store((marks.limit - marks.low) as u64, Relaxed);
    let (pool, footprint) = (pager.store().pool_bytes(), own + excess);
    let stored = pager.stored_bytes().saturating_sub(pager.borrowed_bytes());
    let wanted = (footprint + stored).saturating_sub(pool + pager.usage().stock);
    watch.publish(footprint, wanted, stored, pool + log, pager.pages_out());
}

/// A thread has waited for room for a while: warns, and stops the program when it has got nowhere for long.
fn full(watch: &Watch, pager: &Engine, waited_ns: u64, gets_nowhere: bool, crawling: &Crawling) {
    let memcg = watch.order.memcg;
    if waited_ns > 1_000_000_000 {
        let _ = memcg.full_warning.compare_exchange(0, 1, AcqRel, Relaxed);
    }
    if !gets_nowhere {
        return;
    }
    let mut line = Line::default();
    let _ = write!(
        line,
        "the limit of {} MiB is full and nothing more can go out: {} MiB are squeezed into {} MiB; process {} was stopped",
        memcg.max_bytes.load(Relaxed) >> 20,
        pager.pooled_bytes() >> 20,
        pager.store().pool_bytes() >> 20,
        watch.order.pid
    );
    let _ = write!(line, "; what helps: a higher limit{}", Backing(pager));
    crawling.explain(&mut line);
    stop(watch, line.as_str());
}

/// Stops the program, and says why.
fn stop(watch: &Watch, why: &str) {
    watch.order.slot.say(why);
    watch.order.slot.state.store(memcg::State::Stopped as u32, Release);
    let _ = sys::pidfd_send_signal(&watch.program, SIGKILL);
}

/// When the pool was compacted last.
#[derive(Default)]
struct Tidied {
    next_ns: u64,
}

/// After so long without a fault there is time for it; else it takes a part of the time, one in so many.
const QUIET_NS: u64 = 1_000_000;
const TIDY_SHARE: u64 = 8;

impl Tidied {
    /// Compacts the pool a little; false when it was not due, or not needed.
    fn tidy(&mut self, now: u64, quiet_ns: u64, store: &mut PageStore) -> bool {
        if now < self.next_ns && quiet_ns < QUIET_NS {
            return false;
        }
        let tidied = store.tidy();
        let took = if tidied { sys::now_ns() - now } else { QUIET_NS / TIDY_SHARE };
        self.next_ns = now + took * TIDY_SHARE;
        tidied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_are_long_while_nothing_comes_or_goes_and_short_again_when_something_does() {
        let most = Rests::SHORTEST_NS << Rests::DOUBLINGS;
        let mut rests = Rests::new(1);
        let mut lengths = (0..2 * Rests::DOUBLINGS).map(|_| {
            rests.begin(0, 7);
            rests.until_ns
        });
        assert!(lengths.nth(Rests::DOUBLINGS as usize).is_some() && lengths.all(|length| length == most));
        rests.disturb(1000);
        assert_eq!(rests.until_ns, 1000 + Rests::SHORTEST_NS);
        let busy: Vec<u64> = (8..1008)
            .map(|moved| {
                rests.begin(0, moved);
                let until = rests.until_ns;
                rests.disturb(1000);
                assert_eq!(rests.until_ns, until, "it was no longer for want of anything to do");
                until
            })
            .collect();
        assert!(busy.iter().filter(|length| **length == Rests::SHORTEST_NS).count() > 400);
        assert!(busy.iter().any(|length| *length > 8 * Rests::SHORTEST_NS));
    }
}
