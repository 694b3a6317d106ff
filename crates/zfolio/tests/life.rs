//! A program's life under `zfolio run` is as without it: streams, descriptors, signals, job control, the end.

mod until;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use until::until;

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// A command line in a shell; `@zfolio` in it is this build.
fn shell(script: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(script.replace("@zfolio", ZFOLIO)).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Starts a shell script under zfolio and waits for its first line. It has a process group of its own: signals of job
/// control are discarded in one that has no parent outside, as that of a test runner in the background.
fn start(script: &str) -> (Child, String) {
    let mut child = Command::new(ZFOLIO)
        .args(["run", "--quiet", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_string())
}

fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap().success());
}

/// The state letter of a process; none when it is gone.
fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn gone(pid: &str) -> bool {
    matches!(state(pid), None | Some('Z'))
}

#[test]
fn the_exit_status_is_the_programs() {
    for (script, status) in
        [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
    {
        let status_of = Command::new(ZFOLIO).args(["run", "-q", "--", "sh", "-c", script]).status().unwrap();
        assert_eq!(status_of.code(), Some(status), "{script}");
    }
}

#[test]
fn streams_pass_and_descriptors_are_as_without_zfolio() {
    assert_eq!(shell("printf abc | @zfolio run -q -- cat"), "abc");
    let list = "ls /proc/self/fd 5</dev/null";
    assert_eq!(shell(&format!("@zfolio run -q -- {list}")), shell(list));
    // A stream that is closed stays closed, and nothing is written into a file in its place.
    let closed = "sh -c 'ls /proc/self/fd >&3' 3>&1 <&- 2>&-";
    assert_eq!(shell(&format!("@zfolio run -- {closed}")), shell(closed));
}

#[test]
fn signals_that_are_ignored_or_blocked_are_as_without_zfolio() {
    let show = "grep ^Sig[BI] /proc/self/status";
    for before in ["", "trap '' INT QUIT HUP PIPE;", "trap '' CHLD;"] {
        let expected = shell(&format!("{before} env {show}"));
        assert_eq!(shell(&format!("{before} @zfolio run -q -- {show}")), expected, "{before}");
    }
}

#[test]
fn signals_sent_to_zfolio_reach_the_program_once() {
    for signal in ["TERM", "HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "ALRM"] {
        let script = format!(
            "n=0; trap 'n=$((n+1))' {signal}; trap 'exit $n' URG; echo ready; while :; do sleep 0.02; done"
        );
        let (mut child, _) = start(&script);
        kill(signal, child.id());
        std::thread::sleep(Duration::from_millis(150));
        kill("URG", child.id());
        assert_eq!(child.wait().unwrap().code(), Some(1), "{signal}");
    }
}

#[test]
fn a_program_that_ends_by_a_signal_takes_the_directory_with_it() {
    let (mut child, page) = start("echo $ZFOLIO_MEMCG; exec sleep 100");
    assert!(Path::new(&page).exists());
    kill("TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(!Path::new(&page).parent().unwrap().exists());
}

/// The engine is the last to have the program's memory, and that goes with it: the more there is, the longer it takes.
#[test]
fn nothing_of_a_run_is_left_when_it_has_ended() {
    const PROGRAM: &str =
        "import os; m = [b'%0200d' % n for n in range(700000)]; print(os.environ['ZFOLIO_MEMCG'])";
    for _ in 0..5 {
        let mut run = Command::new(ZFOLIO);
        let output =
            run.args(["run", "--quiet", "--memory", "96M", "--", "python3", "-c", PROGRAM]).output().unwrap();
        let page = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !page.is_empty());
        assert!(!Path::new(page.trim()).parent().unwrap().exists(), "{page}");
    }
}

#[test]
fn killing_zfolio_leaves_the_program_alone_and_its_directory_to_the_next_run() {
    let (mut child, line) = start("echo $$ $ZFOLIO_MEMCG; exec sleep 100");
    let (pid, page) = line.split_once(' ').unwrap();
    kill("KILL", child.id());
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert!(Command::new(ZFOLIO).args(["run", "-q", "--", "true"]).status().unwrap().success());
    assert!(!gone(pid) && Path::new(page).exists());
    kill("KILL", pid.parse().unwrap());
    until("the program is gone", || gone(pid));
    until("the directory is gone", || {
        Command::new(ZFOLIO).args(["run", "-q", "--", "true"]).status().unwrap().success()
            && !Path::new(page).exists()
    });
}

/// The page is mapped, which shows in every PID namespace, where no environment says so.
#[test]
fn what_a_killed_run_leaves_stays_as_long_as_a_process_has_mapped_the_page() {
    const PROGRAM: &str =
        "import os, sys, time; p = os.environ['ZFOLIO_MEMCG']; x = bytearray(os.urandom(1000)) * 20000
print(os.getpid(), p, flush=True); time.sleep(100)";
    let mut child = Command::new(ZFOLIO)
        .args(["run", "--quiet", "--memory", "1G", "--", "python3", "-c", PROGRAM])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let (pid, page) = line.trim().split_once(' ').unwrap();
    kill("KILL", child.id());
    child.wait().unwrap();
    // From another PID namespace, with a /proc of its own.
    let elsewhere = ["unshare", "-p", "-f", "-m", "--mount-proc"];
    let next = || {
        let mut run = Command::new(elsewhere[0]);
        run.args(&elsewhere[1..]).args([ZFOLIO, "run", "-q", "--", "true"]).status().unwrap().success()
    };
    if Command::new(elsewhere[0]).args(&elsewhere[1..]).arg("true").status().unwrap().success() {
        assert!(next() && Path::new(page).exists(), "a process has it mapped");
    }
    kill("KILL", pid.parse().unwrap());
    until("the directory is gone", || {
        Command::new(ZFOLIO).args(["run", "-q", "--", "true"]).status().unwrap().success()
            && !Path::new(page).exists()
    });
}

#[test]
fn zfolio_stops_with_the_program_and_continues_it() {
    for stop in ["STOP", "TSTP"] {
        let (mut child, pid) = start("echo $$; sleep 2; exit 5");
        match stop {
            // Sent to the program alone, and to zfolio alone.
            "STOP" => kill(stop, pid.parse().unwrap()),
            _ => kill(stop, child.id()),
        }
        until("both have stopped", || {
            state(&pid) == Some('T') && state(&child.id().to_string()) == Some('T')
        });
        kill("CONT", child.id());
        assert_eq!(child.wait().unwrap().code(), Some(5), "{stop}");
    }
}

#[test]
fn a_daemon_is_not_waited_for_and_keeps_its_directory_while_it_lives() {
    let began = Instant::now();
    let (mut child, line) = start("setsid sleep 100 >/dev/null 2>&1 & echo $! $ZFOLIO_MEMCG");
    assert!(child.wait().unwrap().success());
    assert!(began.elapsed() < Duration::from_secs(10));
    let (pid, page) = line.split_once(' ').unwrap();
    assert!(!gone(pid) && Path::new(page).exists());
    assert!(Command::new(ZFOLIO).args(["run", "-q", "--", "true"]).status().unwrap().success());
    assert!(Path::new(page).exists(), "swept away under a living daemon");
    kill("KILL", pid.parse().unwrap());
    until("the daemon is gone", || gone(pid));
    // Its engine has its environment, and may outlive it for a moment.
    until("the next run sweeps it away", || {
        assert!(Command::new(ZFOLIO).args(["run", "-q", "--", "true"]).status().unwrap().success());
        !Path::new(page).exists()
    });
}

#[test]
fn orphans_are_reaped_while_the_program_runs() {
    let (mut child, _) = start("for i in 1 2 3 4 5; do (sleep 0 &); done; echo ready; sleep 0.5");
    until("no zombie is left", || {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
        children.split_whitespace().all(|pid| state(pid) != Some('Z'))
    });
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_text_without_an_interpreter_is_run_by_the_shell() {
    let path = scratch("text");
    fs::write(&path, "echo \"$1\"; exit 3").unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&path).status().unwrap().success());
    let output = Command::new(ZFOLIO).args(["run", "-q", "--"]).arg(&path).arg("word").output().unwrap();
    fs::remove_file(path).unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(3), &b"word\n"[..]));
}

#[test]
fn a_run_inside_a_run_has_a_page_of_its_own() {
    let pages = shell(
        "@zfolio run -q -- sh -c 'echo $ZFOLIO_MEMCG; @zfolio run -q -- sh -c \"echo \\$ZFOLIO_MEMCG \\$LD_PRELOAD\"'",
    );
    let (outer, inner) = pages.split_once('\n').unwrap();
    let (inner, preload) = inner.trim().split_once(' ').unwrap();
    assert_ne!(outer, inner);
    assert_eq!(preload, format!("{}/libzfolio.so", Path::new(inner).parent().unwrap().display()));
}

#[test]
fn the_json_tells_how_the_program_ended() {
    let path = scratch("json");
    let status = Command::new(ZFOLIO)
        .args(["run", "--memory", "64M", "-c", "lz4", "-q", "--json"])
        .arg(&path)
        .args(["sh", "-c", "exit 9"])
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(9));
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    fs::remove_file(path).unwrap();
    assert_eq!(json["schema"], 5);
    assert_eq!(json["exit_status"], 9);
    assert_eq!(json["command"], serde_json::json!(["sh", "-c", "exit 9"]));
    assert_eq!(json["memory"]["max_bytes"], 64 << 20);
    assert!(json["compressor"].as_str().unwrap().starts_with("lz4"));
}

#[test]
fn without_pressure_the_summary_is_one_line_and_quiet_is_none() {
    let run = |option: &str| {
        let output = Command::new(ZFOLIO).args(["run", option, "--", "true"]).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(run("--memory=1G").lines().count(), 1);
    assert_eq!(run("--quiet"), "");
}

#[test]
fn a_full_stderr_does_not_change_the_exit_status() {
    let mut child = Command::new(ZFOLIO)
        .args(["run", "--", "sh", "-c", "read line; exit 4"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("zfolio-life-{name}-{}", std::process::id()))
}
