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

/// The first two, if there are as many.
fn two_cpus() -> Option<[String; 2]> {
    let [first, second, ..] = &cpus()[..] else {
        skip::lacks("there is one CPU only");
        return None;
    };
    Some([first.clone(), second.clone()])
}

/// A run with so little memory that one worker may be started for a CPU that comes later, on this CPU.
fn start(cpu: &str) -> Dialogue {
    let words = [ZFOLIO, "run", "--quiet", "--memory", "127M", "--", "python3", "-c", PROGRAM];
    Dialogue::start(&[&["taskset", "-c", cpu], &words[..]].concat())
}

/// From now on the run, but not its program, is on these CPUs.
fn bind(run: &Dialogue, cpus: &str) {
    assert!(Command::new("taskset").args(["-acp", cpus, &run.pid()]).output().unwrap().status.success());
}

/// The workers of the run's one engine.
fn workers(run: &Dialogue) -> Vec<u32> {
    let engine = children(run.child.id(), "zfolio-engine");
    children(engine[0], "zfolio-worker")
}

#[test]
fn one_for_which_there_is_a_cpu_later_works_from_then_on() {
    let Some([first, second]) = two_cpus() else { return };
    let mut run = start(&first);
    (0..2).for_each(|_| assert_eq!(run.tell("go"), "done"));
    let workers = workers(&run);
    assert_eq!(workers.len(), 2, "one waits for a CPU that may come");
    let worked = ticks(workers[1]);
    assert!(ticks(workers[0]) > 10 && worked < 3, "{} and {worked}", ticks(workers[0]));
    bind(&run, &[&first[..], &second].join(","));
    until("the other works too", || {
        run.tell("go");
        ticks(workers[1]) > worked + 10
    });
    bind(&run, &first);
    until("it rests again", || {
        let before = ticks(workers[1]);
        run.tell("go");
        ticks(workers[1]) == before
    });
    assert_eq!(run.end(), Some(0));
}

/// Its engine begins with the program's memory.
#[test]
fn an_engine_that_begins_later_has_the_cpus_that_came_before() {
    let Some([first, second]) = two_cpus() else { return };
    let mut run = start(&first);
    bind(&run, &[&first[..], &second].join(","));
    run.tell("go");
    let workers = workers(&run);
    until("both work", || {
        run.tell("go");
        workers.iter().all(|&worker| ticks(worker) > 10)
    });
    assert_eq!((workers.len(), run.end()), (2, Some(0)));
}
