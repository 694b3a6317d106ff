//! The engine's process: asleep while the program is far from its limit, then awake, or from the start in a forked
//! child, with the pager's loop (rounds.rs) until the program is gone.

use crate::answer::stand_by;
use crate::areas::SwapAreas;
use crate::board::{Board, WORKERS_MAX};
use crate::descriptors;
use crate::dontfork;
use crate::filter::Phase;
use crate::fork;
use crate::heap;
use crate::live::{self, Live};
use crate::maker::Maker;
use crate::pager::Engine;
use crate::pool::Mover;
use crate::rounds::{self, AHEAD_LEAST};
use crate::shared_store;
use crate::store::PageStore;
use crate::watch::Watch;
use crate::workers::{self, Workers};
use alloc::boxed::Box;
use control::arena;
use control::footprint::data;
use control::handover::{self, Areas};
use control::library::library;
use control::messages::{self, unmanaged};
use control::page_tables;
use control::{CONTROL, DOORBELL_BYTES, EngineState, Takeover};
use core::fmt;
use core::sync::atomic::Ordering::*;
use mm::fork::Misfit;
use mm::{Config, Pager};
use uffd::sys::{self, Errno};
use uffd::{Fd, PAGE};
use vmscan::watermark::{UNKNOWN, Watermarks};
use vmscan::{HUGE, WINDOW};

/// How many descriptors engine and workers may have, which share theirs: more than they ever do, with what each worker
/// watches, and its queues of a device.
const DESCRIPTORS: u64 = 64 + (WORKERS_MAX * (8 + acomp::QUEUES_MAX)) as u64;

/// The engine's first instruction. `argument` is unused: all is in [`CONTROL`].
pub extern "C" fn main(_argument: usize) -> ! {
    sys::close_all();
    // The program may have few, and what cannot be opened later cannot be looked at.
    sys::want_descriptors(DESCRIPTORS);
    let _ = sys::chdir(c"/");
    let _ = sys::setsid();
    let _ = sys::set_name(c"zfolio-engine");
    let order = CONTROL.order();
    if !order.slot.begin(order.pid, sys::getpid().unwrap_or(0) as u32) {
        sys::exit(0);
    }
    let takes_over = CONTROL.takeover.load(Acquire) == Takeover::UnderWay as u32;
    begin_anew(takes_over);
    match Watch::open(order) {
        Ok(mut watch) => {
            adopt_own_data();
            shared_store::begin(watch.order.memcg, watch.order.slot, takes_over);
            choose_seed();
            watch.filter(Phase::Asleep);
            if takes_over {
                inherit(&mut watch);
            } else if asleep(&mut watch)
                && let Err((what, errno)) = awake(&mut watch)
                // What fails because the program has ended meanwhile is no news.
                && !watch.gone()
            {
                unmanaged(
                    &watch.order,
                    format_args!("{what} says {errno}{}", descriptors::remedy(what, errno)),
                );
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
    messages::leave(&CONTROL.order());
    CONTROL.has_looked();
    sys::exit(0)
}

/// What a new engine has of its own: a table of its parent's engine is about another process. Who takes over has its
/// parent's heap.
fn begin_anew(takes_over: bool) {
    // SAFETY: engine and workers alone allocate, and go by this table; this engine has done neither yet, and of its
    // parent's nobody is here.
    unsafe {
        if !takes_over {
            heap::reset();
        }
        dontfork::begin();
    }
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
    let library = library();
    arena::adopt(library.start..library.end.next_multiple_of(PAGE));
}

/// What keys the hashes of objects is the same for all of a family: a child has its parent's.
fn choose_seed() {
    if CONTROL.seed.load(Relaxed) == 0 {
        let mut seed = [0u8; 8];
        // Refused (a filter), the key is 0: damage is found all the same, and collisions could be made.
        let _ = sys::getrandom(&mut seed, 0);
        CONTROL.seed.store(u64::from_ne_bytes(seed), Relaxed);
    }
}

/// Waits until the program comes near its limit, or is to shrink now; false when it ended before.
fn asleep(watch: &mut Watch) -> bool {
    let evict_all = watch.order.memcg.settings.evict_all != 0;
    loop {
        if watch.gone() {
            return false;
        }
        shared_store::renew(watch.order.memcg);
        let now = sys::now_ns();
        watch.follow_asleep(now);
        watch.note_name(now);
        let mapped = CONTROL.mapped_bytes.load(Relaxed);
        let footprint = watch.footprint();
        watch.copies.follow(&watch.order, footprint);
        watch.publish(footprint, footprint, 0, 0, memcg::PagesOut::default());
        let own = footprint - watch.excess(footprint);
        let limit = watch.limit_asleep(own);
        let marks = if evict_all { Watermarks::evict_all() } else { Watermarks::new(limit, 1, UNKNOWN) };
        let threshold = marks.wake;
        CONTROL.ahead_bytes.store(threshold.saturating_sub(own).max(AHEAD_LEAST), Relaxed);
        // With little left, or much mapped since the last look, it must not come to more before the next one, whatever
        // it has mapped.
        let may_burst = CONTROL.is_ahead() || watch.order.memcg.may_run_short(0);
        let is_asked = watch.order.slot.reclaim.asked().is_some() || CONTROL.advice.wants_out();
        if is_asked || own > threshold || may_burst && data(&watch.statm) > threshold {
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

// The pager has a window for it.
const _: () = assert!(DOORBELL_BYTES == WINDOW);

/// The engine's memory for the pager; inactive list and doorbell, registered, lie one behind the other.
struct Ground {
    inactive: (usize, usize),
    doorbell: usize,
    bounce: usize,
    fresh: usize,
}

impl Ground {
    fn map(limit: usize) -> Option<Ground> {
        let inactive = (limit / 4).clamp(16 << 20, 1 << 30) / HUGE * HUGE;
        let at = arena::map_apart(inactive + WINDOW, HUGE)?;
        let bounce = arena::map_apart(WINDOW, WINDOW)?;
        let fresh = arena::map_apart(FRESH_BYTES, WINDOW)?;
        Some(Ground { inactive: (at, inactive), doorbell: at + inactive, bounce, fresh })
    }
}

/// What a pager is made of, opened before anything is touched.
struct Parts {
    live: Live,
    config: Config,
    /// What the pool has pages moved with.
    mover: Option<Mover>,
    board: Board,
    workers: Workers,
    limit: usize,
    /// What the run's swap areas take, if it has any.
    areas: Option<Areas>,
}

impl Parts {
    /// `seed` keys the hashes of objects. The error says what could not be had.
    fn open(watch: &mut Watch, seed: u64) -> Result<Parts, (&'static str, Errno)> {
        let (memcg, slot, pid) = (watch.order.memcg, watch.order.slot, watch.order.pid);
        let no_memory = ("mmap", Errno::ENOMEM);
        let maker = Maker::of_worker(memcg).ok_or(("the compressor", Errno::EINVAL))?;
        let mut opened = watch.descriptors();
        let mover = core::mem::replace(&mut opened.pool, Err(Errno::EBADF)).ok();
        let areas = opened.areas.take().transpose().map_err(|errno| ("what swap areas take", errno))?;
        let mut live = Live::open(pid, slot, opened)?;
        // A filter of the program's may end who asks for what no program does.
        if memcg.settings.no_huge == 0 && !watch.was_filtered {
            live.make_huge_pages();
        }
        let footprint = watch.footprint();
        let limit = watch.limit(footprint - watch.excess(footprint));
        // Its share may become much larger than it is now.
        let most = limit.max(memcg.max_bytes.load(Relaxed) as usize / 4);
        let Ground { inactive, doorbell, bounce, fresh } = Ground::map(most).ok_or(no_memory)?;
        live.register_own(inactive.0..doorbell, doorbell..doorbell + WINDOW)
            .map_err(|e| ("UFFDIO_REGISTER", e))?;
        let bell = sys::eventfd().map_err(|e| ("eventfd", e))?;
        let board = Board::map(inactive.1 / WINDOW, bell).ok_or(no_memory)?;
        let (file, engine) = (memcg.dictionary(), watch.own_pid);
        let evict_all = memcg.settings.evict_all != 0;
        let workers = Workers { memcg, board, maker, seed, file, slot, engine, program: pid };
        let fresh = (fresh, FRESH_BYTES);
        let config = Config { inactive, huge_bytes: HUGE, bounce, fresh, doorbell, evict_all };
        Ok(Parts { live, config, mover, board, workers, limit, areas })
    }
}

/// From now on the doorbell is answered, and a child can take over.
fn announce(watch: &Watch, pager: &mut Engine) {
    CONTROL.pager.store(&raw mut *pager as usize, Release);
    CONTROL.doorbell.store(pager.doorbell(), Release);
    if watch.was_filtered {
        page_tables::bind();
    }
    page_tables::begin();
    CONTROL.state.store(EngineState::Awake as u32, SeqCst);
    watch.order.slot.state.store(memcg::State::Awake as u32, Release);
}

/// Undoes [`announce`]: who has asked for something finds that nobody answers.
fn withdraw() {
    CONTROL.doorbell.store(0, Release);
    CONTROL.state.store(EngineState::Asleep as u32, SeqCst);
}

/// Manages the program's memory until it is gone. An error says what could not be had, before anything was touched.
fn awake(watch: &mut Watch) -> Result<(), (&'static str, Errno)> {
    let (memcg, slot) = (watch.order.memcg, watch.order.slot);
    let seed = CONTROL.seed.load(Relaxed);
    shared_store::read_anew();
    let Parts { mut live, config, mover, board, workers, limit, areas } = Parts::open(watch, seed)?;
    // Writes to what relatives have too are to be told instead.
    if !memcg.has_family(slot) {
        live.tell_touches();
    }
    let areas = areas.map(|handed| SwapAreas::open(handed, &memcg.settings, board.bell())).transpose()?;
    let (slots, row) = areas.as_ref().map(|areas| (areas.slots(&memcg.settings), areas.row())).unzip();
    slot.row.store(row.unwrap_or(0), Release);
    let store = PageStore::new(mover, &workers, memcg, areas).ok_or(("mmap", Errno::ENOMEM))?;
    // In the heap, where a child finds it.
    let mut pager = Box::new(Pager::new(live, store, &slot.stat, config, limit));
    slots.into_iter().for_each(|slots| pager.open_areas(slots));
    announce(watch, &mut pager);
    // Whoever does not see yet that it is awake has advised the kernel before this.
    if let Err(errno) = dontfork::ask_kernel() {
        withdraw();
        return Err(("/proc/self/smaps", errno));
    }
    // A fork that began before would copy what is registered from now on, and the child have holes there.
    if stand_by(watch, &mut pager, || CONTROL.is_forkless()) {
        // What is registered is kept out of children, and so the workers need not copy it.
        pager.settle();
        if !config.evict_all {
            pager.register_all();
        }
        if memcg.has_family(slot) {
            pager.share();
        }
        CONTROL.has_looked();
        work(watch, board, &workers, &mut pager);
    }
    Ok(())
}

/// In a child of fork: takes over what its parent's engine had when it was cloned, and goes on with it until the
/// program is gone.
fn inherit(watch: &mut Watch) {
    let slot = watch.order.slot;
    match take_over(watch) {
        Ok((mut pager, board, workers)) => {
            announce(watch, &mut pager);
            fork::end_takeover(Takeover::Done);
            work(watch, board, &workers, &mut pager);
        }
        Err(_) if watch.gone() => {}
        Err(why) => fork::fail(slot, format_args!("{why}")),
    }
}

/// Why a child could not take over.
enum CannotTakeOver {
    Refused(&'static str, Errno),
    Untold,
    Misfit(Misfit),
}

impl fmt::Display for CannotTakeOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CannotTakeOver::Refused(what, errno) => {
                write!(f, "{what} says {errno}")?;
                handover::refused().map_or(Ok(()), |errno| write!(f, ", and the hand-over {errno}"))
            }
            CannotTakeOver::Untold => {
                f.write_str("its parent's engine did not tell what other threads did meanwhile")
            }
            CannotTakeOver::Misfit(misfit) => misfit.fmt(f),
        }
    }
}

fn take_over(watch: &mut Watch) -> Result<(Box<Engine>, Board, Workers), CannotTakeOver> {
    let slot = watch.order.slot;
    let parts = Parts::open(watch, CONTROL.seed.load(Relaxed));
    let Parts { live, config, mover, board, workers, limit, areas } =
        parts.map_err(|(what, e)| CannotTakeOver::Refused(what, e))?;
    let late = fork::told().ok_or(CannotTakeOver::Untold)?;
    let parents = CONTROL.pager.load(Acquire) as *mut Engine;
    // SAFETY: the parent's pager, in the child's copy of its heap, as it was when its engine stood still; it is used
    // here, and never again.
    let (store, handover) = unsafe {
        let areas = inherit_areas(watch, &mut *parents, areas, board.bell())?;
        (PageStore::take_over((*parents).store(), mover, board, &slot.stat, areas), (*parents).hand_over())
    };
    let pager = Pager::take_over(live, store, &slot.stat, config, limit, handover, &late);
    let pager = pager.map_err(CannotTakeOver::Misfit)?;
    pager.kernel().unmark(pager.regions());
    live::allow_huge_pages();
    Ok((Box::new(pager), board, workers))
}

/// In a child: the areas, by the row that its parent has taken for it.
fn inherit_areas(
    watch: &Watch,
    parents: &mut Engine,
    handed: Option<Areas>,
    bell: &Fd,
) -> Result<Option<SwapAreas>, CannotTakeOver> {
    let (row, parents) = (parents.childs_row(), parents.store_mut().swap_areas());
    let (Some(row), Some(parents), Some(handed)) = (row, parents, handed) else { return Ok(None) };
    // SAFETY: the parent's, in the child's copy of its memory; nothing of it is used from here on.
    let areas =
        unsafe { SwapAreas::inherit(handed, &watch.order.memcg.settings, bell, row, parents.parents()) };
    let areas = areas.map_err(|(what, errno)| CannotTakeOver::Refused(what, errno))?;
    watch.order.slot.row.store(areas.row(), Release);
    Ok(Some(areas))
}

/// Starts the workers, and runs the pager until the program is gone.
fn work(watch: &mut Watch, board: Board, workers: &Workers, pager: &mut Engine) {
    match workers.start(pager.kernel().memory()) {
        Ok(pids) => {
            watch.filter(Phase::Manages);
            rounds::run(watch, board, &pids, pager)
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
    workers::await_end();
    if let Some(areas) = pager.store_mut().swap_areas() {
        areas.leave();
    }
}
