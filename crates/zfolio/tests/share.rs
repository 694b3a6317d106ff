//! Several processes under one limit: who gets what, and what becomes of it when one of them, or the coordinator, is
//! gone.
//!
//! They run `tests/c/neighbour.c`, and need the right to userfaultfd, as `zfolio doctor` does.

mod compile;
mod until;

use compile::compile;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use until::until;

const MIB: u64 = 1 << 20;

/// The longest that anything may take before it counts as hung.
const HANG: Duration = Duration::from_secs(120);

/// Memory is measured, so one test runs at a time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The test program.
fn neighbour() -> PathBuf {
    compile("neighbour")
}

/// A run of a shell script, in which `N` is the test program and `D` a directory of the test's own. Nothing of it
/// outlives the test.
struct Run {
    zfolio: Child,
    directory: PathBuf,
    killed: bool,
}

impl Run {
    fn new(name: &str, memory: &str, script: &str) -> Run {
        let directory = std::env::temp_dir().join(format!("zfolio-share-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let zfolio = Command::new(env!("CARGO_BIN_EXE_zfolio"))
            .args(["run", "--quiet", "--memory", memory, "--json"])
            .arg(directory.join("json"))
            .args(["--", "sh", "-c", script])
            .env("N", neighbour())
            .env("D", &directory)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        Run { zfolio, directory, killed: false }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn make(&self, name: &str) {
        fs::write(self.file(name), "").unwrap();
    }

    /// Waits for a file that a process makes; returns the process.
    fn made(&self, name: &str) -> u32 {
        let mut pid = None;
        until(name, || {
            pid = fs::read_to_string(self.file(name)).ok().and_then(|text| text.trim().parse().ok());
            pid.is_some()
        });
        pid.unwrap()
    }

    fn kill_zfolio(&mut self) {
        self.zfolio.kill().unwrap();
        self.killed = true;
    }

    /// Exit status, and all that was written to stdout and stderr until nobody was left who could.
    fn end(&mut self) -> (Option<i32>, String, String) {
        let (mut stdout, mut stderr) =
            (self.zfolio.stdout.take().unwrap(), self.zfolio.stderr.take().unwrap());
        let group = self.zfolio.id() as i32;
        let (done, watched) = std::sync::mpsc::channel();
        let guard = std::thread::spawn(move || {
            let late = watched.recv_timeout(HANG).is_err();
            if late {
                // SAFETY: a signal to a process group that this test has made, and whose first member it has not waited
                // for.
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
            late
        });
        let (mut out, mut err) = (String::new(), String::new());
        stdout.read_to_string(&mut out).unwrap();
        stderr.read_to_string(&mut err).unwrap();
        let _ = done.send(());
        assert!(!guard.join().unwrap(), "the run hangs; it wrote {out:?} and {err:?}");
        (self.zfolio.wait().unwrap().code(), out, err)
    }

    /// The summary as JSON.
    fn summary(&self) -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(self.file("json")).unwrap()).unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // SAFETY: as above; where it has been waited for, whoever is left of the group keeps its number.
        unsafe { libc::kill(-(self.zfolio.id() as i32), libc::SIGKILL) };
        let _ = self.zfolio.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Private memory of a process, in bytes.
fn private_bytes(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = statm.split_whitespace().map(|word| word.parse::<u64>().unwrap());
    let (resident, shared) = (pages.nth(1).unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * 4096
}

fn kill(pid: u32) {
    // SAFETY: a signal to a process of this test.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
}

#[test]
fn memory_that_lies_idle_goes_to_who_uses_its_own() {
    let _alone = one_at_a_time();
    let mut run = Run::new(
        "idle",
        "192M",
        "$N 140 fill make $D/idle until $D/done verify & $N 150 until $D/idle fill make $D/busy work $D/done verify & wait",
    );
    let (idle, busy) = (run.made("idle"), run.made("busy"));
    until("the idle one's memory is out and the other's is in", || {
        private_bytes(idle) < 80 * MIB && private_bytes(busy) > 105 * MIB
    });
    run.make("done");
    assert_eq!(run.end(), (Some(0), "right\nright\n".into(), String::new()));
    let peak = run.summary()["memory"]["peak_bytes"].as_u64().unwrap();
    assert!(peak < 192 * MIB * 11 / 10, "{peak}");
}

#[test]
fn a_process_that_is_killed_leaves_its_share_to_the_others() {
    let _alone = one_at_a_time();
    let mut run = Run::new(
        "killed",
        "192M",
        "$N 150 fill make $D/first work $D/never & $N 150 until $D/first fill make $D/second work $D/done verify & wait",
    );
    let (first, second) = (run.made("first"), run.made("second"));
    assert!(private_bytes(second) < 145 * MIB, "both do not fit");
    kill(first);
    until("the other has all of its memory in", || private_bytes(second) >= 150 * MIB);
    run.make("done");
    let (status, out, err) = run.end();
    assert_eq!((status, &*out), (Some(0), "right\n"), "{err}");
}

#[test]
fn programs_go_on_without_the_coordinator_and_say_so_once() {
    let _alone = one_at_a_time();
    let mut run = Run::new(
        "orphaned",
        "128M",
        "for i in 1 2; do (\"$N\" 100 fill make $D/made$i work $D/done fill verify; echo status $?) & done; wait",
    );
    let (first, second) = (run.made("made1"), run.made("made2"));
    run.kill_zfolio();
    // Time for every engine to notice.
    std::thread::sleep(Duration::from_secs(1));
    // And they keep within it, both together, until the last has ended.
    let pids = [first, second];
    let watch = std::thread::spawn(move || {
        let mut most = 0;
        loop {
            let now = pids.map(private_bytes);
            if now == [0, 0] {
                return most;
            }
            most = most.max(now.iter().sum());
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    run.make("done");
    let (status, out, err) = run.end();
    let most = watch.join().unwrap();
    assert!((64 * MIB..=128 * MIB * 11 / 10).contains(&most), "{} of 128 MiB", most / MIB);
    assert!(run.killed && status.is_none());
    assert_eq!(out.matches("right\n").count(), 2, "{out}");
    assert_eq!(out.matches("status 0\n").count(), 2, "{out}");
    assert_eq!(err, "zfolio: the coordinator has died; the programs go on, each within its last share\n");
}

#[test]
fn a_daemon_goes_on_within_its_share_when_the_command_has_ended() {
    let _alone = one_at_a_time();
    let mut run = Run::new(
        "daemon",
        "96M",
        "(\"$N\" 150 fill make $D/daemon until $D/go fill verify > $D/answer 2>&1; echo >> $D/answer) > /dev/null 2>&1 & \
         while ! [ -e $D/daemon ]; do sleep 0.01; done; exit 7",
    );
    let daemon = run.made("daemon");
    assert_eq!(run.end(), (Some(7), String::new(), String::new()));
    run.make("go");
    let (mut peak, mut answer) = (0, String::new());
    until("the daemon is through", || {
        peak = private_bytes(daemon).max(peak);
        answer = fs::read_to_string(run.file("answer")).unwrap_or_default();
        answer.ends_with("\n\n")
    });
    assert_eq!(answer, "right\n\n", "and nobody took the end of the run for a death");
    assert!(peak < 96 * MIB * 11 / 10, "{peak}");
}

#[test]
fn pages_that_forked_children_only_read_are_counted_once() {
    let _alone = one_at_a_time();
    let peak = || {
        let mut run = Run::new("forked", "400M", "$N 150 fill fork 8 read 1500 verify");
        let (status, out, err) = run.end();
        assert_eq!((status, out.matches("right\n").count()), (Some(0), 9), "{err}");
        run.summary()["memory"]["peak_bytes"].as_u64().unwrap()
    };
    // On a busy machine one of them may count in full for a moment, until its page tables have been walked; where each
    // counts for itself no run is right.
    let peaks: Vec<u64> = (0..3).map(|_| peak() / MIB).collect();
    assert!(peaks.iter().any(|peak| (150..300).contains(peak)), "{peaks:?} MiB");
}

#[test]
fn pages_that_many_small_children_share_do_not_fill_a_small_limit() {
    let _alone = one_at_a_time();
    let peak = || {
        let mut run = Run::new("small", "32M", "$N 2 fill fork 24 read 2000 verify");
        let (status, out, err) = run.end();
        assert_eq!((status, out.matches("right\n").count()), (Some(0), 25), "{err}");
        run.summary()["memory"]["peak_bytes"].as_u64().unwrap()
    };
    // Each in full they were 50 MiB and more, and stopped after ten seconds of that. On a busy machine some count in
    // full for a moment.
    let peaks: Vec<u64> = (0..3).map(|_| peak() / MIB).collect();
    assert!(peaks.iter().any(|&peak| peak <= 35), "{peaks:?} MiB");
}

/// More processes than there are CPUs, each of which works on more than its part of the limit, and all that they wrote
/// at the end.
fn crowd(name: &str) -> (Run, usize) {
    let count = 2 * std::thread::available_parallelism().unwrap().get() + 2;
    let script = format!(
        "for i in $(seq {count}); do \"$N\" 32 fill make $D/made$i work $D/done fill verify & done; wait"
    );
    let run = Run::new(name, &format!("{}M", 20 * count), &script);
    (1..=count).for_each(|i| _ = run.made(&format!("made{i}")));
    (run, count)
}

#[test]
fn who_takes_memory_from_each_other_misses_in_turn_and_all_get_on() {
    let _alone = one_at_a_time();
    let (mut run, count) = crowd("turns");
    std::thread::sleep(Duration::from_secs(5));
    run.make("done");
    let (status, out, err) = run.end();
    assert_eq!((status, out.matches("right\n").count()), (Some(0), count), "{err}");
    let summary = run.summary();
    assert!(summary["counters"]["parked_ns"].as_u64() > Some(1_000_000_000), "{summary}");
}

#[test]
fn who_waits_for_its_turn_goes_on_when_the_coordinator_has_died() {
    let _alone = one_at_a_time();
    let (mut run, count) = crowd("orphaned-turns");
    std::thread::sleep(Duration::from_secs(3));
    run.kill_zfolio();
    run.make("done");
    let (_, out, err) = run.end();
    assert_eq!(out.matches("right\n").count(), count, "{err}");
}
