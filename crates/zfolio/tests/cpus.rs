//! An engine's workers follow the CPUs of their run, also those that come later. The test needs the right to
//! userfaultfd, as `zfolio doctor` does, and two CPUs.

mod dialogue;
mod skip;

use dialogue::{Dialogue, ZFOLIO, until};
use std::fs;
use std::process::Command;

/// Rewrites 160 MiB for each line that it is told.
const PROGRAM: &str = "
import mmap, random, sys
PAGES = 40960
m = mmap.mmap(-1, PAGES << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
noise = [random.Random(i).randbytes(1000) + bytes(2000) + b'%04d words ' % i * 90 for i in range(64)]
print('ready', flush=True)
for number, line in enumerate(sys.stdin):
    for page in range(PAGES): m[page << 12 : (page << 12) + 3900] = noise[(page + number) % 64][:3900]
    print('done', flush=True)
";

/// What `/proc/PID/stat` has behind the name.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_string).collect())
}

/// The children of a process that have this name, the oldest first.
fn children(parent: u32, name: &str) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        comm.trim() == name && stat(*pid).is_some_and(|stat| stat[1] == parent.to_string())
    };
    let mut found: Vec<u32> = pids.filter(is_child).collect();
    found.sort_unstable();
    found
}

/// How long a process has used CPUs, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = stat(pid).expect("it lives");
    stat[11].parse::<u64>().unwrap() + stat[12].parse::<u64>().unwrap()
}

/// Which CPUs this test may use.
fn cpus() -> Vec<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let numbers = list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    });
    numbers.map(|cpu| cpu.to_string()).collect()
}

#[test]
fn one_for_which_there_is_a_cpu_later_works_from_then_on() {
    let [first, second, ..] = &cpus()[..] else {
        return skip::lacks("there is one CPU only");
    };
    let words = [ZFOLIO, "run", "--quiet", "--memory", "128M", "--", "python3", "-c", PROGRAM];
    let mut run = Dialogue::start(&[&["taskset", "-c", first], &words[..]].concat());
    (0..2).for_each(|_| assert_eq!(run.tell("go"), "done"));
    let engine = children(run.child.id(), "zfolio-engine");
    let workers = children(engine[0], "zfolio-worker");
    assert_eq!(workers.len(), 2, "one waits for a CPU that may come");
    let worked = ticks(workers[1]);
    assert!(ticks(workers[0]) > 10 && worked < 3, "{} and {worked}", ticks(workers[0]));
    let status = Command::new("taskset").args(["-acp", &[&first[..], second].join(","), &run.pid()]).output();
    assert!(status.unwrap().status.success());
    until("the other works too", || {
        run.tell("go");
        (ticks(workers[1]) > worked + 10).then_some(())
    });
    assert!(Command::new("taskset").args(["-acp", first, &run.pid()]).output().unwrap().status.success());
    until("it rests again", || {
        let before = ticks(workers[1]);
        run.tell("go");
        (ticks(workers[1]) == before).then_some(())
    });
    assert_eq!(run.end(), Some(0));
}
