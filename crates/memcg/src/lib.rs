//! The control group of one run: the page of limits and counters that `zfolio run` and the engine of
//! each process share through one mapped file.
//!
//! ```text
//!   zfolio run ── creates ──> Memcg { limit, settings, totals, slots[0..SLOTS] } <── maps ── engine of pid 1
//!        └── reads totals, empties slots of processes that have ended           <── maps ── engine of pid 2
//! ```
//!
//! The life of a slot. Whoever makes a transition by compare-and-swap has the slot for itself until the next one:
//!
//! ```text
//!   Free ── claim ──> Starting ── begin ──> Asleep, Awake, Stopped, Unmanaged
//!    ^                   |                         |
//!    |                   |  killed with its engine |  release (engine), reap (zfolio run)
//!    +── collect (zfolio run) ─── Ended <──────────+
//!                        ^          |
//!                        +── claim ─+   when none is free: the figures of that process are lost, its counters are not
//! ```
//!
//! Every field is an atomic or is written once before the first process starts, so that any process may die at any
//! instruction and leave a page that the others can read. Names are those of the kernel's memory controller
//! (`memory.max`, `memory.current`, `memory.peak`, `memory.stat`) where it has one.
//!
//! - [`Memcg`]: the whole file; [`Settings`]: what the user asked for; [`AreaSetting`]: a swap area of it
//! - [`tunables`]: what the user may change while the run goes on; [`reclaim`]: a process that is to shrink now
//! - [`Slot`]: one process; [`Process`]: a copy of its figures
//! - [`stat`]: what is counted: the table, [`Stat`] in the page, [`Counts`] as a copy
//! - [`Gauges`]: what all of them hold together
//! - [`hist::Histogram`]: latencies, log-linear
//! - [`accelerator`]: what devices have done
//! - [`division`]: how the limit is divided among the processes; [`share`]: a slot's part of it
//! - [`notice::Notice`]: a line that is said once in a run; [`notice::Notices`]: several, of which the first are shown
//! - [`Text`]: a text of at most so many bytes

#![cfg_attr(not(test), no_std)]

pub mod accelerator;
pub mod division;
mod gauges;
pub mod hist;
pub mod notice;
mod process;
pub mod reclaim;
mod settings;
pub mod share;
mod slot;
pub mod stat;
mod text;
pub mod tunables;

pub use gauges::{GAUGES, Gauge, Gauges, PagesOut};
pub use process::Process;
pub use settings::{AREAS_MAX, AreaSetting, CLUSTER_BYTES, Settings};
pub use slot::{Slot, State};
pub use stat::{COUNTERS, Counter, Counts, FOLIOS, Stat, Unit};
pub use text::Text;

use accelerator::Accelerator;
use base::PAGE;
use base::sys::{self, consts::MADV_POPULATE_WRITE};
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use division::Division;
use tunables::Tunables;

/// "zfolio" and the version of this layout; both sides refuse any other.
pub const MAGIC: u64 = 0x7a66_6f6c_696f_0011;

/// How many processes of a run can be managed at the same time.
pub const SLOTS: usize = 512;

/// So many of them have room in the file before the first begins. Further ones get theirs when they are claimed first,
/// if there is any: a run of a few processes does not hold the memory of hundreds.
pub const SLOTS_AT_ONCE: usize = 8;

/// The addresses where engines reserve their memory, 256 GiB from 85 TiB on: `zfolio run` knows an engine's mappings by
/// them.
pub const ENGINE_ADDRESSES: Range<usize> = 0x5500_0000_0000..0x5540_0000_0000;

/// Bytes of a process's name, its NUL included, as the kernel keeps it (TASK_COMM_LEN).
pub const NAME_BYTES: usize = 16;

/// Folio orders that are counted: 4 KiB (order 0) to 2 MiB (order 9).
pub const ORDERS: usize = base::folio::ORDER_MAX as usize + 1;

/// What [`Memcg::unseen_copy`] is when the user has been told.
pub const SAID: u32 = u32::MAX;

/// The most bytes of a compressor's name with all of its parameters.
pub const COMPRESSOR_BYTES: usize = 160;

/// The most bytes of the path under which a test has its devices.
pub const ROOT_BYTES: usize = 256;

/// The most bytes of what the test mode says of faults of swap areas.
pub const AREA_FAULTS_BYTES: usize = 256;

/// The most bytes of the dictionary that the user has in a file.
pub const DICTIONARY_MAX_BYTES: usize = 128 << 10;

/// The name of the environment variable that holds the path of the mapped file.
pub const ENV: &str = "ZFOLIO_MEMCG";

/// The mapped file's name in the directory of the run.
pub const PAGE_FILE: &str = "memcg";

/// Other names of it there end with a digit: a process that is started with such a one has an engine as soon as it has
/// so many MiB of its own.
pub const PAGE_FILE_GROWN: &str = "memcg-";

/// The name there of the file with what all processes only read.
pub const FIXED_FILE: &str = "settings";

/// The socket's name there by which the user changes the run (`zfolio set`, `zfolio reclaim`).
pub const CONTROL_FILE: &str = "control";

/// True where a part of the mapped file can be touched: the kernel has pages for all of it, or has found some now. To
/// touch one without room in a full file system would end the process by SIGBUS.
pub(crate) fn find_room<T>(part: &[T]) -> bool {
    let bytes = part.as_ptr_range();
    let pages = bytes.start as usize / PAGE * PAGE..(bytes.end as usize).next_multiple_of(PAGE);
    sys::madvise_keep(pages.start, pages.len(), MADV_POPULATE_WRITE).is_ok()
}

/// How much of [`Memcg`] that is.
pub const FIXED_BYTES: usize = offset_of!(Memcg, written);

const _: () =
    assert!(FIXED_BYTES.is_multiple_of(size_of::<Page>()) && FIXED_BYTES > offset_of!(Memcg, dictionary));

/// Which parts of the mapped file need room before the first process begins; the other file needs
/// [`fixed_bytes`].
pub const ROOMS: [Range<usize>; 2] = [
    FIXED_BYTES..offset_of!(Memcg, slots) + SLOTS_AT_ONCE * size_of::<Slot>(),
    offset_of!(Memcg, current)..offset_of!(Memcg, accelerator) + accelerator::ROOM_BYTES,
];

/// How much of the first [`FIXED_BYTES`] is written where the user's dictionary has this length.
pub fn fixed_bytes(dictionary_bytes: usize) -> usize {
    offset_of!(Memcg, dictionary) + dictionary_bytes
}

/// The socket's name there, by which `zfolio run` hands to processes of the run what they may not open.
pub const HANDOVER_FILE: &str = "handover";

/// Bits of the byte that comes with the descriptors. Page and settings come first, then /dev/userfaultfd where this is
/// set.
pub const HANDS_DEVICE: u8 = 1;

/// See [`HANDS_DEVICE`]: then /proc/PID/pagemap, twice, and /proc/PID/mem of who asks.
pub const HANDS_MEMORY: u8 = 2;

/// See [`HANDS_DEVICE`]: last, the file of swap's table, that of the run's key, and each area's, in the order of
/// [`Settings::areas`]. The table's descriptor is nobody else's, so that locks by it are those of who asks.
pub const HANDS_AREAS: u8 = 4;

/// The most descriptors that come together.
pub const HANDS_MAX: usize = 8 + AREAS_MAX;

/// The library's name, in the directory of the run and in the directories that are in it for loaders.
pub const LIBRARY_FILE: &str = "libzfolio.so";

/// What is between the directory of the run and the library's name in LD_PRELOAD, where not known to be read by glibc's
/// 64-bit loader. glibc's loader puts its own platform there (`x86_64` or `haswell` in 64-bit processes, `i686` in
/// 32-bit ones), so that a 32-bit process gets another file. musl's loader finds no such directory, and says nothing.
pub const PLATFORM: &str = "$PLATFORM";

/// The longest path of a mapped file with its NUL, in bytes: what the library has room to remember.
pub const PATH_BYTES: usize = 256;

/// What is mapped by itself begins where this may be.
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// The mapped file. Its first [`FIXED_BYTES`] are in a file of their own, which `zfolio run` alone writes: processes of
/// the run, which may have different rights, map that to be read, and can change neither what the others are to do nor
/// which files they open. But for limit and tunables it is written before the first process starts.
#[repr(C)]
pub struct Memcg {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Limit in bytes for all processes together (`memory.max`).
    pub max_bytes: AtomicU64,
    /// What the user may change.
    pub tunables: Tunables,
    /// What the user asked for.
    pub settings: Settings,
    /// The user's dictionary: its length, and its bytes.
    dictionary_bytes: u32,
    dictionary: [u8; DICTIONARY_MAX_BYTES],
    /// From here on all processes write.
    written: [Page; 0],
    /// Highest sum of all footprints (`memory.peak`).
    pub peak_bytes: AtomicU64,
    /// Highest sum of all `wanted_bytes`.
    pub wanted_peak_bytes: AtomicU64,
    /// Highest sum of `stored_bytes`, and `pool_bytes` at that time.
    pub stored_peak_bytes: AtomicU64,
    /// See `stored_peak_bytes`.
    pub pool_at_peak_bytes: AtomicU64,
    /// Processes that an engine was started for, and those for which it could not do anything: they run unmanaged.
    pub managed: AtomicU64,
    /// See `managed`.
    pub unmanaged: AtomicU64,
    /// Set to 1 when a warning that the limit is full is due; `zfolio run` prints it once and sets 2.
    pub full_warning: AtomicU32,
    /// Said when a program waits for memory for most of its time.
    pub crawls: notice::Notice,
    /// Said of each swap area that takes no more, since it has refused too many writes.
    pub area_refuses: [notice::Notice; AREAS_MAX],
    /// Said when no swap area has room.
    pub areas_full: notice::Notice,
    /// Said of each page that was lost.
    pub lost: notice::Notices,
    /// A process that has made a copy of itself which no hook saw, where there was one; `zfolio run` says so once, and
    /// sets [`SAID`].
    pub unseen_copy: AtomicU32,
    /// Non-zero once `zfolio run` has ended.
    pub closed: AtomicU32,
    /// Counters of processes that have ended.
    pub ended: Stat,
    /// The processes.
    pub slots: [Slot; SLOTS],
    /// What all processes hold now.
    pub current: Gauges,
    /// Processes that have ended and whose figures were overwritten before anybody read them.
    pub unrecorded: AtomicU64,
    /// Slots from here on were never used.
    slots_end: AtomicU32,
    /// Where the search for a free slot begins: no rule, a guess.
    free_hint: AtomicU32,
    /// How the limit is divided.
    pub division: Division,
    /// What devices have done, for all processes.
    pub accelerator: Accelerator,
}

impl Memcg {
    /// Prepares a zeroed mapping for use: what `zfolio run` does once.
    pub fn init(&mut self, max_bytes: u64, settings: Settings) {
        self.settings = settings;
        self.max_bytes.store(max_bytes, Relaxed);
        self.tunables.begin(max_bytes);
        self.magic.store(MAGIC, Release);
    }

    /// Takes the user's dictionary in, before anybody else has the page.
    ///
    /// # Panics
    ///
    /// If it is longer than [`DICTIONARY_MAX_BYTES`].
    pub fn set_dictionary(&mut self, bytes: &[u8]) {
        // What is not written takes no memory in the file.
        self.dictionary[..bytes.len()].copy_from_slice(bytes);
        self.dictionary_bytes = bytes.len() as u32;
    }

    /// The user's dictionary; empty where there is none.
    pub fn dictionary(&self) -> &[u8] {
        &self.dictionary[..(self.dictionary_bytes as usize).min(DICTIONARY_MAX_BYTES)]
    }

    /// True while what is new may go into the pool.
    pub fn is_enabled(&self) -> bool {
        self.tunables.enabled.load(Relaxed) != 0
    }

    /// True where the run has swap areas.
    pub fn has_areas(&self) -> bool {
        self.settings.areas[0].bytes > 0
    }

    /// False where nothing may go out at all: not into the pool, and there is nowhere else.
    pub fn lets_out(&self) -> bool {
        self.is_enabled() || self.has_areas()
    }

    /// True where the process may write to swap areas.
    pub fn writes_back(&self, slot: &Slot) -> bool {
        slot.tunables.writeback().unwrap_or_else(|| self.tunables.writeback.load(Relaxed) != 0)
    }

    /// How large the pool of a process may be by itself, in bytes; [`tunables::NO_MAX`]: no limit.
    pub fn zswap_max_bytes(&self, slot: &Slot) -> u64 {
        slot.tunables.zswap_max().unwrap_or_else(|| self.tunables.zswap_max_bytes.load(Relaxed))
    }

    /// The slots that were ever used.
    pub fn used(&self) -> &[Slot] {
        &self.slots[..(self.slots_end.load(Acquire) as usize).min(SLOTS)]
    }

    /// The counters of all processes together, those that have ended included. A counter that moves from a process that
    /// has ended to [`Memcg::ended`] this moment is missing. None counts twice: `ended` is read before what it takes.
    pub fn total(&self) -> Stat {
        let total = Stat::default();
        total.add(&self.ended);
        for slot in self.used().iter().filter(|slot| slot.state() != State::Free) {
            total.add(&slot.stat);
        }
        total
    }

    /// Takes a slot for process `pid`: a free one, else that of a process that has ended and that `zfolio run` has not
    /// read yet. `None` when all are taken.
    pub fn claim(&self, pid: u32) -> Option<&Slot> {
        // Between the two looks `zfolio run` may have made ended ones free.
        let index = (0..3).find_map(|_| self.take(State::Free).or_else(|| self.take(State::Ended)))?;
        let slot = &self.slots[index];
        self.slots_end.fetch_max(index as u32 + 1, Release);
        if slot.ended_ns.load(Relaxed) != 0 {
            self.unrecorded.fetch_add(1, Relaxed);
            self.empty(slot);
        }
        // The coordinator may have given something to the one before, when that had just left.
        slot.share.clear();
        slot.tunables.clear();
        slot.reclaim.clear();
        slot.pid.store(pid, Release);
        Some(slot)
    }

    /// A process is about to have its parent's pool: both are of one family, and the child is tuned as its parent is.
    pub fn join_family(&self, parent: &Slot, child: &Slot) {
        child.tunables.copy_from(&parent.tunables);
        let founder = parent.pid.load(Relaxed);
        let family =
            parent.family.compare_exchange(0, founder, SeqCst, SeqCst).map_or_else(|old| old, |_| founder);
        child.family.store(family, SeqCst);
    }

    /// True while another process may have parts of this one's pool.
    pub fn has_family(&self, slot: &Slot) -> bool {
        let family = slot.family.load(SeqCst);
        let lives = |other: &Slot| !matches!(other.state(), State::Free | State::Ended);
        let is_of_it = |other: &Slot| other.family.load(SeqCst) == family && lives(other);
        family != 0 && self.used().iter().any(|other| !core::ptr::eq(other, slot) && is_of_it(other))
    }

    /// Gives a slot back that was claimed for a process that has not come to be.
    pub fn forgo(&self, slot: &Slot) {
        self.leave(slot, 0);
        slot.clear();
        slot.state.store(State::Free as u32, Release);
    }

    /// Makes a slot in this state the caller's own. One with last words is left to `zfolio run`.
    fn take(&self, from: State) -> Option<usize> {
        let hint = self.free_hint.load(Relaxed) as usize % SLOTS;
        let index = (hint..SLOTS).chain(0..hint).find(|&index| {
            let slot = &self.slots[index];
            self.has_room(index)
                && slot.state.load(Relaxed) == from as u32
                && slot.words_len.load(Relaxed) == 0
                && slot.seize(from)
        })?;
        self.free_hint.store(index as u32 + 1, Relaxed);
        Some(index)
    }

    /// True where a slot can be touched.
    fn has_room(&self, index: usize) -> bool {
        index < SLOTS_AT_ONCE.max(self.slots_end.load(Acquire) as usize)
            || find_room(&self.slots[index..=index])
    }

    /// Hands a slot's figures in: its gauges and its share become 0, and `zfolio run` reads the rest. For the slot's
    /// owner, whose process has ended by `now_ns` (monotonic) or goes on unmanaged.
    pub fn release(&self, slot: &Slot, now_ns: u64) {
        let held = slot.footprint_bytes.load(Relaxed);
        self.end(slot, slot.state.load(Acquire), held, now_ns);
    }

    /// Hands in the figures of a process that was killed together with its engine. For `zfolio run`, which has seen
    /// that both are gone. False where it died while it wrote its gauges: what they say together is
    /// [audited](Memcg::audit) then.
    pub fn reap(&self, slot: &Slot, now_ns: u64) -> bool {
        let whole = slot.turn.load(SeqCst).is_multiple_of(2);
        if !whole {
            slot.turn.fetch_add(1, SeqCst);
        }
        let state = slot.state.load(Acquire);
        let told = [State::Stopped, State::Unmanaged].map(|s| s as u32).contains(&state);
        self.end(slot, if told { state } else { State::Killed as u32 }, 0, now_ns);
        whole
    }

    /// `held` bytes are there until the engine is gone.
    fn end(&self, slot: &Slot, ended_as: u32, held: u64, now_ns: u64) {
        self.hold(slot, 0, [0; GAUGES.len()]);
        self.leave(slot, held);
        slot.ended_as.store(ended_as, Relaxed);
        slot.ended_ns.store(now_ns.max(1), Relaxed);
        slot.state.store(State::Ended as u32, Release);
    }

    /// For `zfolio run`: shows the figures and the last words of a process that has ended, and frees its slot. False
    /// when it has not ended, or somebody else has taken the slot.
    pub fn collect(&self, slot: &Slot, show: impl FnOnce(&Process, Option<&str>)) -> bool {
        if !slot.seize(State::Ended) {
            return false;
        }
        show(&slot.process(), slot.said(&mut [0; 512]));
        self.empty(slot);
        slot.state.store(State::Free as u32, Release);
        let index = self.slots.iter().position(|s| core::ptr::eq(s, slot));
        self.free_hint.fetch_min(index.unwrap_or(0) as u32, Relaxed);
        true
    }

    /// Makes a slot that the caller has for itself as it was: its counters are added to those of processes that have
    /// ended.
    fn empty(&self, slot: &Slot) {
        self.ended.take(&slot.stat);
        slot.clear();
    }
}

#[cfg(test)]
mod tests;
