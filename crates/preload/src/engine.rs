//! The engine's process: asleep while the program is far from its limit, then the pager's loop, until the program is gone.

use crate::arena;
use crate::birth;
use crate::board::{Board, WORKERS_MAX};
use crate::control::{Birth, CONTROL, State, Wish};
use crate::crew::{self, Crew};
use crate::filter::Stage;
use crate::follow::Follower;
use crate::footprint::{data, footprint, sizes};
use crate::fork::{self, Cradle};
use crate::heritage;
use crate::live::{self, Live};
use crate::nap::{self, Nap};
use crate::pool::Means;
use crate::seat::{Faults, Seat};
use crate::share;
use crate::store::Counter;
use crate::telling::Teller;
use crate::unseen::Unseen;
use crate::watch::Watch;
use crate::words::{self, Line, unmanaged};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::sync::atomic::Ordering::*;
use memcg::Memcg;
use mm::fork::Misfit;
use mm::kernel::Store;
use mm::{Config, Pager};
use uffd::PAGE;
use uffd::sys::{self, Errno, consts::*};
use vmscan::WINDOW;
use vmscan::watermark::Watermarks;
use zswap::Choice;

/// How many descriptors engine and workers may have: more than they ever do, with each worker's queues of a device.
const DESCRIPTORS: u64 = 64 + (WORKERS_MAX * acomp::QUEUES_MAX) as u64;

/// The engine's first instruction. `argument` is unused: all is in [`CONTROL`].
pub extern "C" fn main(_argument: usize) -> ! {
    sys::close_all();
    // The program may have few, and what cannot be opened later cannot be looked at.
    sys::want_descriptors(DESCRIPTORS);
    let _ = sys::chdir(c"/".as_ptr().cast());
    let _ = sys::setsid();
    let _ = sys::set_name(PR_SET_NAME, c"zfolio-engine".as_ptr().cast());
    let order = CONTROL.order();
    if !order.slot.begin(order.pid, sys::getpid().unwrap_or(0) as u32) {
        sys::exit(0);
    }
    match Watch::open(order) {
        Ok(mut watch) => {
            adopt_own_data();
            let is_heir = CONTROL.birth.load(Acquire) == Birth::Labour as u32;
            heritage::begin(watch.order.memcg, watch.order.slot, is_heir);
            choose_seed();
            watch.filter(Stage::Born);
            if is_heir {
                inherit(&mut watch);
            } else if asleep(&mut watch)
                && let Err((what, errno)) = awake(&mut watch)
                // What fails because the program has ended meanwhile is no news.
                && !watch.gone()
            {
                unmanaged(&watch.order, format_args!("{what} says {errno}"));
                CONTROL.ahead_bytes.store(0, Relaxed);
                CONTROL.has_looked();
                idle(&mut watch);
            }
            watch.count_cpu();
        }
        // It ended before we began.
        Err((_, Errno::ESRCH)) => {}
        Err((what, errno)) => unmanaged(&CONTROL.order(), format_args!("{what} says {errno}")),
    }
    words::leave(&CONTROL.order());
    CONTROL.has_looked();
    sys::exit(0)
}

/// Without anything to manage: until the program is gone.
fn idle(watch: &mut Watch) {
    while !watch.gone() {
        watch.follow_asleep(sys::now_ns());
        watch.sleep(IDLE_NS);
    }
}

/// How long an engine sleeps that only looks after its rights.
const IDLE_NS: u64 = 200_000_000;

/// The library's own data is not the program's memory.
fn adopt_own_data() {
    let library = birth::library();
    arena::adopt(library.start..library.end.next_multiple_of(PAGE));
}

/// What keys the hashes of objects is the same for all of a family: a child has its parent's.
fn choose_seed() {
    if CONTROL.seed.load(Relaxed) == 0 {
        let mut seed = [0u8; 8];
        let _ = sys::getrandom(seed.as_mut_ptr(), seed.len(), 0);
        CONTROL.seed.store(u64::from_ne_bytes(seed), Relaxed);
    }
}

/// Waits until the program comes near its limit; false when it ended before.
fn asleep(watch: &mut Watch) -> bool {
    let evict_all = watch.order.memcg.settings.evict_all != 0;
    loop {
        if watch.gone() {
            return false;
        }
        crate::dontfork::collect();
        heritage::renew(watch.order.memcg);
        let now = sys::now_ns();
        watch.follow_asleep(now);
        watch.note_name(now);
        let mapped = CONTROL.mapped_bytes.load(Relaxed);
        let footprint = footprint(&watch.statm);
        watch.copies.follow(&watch.order, footprint);
        watch.publish(footprint, footprint, 0, 0);
        let own = footprint - watch.excess(footprint);
        let limit = watch.limit_asleep(own);
        let marks = if evict_all { Watermarks::evict_all() } else { Watermarks::new(limit, 1) };
        let threshold = marks.wake;
        CONTROL.ahead_bytes.store(threshold.saturating_sub(own).max(AHEAD_LEAST), Relaxed);
        // With little left, or much mapped since the last look, it must not come to more before the next one, whatever it has mapped.
        let may_burst = CONTROL.is_ahead() || watch.order.memcg.may_run_short(0);
        if own > threshold || may_burst && data(&watch.statm) > threshold {
            return true;
        }
        CONTROL.enrolled_bytes.store(mapped, Relaxed);
        CONTROL.has_looked();
        // Fresh memory comes at 3 or 4 bytes a nanosecond: look again before it can have reached the threshold.
        let longest = if CONTROL.has_forked.load(Relaxed) != 0 { FAMILY_NS } else { 500_000_000 };
        let time = ((threshold - own) as u64 / 4).clamp(1_000_000, longest);
        watch.sleep(time);
        watch.count_cpu();
    }
}

/// How long an engine sleeps at most whose program has forked: what it has to itself changes by what its children do.
const FAMILY_NS: u64 = 10_000_000;

/// How much fresh memory goes to the program at a time, at most.
const FRESH_BYTES: usize = 512 << 10;

/// The engine's memory for the pager; stage and doorbell, registered, lie one behind the other.
struct Ground {
    stage: (usize, usize),
    doorbell: usize,
    nursery: usize,
    fresh: usize,
}

impl Ground {
    fn map(limit: usize) -> Option<Ground> {
        let stage = (limit / 4).clamp(16 << 20, 1 << 30) / WINDOW * WINDOW;
        let at = arena::map_apart(stage + WINDOW, 2 << 20)?;
        let nursery = arena::map_apart(WINDOW, WINDOW)?;
        let fresh = arena::map_apart(FRESH_BYTES, WINDOW)?;
        Some(Ground { stage: (at, stage), doorbell: at + stage, nursery, fresh })
    }
}

/// What a pager is made of, opened before anything is touched.
struct Parts {
    live: Live,
    config: Config,
    /// What the pool has pages moved with.
    means: Option<Means>,
    board: Board,
    crew: Crew,
    limit: usize,
}

impl Parts {
    /// `seed` keys the hashes of objects. The error says what could not be had.
    fn open(watch: &mut Watch, seed: u64) -> Result<Parts, (&'static str, Errno)> {
        let (memcg, slot, pid) = (watch.order.memcg, watch.order.slot, watch.order.pid);
        let no_memory = ("mmap", Errno::ENOMEM);
        let choice = Choice::parse(memcg.settings.compressor.as_str())
            .map_err(|_| ("the compressor", Errno::EINVAL))?;
        let mut keys = watch.keys();
        let means = core::mem::replace(&mut keys.pool, Err(Errno::EBADF)).ok();
        let mut live = Live::open(pid, slot, keys)?;
        let footprint = footprint(&watch.statm);
        let limit = watch.limit(footprint - watch.excess(footprint));
        // Its share may become much larger than it is now.
        let most = limit.max(memcg.max_bytes.load(Relaxed) as usize / 4);
        let Ground { stage, doorbell, nursery, fresh } = Ground::map(most).ok_or(no_memory)?;
        live.register_own(stage.0..doorbell, doorbell..doorbell + WINDOW)
            .map_err(|e| ("UFFDIO_REGISTER", e))?;
        let bell = sys::eventfd().map_err(|e| ("eventfd", e))?;
        let board = Board::map(stage.1 / WINDOW, bell).ok_or(no_memory)?;
        let (file, engine) = (memcg.dictionary(), watch.own_pid);
        let evict_all = memcg.settings.evict_all != 0;
        let crew = Crew { memcg, board, choice, seed, file, evict_all, slot, engine, program: pid };
        let config = Config { stage, nursery, fresh: (fresh, FRESH_BYTES), doorbell, evict_all };
        Ok(Parts { live, config, means, board, crew, limit })
    }
}

/// The pager as it is in an engine.
type Engine = Pager<'static, Live, Counter>;

/// From now on the doorbell is answered, and a child can take over.
fn announce(watch: &Watch, pager: &mut Engine) {
    CONTROL.pager.store(&raw mut *pager as usize, Release);
    CONTROL.doorbell.store(pager.doorbell(), Release);
    CONTROL.state.store(State::Awake as u32, SeqCst);
    watch.order.slot.state.store(memcg::State::Awake as u32, Release);
}

/// Manages the program's memory until it is gone. An error says what could not be had, before anything was touched.
fn awake(watch: &mut Watch) -> Result<(), (&'static str, Errno)> {
    let (memcg, slot) = (watch.order.memcg, watch.order.slot);
    crate::dontfork::ask_kernel().map_err(|e| ("/proc/self/smaps", e))?;
    let seed = CONTROL.seed.load(Relaxed);
    heritage::read_anew();
    let Parts { live, config, means, board, crew, limit } = Parts::open(watch, seed)?;
    let store = Counter::new(means, &crew, memcg).ok_or(("mmap", Errno::ENOMEM))?;
    // In the heap, where a child finds it.
    let mut pager = Box::new(Pager::new(live, store, &slot.stat, config, limit));
    announce(watch, &mut pager);
    // A fork that began before would copy what is registered from now on, and the child have holes there.
    if stand_by(watch, &mut pager, || CONTROL.is_forkless()) {
        // What is registered is kept out of children, and so the workers need not copy it.
        pager.settle();
        if !config.evict_all {
            pager.enroll_all();
        }
        if memcg.has_family(slot) {
            pager.share();
        }
        CONTROL.has_looked();
        work(watch, board, &crew, &mut pager);
    }
    Ok(())
}

/// In a child of fork: takes over what its parent's engine had when it was cloned, and goes on with it until the program is gone.
fn inherit(watch: &mut Watch) {
    let slot = watch.order.slot;
    match take_over(watch) {
        Ok((mut pager, board, crew)) => {
            announce(watch, &mut pager);
            fork::deliver(Birth::Done);
            work(watch, board, &crew, &mut pager);
        }
        Err(_) if watch.gone() => {}
        Err(why) => fork::fail(slot, format_args!("{why}")),
    }
}

/// Why a child could not take over.
enum Miscarriage {
    Refused(&'static str, Errno),
    Untold,
    Misfit(Misfit),
}

impl fmt::Display for Miscarriage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Miscarriage::Refused(what, errno) => write!(f, "{what} says {errno}"),
            Miscarriage::Untold => {
                f.write_str("its parent's engine did not tell what other threads did meanwhile")
            }
            Miscarriage::Misfit(misfit) => misfit.fmt(f),
        }
    }
}

fn take_over(watch: &mut Watch) -> Result<(Box<Engine>, Board, Crew), Miscarriage> {
    let slot = watch.order.slot;
    let parts = Parts::open(watch, CONTROL.seed.load(Relaxed));
    // Its pool is its parent's, and has means of its own.
    let Parts { live, config, means: _, board, crew, limit } =
        parts.map_err(|(what, e)| Miscarriage::Refused(what, e))?;
    let late = fork::cradle().and_then(|cradle| cradle.told()).ok_or(Miscarriage::Untold)?;
    let parents = CONTROL.pager.load(Acquire) as *mut Engine;
    // SAFETY: the parent's pager, in the child's copy of its heap, as it was when its engine stood still; it is used here, and never again.
    let (store, estate) = unsafe {
        (Counter::take_over(&raw const (*parents).store, board, &slot.stat), (*parents).bequeath())
    };
    let pager = Pager::inherit(live, store, &slot.stat, config, limit, estate, &late);
    let pager = pager.map_err(Miscarriage::Misfit)?;
    pager.kernel.unmark(pager.regions());
    live::allow_huge_pages();
    Ok((Box::new(pager), board, crew))
}

/// Starts the workers, and runs the pager until the program is gone.
fn work(watch: &mut Watch, board: Board, crew: &Crew, pager: &mut Engine) {
    match crew.start(pager.kernel.memory()) {
        Ok(workers) => {
            watch.filter(Stage::Manages);
            run(watch, board, &workers, pager)
        }
        // What fails because the program has ended meanwhile is no news.
        Err(_) if watch.gone() => {}
        Err((what, errno)) => {
            pager.retire();
            unmanaged(&watch.order, format_args!("{what} says {errno}"));
            stand_by(watch, pager, || false);
        }
    }
    watch.count_cpu();
    board.end();
    crew::await_end();
}

/// A thread is about to fork: stands still for the clone, and tells the child what was late.
fn stand_still(watch: &Watch, pager: &mut Engine) {
    let Some(cradle) = Cradle::map() else {
        answered(pager);
        return;
    };
    CONTROL.cradle.store(core::ptr::from_ref(cradle) as usize, Release);
    answered(pager);
    // Another thread's bell may have been answered, and this one be about to ring.
    let serve = || {
        pager.settle();
        if pager.has_rung() {
            pager.answer();
        }
    };
    if !cradle.await_thread(|| watch.gone(), serve) {
        return;
    }
    heritage::renew(watch.order.memcg);
    make_room(watch, pager);
    pager.calm();
    pager.kernel.let_in(pager.regions());
    arena::let_in(true);
    live::forbid_huge_pages();
    let is_still = pager.hush();
    let is_child = is_still && cradle.await_clone(|| watch.gone());
    live::allow_huge_pages();
    arena::let_in(false);
    let mut late = Vec::new();
    pager.late(is_child, |event| late.push(event));
    if is_still {
        cradle.tell(&late);
    } else {
        cradle.refuse();
    }
    pager.kernel.keep_out(pager.regions());
}

/// How much is to be free at a fork: one part in so many of what the process holds.
const BIRTH_PART: usize = 4;

/// How long a fork waits for that, at most.
const BIRTH_NS: u64 = 200_000_000;

/// Before a fork: what the pot does not have is made free here. What is out is one copy for both; of what goes out afterwards each has its own, so that next to
/// nothing is free by it.
fn make_room(watch: &Watch, pager: &mut Engine) {
    let (memcg, share) = (watch.order.memcg, &watch.order.slot.share);
    let (own, pool) = (pager.usage().footprint, pager.store.pool_bytes());
    let missing = (own / BIRTH_PART).saturating_sub(memcg.division.pot_bytes() as usize);
    // What is in the pool stays.
    let target = (own - missing).max(pool + pool / 2);
    if target >= own || memcg.settings.evict_all != 0 {
        return;
    }
    let given = (own - target) as u64;
    let less = |bytes: u64| Some(bytes.saturating_sub(given));
    let _ = share.bytes.fetch_update(SeqCst, SeqCst, less);
    pager.set_limit(target, 1);
    let until = sys::now_ns() + BIRTH_NS;
    while pager.usage().footprint > pager.marks().high && sys::now_ns() < until && !watch.gone() {
        if !pager.turn(pager.usage().footprint) {
            sys::sleep_ns(50_000);
        }
    }
}

/// What a thread asked for is done.
fn answered(pager: &mut Engine) {
    CONTROL.wish.store(0, Release);
    pager.answer();
}

/// How long the pager polls without sleeping after it has served a fault: about what a wake-up on another CPU costs.
const SPIN_NS: u64 = 30_000;

/// True where others want every CPU: one that polls is taken from them.
fn is_crowded(memcg: &Memcg) -> bool {
    share::processes_per_cpu(memcg) > 0
}

/// How often the kernel is asked how much memory the process holds; in between the pager keeps count of what it does itself. What comes about without
/// it, at 3 or 4 bytes in a nanosecond, must be found before it is an eighth of what lies between the high mark and the limit,
/// where that takes 100 µs or more.
fn look_ns(marks: &Watermarks) -> u64 {
    ((marks.limit - marks.high) as u64 / 32).clamp(100_000, 250_000)
}

/// So much may be mapped and not be registered: one part in so many of what the process may still grow by, and this in any case.
const AHEAD_PART: usize = 2;
const AHEAD_LEAST: usize = 1 << 20;

/// How often figures are published.
const PUBLISH_NS: u64 = 2_000_000;

/// How often it is looked whether there is no need to stand by any more.
const STAND_BY_NS: u64 = 1_000_000;

/// Test mode: the times between two rounds in which everything goes out. Most are short, so that pages go and come often; but a thread
/// must come past its instruction or system call, with all the pages that this needs, however seldom it gets a processor: each time is half as
/// frequent as one of half its length, up to 100 ms.
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
fn run(watch: &mut Watch, board: Board, workers: &[u32], pager: &mut Engine) {
    let (memcg, slot, head) = (watch.order.memcg, watch.order.slot, board.head());
    let evict_all = memcg.settings.evict_all != 0;
    let full_ns = memcg.settings.full_timeout_ms.max(1000) as u64 * 1_000_000;
    let mut excess = 0;
    let (mut looked_ns, mut published_ns, mut faults_seen, mut last_fault_ns) = (0, 0, 0, 0);
    let mut rests = Rests::new(memcg.settings.seed);
    let mut seat = Seat::new(workers, CONTROL.may_yield.load(Relaxed) != 0);
    let mut tidied = Tidied::default();
    let mut nap = Nap::default();
    let mut unseen = Unseen::default();
    let mut teller = Teller::default();
    loop {
        let now = sys::now_ns();
        let mut own = pager.usage().footprint;
        if now - looked_ns > look_ns(pager.marks()) {
            let (mapped, private) = sizes(&watch.statm);
            looked_ns = now;
            let footprint = private + board.apart_bytes();
            excess = watch.excess(footprint);
            own = footprint - excess;
            pager.mapped(mapped.saturating_sub(arena::mapped_bytes()), CONTROL.mapped_bytes.load(Relaxed));
            let room = if evict_all { 0 } else { pager.marks().limit.saturating_sub(own) };
            CONTROL.ahead_bytes.store((room / AHEAD_PART).max(AHEAD_LEAST), Relaxed);
            // There may have been more room when it was mapped.
            if CONTROL.is_ahead() {
                enroll(pager);
            }
        }
        pager.park(now < slot.share.parked_until_ns.load(Relaxed));
        let rests_now = evict_all && now < rests.until_ns;
        pager.paused = !CONTROL.is_forkless() || rests_now;
        // What is mapped during the turn may be missed.
        let (mapped, enrolled_ns) = (CONTROL.mapped_bytes.load(Relaxed), pager.enrolled_ns());
        let mut busy = pager.turn(own);
        if pager.enrolled_ns() != enrolled_ns {
            CONTROL.enrolled_bytes.store(mapped, Relaxed);
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
            pager.set_limit(watch.limit(own), share::processes_per_cpu(memcg));
            watch.count_cpu();
            watch.note_name(now);
            pager.store.tend();
            unseen.look(memcg, watch.order.pid);
            if watch.gone() {
                unseen.look(memcg, watch.order.pid);
                // To take all of it down needs a CPU, and others wait for the memory.
                seat.leave(now);
                return;
            }
            if let Some(since) = pager.waiting_since_ns() {
                full(watch, pager, now.saturating_sub(since), full_ns);
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
        let single = slot.stat.zswpin[0].load(Relaxed);
        if head.called.swap(0, AcqRel) != 0 {
            seat.leave(now);
        }
        seat.choose(now, Faults { all: faults, single, switches, thread }, |tid| pager.kernel.cpu_of(tid));
        pager.alone = seat.is_taken();
        let alarm = (pager.marks().max + excess).saturating_sub(board.apart_bytes());
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
            let wants = pager.wants_results();
            head.pager_wants.store(wants as u32, SeqCst);
            // What was done before this is not counted.
            let time = if pager.store.under_way() < wants { 0 } else { time };
            let woken = sys::poll([pager.kernel.fd(), board.bell(), &watch.program], time);
            head.pager_wants.store(0, SeqCst);
            if woken.is_ok_and(|[_, bell, _]| bell) {
                let _ = sys::read(board.bell(), &mut [0; 8]);
            }
        }
    }
}

/// Publishes what the process holds: `own` bytes, and `excess` that are counted with its relatives. A relative's log counts there, its own with what is in its pool.
fn publish(watch: &mut Watch, pager: &Engine, own: usize, excess: usize) {
    let (log, forebears) = heritage::bytes();
    let share = &watch.order.slot.share;
    share.log_bytes.store(log as u64, Relaxed);
    share.read_bytes.store(forebears as u64, Relaxed);
    let (pool, footprint) = (pager.store.pool_bytes(), own + excess);
    let stored = pager.stored_bytes().saturating_sub(pager.borrowed_bytes());
    let wanted = (footprint + stored).saturating_sub(pool + pager.usage().stock);
    watch.publish(footprint, wanted, stored, pool + log);
}

/// Does what a thread of the program asked for by the doorbell.
fn answer(watch: &Watch, pager: &mut Engine) {
    let wish = CONTROL.wish.load(Acquire);
    let range = CONTROL.range.0.load(Relaxed)..CONTROL.range.1.load(Relaxed);
    if wish == Wish::Fork as u32 {
        return stand_still(watch, pager);
    } else if wish == Wish::Forget as u32 {
        pager.disown(range);
    } else if wish == Wish::LetGo as u32 {
        pager.let_go(range);
    } else if wish == Wish::Enroll as u32 {
        enroll(pager);
    }
    CONTROL.wish.store(0, Release);
    if CONTROL.forks.load(SeqCst) > 0 {
        pager.retire();
        CONTROL.home.store(1, SeqCst);
    }
    pager.answer();
}

/// Registers all there is, unless a fork is under way.
fn enroll(pager: &mut Engine) {
    let mapped = CONTROL.mapped_bytes.load(Relaxed);
    if CONTROL.is_forkless() && pager.enroll_now() {
        CONTROL.enrolled_bytes.store(mapped, Relaxed);
    }
}

/// A thread has waited for room for a while: warns, and at last stops the program.
fn full(watch: &Watch, pager: &Engine, waited_ns: u64, full_ns: u64) {
    let memcg = watch.order.memcg;
    if waited_ns > 1_000_000_000 {
        let _ = memcg.full_warning.compare_exchange(0, 1, AcqRel, Relaxed);
    }
    if waited_ns < full_ns {
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
    stop(watch, line.as_str());
}

/// Stops the program, and says why.
fn stop(watch: &Watch, why: &str) {
    watch.order.slot.say(why);
    watch.order.slot.state.store(memcg::State::Stopped as u32, Release);
    let _ = sys::pidfd_send_signal(&watch.program, SIGKILL);
}

/// Nothing goes out, and the doorbell is answered, until `done`; false when the program has ended before.
fn stand_by(watch: &mut Watch, pager: &mut Engine, done: impl Fn() -> bool) -> bool {
    pager.paused = true;
    while !done() {
        if watch.gone() {
            return false;
        }
        pager.turn(0);
        watch.follow(sys::now_ns(), Follower::follow);
        if pager.has_rung() {
            answer(watch, pager);
        }
        let _ = sys::poll([pager.kernel.fd(), &watch.program], STAND_BY_NS);
    }
    true
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
    fn tidy(&mut self, now: u64, quiet_ns: u64, store: &mut Counter) -> bool {
        if now < self.next_ns && quiet_ns < QUIET_NS {
            return false;
        }
        let tidied = store.tidy();
        let took = if tidied { sys::now_ns() - now } else { QUIET_NS / TIDY_SHARE };
        self.next_ns = now + took * TIDY_SHARE;
        tidied
    }
}
