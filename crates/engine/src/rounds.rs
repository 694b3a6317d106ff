//! The pager's loop, one round after the other, from when memory is managed until the program is gone.

use crate::answer::{answer, enroll};
use crate::board::Board;
use crate::crawl::Crawling;
use crate::crew;
use crate::heritage;
use crate::nap::{self, Nap};
use crate::pager::Engine;
use crate::seat::{Faults, Seat};
use crate::store::PageStore;
use crate::telling::Teller;
use crate::unseen::Unseen;
use crate::watch::Watch;
use control::CONTROL;
use control::arena;
use control::footprint::sizes;
use control::line::Line;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memcg::Memcg;
use mm::kernel::Store;
use uffd::sys::{self, consts::*};
use vmscan::growth::Growth;
use vmscan::watermark::Watermarks;

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
/// seldom it gets a processor: each time is half as frequent as one of half its length, up to 100 ms.
struct Rests {
    random: u64,
    until_ns: u64,
}

impl Rests {
    const SHORTEST_NS: u64 = 100_000;
    const DOUBLINGS: u32 = 10;

    fn new(seed: u32) -> Rests {
        Rests { random: seed as u64, until_ns: 0 }
    }

    fn begin(&mut self) {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let doublings = ((self.random >> 33) as u32).trailing_zeros().min(Self::DOUBLINGS);
        self.until_ns = sys::now_ns() + (Self::SHORTEST_NS << doublings);
    }
}

/// The pager's loop.
pub fn run(watch: &mut Watch, board: Board, workers: &[u32], pager: &mut Engine) {
    let (memcg, slot, head) = (watch.order.memcg, watch.order.slot, board.head());
    let evict_all = memcg.settings.evict_all != 0;
    let full_ns = memcg.settings.full_timeout_ms.max(1000) as u64 * 1_000_000;
    let (mut excess, mut swapped) = (0, 0);
    let mut growth = Growth::default();
    let (mut looked_ns, mut published_ns, mut faults_seen, mut last_fault_ns) = (0, 0, 0, 0);
    let mut rests = Rests::new(memcg.settings.seed);
    let mut seat = Seat::new(workers, CONTROL.may_yield.load(Relaxed) != 0);
    let mut tidied = Tidied::default();
    let mut nap = Nap::default();
    let mut unseen = Unseen::default();
    let mut teller = Teller::default();
    let mut crawling = Crawling::default();
    loop {
        let now = sys::now_ns();
        let mut own = pager.usage().footprint;
        if now - looked_ns > look_ns(pager.marks()) {
            let (mapped, private) = sizes(&watch.statm);
            looked_ns = now;
            swapped = watch.swapped.bytes(now, memcg);
            pager.kernel.is_swapped = swapped > 0;
            let footprint = private + swapped + board.apart_bytes();
            watch.order.slot.share.board_bytes.store(board.shared_bytes() as u64, Relaxed);
            excess = watch.excess(footprint);
            growth.found((footprint - excess).saturating_sub(own), now);
            own = footprint - excess;
            pager.mapped(mapped.saturating_sub(arena::mapped_bytes()), CONTROL.mapped_bytes.load(Relaxed));
            let room = if evict_all { 0 } else { pager.marks().limit.saturating_sub(own) };
            CONTROL.ahead_bytes.store((room / AHEAD_PART).max(AHEAD_LEAST), Relaxed);
            // There may have been more room when it was mapped.
            if CONTROL.is_ahead() {
                enroll(pager);
            }
        }
        pager.park(memcg.is_led() && now < slot.share.parked_until_ns.load(Relaxed));
        let rests_now = evict_all && now < rests.until_ns;
        pager.paused = !CONTROL.is_forkless() || rests_now;
        let enrolled_ns = pager.enrolled_ns();
        let mut busy = pager.turn(own);
        if pager.enrolled_ns() != enrolled_ns {
            CONTROL.enrolled_bytes.store(pager.enrolled_bytes(), Relaxed);
        }
        // Who has asked for it has rung.
        watch.follow(now, |rights| {
            // Who may not leave SCHED_IDLE any more afterwards would be it for ever.
            seat.leave(now);
            rights.follow();
            if !rights.may_lift() {
                seat.bar();
            }
            board.have_followed();
        });
        if pager.has_rung() {
            answer(watch, pager);
            // Faults may have been read meanwhile, and nobody tells of them again.
            busy = true;
        }
        busy |= !pager.paused && teller.turn(memcg, slot, pager);
        if now - published_ns > PUBLISH_NS {
            published_ns = now;
            publish(watch, pager, own, excess);
            let waiting_ms =
                pager.waiting_since_ns().map_or(0, |since| 1 + now.saturating_sub(since) / 1_000_000);
            slot.share.waiting_ms.store(waiting_ms, Relaxed);
            pager.set_limit(watch.limit(own), memcg.division.processes_per_cpu(), growth.most());
            watch.count_cpu();
            watch.note_name(now);
            unseen.look(memcg, watch.order.pid);
            if watch.gone() {
                unseen.look(memcg, watch.order.pid);
                // To take all of it down needs a CPU, and others wait for the memory.
                seat.leave(now);
                return;
            }
            let hungry_ns = if pager.waiting_since_ns().is_some() { pager.hungry_ns(now) } else { 0 };
            if !evict_all && let Some(why) = crawling.look(now, watch, pager, own, hungry_ns >= full_ns / 2) {
                stop(watch, why.as_str());
            }
            if let Some(since) = pager.waiting_since_ns() {
                // The reason is worth a while, but not for ever.
                let gets_nowhere = hungry_ns >= if crawling.knows() { full_ns } else { 2 * full_ns };
                full(watch, pager, now.saturating_sub(since), gets_nowhere, &crawling);
            }
            if crew::one_has_died() {
                stop(watch, crew::DEATH);
            }
            if (pager.store.is_frozen || pager.shares()) && !memcg.has_family(slot) {
                pager.thaw();
            }
        }
        let faults = slot.stat.faults.load(Relaxed) + slot.stat.fresh_faults.load(Relaxed);
        if faults != faults_seen {
            (faults_seen, last_fault_ns) = (faults, now);
        }
        let (thread, switches) = pager.kernel.faulters();
        let single = slot.stat.folios_in[0].load(Relaxed);
        if head.called.swap(0, AcqRel) != 0 {
            seat.leave(now);
        }
        seat.choose(now, Faults { all: faults, single, switches, thread }, |tid| pager.kernel.cpu_of(tid));
        pager.alone = seat.is_taken();
        let alarm = (pager.marks().max + excess).saturating_sub(board.apart_bytes() + swapped);
        head.alarm.store(if seat.is_taken() { alarm } else { 0 }, Relaxed);
        if evict_all {
            if !rests_now {
                rests.begin();
            } else if !busy {
                let time = rests.until_ns.saturating_sub(sys::now_ns());
                let _ = sys::poll([pager.kernel.fd(), &watch.program], time);
            }
        } else if tidied.tidy(now, now - last_fault_ns, &mut pager.store) {
            continue;
        } else if !busy && (now - last_fault_ns > SPIN_NS || !seat.is_apart() || is_crowded(memcg)) {
            let urgent = pager.waiting_since_ns().is_some() || pager.paused;
            let room = watch.limit(own).saturating_sub(own) as u64;
            let time = if urgent { nap::LEAST_NS } else { nap.next(room, own, faults) };
            seat.follow(now, || pager.kernel.cpu_of(thread));
            // For what nobody has been asked for it would wait in vain, and never sleep.
            let wants = pager.wants_results().min(pager.store.given());
            head.pager_wants.store(wants as u32, SeqCst);
            // What was done before this is not counted.
            let time = if pager.store.under_way() < wants || pager.kernel.has_early() { 0 } else { time };
            let woken = sys::poll([pager.kernel.fd(), board.bell(), &watch.program], time);
            head.pager_wants.store(0, SeqCst);
            if woken.is_ok_and(|[_, bell, _]| bell) {
                let _ = sys::read(board.bell(), &mut [0; 8]);
            }
        }
    }
}

/// Publishes what the process holds: `own` bytes, and `excess` that are counted with its relatives. A relative's log
/// counts there, its own with what is in its pool.
fn publish(watch: &mut Watch, pager: &Engine, own: usize, excess: usize) {
    let (log, forebears) = heritage::bytes();
    let share = &watch.order.slot.share;
    share.log_bytes.store(log as u64, Relaxed);
    share.read_bytes.store(forebears as u64, Relaxed);
    let marks = pager.marks();
    share.kept_free_bytes.store((marks.limit - marks.low) as u64, Relaxed);
    let (pool, footprint) = (pager.store.pool_bytes(), own + excess);
    let stored = pager.stored_bytes().saturating_sub(pager.borrowed_bytes());
    let wanted = (footprint + stored).saturating_sub(pool + pager.usage().stock);
    watch.publish(footprint, wanted, stored, pool + log);
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
        pager.stored_bytes() >> 20,
        pager.store.pool_bytes() >> 20,
        watch.order.pid
    );
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
