//! A slot's share: what its process may hold, and what is said about that. division.rs has the rules by which it moves.

use core::sync::atomic::{AtomicU64, Ordering::*};

/// A slot's part in the division of the limit.
#[repr(C)]
#[derive(Default)]
pub struct Share {
    /// What the process may hold, in bytes; 0 when nobody has said yet.
    pub bytes: AtomicU64,
    /// What its engine is about to move from the pot to `bytes`, else 0.
    pub claim_bytes: AtomicU64,
    /// Shared memory in the process that is its engine's, and is in the footprint, in bytes: what it shares with its
    /// workers.
    pub board_bytes: AtomicU64,
    /// Private memory that is counted with its relatives by fork, who hold the same pages. The gauges of the slot are
    /// without it. Set by the engine of a forked child as it begins, by the coordinator afterwards; and less with each
    /// copy ([`Memcg::count_copies`](crate::Memcg::count_copies)).
    pub excess_bytes: AtomicU64,
    /// How much of it has become somebody's own, ever.
    pub copied_bytes: AtomicU64,
    /// For how long the thread that waits longest for room has been waiting, in milliseconds; 0 when none does. A
    /// gauge.
    pub waiting_ms: AtomicU64,
    /// Until then, on the monotonic clock, its engine serves no fault: the process waits for its turn. Set by the
    /// coordinator again and again, so that nobody waits for one that has died.
    pub parked_until_ns: AtomicU64,
    /// How much of what it shares with relatives its engine is still to put into its log for all of them, in bytes of
    /// the program. Set by the coordinator.
    pub tell_bytes: AtomicU64,
    /// 1 when there was nothing left to tell, or no room for it; the coordinator takes it back.
    pub told_all: AtomicU64,
    /// Bytes of its log, and of those of its forebears, which it reads. Gauges.
    pub log_bytes: AtomicU64,
    /// See `log_bytes`.
    pub read_bytes: AtomicU64,
    /// How much of its pool may go to swap areas, in bytes. A gauge.
    pub goes_bytes: AtomicU64,
    /// How much its engine keeps free below its limit, in bytes; 0 while that sleeps. A gauge.
    pub kept_free_bytes: AtomicU64,
}

impl Share {
    /// Sets all of it to 0.
    pub(crate) fn clear(&self) {
        let division = [
            &self.bytes,
            &self.claim_bytes,
            &self.excess_bytes,
            &self.copied_bytes,
            &self.waiting_ms,
            &self.board_bytes,
            &self.goes_bytes,
            &self.kept_free_bytes,
        ];
        self.parked_until_ns.store(0, SeqCst);
        let family = [&self.tell_bytes, &self.told_all, &self.log_bytes, &self.read_bytes];
        for cell in division.into_iter().chain(family) {
            cell.store(0, SeqCst);
        }
    }

    /// So much less of what the process holds is counted with others. Returns what of `bytes` is left, when there was
    /// not as much.
    pub(crate) fn disclose(&self, bytes: u64) -> u64 {
        let less = |excess: u64| Some(excess.saturating_sub(bytes));
        let before = self.excess_bytes.fetch_update(SeqCst, SeqCst, less).unwrap_or_else(|excess| excess);
        let done = before.min(bytes);
        self.copied_bytes.fetch_add(done, SeqCst);
        bytes - done
    }

    /// For the coordinator, between `begin` and `end`: what the process has, or is about to have, in bytes.
    pub fn held(&self) -> u64 {
        // In this order: see rule 2 in division.rs.
        let claim = self.claim_bytes.load(SeqCst);
        self.bytes.load(SeqCst) + claim
    }
}
