//! A copy of what a slot says of its process.

use crate::{NAME_BYTES, Slot, State};
use core::sync::atomic::Ordering::*;

/// One process's figures, in bytes, nanoseconds and pages of 4 KiB. Of a living process they may be of slightly
/// different times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id, as the process itself sees it.
    pub pid: u32,
    /// Process id of the parent when the process was first seen.
    pub parent: u32,
    /// The kernel's name of it (`comm`), padded with NUL: any bytes.
    pub name: [u8; NAME_BYTES],
    /// What it does; when it has ended, what it did last.
    pub state: State,
    /// When its program began, on the monotonic clock.
    pub started_ns: u64,
    /// When its engine was through; 0 while it lives.
    pub ended_ns: u64,
    /// Highest footprint.
    pub footprint_peak_bytes: u64,
    /// Highest footprint that it would have had without zfolio.
    pub wanted_peak_bytes: u64,
    /// Most bytes of pages in its pool at a time, and the pool's memory then.
    pub stored_peak_bytes: u64,
    /// See `stored_peak_bytes`.
    pub pool_at_peak_bytes: u64,
    /// Pages that were compressed or filled by one word.
    pub pages_out: u64,
    /// Pages that were decompressed.
    pub pages_in: u64,
    /// Faults on memory that was out.
    pub faults: u64,
    /// Time that its threads waited for faults, summed.
    pub stall_ns: u64,
    /// Time that they waited for their process's turn, summed.
    pub parked_ns: u64,
    /// CPU time of its engine.
    pub engine_cpu_ns: u64,
}

impl Slot {
    /// The process's figures as they are now.
    pub fn process(&self) -> Process {
        let mut name = [0; NAME_BYTES];
        for (part, cell) in name.as_chunks_mut().0.iter_mut().zip(&self.name) {
            *part = cell.load(Relaxed).to_le_bytes();
        }
        let state = match self.state() {
            // In the caller's hands after it ended.
            State::Ended | State::Starting if self.ended_ns.load(Relaxed) != 0 => {
                State::from_number(self.ended_as.load(Relaxed))
            }
            state => state,
        };
        Process {
            pid: self.pid.load(Relaxed),
            parent: self.parent.load(Relaxed),
            name,
            state,
            started_ns: self.started_ns.load(Relaxed),
            ended_ns: self.ended_ns.load(Relaxed),
            footprint_peak_bytes: self.footprint_peak_bytes.load(Relaxed),
            wanted_peak_bytes: self.wanted_peak_bytes.load(Relaxed),
            stored_peak_bytes: self.stored_peak_bytes.load(Relaxed),
            pool_at_peak_bytes: self.pool_at_peak_bytes.load(Relaxed),
            pages_out: self.stat.pages_out(),
            pages_in: self.stat.zswpin.load(Relaxed),
            faults: self.stat.faults.load(Relaxed),
            stall_ns: self.stat.stall_ns.load(Relaxed),
            parked_ns: self.stat.parked_ns.load(Relaxed),
            engine_cpu_ns: self.stat.engine_cpu_ns.load(Relaxed),
        }
    }
}

impl Process {
    /// The name without its padding.
    pub fn name(&self) -> &[u8] {
        self.name.split(|&byte| byte == 0).next().unwrap_or(&[])
    }

    /// From the program's beginning until `now_ns`, or its end if that came before, in nanoseconds.
    pub fn elapsed_ns(&self, now_ns: u64) -> u64 {
        let end = if self.ended_ns != 0 { self.ended_ns } else { now_ns };
        end.saturating_sub(self.started_ns)
    }
}
