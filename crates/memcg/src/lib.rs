//! The control group of one run: the page of limits and counters that `zfolio run` and the engine of
//! each process share through one mapped file.
//!
//! ```text
//!   zfolio run ── creates ──> Memcg { limit, settings, totals, slots[0..SLOTS] } <── maps ── engine of pid 1
//!        └── reads totals at the end                                            <── maps ── engine of pid 2
//! ```
//!
//! Every field is an atomic or is written once before the first process starts, so that any process may die at any
//! instruction and leave a page that the others can read. Names are those of the kernel's memory controller
//! (`memory.max`, `memory.current`, `memory.peak`, `memory.stat`) where it has one.
//!
//! - [`Memcg`]: the whole file; [`Settings`]: what the user asked for
//! - [`Slot`]: one process; [`Stat`]: its counters
//! - [`hist::Histogram`]: latencies, log-linear

#![cfg_attr(not(test), no_std)]

pub mod hist;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use hist::Histogram;

/// "zfolio" and the version of this layout; both sides refuse any other.
pub const MAGIC: u64 = 0x7a66_6f6c_696f_0001;

/// How many processes of a run can be managed at the same time.
pub const SLOTS: usize = 64;

/// Folio orders that are counted: 4 KiB (order 0) to 2 MiB (order 9).
pub const ORDERS: usize = 10;

/// The name of the environment variable that holds the path of the mapped file.
pub const ENV: &str = "ZFOLIO_MEMCG";

/// What the user asked for; written before the first process starts, read-only afterwards.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Compressor in the notation of the command line (`zstd:1`), padded with NUL.
    pub compressor: [u8; 32],
    /// Test mode: 1 evicts everything all the time, whatever the limit.
    pub evict_all: u32,
    /// Seed of the test mode's choices.
    pub seed: u32,
    /// Milliseconds without progress at a full limit after which the program is stopped.
    pub full_timeout_ms: u32,
    /// Test mode: every so many objects that are stored, one is damaged, to see that it is noticed; 0 damages none.
    pub damage_every: u32,
}

impl Settings {
    /// The compressor's name as text.
    pub fn compressor(&self) -> &str {
        let end = self.compressor.iter().position(|&b| b == 0).unwrap_or(self.compressor.len());
        core::str::from_utf8(&self.compressor[..end]).unwrap_or("")
    }
}

/// Counters of one process, or of all that have ended (`Memcg::ended`). All only grow, unless said.
#[repr(C)]
#[derive(Default)]
pub struct Stat {
    /// Folios compressed out of the process, by order.
    pub zswpout: [AtomicU64; ORDERS],
    /// Folios decompressed back, by order.
    pub zswpin: [AtomicU64; ORDERS],
    /// Pages moved to the inactive stage.
    pub pgdeactivate: AtomicU64,
    /// Pages touched on the inactive stage and moved back: second-chance hits.
    pub pgactivate: AtomicU64,
    /// Pages taken by read-ahead, without a fault of their own.
    pub readahead: AtomicU64,
    /// Pages stored without data because one word fills them.
    pub same_filled: AtomicU64,
    /// Pages whose stored copy was still right when they went out again, so that nothing was compressed.
    pub clean_reused: AtomicU64,
    /// Objects kept uncompressed because they did not shrink.
    pub incompressible: AtomicU64,
    /// Bytes of pages given to the compressor, and bytes of objects that came out.
    pub compressed_in_bytes: AtomicU64,
    /// See `compressed_in_bytes`.
    pub compressed_out_bytes: AtomicU64,
    /// Faults on memory that was out (stage or pool).
    pub faults: AtomicU64,
    /// Faults on fresh memory that was gated.
    pub fresh_faults: AtomicU64,
    /// Nanoseconds that the program's threads waited for faults (first read of the message to wake-up).
    pub stall_ns: AtomicU64,
    /// CPU nanoseconds of the engine.
    pub engine_cpu_ns: AtomicU64,
    /// Times that the process came to rest at a full limit.
    pub limit_hit: AtomicU64,
    /// Pages that could not be moved because they were pinned or shared.
    pub busy: AtomicU64,
    /// Events handled: remove, unmap, remap.
    pub events: AtomicU64,
    /// Objects moved by compaction of the pool.
    pub compacted: AtomicU64,
    /// Pages that were out already and were made part of a larger object.
    pub packed: AtomicU64,
    /// Fault latency in nanoseconds.
    pub fault_ns: Histogram,
}

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
    /// Bytes of private memory that the process holds now, engine, pool and stage included. A gauge.
    pub footprint_bytes: AtomicU64,
    /// Highest `footprint_bytes`.
    pub footprint_peak_bytes: AtomicU64,
    /// Bytes that the process would hold without zfolio. A gauge.
    pub wanted_bytes: AtomicU64,
    /// Bytes of pages that are in the pool now, and of the pool's memory for them. Gauges.
    pub stored_bytes: AtomicU64,
    /// See `stored_bytes`.
    pub pool_bytes: AtomicU64,
    /// Highest `stored_bytes`.
    pub stored_peak_bytes: AtomicU64,
    /// `pool_bytes` at the time of `stored_peak_bytes`.
    pub pool_at_peak_bytes: AtomicU64,
    /// Counters.
    pub stat: Stat,
    /// The engine's last words: a message for the user, UTF-8, when `words_len` is not 0.
    pub words: [AtomicU64; 64],
}

/// The mapped file.
#[repr(C)]
pub struct Memcg {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Limit in bytes for all processes together (`memory.max`).
    pub max_bytes: AtomicU64,
    /// Highest sum of all footprints (`memory.peak`).
    pub peak_bytes: AtomicU64,
    /// Highest sum of all `wanted_bytes`.
    pub wanted_peak_bytes: AtomicU64,
    /// Highest sum of `stored_bytes`, and `pool_bytes` at that time.
    pub stored_peak_bytes: AtomicU64,
    /// See `stored_peak_bytes`.
    pub pool_at_peak_bytes: AtomicU64,
    /// Processes that an engine was started for, and processes that run unmanaged.
    pub managed: AtomicU64,
    /// See `managed`.
    pub unmanaged: AtomicU64,
    /// Set to 1 when a warning that the limit is full is due; `zfolio run` prints it once and sets 2.
    pub full_warning: AtomicU32,
    /// Non-zero once `zfolio run` has ended.
    pub closed: AtomicU32,
    /// What the user asked for.
    pub settings: Settings,
    /// Counters of processes that have ended.
    pub ended: Stat,
    /// The processes.
    pub slots: [Slot; SLOTS],
}

impl Stat {
    /// Adds every counter of `other` to this one.
    pub fn add(&self, other: &Stat) {
        let pairs = [
            (&self.pgdeactivate, &other.pgdeactivate),
            (&self.pgactivate, &other.pgactivate),
            (&self.readahead, &other.readahead),
            (&self.same_filled, &other.same_filled),
            (&self.clean_reused, &other.clean_reused),
            (&self.incompressible, &other.incompressible),
            (&self.compressed_in_bytes, &other.compressed_in_bytes),
            (&self.compressed_out_bytes, &other.compressed_out_bytes),
            (&self.faults, &other.faults),
            (&self.fresh_faults, &other.fresh_faults),
            (&self.stall_ns, &other.stall_ns),
            (&self.engine_cpu_ns, &other.engine_cpu_ns),
            (&self.limit_hit, &other.limit_hit),
            (&self.busy, &other.busy),
            (&self.events, &other.events),
            (&self.compacted, &other.compacted),
            (&self.packed, &other.packed),
        ];
        for (mine, theirs) in pairs {
            mine.fetch_add(theirs.load(Relaxed), Relaxed);
        }
        for order in 0..ORDERS {
            self.zswpout[order].fetch_add(other.zswpout[order].load(Relaxed), Relaxed);
            self.zswpin[order].fetch_add(other.zswpin[order].load(Relaxed), Relaxed);
        }
        self.fault_ns.add(&other.fault_ns);
    }

    /// Sets every counter to 0.
    fn clear(&self) {
        // Every field is an atomic u64 or an array of them, so the struct is a slice of atomics.
        // SAFETY: `Stat` is `repr(C)` and consists of `AtomicU64` alone (asserted below), borrowed for `self`'s life.
        let all = unsafe {
            core::slice::from_raw_parts(self as *const Stat as *const AtomicU64, size_of::<Stat>() / 8)
        };
        for counter in all {
            counter.store(0, Relaxed);
        }
    }
}

const _: () = assert!(size_of::<Stat>().is_multiple_of(8) && align_of::<Stat>() == 8);

impl Slot {
    /// Leaves a message for the user, cut at 512 bytes; a second message is dropped, since the first is the cause.
    pub fn say(&self, text: &str) {
        if self.words_len.load(Acquire) != 0 {
            return;
        }
        let bytes = &text.as_bytes()[..text.len().min(512)];
        for (cell, chunk) in self.words.iter().zip(bytes.chunks(8)) {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            cell.store(u64::from_le_bytes(word), Relaxed);
        }
        self.words_len.store(bytes.len() as u32, Release);
    }

    /// Copies the message into `buffer` and returns it, or `None` when there is none.
    pub fn said<'a>(&self, buffer: &'a mut [u8; 512]) -> Option<&'a str> {
        let len = (self.words_len.load(Acquire) as usize).min(512);
        if len == 0 {
            return None;
        }
        for (cell, chunk) in self.words.iter().zip(buffer.chunks_mut(8)) {
            chunk.copy_from_slice(&cell.load(Relaxed).to_le_bytes());
        }
        let bytes = &buffer[..len];
        Some(match core::str::from_utf8(bytes) {
            Ok(text) => text,
            // A cut in the middle of a character: what comes before it is sound.
            Err(e) => core::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""),
        })
    }
}

impl Memcg {
    /// Prepares a zeroed mapping for use: what `zfolio run` does once.
    pub fn init(&mut self, max_bytes: u64, settings: Settings) {
        self.settings = settings;
        self.max_bytes.store(max_bytes, Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// Takes a free slot for process `pid`; `None` when all are taken.
    pub fn claim(&self, pid: u32) -> Option<&Slot> {
        self.slots.iter().find(|slot| {
            slot.state.compare_exchange(State::Free as u32, State::Starting as u32, AcqRel, Relaxed).is_ok()
                && {
                    slot.words_len.store(0, Relaxed);
                    slot.pid.store(pid, Release);
                    true
                }
        })
    }

    /// Gives a slot back: its counters are added to `ended`, its gauges become 0. A slot with last words is kept as it is,
    /// so that `zfolio run` can print them; its gauges go to 0 all the same.
    pub fn release(&self, slot: &Slot) {
        self.ended.add(&slot.stat);
        slot.stat.clear();
        for gauge in [&slot.footprint_bytes, &slot.wanted_bytes, &slot.stored_bytes, &slot.pool_bytes] {
            gauge.store(0, Relaxed);
        }
        if slot.words_len.load(Acquire) == 0 {
            slot.pid.store(0, Relaxed);
            slot.engine_pid.store(0, Relaxed);
            slot.state.store(State::Free as u32, Release);
        }
    }

    /// The sum of a gauge over all slots, in bytes.
    pub fn sum(&self, gauge: impl Fn(&Slot) -> &AtomicU64) -> u64 {
        self.slots.iter().map(|slot| gauge(slot).load(Relaxed)).sum()
    }

    /// Publishes a process's gauges and raises the run's peaks. Returns what the run holds now, in bytes.
    pub fn publish(&self, slot: &Slot, footprint: u64, wanted: u64, stored: u64, pool: u64) -> u64 {
        slot.footprint_bytes.store(footprint, Relaxed);
        slot.footprint_peak_bytes.fetch_max(footprint, Relaxed);
        slot.wanted_bytes.store(wanted, Relaxed);
        slot.stored_bytes.store(stored, Relaxed);
        slot.pool_bytes.store(pool, Relaxed);
        if slot.stored_peak_bytes.fetch_max(stored, Relaxed) < stored {
            slot.pool_at_peak_bytes.store(pool, Relaxed);
        }
        let current = self.sum(|s| &s.footprint_bytes);
        self.peak_bytes.fetch_max(current, Relaxed);
        self.wanted_peak_bytes.fetch_max(self.sum(|s| &s.wanted_bytes), Relaxed);
        let stored = self.sum(|s| &s.stored_bytes);
        if self.stored_peak_bytes.fetch_max(stored, Relaxed) < stored {
            self.pool_at_peak_bytes.store(self.sum(|s| &s.pool_bytes), Relaxed);
        }
        current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memcg() -> Box<Memcg> {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(1 << 20, Settings::default());
        memcg
    }

    #[test]
    fn a_released_slot_adds_its_counters_and_is_free_again() {
        let m = memcg();
        let slot = m.claim(7).unwrap();
        slot.stat.faults.fetch_add(3, Relaxed);
        slot.stat.zswpout[4].fetch_add(2, Relaxed);
        slot.stat.fault_ns.record(1000);
        assert_eq!(m.publish(slot, 100, 300, 200, 50), 100);
        m.release(slot);
        assert_eq!(m.ended.faults.load(Relaxed), 3);
        assert_eq!(m.ended.zswpout[4].load(Relaxed), 2);
        assert_eq!(m.ended.fault_ns.count(), 1);
        assert_eq!(slot.stat.faults.load(Relaxed), 0);
        assert_eq!(m.sum(|s| &s.footprint_bytes), 0);
        assert_eq!((m.peak_bytes.load(Relaxed), m.pool_at_peak_bytes.load(Relaxed)), (100, 50));
        assert!(core::ptr::eq(m.claim(8).unwrap(), slot));
    }

    #[test]
    fn slots_run_out_and_last_words_keep_one() {
        let m = memcg();
        let first = m.claim(1).unwrap();
        for pid in 2..=SLOTS as u32 {
            m.claim(pid).unwrap();
        }
        assert!(m.claim(999).is_none());
        first.say("object lost");
        first.say("a consequence");
        m.release(first);
        assert!(m.claim(999).is_none());
        assert_eq!(first.said(&mut [0; 512]), Some("object lost"));
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let m = memcg();
        let slot = m.claim(1).unwrap();
        slot.say(&"é".repeat(300));
        assert_eq!(slot.said(&mut [0; 512]).unwrap().chars().count(), 256);
        let text = "x".to_string() + &"é".repeat(300);
        let slot = m.claim(2).unwrap();
        slot.say(&text);
        assert_eq!(slot.said(&mut [0; 512]).unwrap().chars().count(), 256);
    }
}
