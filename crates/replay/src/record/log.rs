//! What perf has heard, as it prints it.

use anyhow::{Context as _, Result, ensure};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// What was seen of the program; addresses in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A fault.
    Touch { number: u64, is_write: bool },
    /// 100 microseconds of its processor time.
    Ran,
    /// munmap, or madvise that discards.
    Discard { first: u64, pages: u64 },
    /// mremap.
    Move { first: u64, pages: u64, to: u64 },
}

/// What was seen of the process that touched most.
pub struct Log {
    pub seen: Vec<Seen>,
    /// Its name, as /proc/PID/comm has it.
    pub comm: String,
}

/// A process, from its last exec on.
#[derive(Default)]
struct Process {
    seen: Vec<Seen>,
    comm: String,
    touches: usize,
    /// Calls of mremap by thread: first page, pages.
    moves: HashMap<String, (u64, u64)>,
}

impl Log {
    /// Reads what `perf record` wrote to a file.
    pub fn read(data: &Path) -> Result<Log> {
        let mut script = Command::new("perf");
        script.args(["script", "-F", "comm,pid,tid,event,trace", "-i"]).arg(data);
        let mut script = script.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let lines = BufReader::new(script.stdout.take().expect("it is piped")).lines();
        let log = Log::parse(lines.map(|line| line.context("cannot read what perf prints")));
        ensure!(script.wait()?.success(), "perf script cannot read {}", data.display());
        log
    }

    fn parse(lines: impl Iterator<Item = Result<String>>) -> Result<Log> {
        let mut processes: HashMap<String, Process> = HashMap::new();
        for line in lines {
            let line = line?;
            let Some(line) = Line::parse(&line) else { continue };
            // Engine and workers have faults of their own.
            if !line.comm.starts_with("zfolio-") {
                processes.entry(line.pid.to_owned()).or_default().add(&line);
            }
        }
        let most = processes.into_values().max_by_key(|process| process.touches);
        let most =
            most.context("perf has heard of no fault: this needs root, or a perf_event_paranoid of -1")?;
        Ok(Log { seen: most.seen, comm: most.comm })
    }
}

/// One line: `comm pid/tid event: name=value name: value, ..`.
struct Line<'l> {
    comm: &'l str,
    pid: &'l str,
    tid: &'l str,
    event: &'l str,
    fields: &'l str,
}

impl<'l> Line<'l> {
    fn parse(line: &'l str) -> Option<Line<'l>> {
        // A name may have blanks, but what follows it is a pair of numbers and an event.
        let is_pair = |word: &str| {
            word.split_once('/').is_some_and(|pair| [pair.0, pair.1].iter().all(|of| is_number(of)))
        };
        let pair = line.split_whitespace().find(|word| is_pair(word))?;
        let at = pair.as_ptr() as usize - line.as_ptr() as usize;
        let (pid, tid) = pair.split_once('/')?;
        let rest = line[at + pair.len()..].trim_start();
        let (event, fields) =
            rest.split_once(": ").unwrap_or((rest.trim_end_matches(": ").trim_end_matches(':'), ""));
        Some(Line { comm: line[..at].trim(), pid, tid, event, fields })
    }

    /// The number of a field, as `name=0x1f` or `name: 0x1f,`.
    fn number(&self, name: &str) -> Option<u64> {
        let rest = self.fields.split_whitespace().zip(self.fields.split_whitespace().skip(1).chain([""]));
        let value = rest.into_iter().find_map(|(word, next)| match word.strip_prefix(name)? {
            ":" => Some(next),
            value => value.strip_prefix('='),
        })?;
        u64::from_str_radix(value.trim_end_matches(',').trim_start_matches("0x"), 16).ok()
    }

    /// The pages of an address and a length.
    fn pages(&self, address: &str, len: &str) -> Option<(u64, u64)> {
        Some((self.number(address)? >> 12, self.number(len)?.div_ceil(4096)))
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl Process {
    fn add(&mut self, line: &Line<'_>) {
        self.comm = line.comm.to_owned();
        let seen = match line.event {
            "exceptions:page_fault_user" => {
                let (Some(address), Some(error)) = (line.number("address"), line.number("error_code")) else {
                    return;
                };
                self.touches += 1;
                Some(Seen::Touch { number: address >> 12, is_write: error & 2 != 0 })
            }
            "syscalls:sys_enter_munmap" => {
                line.pages("addr", "len").map(|(first, pages)| Seen::Discard { first, pages })
            }
            "syscalls:sys_enter_madvise" => {
                // MADV_DONTNEED and MADV_FREE.
                let discards = matches!(line.number("behavior"), Some(4 | 8));
                let range = line.pages("start", "len_in").filter(|_| discards);
                range.map(|(first, pages)| Seen::Discard { first, pages })
            }
            "syscalls:sys_enter_mremap" => {
                line.pages("addr", "old_len").map(|range| self.moves.insert(line.tid.to_owned(), range));
                None
            }
            "syscalls:sys_exit_mremap" => self.moved(line),
            "sched:sched_process_exec" => {
                *self = Process::default();
                None
            }
            clock => clock.starts_with("task-clock").then_some(Seen::Ran),
        };
        self.seen.extend(seen);
    }

    fn moved(&mut self, line: &Line<'_>) -> Option<Seen> {
        let (first, pages) = self.moves.remove(line.tid)?;
        // The result is the whole of what is printed.
        let to = u64::from_str_radix(line.fields.trim().trim_start_matches("0x"), 16).ok()? >> 12;
        (to != first && to < 1 << 40).then_some(Seen::Move { first, pages, to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
         python3  100/100  exceptions:page_fault_user: address=0x7ffff726b658 ip=0x7ffff777f8ba error_code=0x4
         python3  100/100  sched:sched_process_exec: filename=/usr/bin/python3 pid=100 old_pid=100
  my program (1)  100/100  exceptions:page_fault_user: address=0x7ffff726b658 ip=0x7ffff777f8ba error_code=0x6
   zfolio-engine  200/200  exceptions:page_fault_user: address=0x551690302000 ip=0x7ffff7f54867 error_code=0x6
  my program (1)  100/101  task-clock/period=100000/u:
  my program (1)  100/101  syscalls:sys_enter_madvise: start: 0x551692880000, len_in: 0x00001001, behavior: 0x00000004
  my program (1)  100/101  syscalls:sys_enter_madvise: start: 0x551692880000, len_in: 0x00001000, behavior: 0x00000010
  my program (1)  100/101  syscalls:sys_enter_mremap: addr: 0x7ffff0000000, old_len: 0x2000, new_len: 0x4000, flags: 0x1
  my program (1)  100/100  syscalls:sys_enter_munmap: addr: 0x7ffff7000000, len: 0x00003000
  my program (1)  100/101  syscalls:sys_exit_mremap: 0x7fffe0000000
  my program (1)  100/100  exceptions:page_fault_user: address=0x7fffe0000010 ip=0x7ffff777f8ba error_code=0x4
            bash   90/90   exceptions:page_fault_user: address=0x1000 ip=0x7ffff777f8ba error_code=0x4
";

    #[test]
    fn what_perf_prints_is_read() {
        let log = Log::parse(PRINTED.lines().map(|line| Ok(line.to_owned()))).unwrap();
        let seen = [
            Seen::Touch { number: 0x7ffff726b, is_write: true },
            Seen::Ran,
            Seen::Discard { first: 0x551692880, pages: 2 },
            Seen::Discard { first: 0x7ffff7000, pages: 3 },
            Seen::Move { first: 0x7ffff0000, pages: 2, to: 0x7fffe0000 },
            Seen::Touch { number: 0x7fffe0000, is_write: false },
        ];
        assert_eq!((log.comm.as_str(), log.seen.as_slice()), ("my program (1)", seen.as_slice()));
    }

    #[test]
    fn no_fault_at_all_is_said() {
        let message = Log::parse([].into_iter()).err().expect("nothing was read").to_string();
        assert!(message.contains("perf_event_paranoid"), "{message}");
    }
}
