//! What the program's threads and the engine tell each other.

use crate::advice::AdviceQueue;
use crate::blocks::BlockLayout;
use crate::hull::Hull;
use crate::pinned::Pinned;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use memcg::{Memcg, Slot};
use uffd::sys;

/// What the engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EngineState {
    /// Nothing is registered, nothing is out.
    Asleep = 0,
    /// Memory may be out; the doorbell is answered.
    Awake = 1,
}

/// What the program's threads and the engine tell each other.
pub struct Control {
    /// An [`EngineState`].
    pub state: AtomicU32,
    /// Calls of fork under way: while there are any, everything stays home.
    pub forks: AtomicU32,
    /// 1 when all is home since a fork asked for it, and stays.
    pub home: AtomicU32,
    /// 1 when the program has ever made a guard region, which a copy would overwrite.
    pub guards: AtomicU32,
    /// [`DOORBELL_BYTES`] of which a page is to be touched for an answer; 0 before there are any.
    pub doorbell: AtomicUsize,
    /// How often that was done: each time it is the next page.
    pub rings: AtomicUsize,
    /// How much the program has mapped, as far as that passes the library, in bytes, ever; and how much it had when all
    /// there was had been registered, or an engine that sleeps had looked.
    pub mapped_bytes: AtomicUsize,
    /// Where that is which was mapped since the engine has registered what was asked for: on the heap of brk, and
    /// elsewhere.
    pub fresh: [Hull; 2],
    /// See `mapped_bytes`.
    pub enrolled_bytes: AtomicUsize,
    /// How much one may be ahead of the other before the engine must be asked to see to it; 0 while it need not be.
    pub ahead_bytes: AtomicUsize,
    /// What a thread of the program asks for by the doorbell ([`Request`]); 0 when it is done.
    pub request: AtomicU32,
    /// The range that the request is about.
    pub range: (AtomicUsize, AtomicUsize),
    /// What came of a request that can be refused: an errno, 0 for none, or [`UNANSWERED`].
    pub outcome: AtomicU32,
    /// What the program has advised, and the engine has not taken yet.
    pub advice: AdviceQueue,
    /// A range that the engine may not register; (0, 0) when there is none.
    pub spared: (AtomicUsize, AtomicUsize),
    /// A range that must not leave the program; (0, 0) when there is none.
    pub held: (AtomicUsize, AtomicUsize),
    /// What the program has pinned, which must not leave it either.
    pub pinned: Pinned,
    /// Where the pages of a range are, as [`Request::Tell`] was answered: bytes, in the order of `mm::tell::Places`.
    pub told: [AtomicUsize; 6],
    /// What the engine is taking of memory that cannot be written to (detach.rs); (0, 0) when nothing.
    taken: (AtomicUsize, AtomicUsize),
    /// Calls of mremap under way, during which nothing is taken so.
    remaps: AtomicU32,
    memcg: AtomicPtr<Memcg>,
    /// This process's slot of the run's page; null where it has none.
    pub slot: AtomicPtr<Slot>,
    /// The process that the engine is for.
    pub pid: AtomicU32,
    /// Address of the main thread's exit word and what it says while the thread lives; 0 where it is not known.
    exit_word: AtomicUsize,
    exit_value: AtomicU32,
    /// 1 once the engine has looked at the process for the first time, and manages it if it has to, or will never.
    pub looked: AtomicU32,
    /// 1 when the engine may become SCHED_IDLE and leave that again.
    pub may_yield: AtomicU32,
    /// Address of the [`crate::fork_channel::ForkChannel`] of the fork that a thread has asked for; 0 where there can
    /// be none.
    pub channel: AtomicUsize,
    /// How many of thread and engine still use it.
    pub channel_users: AtomicU32,
    /// Address of one that the engine has left before the thread; 0 for none.
    pub left_channel: AtomicUsize,
    /// 1 while huge pages are forbidden for a fork, and in a child that has not allowed them again.
    pub forbids_huge: AtomicU32,
    /// Address of the pager: a child's engine finds the copy of its parent's there.
    pub pager: AtomicUsize,
    /// What keys the hashes of objects: a child's are its parent's.
    pub seed: AtomicU64,
    /// In a child that took over: a [`Takeover`].
    pub takeover: AtomicU32,
    /// 1 in a child of fork that no engine has looked at yet: what it holds its parent holds too.
    pub inherits: AtomicU32,
    /// How often a copy of the process that a hook saw was begun, or was made (unhooked.rs).
    pub copies: AtomicU32,
    /// 1 when the program has kept something out of its children while its engine slept, or it had none.
    pub early_advice: AtomicU32,
    /// How often the program has advised for huge pages, or against them.
    pub huge_advice: AtomicU32,
    /// 1 when the program may keep something out of its children of which the engine knows (dontfork.rs).
    pub keeps_out: AtomicU32,
    /// 1 when the program has ever forked: some of its memory may be another's too.
    pub has_forked: AtomicU32,
    /// How often the engine was asked to see to the program's rights, and up to which time it has done so (follow.rs).
    pub rights_asked: AtomicU32,
    /// See `rights_asked`.
    pub rights_done: AtomicU32,
    /// Where the executable's constants are that have been given anonymous memory (relro.rs); (0, 0) where there are
    /// none.
    pub constants: (AtomicUsize, AtomicUsize),
    /// What libc says of its threads.
    pub blocks: BlockLayout,
}

/// Bytes of the doorbell, whose pages are touched by turns.
pub const DOORBELL_BYTES: usize = 64 << 10;

/// See [`Control::taking`].
pub struct Taking<'a>(&'a Control);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.taken.1.store(0, SeqCst);
        self.0.taken.0.store(0, SeqCst);
    }
}

/// For how long a thread waits for its new engine, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;

/// For how long one waits for an engine that sleeps, and how often it is called.
const ROUSED_NS: u64 = 1_000_000_000;
const CALL_NS: u64 = 1_000_000;

/// How a child stands that takes over from its parent's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Takeover {
    /// This process has taken nothing over.
    None = 0,
    /// Its engine is at it, and its thread waits.
    UnderWay = 1,
    /// All is registered: it may run on.
    Done = 2,
    /// It must not.
    Failed = 3,
}

/// What a thread of the program can ask the engine for, beside bringing everything home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Request {
    /// A range is to have guards (MADV_GUARD_INSTALL).
    Guard = 1,
    /// Another userfaultfd is to have a range: its contents are to come home, and its registration is to end.
    LetGo = 2,
    /// The thread is about to fork, and the child is to take over what is out.
    Fork = 3,
    /// Memory has been mapped that could be filled faster than the engine looks: it is to be registered.
    Enroll = 4,
    /// Children are not to have a range (MADV_DONTFORK).
    KeepOut = 5,
    /// Children are to have a range (MADV_DOFORK).
    LetIn = 6,
    /// mremap has moved something to a range, or shrunk it.
    Move = 7,
    /// mremap has enlarged something by this range.
    Grow = 8,
    /// The kernel is about to look at a range, or to take it: what is out there is to come home, in the order of
    /// addresses. Where the end of the range was is then up to where it has.
    Hold = 9,
    /// How the pages of a range stand is to be told (pagemap_reads.rs).
    Look = 10,
    /// Where the pages of a range are is to be told (`told`).
    Tell = 11,
}

/// Nobody has answered a request yet: not an errno.
pub const UNANSWERED: u32 = u32::MAX;

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
            state: AtomicU32::new(EngineState::Asleep as u32),
            forks: AtomicU32::new(0),
            home: AtomicU32::new(0),
            guards: AtomicU32::new(0),
            doorbell: AtomicUsize::new(0),
            rings: AtomicUsize::new(0),
            mapped_bytes: AtomicUsize::new(0),
            fresh: [const { Hull::new() }; 2],
            enrolled_bytes: AtomicUsize::new(0),
            ahead_bytes: AtomicUsize::new(0),
            request: AtomicU32::new(0),
            range: (AtomicUsize::new(0), AtomicUsize::new(0)),
            outcome: AtomicU32::new(UNANSWERED),
            advice: AdviceQueue::new(),
            spared: (AtomicUsize::new(0), AtomicUsize::new(0)),
            held: (AtomicUsize::new(0), AtomicUsize::new(0)),
            pinned: Pinned::new(),
            told: [const { AtomicUsize::new(0) }; 6],
            taken: (AtomicUsize::new(0), AtomicUsize::new(0)),
            remaps: AtomicU32::new(0),
            memcg: AtomicPtr::new(core::ptr::null_mut()),
            slot: AtomicPtr::new(core::ptr::null_mut()),
            pid: AtomicU32::new(0),
            exit_word: AtomicUsize::new(0),
            exit_value: AtomicU32::new(0),
            looked: AtomicU32::new(0),
            may_yield: AtomicU32::new(0),
            channel: AtomicUsize::new(0),
            channel_users: AtomicU32::new(0),
            left_channel: AtomicUsize::new(0),
            forbids_huge: AtomicU32::new(0),
            pager: AtomicUsize::new(0),
            seed: AtomicU64::new(0),
            takeover: AtomicU32::new(Takeover::None as u32),
            inherits: AtomicU32::new(0),
            copies: AtomicU32::new(0),
            huge_advice: AtomicU32::new(0),
            early_advice: AtomicU32::new(0),
            keeps_out: AtomicU32::new(0),
            has_forked: AtomicU32::new(0),
            rights_asked: AtomicU32::new(0),
            rights_done: AtomicU32::new(0),
            constants: (AtomicUsize::new(0), AtomicUsize::new(0)),
            blocks: BlockLayout::unknown(),
        }
    }

    /// What has been mapped since the engine has seen to all there was, in bytes.
    pub fn unseen_bytes(&self) -> usize {
        self.mapped_bytes.load(Relaxed).wrapping_sub(self.enrolled_bytes.load(Relaxed))
    }

    /// True when that is more than the engine allows, if there is one.
    pub fn is_ahead(&self) -> bool {
        let most = self.ahead_bytes.load(Relaxed);
        most != 0 && self.unseen_bytes() >= most
    }

    /// The process is about to make a copy of itself.
    pub fn begin_copy(&self) {
        self.has_forked.store(1, Relaxed);
        self.copies.fetch_add(1, SeqCst);
    }

    /// It has made one, or has failed to.
    pub fn end_copy(&self) {
        self.copies.fetch_add(1, SeqCst);
    }

    /// True when the program may keep something out of its children of which the engine knows.
    #[inline(always)]
    pub fn may_keep_out(&self) -> bool {
        self.keeps_out.load(SeqCst) != 0
    }

    /// True when all of a range is constants of the executable in anonymous memory (relro.rs).
    pub fn are_constants(&self, range: &Range<usize>) -> bool {
        self.constants.0.load(Relaxed) <= range.start && range.end <= self.constants.1.load(Relaxed)
    }

    /// What the engine does now.
    pub fn state(&self) -> EngineState {
        if self.state.load(SeqCst) == EngineState::Awake as u32 {
            EngineState::Awake
        } else {
            EngineState::Asleep
        }
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

    /// Says for whom the engine that is about to be made is.
    pub fn begin(&self, order: &Order) {
        self.memcg.store(core::ptr::from_ref(order.memcg).cast_mut(), Relaxed);
        self.slot.store(core::ptr::from_ref(order.slot).cast_mut(), Relaxed);
        self.pid.store(order.pid, Relaxed);
        let (word, value) = order.main_thread.unwrap_or((0, 0));
        self.exit_word.store(word, Relaxed);
        self.exit_value.store(value, Release);
    }

    /// In a child of fork: nobody's yet. What an engine finds is its parent's too if it `inherits` that.
    ///
    /// What is so already is not written: where there was no engine that is all, and the child goes on sharing the page
    /// with its parent.
    // By itself, where zfolio.ld has what a small child runs.
    #[inline(never)]
    pub fn reset(&self, inherits: bool) {
        macro_rules! put {
            ($($cell:expr, $value:expr;)*) => {
                $(if $cell.load(Relaxed) != $value {
                    $cell.store($value, Relaxed);
                })*
            };
        }
        // Nothing here is registered, or what the parent had.
        self.fresh.iter().for_each(Hull::reset);
        self.advice.reset();
        self.pinned.reset();
        // The parent's.
        if !self.slot.load(Relaxed).is_null() {
            self.slot.store(core::ptr::null_mut(), Relaxed);
        }
        put! {
            self.state, EngineState::Asleep as u32;
            self.forks, 0;
            self.home, 0;
            self.doorbell, 0;
            self.ahead_bytes, 0;
            self.request, 0;
            self.spared.0, 0;
            self.spared.1, 0;
            self.held.0, 0;
            self.held.1, 0;
            self.taken.0, 0;
            self.taken.1, 0;
            self.remaps, 0;
            self.channel, 0;
            self.left_channel, 0;
            self.looked, 0;
            self.takeover, Takeover::None as u32;
            self.inherits, inherits as u32;
            self.early_advice, 0;
            self.keeps_out, 0;
            self.rights_asked, 0;
            self.rights_done, 0;
        }
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

    /// Keeps what is in a range from leaving it; an empty one keeps nothing.
    pub fn hold(&self, range: Range<usize>) {
        // Half written it keeps nothing. What leaves then comes back as the engine is asked.
        self.held.1.store(0, SeqCst);
        self.held.0.store(range.start, SeqCst);
        self.held.1.store(range.end, SeqCst);
    }

    /// True when the page at `at` must stay.
    pub fn holds(&self, at: usize) -> bool {
        at < self.held.1.load(SeqCst) && at >= self.held.0.load(SeqCst) || self.pinned.holds(at)
    }

    /// For the engine: it takes pages of this range, which are neither there nor with the pager as long as the
    /// result lives. `None` while mappings are moved.
    pub fn taking(&self, range: Range<usize>) -> Option<Taking<'_>> {
        // Each of the two says first what it is about to do, and then looks at the other.
        self.taken.0.store(range.start, SeqCst);
        self.taken.1.store(range.end, SeqCst);
        let taking = Taking(self);
        (self.remaps.load(SeqCst) == 0).then_some(taking)
    }

    /// A mapping is about to be moved: waits until the engine takes nothing. (A signal handler may leave it for
    /// good, and never say that it is done: then nothing is taken any more.)
    pub fn begin_remap(&self) {
        loop {
            self.remaps.fetch_add(1, SeqCst);
            if self.taken.1.load(SeqCst) == 0 || !self.has_engine() {
                return;
            }
            self.remaps.fetch_sub(1, SeqCst);
            while self.taken.1.load(SeqCst) != 0 && self.has_engine() {
                sys::sched_yield();
            }
        }
    }

    /// It has been.
    pub fn end_remap(&self) {
        self.remaps.fetch_sub(1, SeqCst);
    }

    /// Something new was mapped, of which nobody knows yet: waits until the engine does not take it for what was
    /// there before.
    pub fn await_taken(&self, range: Range<usize>) {
        let is_taken = || self.taken.0.load(SeqCst) < range.end && self.taken.1.load(SeqCst) > range.start;
        while is_taken() && self.has_engine() {
            sys::sched_yield();
        }
    }

    /// For the engine: true when no fork is under way, and the next one finds that not all is home.
    pub fn is_forkless(&self) -> bool {
        // In this order: a thread that is about to fork counts itself first, and then looks whether all is home.
        if self.forks.load(SeqCst) == 0 {
            self.home.store(0, SeqCst);
        }
        self.forks.load(SeqCst) == 0
    }

    /// For the engine: it has looked.
    pub fn has_looked(&self) {
        if self.looked.swap(1, Release) == 0 {
            sys::futex_wake(self.looked.as_ptr(), u32::MAX >> 1, false);
        }
    }

    /// Waits until the engine has looked, but not for long: it may wait for something itself.
    pub fn await_look(&self) {
        let end = sys::now_ns() + LOOK_NS;
        while self.looked.load(Acquire) == 0 && sys::now_ns() < end {
            let _ = sys::futex_wait(self.looked.as_ptr(), 0, Some(LOOK_NS / 4), false);
        }
    }

    /// The same for as long as one waits for an engine that sleeps: there is much to be seen to.
    pub fn await_engine(&self) {
        let end = sys::now_ns() + ROUSED_NS;
        while self.looked.load(Acquire) == 0 && self.has_engine() && sys::now_ns() < end {
            self.await_look();
        }
    }

    /// More has been mapped than an engine that sleeps allows: has it look, and waits until it has, but no longer than
    /// a second.
    pub fn rouse(&self) {
        let end = sys::now_ns() + ROUSED_NS;
        while self.is_ahead() && sys::now_ns() < end {
            self.looked.store(0, Relaxed);
            // It may be about to fall asleep, and so it is called again and again.
            self.call();
            let _ = sys::futex_wait(self.looked.as_ptr(), 0, Some(CALL_NS), false);
        }
    }

    /// Has an engine that sleeps look.
    pub fn call(&self) {
        let word = self.exit_word.load(Acquire);
        if word != 0 {
            sys::futex_wake(word as *const u32, u32::MAX >> 1, true);
        }
    }

    /// What was given to `begin`.
    pub fn order(&self) -> Order {
        let word = self.exit_word.load(Acquire);
        // SAFETY: set from references of static life by `begin`, before the engine is made.
        let (memcg, slot) = unsafe { (&*self.memcg.load(Relaxed), &*self.slot.load(Relaxed)) };
        let main_thread = (word != 0).then(|| (word, self.exit_value.load(Relaxed)));
        Order { memcg, slot, pid: self.pid.load(Relaxed), main_thread }
    }
}
