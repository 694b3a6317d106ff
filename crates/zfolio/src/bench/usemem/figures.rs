//! One run of a crew, as it is seen from outside: its own times, processor time, pages out and in, the pool.

use super::machine;
use super::side::Place;
use super::{Failure, Load};
use crate::sys;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

/// How often pools are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// After so long a crew is ended.
const LONGEST: Duration = Duration::from_secs(1800);

/// Counters of /proc/vmstat that are shown.
const VMSTAT: [&str; 9] = [
    "zswpout",
    "zswpin",
    "pswpout",
    "pswpin",
    "thp_swpout",
    "thp_swpout_fallback",
    "thp_fault_alloc",
    "thp_split_page",
    "pgmajfault",
];

/// Those of a size of folios, in the kernel's folder of it.
const OF_A_SIZE: [&str; 5] = ["zswpout", "swpout", "swpout_fallback", "anon_fault_alloc", "split"];

/// What one run has come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// What could be held, without a pool that nobody is charged with, in bytes.
    pub limit_bytes: u64,
    /// Such a pool, at most, in bytes.
    pub uncharged_bytes: u64,
    /// The pool, at most, in bytes.
    pub pool_bytes: u64,
    /// Nanoseconds from the first process's start until all have written; and until all have compared.
    pub written_ns: u64,
    /// See `written_ns`.
    pub read_ns: u64,
    /// What each process took to write, in nanoseconds.
    pub writers_ns: Vec<u64>,
    /// Processor time of the machine while they wrote, in seconds: all of it, and that of the kernel.
    pub cpu_s: [f64; 2],
    /// Pages, folios and events, by the names of [`VMSTAT`]; those of the size by `size_` and its name.
    pub counts: BTreeMap<String, u64>,
}

impl Figures {
    /// KiB in a second, as usemem counts them: of all processes together, each by its own time.
    pub fn total_kib_s(&self, bytes: u64) -> u64 {
        self.writers_ns
            .iter()
            .map(|ns| (bytes as u128 * 1_000_000_000 / 1024 / (*ns).max(1) as u128) as u64)
            .sum()
    }
}

/// One run of a crew.
pub struct Follower<'a> {
    place: &'a Place,
    seen: Figures,
    folio_bytes: u64,
    processes: u64,
}

impl<'a> Follower<'a> {
    /// Before it begins.
    pub fn new(load: &Load, folio_bytes: u64, limit_bytes: u64, place: &'a Place) -> Follower<'a> {
        let seen = Figures { limit_bytes, ..Figures::default() };
        Follower { place, seen, folio_bytes, processes: load.processes }
    }

    /// Runs it. The inner error is what it complained of.
    pub fn run(mut self, crew: &[String]) -> Result<Result<Figures, String>, Failure> {
        let words = [&self.place.words[..], crew].concat();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (before, cpu) = (counts(self.folio_bytes), cpu_s());
        let pools = [machine::zswap_bytes(), self.zram_bytes()];
        let mut process = match command.spawn() {
            Ok(process) => process,
            Err(error) => return Ok(Err(format!("{}: {error}", words[0]))),
        };
        let (lines, errors) = (lines(&mut process), complaints(&mut process));
        let ended = self.follow(&mut process, &lines, pools, cpu);
        if !matches!(ended, Ok(true)) {
            let pid = process.id() as sys::Pid;
            sys::kill(pid, libc::SIGTERM);
        }
        let status = process.wait().map_err(|error| (1, format!("a crew's end: {error}")))?;
        let complaint = errors.join().unwrap_or_default();
        if !ended? || !status.success() {
            return Ok(Err(format!("{status}: {}", complaint.trim().replace('\n', "; "))));
        }
        self.count(&before);
        Ok(Ok(self.seen))
    }

    /// Takes what the crew says to its end; false where it ended before it was done.
    fn follow(
        &mut self,
        process: &mut Child,
        lines: &Receiver<String>,
        pools: [u64; 2],
        cpu: [f64; 2],
    ) -> Result<bool, Failure> {
        let mut rests_left = LONGEST.as_millis() / LOOK.as_millis();
        loop {
            if let Some(signal) = sys::next_signal(LOOK).filter(|signal| ends(signal.number)) {
                return Err((128 + signal.number as u8, "interrupted; all is as it was before".to_string()));
            }
            self.look_at_pools(pools);
            match lines.try_recv() {
                Ok(line) => match self.take(&line) {
                    Some("written") => {
                        let now = cpu_s();
                        self.seen.cpu_s = [now[0] - cpu[0], now[1] - cpu[1]];
                        // Who has ended instead says so by its status.
                        let _ = process.stdin.as_mut().map(|stdin| stdin.write_all(b"\n"));
                    }
                    Some(_) => {}
                    None => return Ok(false),
                },
                Err(TryRecvError::Empty) => rests_left = rests_left.saturating_sub(1),
                Err(TryRecvError::Disconnected) => return Ok(self.seen.read_ns > 0),
            }
            if rests_left == 0 {
                return Err((1, format!("a run took longer than {} s, and was ended", LONGEST.as_secs())));
            }
        }
    }

    /// A line of the crew's: what is done.
    fn take(&mut self, line: &str) -> Option<&'static str> {
        let mut words = line.split(' ');
        let done = words.next()?;
        let all = words.next()?.parse().ok()?;
        let each: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
        if each.len() as u64 != self.processes {
            return None;
        }
        match done {
            "written" => {
                (self.seen.written_ns, self.seen.writers_ns) = (all, each);
                Some("written")
            }
            "read" => {
                self.seen.read_ns = all;
                Some("read")
            }
            _ => None,
        }
    }

    fn zram_bytes(&self) -> u64 {
        self.place.zram.as_deref().map_or(0, machine::zram_bytes)
    }

    fn look_at_pools(&mut self, before: [u64; 2]) {
        if self.place.summary.is_some() {
            return;
        }
        let zswap = machine::zswap_bytes().saturating_sub(before[0]);
        let zram = self.zram_bytes().saturating_sub(before[1]);
        let uncharged = zram + if self.place.has_uncharged_zswap { zswap } else { 0 };
        self.seen.pool_bytes = self.seen.pool_bytes.max(zswap + zram);
        self.seen.uncharged_bytes = self.seen.uncharged_bytes.max(uncharged);
    }

    /// Counts what has gone and come: as the kernel does, or as zfolio's summary says.
    fn count(&mut self, before: &BTreeMap<String, u64>) {
        let after = counts(self.folio_bytes);
        let kernel = after.into_iter().map(|(name, count)| {
            let count = count.saturating_sub(before.get(&name).copied().unwrap_or(0));
            (name, count)
        });
        self.seen.counts = kernel.collect();
        let Some(summary) = self.place.summary.as_deref().and_then(read_json) else { return };
        self.seen.pool_bytes = summary["memory"]["pool_at_peak_bytes"].as_u64().unwrap_or(0);
        for name in ["zswpout", "zswpin", "pswpout", "pswpin"] {
            let count = summary["counters"][name].as_u64().unwrap_or(0);
            self.seen.counts.insert(name.to_string(), count);
        }
        let size = format!("{}k", self.folio_bytes >> 10);
        for (name, of) in [
            ("size_zswpout", "zswpout"),
            ("size_swpout", "swpout"),
            ("size_swpout_fallback", "swpout_fallback"),
        ] {
            let count = summary["folios"][of][&size].as_u64().unwrap_or(0);
            self.seen.counts.insert(name.to_string(), count);
        }
    }
}

/// True for a signal by which a user ends a command.
fn ends(signal: i32) -> bool {
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT].contains(&signal)
}

/// The lines that it says, as they come.
fn lines(process: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(stdout) = process.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}

/// What it complains of, all of it.
fn complaints(process: &mut Child) -> thread::JoinHandle<String> {
    let stderr = process.stderr.take();
    thread::spawn(move || {
        let lines =
            stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines().map_while(Result::ok));
        lines.collect::<Vec<_>>().join("\n")
    })
}

/// Processor time of the machine since it started, in seconds: all of it, and that of the kernel.
fn cpu_s() -> [f64; 2] {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq] = ticks.first_chunk().copied().unwrap_or_default();
    let kernel = system + irq + softirq;
    [user + nice + kernel, kernel].map(|ticks| ticks as f64 / sys::ticks_per_second() as f64)
}

/// What the kernel counts, for the whole machine.
fn counts(folio_bytes: u64) -> BTreeMap<String, u64> {
    let vmstat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let all: BTreeMap<&str, u64> = vmstat
        .lines()
        .filter_map(|line| {
            let (name, count) = line.split_once(' ')?;
            Some((name, count.trim().parse().ok()?))
        })
        .collect();
    let mut counts: BTreeMap<String, u64> =
        VMSTAT.iter().map(|name| (name.to_string(), all.get(name).copied().unwrap_or(0))).collect();
    let stats = machine::size_folder(folio_bytes).join("stats");
    for name in OF_A_SIZE {
        let count = fs::read_to_string(stats.join(name)).ok().and_then(|text| text.trim().parse().ok());
        counts.insert(format!("size_{name}"), count.unwrap_or(0));
    }
    counts
}

fn read_json(path: &Path) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_the_sum_of_what_each_process_makes() {
        let figures = Figures { writers_ns: vec![1_000_000_000, 500_000_000], ..Figures::default() };
        assert_eq!(figures.total_kib_s(1 << 20), 1024 + 2048);
    }

    #[test]
    fn a_crew_says_what_all_and_what_each_has_taken() {
        let place = Place { words: Vec::new(), summary: None, zram: None, has_uncharged_zswap: false };
        let load = Load { processes: 2, bytes: 1, memory_bytes: 1, contents: String::new() };
        let mut follower = Follower::new(&load, 4096, 7, &place);
        assert_eq!(follower.take("written 30 10 20"), Some("written"));
        assert_eq!(follower.take("read 9 4 5"), Some("read"));
        assert_eq!(
            (follower.seen.written_ns, follower.seen.read_ns, &follower.seen.writers_ns[..]),
            (30, 9, &[10, 20][..])
        );
        for wrong in ["", "written 30 10", "written x 10 20", "slept 1 2 3"] {
            assert_eq!(follower.take(wrong), None, "{wrong}");
        }
    }
}
