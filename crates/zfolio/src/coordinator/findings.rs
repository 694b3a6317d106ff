//! What cannot go out, of all kinds: found at each look at the tree, and handed to who says it.

use super::Coordinator;
use crate::causes::Cause;
use crate::descendants::Process;
use crate::sys;
use crate::told::Finding;
use crate::unevictable::Awake;
use memcg::State;
use std::sync::atomic::Ordering::*;
use std::time::Instant;
use uffd::kinds::Kind;

impl Coordinator {
    /// Finds it. `refused` have no engine, and what they hold, in bytes, and why not.
    pub(super) fn find(&mut self, refused: &[(Process, u64, String)], now: Instant) {
        let max_bytes = self.memcg.max_bytes.load(Relaxed);
        self.unevictable.look(&self.awake(), max_bytes, self.memcg.is_short(), now);
        self.shared_peak_bytes = self.shared_peak_bytes.max(self.shared.bytes());
        let mut findings: Vec<Finding> = self.unmanaged.findings().collect();
        for (process, bytes, words) in refused {
            let peak = self.refused_peaks.entry(process.own_pid).or_default();
            *peak = (*peak).max(*bytes);
            findings.push(finding(&process.name, process.pid, Cause::of_words(words), *bytes, words));
        }
        for (holder, bytes) in self.shared.by_holder(&self.tree.processes) {
            findings.push(finding(&holder.name, holder.pid, Cause::Memory(Kind::Shared), bytes, ""));
        }
        for (pid, kind, bytes) in self.unevictable.found() {
            let process = self.tree.processes.iter().find(|process| process.pid == pid);
            findings
                .extend(process.map(|process| finding(&process.name, pid, Cause::Memory(kind), bytes, "")));
        }
        let lines = self.told.look(&findings);
        self.lines.extend(lines);
    }

    /// Managed processes whose engines are awake.
    fn awake(&self) -> Vec<Awake> {
        let is_awake = |process: &Process| {
            let mut slots = self.taken();
            slots.any(|(_, slot)| slot.state() == State::Awake && slot.pid.load(Relaxed) == process.own_pid)
        };
        let awake = self.tree.processes.iter().filter(|process| is_awake(process));
        let awake = awake.map(|p| Awake { pid: p.pid, start: p.start, footprint_bytes: p.private_bytes });
        awake.collect()
    }

    /// What is due to be said of what cannot go out, a line each.
    pub fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    /// True when more than a sixteenth of the limit cannot go out, and was told.
    pub fn is_too_much(&self) -> bool {
        self.told.is_too_much()
    }

    /// Sends a signal to all processes of the run.
    pub fn signal_all(&self, signal: i32) {
        self.tree.processes.iter().for_each(|process| sys::kill(process.pid as sys::Pid, signal));
    }
}

fn finding(name: &str, pid: u32, cause: Cause, bytes: u64, why: &str) -> Finding {
    let (name, help) = (name.to_string(), cause.help(name, pid));
    Finding { name, pid, cause, why: why.to_string(), help, bytes }
}
