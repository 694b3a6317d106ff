//! One process of the run, in the shared page.

use crate::reclaim::ReclaimRequest;
use crate::share::Share;
use crate::tunables::OwnTunables;
use crate::{NAME_BYTES, Stat, notice};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Nobody's.
    Free = 0,
    /// A process that is starting.
    Starting = 1,
    /// An engine is there and asleep: the process is far from the limit.
    Asleep = 2,
    /// The engine manages memory.
    Awake = 3,
    /// The engine could not start; `words` says why. The process runs unmanaged.
    Unmanaged = 4,
    /// The engine stopped the process; `words` says why.
    Stopped = 5,
    /// The process has ended, and its figures wait for `zfolio run`.
    Ended = 6,
    /// The process and its engine were killed together. Never a slot's own state: only what a process ended as.
    Killed = 7,
}

impl State {
    /// The state of this number; what is none is [`State::Free`].
    pub fn from_number(number: u32) -> State {
        use State::*;
        let all = [Free, Starting, Asleep, Awake, Unmanaged, Stopped, Ended, Killed];
        all.into_iter().find(|state| *state as u32 == number).unwrap_or(Free)
    }
}

/// One process of the run.
#[repr(C)]
pub struct Slot {
    /// Process id, as the process itself sees it; 0 is a free slot.
    pub pid: AtomicU32,
    /// Process id of the engine, 0 while there is none.
    pub engine_pid: AtomicU32,
    /// A [`State`].
    pub state: AtomicU32,
    /// Length of `words`; written last.
    pub words_len: AtomicU32,
    /// Bytes of private memory that the process holds now, engine, pool and inactive list included. A gauge.
    pub footprint_bytes: AtomicU64,
    /// Highest `footprint_bytes`.
    pub footprint_peak_bytes: AtomicU64,
    /// Bytes that the process would hold without zfolio. A gauge.
    pub wanted_bytes: AtomicU64,
    /// Bytes of pages that are out now, and of the pool's memory. Gauges.
    pub stored_bytes: AtomicU64,
    /// See `stored_bytes`.
    pub pool_bytes: AtomicU64,
    /// What is out now, in pages, in the order of [`PagesOut::values`](crate::PagesOut::values). Gauges.
    pub(crate) pages: [AtomicU64; 4],
    /// Highest `stored_bytes`.
    pub stored_peak_bytes: AtomicU64,
    /// `pool_bytes` at the time of `stored_peak_bytes`.
    pub pool_at_peak_bytes: AtomicU64,
    /// Counters.
    pub stat: Stat,
    /// The engine's last words: a message for the user, UTF-8, when `words_len` is not 0.
    pub words: [AtomicU64; 64],
    /// The process's name, padded with NUL. Written while it is read it may be half the old and half the new one.
    pub(crate) name: [AtomicU64; NAME_BYTES / 8],
    /// Process id of the parent when the slot was claimed.
    pub(crate) parent: AtomicU32,
    /// The last [`State`] of a process that has ended.
    pub(crate) ended_as: AtomicU32,
    /// When the program began and when its figures were handed in (0: not yet), on the monotonic clock.
    pub(crate) started_ns: AtomicU64,
    /// See `started_ns`.
    pub(crate) ended_ns: AtomicU64,
    /// Highest `wanted_bytes`.
    pub(crate) wanted_peak_bytes: AtomicU64,
    /// Odd while the gauges are being written, here and in [`Memcg::current`](crate::Memcg::current).
    pub(crate) turn: AtomicU64,
    /// Its part in the division of the limit.
    pub share: Share,
    /// The same for processes that have parts of a pool in common since a fork; 0 for one that has forked nobody so. By
    /// no more than the number of the first of them: two families may be taken for one.
    pub family: AtomicU32,
    /// When the process started, as /proc/PID/stat has it, set by its engine: with `pid` that is one process, in
    /// whatever namespace. 0 where it is not known.
    pub start: AtomicU64,
    /// The number of its row in swap's table, and 1; 0 where it has none.
    pub row: AtomicU32,
    /// What the user has said of this process alone.
    pub tunables: OwnTunables,
    /// What the user wants out of it now.
    pub reclaim: ReclaimRequest,
}

impl Slot {
    /// Leaves a message for the user, cut at 512 bytes; a second message is dropped, since the first is the cause.
    pub fn say(&self, text: &str) {
        if self.words_len.load(Acquire) != 0 {
            return;
        }
        self.words_len.store(notice::keep(&self.words, text) as u32, Release);
    }

    /// Copies the message into `buffer` and returns it, or `None` when there is none.
    pub fn said<'a>(&self, buffer: &'a mut [u8; 512]) -> Option<&'a str> {
        let len = self.words_len.load(Acquire) as usize;
        (len != 0).then(|| notice::kept(&self.words, len, buffer))
    }

    /// The slot's state.
    pub fn state(&self) -> State {
        State::from_number(self.state.load(Acquire))
    }

    /// Makes a slot in this state the caller's own; false when it is in another one.
    pub(crate) fn seize(&self, from: State) -> bool {
        self.state.compare_exchange(from as u32, State::Starting as u32, AcqRel, Relaxed).is_ok()
    }

    /// For the engine of process `pid`, before anything else: false when the slot is not its own any more, since the
    /// process was killed long ago.
    pub fn begin(&self, pid: u32, engine_pid: u32) -> bool {
        if self.pid.load(Acquire) != pid {
            return false;
        }
        self.engine_pid.store(engine_pid, Release);
        self.state.compare_exchange(State::Starting as u32, State::Asleep as u32, AcqRel, Relaxed).is_ok()
    }

    /// When the program began, in nanoseconds on the monotonic clock.
    pub fn started_ns(&self) -> u64 {
        self.started_ns.load(Relaxed)
    }

    /// Says who the process is: its parent's id, its name, and when its program began (monotonic).
    pub fn introduce(&self, parent: u32, name: &[u8; NAME_BYTES], started_ns: u64) {
        self.parent.store(parent, Relaxed);
        self.rename(name);
        self.started_ns.store(started_ns, Relaxed);
    }

    /// A new name, padded with NUL.
    pub fn rename(&self, name: &[u8; NAME_BYTES]) {
        for (cell, part) in self.name.iter().zip(name.as_chunks().0) {
            cell.store(u64::from_le_bytes(*part), Relaxed);
        }
    }

    /// Everything but the state and the counters becomes 0.
    pub(crate) fn clear(&self) {
        let words = [
            &self.pid,
            &self.engine_pid,
            &self.words_len,
            &self.parent,
            &self.ended_as,
            &self.family,
            &self.row,
        ];
        words.into_iter().for_each(|word| word.store(0, Relaxed));
        let figures = [
            &self.footprint_peak_bytes,
            &self.wanted_peak_bytes,
            &self.stored_peak_bytes,
            &self.pool_at_peak_bytes,
            &self.started_ns,
            &self.ended_ns,
            &self.start,
        ];
        for figure in figures.into_iter().chain(&self.name) {
            figure.store(0, Relaxed);
        }
    }
}
