//! Of whom a request is: the whole run, or one of its processes.

use memcg::{Memcg, Slot, State};
use std::sync::atomic::Ordering::*;

/// See the head of the file.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// The run.
    Run,
    /// A process that has an engine, by its slot.
    Process(&'a Slot),
    /// A process of the run that has no engine.
    WithoutEngine(u32),
}

impl<'a> Subject<'a> {
    /// The process that has this number for itself, and has started at this time as /proc/PID/stat has it; number 0 is
    /// the run.
    pub fn find(memcg: &'a Memcg, pid: u32, start: u64) -> Subject<'a> {
        if pid == 0 {
            return Subject::Run;
        }
        // An engine that may not see its program in /proc does not know when that started.
        let is_it = |slot: &&Slot| {
            let began = slot.start.load(Relaxed);
            slot.pid.load(Acquire) == pid && (began == 0 || began == start) && has_engine(slot)
        };
        memcg.used().iter().find(is_it).map_or(Subject::WithoutEngine(pid), Subject::Process)
    }

    /// The process's slot.
    pub fn slot(&self) -> Option<&'a Slot> {
        match self {
            Subject::Process(slot) => Some(slot),
            _ => None,
        }
    }

    /// An error, one line, for a process that has no engine.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Subject::WithoutEngine(pid) => Err(format!(
                "process {pid} has no engine: it is small, or cannot be managed, and nothing of it can go out"
            )),
            _ => Ok(()),
        }
    }
}

/// True while a process's engine is there, asleep or awake.
pub fn has_engine(slot: &Slot) -> bool {
    matches!(slot.state(), State::Asleep | State::Awake)
}
