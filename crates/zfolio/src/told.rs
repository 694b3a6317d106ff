//! What cannot go out, said while the program runs: one line for each name of a process and cause, and another one when
//! it has doubled.
//!
//! Many processes of one name are one line, and many names at once are a few lines and a count of the others, so that a
//! burst of them does not flood the program's own output.

use crate::causes::Cause;
use crate::lines::{Count, printable};
use crate::size::Bytes;
use std::collections::HashMap;
use uffd::kinds::Kind;

/// Memory is told of from this part of the limit on.
pub const PART_OF_LIMIT: u64 = 16;
/// A process of which nothing is managed is told of from this on, in bytes, or from that part if it is less.
const PROCESS: u64 = 8 << 20;

/// Lines at a time, with one for all others; and for so many looks nothing is said after each.
const LINES: usize = 4;
const PAUSE: u32 = 10;

/// What was found in so many looks is told: a process that is about to begin, or to end, is not.
const SETTLED: u32 = 3;
/// While it grows it is told after so many, so that one line says how much it is; at once where it takes half of the
/// limit.
const GROWN: u32 = 6;

/// The engine gets hold of new mappings within milliseconds, and a program may make them as fast: what it lacks is
/// noted only after so many looks in a row.
const PASSING: u32 = 20;

/// What is found at one look.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The process's name.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// Why it cannot go out.
    pub cause: Cause,
    /// The same of a whole process, in words.
    pub why: String,
    /// What helps, if anything is known to.
    pub help: String,
    /// How much it is.
    pub bytes: u64,
}

/// All processes of one name and cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Their name.
    pub name: String,
    /// The largest of them, when all held most.
    pub pid: u32,
    /// Why.
    pub cause: Cause,
    /// What helps.
    pub help: String,
    /// How many there were then, and what they held.
    pub count: u64,
    /// See `count`.
    pub peak_bytes: u64,
    why: String,
    /// What they hold at this look, and held at the one before.
    bytes: u64,
    before_bytes: u64,
    largest_bytes: u64,
    pids: u64,
    said_bytes: u64,
    looks: u32,
}

impl Group {
    fn of(finding: &Finding) -> Group {
        let Finding { name, pid, cause, why, help, .. } = finding.clone();
        Group {
            name,
            pid,
            cause,
            help,
            why,
            count: 0,
            peak_bytes: 0,
            bytes: 0,
            before_bytes: 0,
            largest_bytes: 0,
            pids: 0,
            said_bytes: 0,
            looks: 0,
        }
    }

    fn add(&mut self, finding: &Finding) {
        self.bytes += finding.bytes;
        self.pids += 1;
        if finding.bytes > self.largest_bytes {
            (self.largest_bytes, self.pid) = (finding.bytes, finding.pid);
        }
    }

    /// True for what may be gone at the next look.
    fn may_pass(&self) -> bool {
        self.cause == Cause::Memory(Kind::Unregistered) && self.looks < PASSING
    }

    /// True where the summary has it.
    fn is_worth_a_word(&self, large: u64) -> bool {
        self.said_bytes > 0 || self.peak_bytes > large
    }

    /// What is said of it, without an end.
    fn line(&self) -> String {
        let (bytes, name, pid) = (Bytes(self.bytes), printable(&self.name), self.pid);
        let whose = match self.pids {
            0 | 1 => format!("{name} ({pid})"),
            count => format!("{name} ({pid} and {} more)", Count(count - 1)),
        };
        let why = match self.cause.is_process() {
            true => format!("cannot go out: {}", printable(&sentence(&self.why))),
            false => format!("are {} and cannot go out", self.cause.what()),
        };
        let help = if self.help.is_empty() { String::new() } else { format!("; {}", self.help) };
        format!("{bytes} of {whose} {why}{help}")
    }
}

/// A reason without its explanation, and with a subject.
fn sentence(why: &str) -> String {
    let why = why.split(':').next().unwrap_or(why);
    let has_none = ["is ", "has ", "cannot "].iter().any(|verb| why.starts_with(verb));
    if has_none { format!("it {why}") } else { why.to_string() }
}

/// All that was found, and what was said of it.
pub struct Told {
    max_bytes: u64,
    /// For so many looks nothing is said.
    pause: u32,
    groups: HashMap<(String, Cause), Group>,
}

impl Told {
    /// For a run with this limit.
    pub fn new(max_bytes: u64) -> Told {
        Told { max_bytes, pause: 0, groups: HashMap::new() }
    }

    /// The run has another limit, in bytes.
    pub fn set_limit(&mut self, max_bytes: u64) {
        self.max_bytes = max_bytes;
    }

    /// Takes note of all that is there. Returns the lines that are due.
    pub fn look(&mut self, findings: &[Finding]) -> Vec<String> {
        for group in self.groups.values_mut() {
            (group.before_bytes, group.bytes, group.largest_bytes, group.pids) = (group.bytes, 0, 0, 0);
        }
        for finding in findings.iter().filter(|finding| finding.bytes > 0) {
            let key = (finding.name.clone(), finding.cause);
            self.groups.entry(key).or_insert_with(|| Group::of(finding)).add(finding);
        }
        let large = self.max_bytes / PART_OF_LIMIT;
        for group in self.groups.values_mut() {
            let is_large = group.bytes > large || group.cause.is_process() && group.bytes > 0;
            group.looks = if is_large { group.looks + 1 } else { 0 };
            if group.bytes > group.peak_bytes && !group.may_pass() {
                (group.peak_bytes, group.count) = (group.bytes, group.pids);
            }
        }
        // Names come and go: the small of which nothing was said are not kept.
        self.groups.retain(|_, group| group.bytes > 0 || group.is_worth_a_word(large));
        self.pause = self.pause.saturating_sub(1);
        let lines = if self.pause == 0 { self.due() } else { Vec::new() };
        self.pause += lines.len() as u32 * PAUSE;
        lines
    }

    fn due(&mut self) -> Vec<String> {
        let large = self.max_bytes / PART_OF_LIMIT;
        let is_due = |group: &&mut Group| {
            let is_growing = group.bytes > group.before_bytes + group.before_bytes / 8;
            let is_settled = match group.looks {
                0..SETTLED => group.bytes > self.max_bytes / 2,
                SETTLED..GROWN => !is_growing || group.bytes > self.max_bytes / 2,
                _ => true,
            };
            let is_worth =
                group.bytes > large || group.cause.is_process() && group.largest_bytes >= PROCESS.min(large);
            is_settled && is_worth && !group.may_pass() && group.bytes >= 2 * group.said_bytes
        };
        let mut due: Vec<&mut Group> = self.groups.values_mut().filter(is_due).collect();
        due.sort_by_key(|group| std::cmp::Reverse(group.bytes));
        let apart = if due.len() > LINES { LINES - 1 } else { LINES };
        let mut lines: Vec<String> = due.iter().take(apart).map(|group| group.line()).collect();
        let others = &due[lines.len()..];
        if !others.is_empty() {
            let (count, bytes) =
                others.iter().fold((0, 0), |(n, b), group| (n + group.pids, b + group.bytes));
            lines.push(format!(
                "{} of {} more processes cannot go out; the summary has them",
                Bytes(bytes),
                Count(count)
            ));
        }
        due.into_iter().for_each(|group| group.said_bytes = group.bytes);
        lines
    }

    /// True when more than a sixteenth of the limit was said to stay, of one name and cause.
    pub fn is_too_much(&self) -> bool {
        self.groups.values().any(|group| group.said_bytes > self.max_bytes / PART_OF_LIMIT)
    }

    /// What was told, or would have been if it had stayed; the largest first.
    pub fn finish(self) -> Vec<Group> {
        let large = self.max_bytes / PART_OF_LIMIT;
        let mut groups: Vec<Group> =
            self.groups.into_values().filter(|group| group.is_worth_a_word(large)).collect();
        groups.sort_by(|a, b| (b.peak_bytes, &a.name).cmp(&(a.peak_bytes, &b.name)));
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn finding(name: &str, pid: u32, cause: Cause, mib: u64) -> Finding {
        let why = if cause.is_process() { "is statically linked: no loader runs" } else { "" };
        Finding {
            name: name.into(),
            pid,
            cause,
            why: why.into(),
            help: cause.help(name, pid),
            bytes: mib * MIB,
        }
    }

    #[test]
    fn memory_is_told_once_and_again_when_it_has_doubled() {
        let mut told = Told::new(160 * MIB);
        let shared = |mib| [finding("python3", 31, Cause::Memory(Kind::Shared), mib)];
        (0..9).for_each(|_| assert!(told.look(&shared(10)).is_empty(), "no more than a sixteenth"));
        assert_eq!((told.look(&shared(12)), told.look(&shared(12))), (vec![], vec![]));
        let line = "12 MiB of python3 (31) are shared memory and cannot go out; less of it, or a higher limit, helps";
        assert_eq!(told.look(&shared(12)), [line]);
        assert!(told.is_too_much());
        assert_eq!(told.look(&shared(20)), [""; 0]);
        assert_eq!(told.look(&[]), [""; 0]);
        assert_eq!((0..PAUSE).flat_map(|_| told.look(&shared(24))).count(), 1);
        let groups = told.finish();
        assert_eq!((groups.len(), groups[0].peak_bytes, groups[0].count), (1, 24 * MIB, 1));
    }

    #[test]
    fn a_process_is_told_from_8_mib_on_once_it_has_stayed() {
        let mut told = Told::new(1024 * MIB);
        let go = [finding("go", 7, Cause::Go, 9), finding("go", 8, Cause::Go, 7)];
        assert_eq!((told.look(&go), told.look(&go)), (vec![], vec![]));
        assert_eq!(
            told.look(&go),
            [
                "16 MiB of go (7 and 1 more) cannot go out: it is statically linked; GOMEMLIMIT bounds its heap"
            ]
        );
        assert!(!told.is_too_much(), "it is little of the limit");
        let mut told = Told::new(1024 * MIB);
        let many: Vec<Finding> = (0..60).map(|pid| finding("cc", pid, Cause::Static, 7)).collect();
        (0..2).for_each(|_| assert!(told.look(&many).is_empty()));
        assert_eq!(told.look(&many).len(), 1, "each is small, and all together are not");
        assert!(told.is_too_much());
    }

    #[test]
    fn what_grows_is_told_when_it_is_there_and_at_once_where_it_takes_half_of_the_limit() {
        let mut told = Told::new(160 * MIB);
        let mut look = |mib| told.look(&[finding("x", 7, Cause::Memory(Kind::Shared), mib)]).len();
        assert_eq!([20, 30, 40, 50].map(&mut look), [0; 4]);
        assert_eq!(look(51), 1, "it has come to rest");
        let mut told = Told::new(160 * MIB);
        let mut look = |mib| told.look(&[finding("x", 7, Cause::Memory(Kind::Shared), mib)]).len();
        assert_eq!([11, 13, 15, 17, 20].map(&mut look), [0; 5]);
        assert_eq!(look(24), 1, "it does not");
        let mut told = Told::new(160 * MIB);
        assert_eq!(told.look(&[finding("x", 7, Cause::Memory(Kind::Shared), 81)]).len(), 1);
    }

    #[test]
    fn what_is_about_to_be_registered_is_told_only_if_it_is_not() {
        let mut told = Told::new(160 * MIB);
        let mut look =
            |mib| told.look(&[finding("x", 7, Cause::Memory(Kind::Unregistered), mib)]).len() as u32;
        assert_eq!((1..PASSING).map(|_| look(90)).sum::<u32>(), 0);
        assert_eq!([look(5), look(90)], [0; 2], "others by now");
        assert_eq!((2..PASSING).map(|_| look(90)).sum::<u32>(), 0);
        assert_eq!(look(90), 1);
        let mut told = Told::new(160 * MIB);
        (1..PASSING).for_each(|_| drop(told.look(&[finding("x", 7, Cause::Memory(Kind::Unregistered), 90)])));
        assert_eq!(told.finish(), []);
    }

    #[test]
    fn many_names_at_once_are_a_few_lines() {
        let mut told = Told::new(160 * MIB);
        let many: Vec<Finding> = (0..300)
            .map(|pid| finding(&format!("job-{pid}"), pid, Cause::Static, 10 + u64::from(pid)))
            .collect();
        // They come by and by.
        let mut lines: Vec<String> = (0..5).flat_map(|n| told.look(&many[..n * 5])).collect();
        assert!(lines.len() <= LINES, "{lines:?}");
        lines = (0..5 * PAUSE).flat_map(|_| told.look(&many)).collect();
        assert_eq!(lines.len(), LINES);
        assert!(lines[0].starts_with("309 MiB of job-299 (299) cannot go out"), "{}", lines[0]);
        assert!(lines[3].contains(" more processes cannot go out"), "{}", lines[3]);
        assert_eq!(told.finish().len(), 300);
    }
}
