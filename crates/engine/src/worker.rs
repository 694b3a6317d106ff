//! A worker's process: takes jobs from the board until the engine ends, and sees to it that the engine's death is not
//! silent.
//!
//! It has an address space of its own, without the program (processes.rs): while it runs, neither the engine that moves
//! pages nor the program that maps and unmaps has to interrupt its CPU to make it forget addresses. (Linux 6.18 on two
//! virtual CPUs: 11 us for the move of a page where a worker runs in the same address space, 0.8 us where it does not.)
//! What it compresses it copies out of the program first.
//!
//! Workers share the engine's descriptors. While one of them lives the userfaultfd stays open, and memory that is out
//! cannot turn into zeros: if the engine dies before the program, a worker stops the program with a message, and stays
//! until it has gone.

use crate::board::{Board, Hand, Reply, Task, Work};
use crate::creds;
use crate::filter::{self, Company, Phase};
use crate::follow::Follower;
use crate::maker::Maker;
use crate::meter::Meter;
use crate::processes::Kept;
use alloc::vec;
use alloc::vec::Vec;
use control::footprint::{Status, footprint};
use core::sync::atomic::Ordering::*;
use memcg::accelerator::Attached;
use memcg::{Memcg, Slot};
use uffd::sys::{self, CpuSet, consts::*};
use uffd::{Fd, Memory};
use vmscan::{PAGE, WINDOW};
use zswap::{BATCH_MAX, Codec, Damaged, Load, PARCEL_MAX_BYTES, Packed, PageMask, Priors, Window};

/// What a worker is started with.
pub struct WorkerStart {
    /// The run's page, with the slot in it.
    pub memcg: &'static Memcg,
    /// Where jobs are.
    pub board: Board,
    /// Which worker it is.
    pub number: usize,
    /// What it leaves of the address space that it was made with; `None` where that is the engine's own.
    pub kept: Option<Kept>,
    /// The program's and engine's memory.
    pub memory: Memory,
    /// What makes objects as it begins.
    pub maker: Maker,
    /// What keys their hashes.
    pub seed: u64,
    /// The user's dictionary.
    pub file: &'static [u8],
    /// The process's slot.
    pub slot: &'static Slot,
    /// The engine's process.
    pub engine: u32,
    /// The program's process.
    pub program: u32,
    /// For the worker that looks out for the footprint while the engine may not run.
    pub lookout: Option<Lookout>,
}

/// What that takes.
pub struct Lookout {
    /// The engine's /proc/PID/statm.
    pub statm: Fd,
    /// Where the engine may run when it is called.
    pub cpus: CpuSet,
}

/// How long a worker sleeps before it looks whether the engine is alive.
const LOOK_NS: u64 = 100_000_000;

/// The same of one for which there is no CPU.
const UNWANTED_LOOK_NS: u64 = 1_000_000_000;

/// How often the one that looks out does so.
const LOOK_OUT_NS: u64 = 500_000;

/// How long the engine may go on after the program has ended.
const GRACE_NS: u64 = 3_000_000_000;

/// How long a worker waits before it tries again to read what it must.
const AGAIN_NS: u64 = 1_000_000;

/// Who is watched, and what was used.
struct WorkerWatch<'a> {
    start: &'a WorkerStart,
    engine: Fd,
    program: Fd,
    gone_since: Option<u64>,
    cpu_ns: u64,
    looked_ns: u64,
    /// This process's own /proc/PID/statm and what the machine's swap has of it, where its memory is its own.
    own: Option<(Fd, Status)>,
    rights: Follower,
    /// Where there is a device.
    meter: Option<Meter>,
}

impl<'a> WorkerWatch<'a> {
    fn new(start: &'a WorkerStart, engine: Fd, program: Fd, meter: Option<Meter>) -> WorkerWatch<'a> {
        let own = start
            .kept
            .as_ref()
            .and_then(|_| Some((sys::open(b"/proc/self/statm\0", O_RDONLY).ok()?, Status::open())));
        let rights = Follower::open(Some(start.program), start.kept.is_none());
        WorkerWatch { start, engine, program, gone_since: None, cpu_ns: 0, looked_ns: 0, own, rights, meter }
    }

    /// Looks, and says how much memory it has, unless that was a moment ago.
    fn look_now_and_then(&mut self) {
        let now = sys::now_ns();
        if now - self.looked_ns > LOOK_NS / 2 {
            self.looked_ns = now;
            self.look();
            if let Some((statm, status)) = &mut self.own {
                let bytes = footprint(statm) + status.swapped_bytes(now, self.start.memcg);
                self.start.board.head().private[self.start.number].store(bytes, Relaxed);
            }
        }
    }

    /// Gives up what the program has given up, when the engine says so.
    fn follow(&mut self) {
        let WorkerStart { board, number, .. } = self.start;
        if board.is_to_follow(*number) {
            board.follow(*number, || {
                if self.rights.has_changed(sys::now_ns()) {
                    self.rights.follow();
                }
            });
        }
    }

    fn count(&mut self) {
        let now = sys::process_cpu_ns();
        self.start.slot.stat.engine_cpu_ns.fetch_add(now - self.cpu_ns, Relaxed);
        self.cpu_ns = now;
        if let Some(meter) = &mut self.meter {
            meter.tell(&self.start.memcg.accelerator);
        }
    }

    /// Ends this process when there is nobody left to work for; the program too where the engine has died before it.
    fn look(&mut self) {
        self.count();
        let WorkerStart { board, slot, .. } = self.start;
        let ended = |fd: &Fd| sys::poll([fd], 0) == Ok([true]);
        if ended(&self.engine) && board.head().stop.load(SeqCst) == 0 {
            // Of a program that was killed too the slot may be another's by now.
            if slot.pid.load(Acquire) == self.start.program {
                slot.say("the engine has died; the program was stopped, since its memory cannot be restored");
                slot.state.store(memcg::State::Stopped as u32, Release);
            }
            let _ = sys::pidfd_send_signal(&self.program, SIGKILL);
            // The first process of a PID namespace does not heed that: `zfolio run` ends it, and until then whoever
            // touches what is out waits.
            while !ended(&self.program) {
                sys::sleep_ns(AGAIN_NS);
            }
            sys::exit(0);
        }
        // The engine ends with the program; one that does not is ended, since it would hold the memory for ever.
        if ended(&self.program) {
            let now = sys::now_ns();
            if now - *self.gone_since.get_or_insert(now) > GRACE_NS {
                let _ = sys::kill(self.start.engine, SIGKILL);
                sys::exit(0);
            }
        }
    }
}

/// What a worker works with.
struct Bench {
    codec: Codec,
    /// What makes objects: [`Maker::word`].
    made_by: u64,
    /// As many windows as are packed together, or objects as are unpacked.
    bytes: Vec<u8>,
}

impl Bench {
    fn new(codec: Codec, maker: Maker) -> Bench {
        let bytes = vec![0; PARCEL_MAX_BYTES.max(WINDOW) * codec.batch_size()];
        Bench { codec, made_by: maker.word, bytes }
    }

    /// Has objects made by what this word says. Where that cannot be had they are made as before.
    fn follow(&mut self, memcg: &Memcg, word: u64) {
        if word != self.made_by
            && let Some(maker) = Maker::of(memcg, word)
            && self.codec.make_by(maker.choice).is_ok()
        {
            self.made_by = word;
        }
    }

    /// Does what a worker has taken, and calls `between` meanwhile.
    fn act(
        &mut self,
        watch: &mut WorkerWatch<'_>,
        tasks: &mut [Option<Task<'_>>],
        between: &mut dyn FnMut(&mut WorkerWatch<'_>),
    ) {
        self.unpack(watch, tasks, between);
        self.pack(watch, tasks, between);
    }

    fn pack(
        &mut self,
        watch: &mut WorkerWatch<'_>,
        tasks: &mut [Option<Task<'_>>],
        between: &mut dyn FnMut(&mut WorkerWatch<'_>),
    ) {
        let none = Priors::default();
        let mut windows: [Window<'_>; BATCH_MAX] = core::array::from_fn(|_| Window {
            bytes: &mut [],
            pages: PageMask::NONE,
            unit: 1,
            priors: &none,
            is_plain: false,
            parcel: &mut [],
            packed: Packed::default(),
        });
        let wants = tasks.iter().flatten().find_map(|task| match task.work {
            Work::Pack { made_by, .. } => Some(*made_by),
            Work::Unpack { .. } => None,
        });
        let Some(wants) = wants else { return };
        self.follow(watch.start.memcg, wants);
        let mut count = 0;
        let places = self.bytes.chunks_exact_mut(WINDOW);
        let mut replies = [const { None }; BATCH_MAX];
        for (Task { work, parcel, reply, .. }, bytes) in tasks.iter_mut().flatten().zip(places) {
            let Work::Pack { at, pages, unit, priors, is_plain, .. } = work else { continue };
            copy(watch, *at, *pages, bytes);
            let (pages, unit, is_plain, packed) = (*pages, *unit, *is_plain, Packed::default());
            windows[count] = Window { bytes, pages, unit, priors, is_plain, parcel, packed };
            replies[count] = Some(reply);
            count += 1;
        }
        self.codec.keep_above(watch.start.memcg.tunables.max_compression_ratio.load(Relaxed));
        self.codec.pack(&mut windows[..count], &mut || between(watch));
        for (reply, window) in replies.into_iter().flatten().zip(windows) {
            *reply = Reply::Packed(window.packed);
        }
    }

    fn unpack(
        &mut self,
        watch: &mut WorkerWatch<'_>,
        tasks: &mut [Option<Task<'_>>],
        between: &mut dyn FnMut(&mut WorkerWatch<'_>),
    ) {
        let start = watch.start;
        let memory = &start.memory;
        let mut loads: [Load<'_>; BATCH_MAX] = core::array::from_fn(|_| Load {
            object: &[],
            fingerprint: 0,
            first: 0,
            to: &mut [],
            result: Err(Damaged::Stream),
        });
        let mut replies = [const { None }; BATCH_MAX];
        let mut count = 0;
        let places = self.bytes.chunks_exact_mut(PARCEL_MAX_BYTES);
        for (Task { work, parcel, reply, .. }, place) in tasks.iter_mut().flatten().zip(places) {
            let Work::Unpack { object, bytes, fingerprint, first, pages, to } = **work else { continue };
            *reply = Reply::Unpacked(false);
            let place = &mut place[..bytes];
            if memory.read(object, place) {
                loads[count] = Load {
                    object: place,
                    fingerprint,
                    first,
                    to: &mut parcel[..pages * PAGE],
                    result: Err(Damaged::Stream),
                };
                replies[count] = Some((reply, to));
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
        self.codec.unpack_all(&mut loads[..count], &mut || between(watch));
        for ((reply, to), load) in replies.into_iter().flatten().zip(&loads) {
            // SAFETY: a slot of the inactive list that is this job's.
            *reply = Reply::Unpacked(load.result.is_ok() && unsafe { memory.write(to, load.to) });
        }
    }
}

/// Copies `pages` of the window at `at`, each to its place.
fn copy(watch: &mut WorkerWatch<'_>, at: usize, pages: PageMask, window: &mut [u8]) {
    for run in pages.runs() {
        // They are there; what keeps them from being read passes, or this process ends with the engine.
        while !watch.start.memory.read(at + run.start * PAGE, &mut window[run.start * PAGE..run.end * PAGE]) {
            watch.look();
            sys::sleep_ns(AGAIN_NS);
        }
    }
}

/// Opens the device that a compressor is made for, if there is one and it is one that may be opened here, and has it do
/// that compressor's work.
///
/// Here and not in the engine: a device works in the address space of whoever opened it, which is to be neither the
/// program's nor one that a child of fork takes over. What the engine reads back itself it reads in software.
fn attach_device(start: &WorkerStart, codec: &mut Codec) -> Option<Meter> {
    start.maker.choice.device()?;
    let mut driver = None;
    let root = start.memcg.settings.iaa_root.as_str();
    let open = |config| {
        driver = acomp::open_device(root, config);
        driver.clone()
    };
    let attached = match start.kept {
        None => Attached::NotApart,
        Some(_) if codec.attach(|context| context.attach(open)) => Attached::Yes,
        Some(_) => Attached::NoQueue,
    };
    start.memcg.accelerator.count_worker(attached);
    driver.filter(|_| attached == Attached::Yes).map(Meter::new)
}

/// While the engine may not run: calls it where the process has grown beyond what it may. False where this worker is
/// not to look for that, or the engine runs.
fn look_out(start: &WorkerStart) -> bool {
    let (board, head) = (start.board, start.board.head());
    let alarm = head.alarm.load(Relaxed);
    let Some(lookout) = start.lookout.as_ref().filter(|_| alarm > 0) else { return false };
    if footprint(&lookout.statm) > alarm && head.called.swap(1, AcqRel) == 0 {
        let _ = sys::sched_setscheduler(start.engine, SCHED_OTHER);
        let _ = sys::sched_setaffinity(start.engine, &lookout.cpus);
        board.wake_pager();
    }
    true
}

/// A worker's first instruction; `start` is the address of a [`WorkerStart`] that is this process's.
pub extern "C" fn main(start: usize) -> ! {
    // SAFETY: `processes` has written the start there for this process alone.
    let start = unsafe { &*(start as *const WorkerStart) };
    let _ = sys::set_name(c"zfolio-worker");
    // SAFETY: this process was made apart, and uses nothing of the engine's but what is kept.
    let is_alone = start.kept.as_ref().is_none_or(|kept| unsafe { kept.leave_the_rest() });
    let codec = Codec::new(start.maker.choice, start.seed, start.file);
    let watched = (sys::pidfd_open(start.engine), sys::pidfd_open(start.program));
    let (true, Ok(mut codec), (Ok(engine), Ok(program))) = (is_alone, codec, watched) else { sys::exit(1) };
    if start.kept.is_some() {
        // It has pages of the program's, and descriptors by which to read the others: these are not for whoever may
        // look at a process of this user.
        creds::forbid_looks();
    }
    let meter = attach_device(start, &mut codec);
    // While anything may be opened still: by these names it opens queues that come later.
    let doors = meter.as_ref().and_then(|_| acomp::doors::seal(start.memcg.settings.iaa_root.as_str()));
    let mut bench = Bench::new(codec, start.maker);
    // Without a device, for loads that come while a device works: they do not wait for it.
    let most = bench.codec.batch_size();
    let aside = if most > 1 { Codec::new(start.maker.choice, start.seed, start.file).ok() } else { None };
    let mut aside = aside.map(|codec| Bench::new(codec, start.maker));
    let mut watch = WorkerWatch::new(start, engine, program, meter);
    let (board, head) = (start.board, start.board.head());
    let mut hand = Hand::new(most);
    filter::enter(Phase::Works, Company { program: start.program, engine: start.engine, doors });
    board.report_ready();
    while head.stop.load(SeqCst) == 0 {
        watch.follow();
        let mut serve_loads = |watch: &mut WorkerWatch<'_>| {
            if let Some(aside) = &mut aside {
                board.serve_load(most, |tasks| aside.act(watch, tasks, &mut |_| {}));
            }
        };
        if !board.is_wanted(start.number) {
            board.rest(&mut hand);
        } else if board.serve(&mut hand, |tasks| bench.act(&mut watch, tasks, &mut serve_loads)) {
            bench.codec.look();
            hand.take_up_to(bench.codec.batch_size());
            continue;
        }
        bench.codec.rest();
        watch.look_now_and_then();
        let look_ns = match board.is_wanted(start.number) {
            true if look_out(start) => LOOK_OUT_NS,
            true => LOOK_NS,
            false => UNWANTED_LOOK_NS,
        };
        board.wait(start.number, &hand, look_ns);
    }
    watch.count();
    sys::exit(0)
}
