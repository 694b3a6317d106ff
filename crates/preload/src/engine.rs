//! The engine's process: asleep while the program is far from its limit, then the pager's loop, until the program is gone.

use crate::arena::{self, PoolMemory};
use crate::birth;
use crate::board::{Board, Counter};
use crate::footprint::{footprint, sizes};
use crate::live::Live;
use crate::seat::{Faults, Seat};
use crate::worker;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use memcg::{Memcg, Slot};
use mm::kernel::Store;
use mm::{Config, Pager};
use uffd::maps::Maps;
use uffd::sys::{self, Errno, Fd, consts::*};
use vmscan::WINDOW;
use zswap::{Cache, Worker};

/// What the engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Nothing is registered, nothing is out.
    Asleep = 0,
    /// Memory may be out; the doorbell is answered.
    Awake = 1,
}

/// What the program's threads and the engine tell each other.
pub struct Control {
    state: AtomicU32,
    /// Calls of fork under way: while there are any, everything stays home.
    pub forks: AtomicU32,
    /// 1 when all is home since a fork asked for it, and stays.
    pub home: AtomicU32,
    /// 1 when the program has ever made a guard region, which a copy would overwrite.
    pub guards: AtomicU32,
    /// The page to touch for an answer; 0 before there is one.
    pub doorbell: AtomicUsize,
    /// What a thread of the program asks for by the doorbell ([`Wish`]); 0 when it is done.
    pub wish: AtomicU32,
    /// The range that the wish is about.
    pub range: (AtomicUsize, AtomicUsize),
    /// A range that the engine may not register; (0, 0) when there is none.
    pub spared: (AtomicUsize, AtomicUsize),
    /// 1 while a thread of the program makes guards, which a copy would overwrite.
    pub guarding: AtomicU32,
    /// 1 while the engine copies a page into the program: guards wait for that.
    pub copying: AtomicU32,
    memcg: AtomicPtr<Memcg>,
    slot: AtomicPtr<Slot>,
    pid: AtomicU32,
    /// Address of the main thread's exit word and what it says while the thread lives; 0 where it is not known.
    exit_word: AtomicUsize,
    exit_value: AtomicU32,
    /// 1 when the engine may become SCHED_IDLE and leave that again.
    pub may_yield: AtomicU32,
}

/// What a thread of the program can ask the engine for, beside a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Wish {
    /// The contents of a range were discarded without an event: they are to be forgotten.
    Forget = 1,
    /// Another userfaultfd is to have a range: its contents are to come home, and its registration is to end.
    LetGo = 2,
}

/// The only one.
pub static CONTROL: Control = Control::new();

/// What an engine is started with.
pub struct Order {
    /// The run's page.
    pub memcg: &'static Memcg,
    /// This process's slot.
    pub slot: &'static Slot,
    /// The process.
    pub pid: u32,
    /// The exit word's address and value.
    pub main_thread: Option<(usize, u32)>,
}

impl Control {
    const fn new() -> Control {
        Control {
            state: AtomicU32::new(State::Asleep as u32),
            forks: AtomicU32::new(0),
            home: AtomicU32::new(0),
            guards: AtomicU32::new(0),
            doorbell: AtomicUsize::new(0),
            wish: AtomicU32::new(0),
            range: (AtomicUsize::new(0), AtomicUsize::new(0)),
            spared: (AtomicUsize::new(0), AtomicUsize::new(0)),
            guarding: AtomicU32::new(0),
            copying: AtomicU32::new(0),
            memcg: AtomicPtr::new(core::ptr::null_mut()),
            slot: AtomicPtr::new(core::ptr::null_mut()),
            pid: AtomicU32::new(0),
            exit_word: AtomicUsize::new(0),
            exit_value: AtomicU32::new(0),
            may_yield: AtomicU32::new(0),
        }
    }

    /// What the engine does now.
    pub fn state(&self) -> State {
        if self.state.load(SeqCst) == State::Awake as u32 { State::Awake } else { State::Asleep }
    }

    /// True when an engine lives, asleep or awake.
    pub fn has_engine(&self) -> bool {
        use memcg::State::*;
        // SAFETY: null, or of static life.
        let slot = unsafe { self.slot.load(Acquire).as_ref() };
        slot.is_some_and(|s| {
            [Starting, Asleep, Awake].map(|state| state as u32).contains(&s.state.load(Acquire))
        })
    }

    /// Says for whom the engine about to be born is.
    pub fn begin(&self, order: &Order) {
        self.memcg.store(core::ptr::from_ref(order.memcg).cast_mut(), Relaxed);
        self.slot.store(core::ptr::from_ref(order.slot).cast_mut(), Relaxed);
        self.pid.store(order.pid, Relaxed);
        let (word, value) = order.main_thread.unwrap_or((0, 0));
        self.exit_word.store(word, Relaxed);
        self.exit_value.store(value, Release);
    }

    /// In a child of fork: nobody's yet.
    pub fn reset(&self) {
        self.state.store(State::Asleep as u32, Relaxed);
        self.forks.store(0, Relaxed);
        self.home.store(0, Relaxed);
        self.doorbell.store(0, Relaxed);
        self.wish.store(0, Relaxed);
        self.spare(0..0);
        self.guarding.store(0, Relaxed);
        self.copying.store(0, Relaxed);
    }

    /// Keeps the engine from registering a range; an empty one keeps it from nothing.
    pub fn spare(&self, range: Range<usize>) {
        // Half written it spares nothing. What the engine registers then it is asked to let go.
        self.spared.1.store(0, SeqCst);
        self.spared.0.store(range.start, SeqCst);
        self.spared.1.store(range.end, SeqCst);
    }

    /// True when the engine may not register all of a range.
    pub fn spares(&self, range: &Range<usize>) -> bool {
        let (start, end) = (self.spared.0.load(SeqCst), self.spared.1.load(SeqCst));
        start < range.end && end > range.start
    }

    fn order(&self) -> Order {
        let word = self.exit_word.load(Acquire);
        // SAFETY: set from references of static life by `begin`, before the engine is born.
        let (memcg, slot) = unsafe { (&*self.memcg.load(Relaxed), &*self.slot.load(Relaxed)) };
        let main_thread = (word != 0).then(|| (word, self.exit_value.load(Relaxed)));
        Order { memcg, slot, pid: self.pid.load(Relaxed), main_thread }
    }
}

/// A line of text without an allocation; what is too long is cut.
pub struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Line { bytes: [0; 512], len: 0 }
    }
}

impl Line {
    /// The text so far.
    pub fn as_str(&self) -> &str {
        match core::str::from_utf8(&self.bytes[..self.len]) {
            Ok(text) => text,
            Err(e) => core::str::from_utf8(&self.bytes[..e.valid_up_to()]).unwrap_or(""),
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let take = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + take].copy_from_slice(&text.as_bytes()[..take]);
        self.len += take;
        Ok(())
    }
}

/// Leaves a message for the user.
pub fn last_words(text: &str) {
    // SAFETY: null, or of static life.
    if let Some(slot) = unsafe { CONTROL.slot.load(Acquire).as_ref() } {
        slot.say(text);
    }
}

/// Kills the program.
pub fn stop_program() {
    let pid = CONTROL.pid.load(Acquire);
    if pid != 0 {
        let _ = sys::kill(pid, SIGKILL);
    }
}

/// The program runs on without an engine; says why.
pub fn unmanaged(order: &Order, why: fmt::Arguments<'_>) {
    let mut line = Line::default();
    let _ = line.write_fmt(format_args!("process {} runs unmanaged: {why}", order.pid));
    order.slot.say(line.as_str());
    order.slot.state.store(memcg::State::Unmanaged as u32, Release);
    order.memcg.unmanaged.fetch_add(1, Relaxed);
}

/// The program, as seen from its engine.
struct Watch {
    order: Order,
    program: Fd,
    statm: Fd,
    own_pid: u32,
    cpu_ns: u64,
}

impl Watch {
    fn open(order: Order) -> Result<Watch, (&'static str, Errno)> {
        let program = sys::pidfd_open(order.pid).map_err(|e| ("pidfd_open", e))?;
        let statm = sys::open(b"/proc/self/statm\0", O_RDONLY).map_err(|e| ("/proc/self/statm", e))?;
        Ok(Watch { order, program, statm, own_pid: sys::getpid().unwrap_or(0) as u32, cpu_ns: 0 })
    }

    /// The program has ended, or executes another one in a memory of its own.
    fn gone(&self) -> bool {
        if sys::poll([&self.program], 0) == Ok([true]) {
            return true;
        }
        let Some((word, value)) = self.order.main_thread else { return false };
        // SAFETY: the main thread's control block; its mapping outlives the thread, and is never evicted (a pin).
        if unsafe { (word as *const u32).read_volatile() } == value {
            return false;
        }
        // The main thread is gone. Others may live on in the same memory; if not, another program runs under this number.
        match sys::same_vm(self.own_pid, self.order.pid) {
            Ok(same) => !same,
            Err(errno) => errno != Errno::ENOSYS,
        }
    }

    /// Sleeps until the program is gone, or for a time.
    fn sleep(&self, ns: u64) {
        match self.order.main_thread {
            // The kernel wakes this word as the thread ends or executes another program.
            Some((word, value)) => {
                let woken = sys::futex_wait(word as *const u32, value, Some(ns), true);
                if woken.is_ok() {
                    // The kernel wakes one sleeper: who joins the main thread must not miss it for us.
                    sys::futex_wake(word as *const u32, 1, true);
                } else if woken == Err(Errno::EAGAIN) {
                    // The main thread ended before others: wait for the process.
                    let _ = sys::poll([&self.program], ns);
                }
            }
            None => drop(sys::poll([&self.program], ns)),
        }
    }

    /// What this process may use: what others do not, first come, first served, and never less than a little.
    fn limit(&self, mine: usize) -> usize {
        let all = self.order.memcg.sum(|s| &s.footprint_bytes) as usize;
        let max = self.order.memcg.max_bytes.load(Relaxed) as usize;
        max.saturating_sub(all.saturating_sub(mine)).max(8 << 20)
    }

    fn count_cpu(&mut self) {
        let now = sys::process_cpu_ns();
        self.order.slot.stat.engine_cpu_ns.fetch_add(now - self.cpu_ns, Relaxed);
        self.cpu_ns = now;
    }
}

/// The engine's first instruction. `argument` is unused: all is in [`CONTROL`].
pub extern "C" fn main(_argument: usize) -> ! {
    sys::close_all();
    let _ = sys::chdir(c"/".as_ptr().cast());
    let _ = sys::setsid();
    let _ = sys::set_name(PR_SET_NAME, c"zfolio-engine".as_ptr().cast());
    let order = CONTROL.order();
    let (memcg, slot) = (order.memcg, order.slot);
    match Watch::open(order) {
        Ok(mut watch) => {
            adopt_own_data();
            // What fails because the program has ended meanwhile is no news.
            if asleep(&mut watch)
                && let Err((what, errno)) = awake(&mut watch)
                && !watch.gone()
            {
                unmanaged(&watch.order, format_args!("{what} says {errno}"));
                while !watch.gone() {
                    watch.sleep(1_000_000_000);
                }
            }
            watch.count_cpu();
        }
        // It ended before we began.
        Err((_, Errno::ESRCH)) => {}
        Err((what, errno)) => unmanaged(&CONTROL.order(), format_args!("{what} says {errno}")),
    }
    memcg.release(slot);
    sys::exit(0)
}

/// The library's own data is not the program's memory.
fn adopt_own_data() {
    if let Ok(maps) = Maps::open() {
        let data = &raw const CONTROL as usize;
        if let Ok(Some(m)) = maps.query(data) {
            arena::adopt(m.range);
        }
    }
}

/// Waits until the program comes near its limit; false when it ended before.
fn asleep(watch: &mut Watch) -> bool {
    watch.order.slot.state.store(memcg::State::Asleep as u32, Release);
    let evict_all = watch.order.memcg.settings.evict_all != 0;
    loop {
        if watch.gone() {
            return false;
        }
        crate::dontfork::collect();
        let footprint = footprint(&watch.statm);
        watch.order.memcg.publish(watch.order.slot, footprint as u64, footprint as u64, 0, 0);
        let threshold = if evict_all { 1 << 20 } else { watch.limit(footprint) / 2 };
        if footprint > threshold {
            return true;
        }
        // Fresh memory comes at 3 or 4 bytes a nanosecond: look again before it can have reached the threshold.
        let time = ((threshold - footprint) as u64 / 4).clamp(1_000_000, 500_000_000);
        watch.sleep(time);
        watch.count_cpu();
    }
}

/// The layout of the engine's own registered memory: stage, then doorbell.
struct Ground {
    stage: (usize, usize),
    doorbell: usize,
    nursery: usize,
}

impl Ground {
    fn map(limit: usize) -> Option<Ground> {
        let stage = (limit / 4).clamp(16 << 20, 1 << 30) / WINDOW * WINDOW;
        let at = arena::map(stage + WINDOW, 2 << 20)?;
        let nursery = arena::map(WINDOW, WINDOW)?;
        Some(Ground { stage: (at, stage), doorbell: at + stage, nursery })
    }
}

/// Manages the program's memory until it is gone. An error says what could not be had, before anything was touched.
fn awake(watch: &mut Watch) -> Result<(), (&'static str, Errno)> {
    let (memcg, slot, pid) = (watch.order.memcg, watch.order.slot, watch.order.pid);
    let evict_all = memcg.settings.evict_all != 0;
    let no_memory = ("mmap", Errno::ENOMEM);
    let compressor = acomp::Compressor::parse(memcg.settings.compressor())
        .map_err(|_| ("the compressor", Errno::EINVAL))?;
    let mut live = Live::open(pid, slot)?;
    let ground = Ground::map(watch.limit(footprint(&watch.statm))).ok_or(no_memory)?;
    let (base, bytes) = ground.stage;
    live.register_own(base..ground.doorbell + WINDOW).map_err(|e| ("UFFDIO_REGISTER", e))?;
    let mut seed = [0u8; 8];
    let _ = sys::getrandom(seed.as_mut_ptr(), seed.len(), 0);
    let cache = Cache::new(PoolMemory, compressor, u64::from_ne_bytes(seed));
    let bell = sys::eventfd().map_err(|e| ("eventfd", e))?;
    let board: &'static Board =
        Box::leak(Box::new(Board::new(bytes / WINDOW, cache, bell, &slot.stat, memcg.settings.damage_every)));
    let mine = Worker::new(compressor).map_err(|_| no_memory)?;
    let workers = start_workers(watch, board, compressor)?;
    let config =
        Config { stage: ground.stage, nursery: ground.nursery, doorbell: ground.doorbell, evict_all };
    let limit = watch.limit(footprint(&watch.statm));
    let mut pager = Pager::new(live, Counter::new(board, mine), &slot.stat, config, limit);
    CONTROL.doorbell.store(ground.doorbell, Release);
    CONTROL.state.store(State::Awake as u32, SeqCst);
    slot.state.store(memcg::State::Awake as u32, Release);
    run(watch, board, &mut pager, Seat::new(&workers, CONTROL.may_yield.load(Relaxed) != 0));
    watch.count_cpu();
    board.end();
    for worker in workers {
        let mut status = 0;
        while sys::wait4(worker, &mut status, __WALL) == Err(Errno::EINTR) {}
    }
    Ok(())
}

fn start_workers(
    watch: &Watch,
    board: &'static Board,
    compressor: acomp::Compressor,
) -> Result<Vec<u32>, (&'static str, Errno)> {
    let cpus = sys::CpuSet::of_this_thread();
    let mut pids = Vec::new();
    for _ in 0..cpus.count().clamp(1, 4) {
        // One is enough to look out.
        let statm = if pids.is_empty() { sys::open(b"/proc/self/statm\0", O_RDONLY).ok() } else { None };
        let state = Worker::new(compressor).map_err(|_| ("mmap", Errno::ENOMEM))?;
        let duty = worker::Duty {
            board,
            state,
            slot: watch.order.slot,
            engine: watch.own_pid,
            program: watch.order.pid,
            lookout: statm.map(|statm| worker::Lookout { statm, cpus }),
        };
        let duty = Box::into_raw(Box::new(duty));
        // SAFETY: `worker::main` is made to run beside the program, and takes the duty over.
        pids.push(unsafe { birth::helper(worker::main, duty as usize) }.map_err(|e| ("clone", e))?);
    }
    Ok(pids)
}

/// How long the pager polls without sleeping after it has served a fault: about what a wake-up on another CPU costs.
const SPIN_NS: u64 = 30_000;

/// How often the kernel is asked how much memory the process holds; in between the pager keeps count of what it does itself.
const LOOK_NS: u64 = 100_000;

/// How often figures are published.
const PUBLISH_NS: u64 = 2_000_000;

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

fn run(watch: &mut Watch, board: &Board, pager: &mut Pager<'_, Live, Counter>, mut seat: Seat) {
    let (memcg, slot) = (watch.order.memcg, watch.order.slot);
    let evict_all = memcg.settings.evict_all != 0;
    let full_ns = memcg.settings.full_timeout_ms.max(1000) as u64 * 1_000_000;
    let (mut looked_ns, mut published_ns, mut faults_seen, mut last_fault_ns) = (0, 0, 0, 0);
    let mut rests = Rests::new(memcg.settings.seed);
    loop {
        let now = sys::now_ns();
        let mut footprint = pager.usage().footprint;
        if now - looked_ns > LOOK_NS {
            let mapped;
            (looked_ns, (mapped, footprint)) = (now, sizes(&watch.statm));
            pager.mapped(mapped);
        }
        // In this order: a thread that is about to fork counts itself first, and then looks whether all is home.
        if CONTROL.forks.load(SeqCst) == 0 {
            CONTROL.home.store(0, SeqCst);
        }
        let rests_now = evict_all && now < rests.until_ns;
        pager.paused = rests_now || CONTROL.forks.load(SeqCst) > 0;
        let mut busy = pager.turn(footprint);
        if pager.rang {
            answer(pager);
            // Faults may have been read meanwhile, and nobody tells of them again.
            busy = true;
        }
        if now - published_ns > PUBLISH_NS {
            published_ns = now;
            let (stored, pool) = (pager.stored_bytes(), pager.store.pool_bytes());
            let wanted = (footprint + stored).saturating_sub(pool + pager.usage().stock);
            memcg.publish(slot, footprint as u64, wanted as u64, stored as u64, pool as u64);
            pager.set_limit(watch.limit(footprint));
            watch.count_cpu();
            if watch.gone() {
                return;
            }
            if let Some(since) = pager.waiting_since_ns() {
                full(watch, pager, now.saturating_sub(since), full_ns);
            }
        }
        let faults = slot.stat.faults.load(Relaxed) + slot.stat.fresh_faults.load(Relaxed);
        if faults != faults_seen {
            (faults_seen, last_fault_ns) = (faults, now);
        }
        let (thread, switches) = pager.kernel.faulters();
        let single = slot.stat.zswpin[0].load(Relaxed);
        if board.called.swap(0, AcqRel) != 0 {
            seat.leave(now);
        }
        seat.choose(now, Faults { all: faults, single, switches, thread }, |tid| pager.kernel.cpu_of(tid));
        board.alarm.store(if seat.is_taken() { pager.max_bytes() } else { 0 }, Relaxed);
        if evict_all {
            if !rests_now {
                rests.begin();
            } else if !busy {
                let time = rests.until_ns.saturating_sub(sys::now_ns());
                let _ = sys::poll([pager.kernel.fd(), &watch.program], time);
            }
        } else if !busy && (now - last_fault_ns > SPIN_NS || !seat.is_apart()) {
            let urgent = pager.waiting_since_ns().is_some() || pager.paused;
            let room = (watch.limit(footprint) - footprint.min(watch.limit(footprint))) as u64;
            let time = if urgent { 500_000 } else { (room / 4).clamp(500_000, 20_000_000) };
            seat.follow(|| pager.kernel.cpu_of(thread));
            board.pager_sleeps.store(pager.expects_results() as u32, SeqCst);
            let woken = sys::poll([pager.kernel.fd(), board.bell(), &watch.program], time);
            board.pager_sleeps.store(0, SeqCst);
            if woken.is_ok_and(|[_, bell, _]| bell) {
                let _ = sys::read(board.bell(), &mut [0; 8]);
            }
        }
    }
}

/// Does what a thread of the program asked for by the doorbell.
fn answer(pager: &mut Pager<'_, Live, Counter>) {
    let wish = CONTROL.wish.load(Acquire);
    let range = CONTROL.range.0.load(Relaxed)..CONTROL.range.1.load(Relaxed);
    if wish == Wish::Forget as u32 {
        pager.forget(range);
    } else if wish == Wish::LetGo as u32 {
        pager.let_go(range);
    }
    CONTROL.wish.store(0, Release);
    if CONTROL.forks.load(SeqCst) > 0 {
        pager.retire();
        CONTROL.home.store(1, SeqCst);
    }
    pager.answer();
}

/// A thread has waited for room for a while: warns, and at last stops the program.
fn full(watch: &Watch, pager: &Pager<'_, Live, Counter>, waited_ns: u64, full_ns: u64) {
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
    watch.order.slot.say(line.as_str());
    watch.order.slot.state.store(memcg::State::Stopped as u32, Release);
    let _ = sys::pidfd_send_signal(&watch.program, SIGKILL);
}
