//! The processes of a run that have no engine: those that stayed small, and those that run without a limit, for the
//! summary.
//!
//! They are found by looks at /proc every 100 ms: who lives shorter than that may not be seen. The figures of many that
//! have ended are kept in groups.

use crate::causes::Cause;
use crate::descendants::{Process, Reason, reason};
use crate::told::Finding;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// Processes that ran without a limit, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmanaged {
    /// What the kernel calls them (`comm`).
    pub name: String,
    /// Why no engine could manage them.
    pub reason: String,
    /// The kind of that.
    pub cause: Cause,
    /// What helps, if anything is known to.
    pub help: String,
    /// How many.
    pub count: u64,
    /// Most private memory that one of them was seen with, in bytes.
    pub peak_bytes: u64,
}

/// Adds `more` to the group of its name and reason.
pub fn add(groups: &mut Vec<Unmanaged>, more: Unmanaged) {
    match groups.iter_mut().find(|group| group.name == more.name && group.reason == more.reason) {
        Some(group) => {
            group.count += more.count;
            group.peak_bytes = group.peak_bytes.max(more.peak_bytes);
        }
        None => groups.push(more),
    }
}

/// A process as it was at the last look.
struct Seen {
    own_pid: u32,
    name: String,
    reason: Reason,
    /// What helps. It is asked for while the process lives.
    help: String,
    bytes: u64,
    peak_bytes: u64,
}

/// Who has, or had, no engine.
pub struct Register {
    library: PathBuf,
    present: HashMap<(u32, u64), Seen>,
    ended: Vec<Unmanaged>,
    small: u64,
}

impl Register {
    /// An empty one. `library` is the path of libzfolio.so.
    pub fn new(library: PathBuf) -> Register {
        Register { library, present: HashMap::new(), ended: Vec::new(), small: 0 }
    }

    /// True when a process was there at the last look, without an engine.
    pub fn knows(&self, process: &Process) -> bool {
        self.present.contains_key(&(process.pid, process.start))
    }

    /// Takes note of who has no engine now, each with his private memory in bytes. `managed` have one, and of `told`
    /// their engines have said themselves that they have none.
    pub fn look(&mut self, now: &[(&Process, u64)], managed: &HashSet<u32>, told: &HashSet<u32>) {
        let mut present = HashMap::with_capacity(now.len());
        for &(process, bytes) in now.iter().filter(|(process, _)| !told.contains(&process.own_pid)) {
            let key = (process.pid, process.start);
            let before = self.present.remove(&key);
            let peak_bytes = bytes.max(before.as_ref().map_or(0, |before| before.peak_bytes));
            // Another program in the same process may be unmanaged for another reason.
            let known = |before: &Seen| before.name == process.name && before.reason != Reason::Loading;
            let seen = match before.filter(known) {
                Some(before) => Seen { bytes, peak_bytes, ..before },
                None => {
                    let reason = reason(process.pid, &self.library);
                    let help = match &reason {
                        Reason::Without(cause, _) => cause.help(&process.name, process.pid),
                        Reason::Small | Reason::Loading => String::new(),
                    };
                    let (own_pid, name) = (process.own_pid, process.name.clone());
                    Seen { own_pid, name, reason, help, bytes, peak_bytes }
                }
            };
            present.insert(key, seen);
        }
        for (_, gone) in std::mem::replace(&mut self.present, present) {
            if !told.contains(&gone.own_pid) {
                self.count(gone, managed);
            }
        }
    }

    /// Takes note of why a process cannot be managed that was taken for a small one.
    pub fn explain(&mut self, process: (u32, u64), cause: Cause, why: &str) {
        if let Some(seen) = self.present.get_mut(&process).filter(|seen| seen.reason == Reason::Small) {
            seen.reason = Reason::Without(cause, why.to_string());
            seen.help = cause.help(&seen.name, process.0);
        }
    }

    /// One that is not among those without an engine any more.
    fn count(&mut self, gone: Seen, managed: &HashSet<u32>) {
        let (cause, reason) = match gone.reason {
            Reason::Without(cause, why) => (cause, why),
            Reason::Small | Reason::Loading => {
                self.small += !managed.contains(&gone.own_pid) as u64;
                return;
            }
        };
        let Seen { name, help, peak_bytes, .. } = gone;
        add(&mut self.ended, Unmanaged { name, reason, cause, help, count: 1, peak_bytes });
    }

    /// Who runs without an engine now, for a reason.
    pub fn findings(&self) -> impl Iterator<Item = Finding> {
        self.present.iter().filter_map(|(&(pid, _), seen)| {
            let Reason::Without(cause, why) = &seen.reason else { return None };
            let (name, why) = (seen.name.clone(), why.clone());
            Some(Finding { name, pid, cause: *cause, why, help: seen.help.clone(), bytes: seen.bytes })
        })
    }

    /// All who had none: how many were small, and the others in groups.
    pub fn finish(mut self) -> (u64, Vec<Unmanaged>) {
        for (_, seen) in std::mem::take(&mut self.present) {
            self.count(seen, &HashSet::new());
        }
        (self.small, self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, name: &str) -> Process {
        let (own_pid, name) = (pid, name.to_string());
        Process { pid, own_pid, parent: 1, name, start: 1, forked: false, private_bytes: 0, shared_bytes: 0 }
    }

    fn group(name: &str, count: u64, peak_bytes: u64) -> Unmanaged {
        let (cause, name) = (Cause::Environment, name.to_string());
        let (reason, help) = ("its environment does not ask for zfolio".to_string(), cause.help(&name, 1));
        Unmanaged { name, reason, cause, help, count, peak_bytes }
    }

    /// Own process: the library is not there, and libc is.
    #[test]
    fn who_is_seen_without_the_library_is_unmanaged() {
        let own = std::process::id();
        let (none, long) = (HashSet::new(), process(own, "long"));
        let mut register = Register::new("/no/such/library.so".into());
        register.look(&[(&long, 30)], &none, &none);
        assert!(register.knows(&long));
        register.look(&[(&long, 20)], &none, &none);
        register.look(&[], &none, &none);
        assert!(!register.knows(&long));
        assert_eq!(register.finish(), (0, vec![group("long", 1, 30)]));
    }

    #[test]
    fn who_has_got_an_engine_or_has_said_why_not_is_not_counted_again() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library = maps.split_whitespace().find(|word| word.contains("libc.so")).unwrap();
        let own = std::process::id();
        let (none, own_set) = (HashSet::new(), HashSet::from([own]));
        let counted = |managed: &HashSet<u32>, told: &HashSet<u32>| {
            let mut register = Register::new(library.into());
            register.look(&[(&process(own, "test"), 1)], &none, &none);
            register.look(&[], managed, told);
            register.finish()
        };
        assert_eq!(counted(&none, &none), (1, vec![]));
        assert_eq!(counted(&own_set, &none), (0, vec![]));
        assert_eq!(counted(&none, &own_set), (0, vec![]));
    }

    #[test]
    fn another_program_in_the_same_process_is_looked_at_anew() {
        let own = std::process::id();
        let none = HashSet::new();
        let mut register = Register::new("/no/such/library.so".into());
        for name in ["one", "one", "two", "two"] {
            register.look(&[(&process(own, name), 5)], &none, &none);
        }
        assert_eq!(register.finish(), (0, vec![group("two", 1, 5)]));
    }
}
