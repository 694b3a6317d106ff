//! Runs of zfolio that a test starts, looks at from outside, and ends.

#![allow(dead_code, reason = "not every test looks at all of it")]

#[path = "../until/mod.rs"]
mod until;

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use until::until;

/// The command.
pub const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// Which runs there are is asked by one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

/// Takes 48 MiB of texts, says so, and reads them again and again until its input ends.
const SQUEEZED: &str = "
import select, sys, time
x = [str(i) * 8 + 'abcdefgh' for i in range(400000)]
print('ready', flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    sum(map(len, x[::31]))
    time.sleep(0.01)
";

/// A run of this test's.
pub struct Run {
    /// `zfolio run`.
    pub child: Child,
    _machine: Option<MutexGuard<'static, ()>>,
}

impl Run {
    /// Starts a run, alone among those of this file's tests, and waits for the program's first line.
    pub fn start(options: &[&str], command: &[&str]) -> Run {
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut run = Run::beside(options, command);
        run._machine = Some(machine);
        run
    }

    /// One more, for a test that has one already.
    pub fn beside(options: &[&str], command: &[&str]) -> Run {
        let mut child = Command::new(ZFOLIO)
            .args(["run", "--quiet"])
            .args(options)
            .arg("--")
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(read_line(child.stdout.as_mut().unwrap()), "ready\n");
        Run { child, _machine: None }
    }

    /// One whose memory is half out.
    pub fn squeezed(options: &[&str]) -> Run {
        let run = Run::start(&[options, &["--memory", "24M"]].concat(), &["python3", "-c", SQUEEZED]);
        until("something has been missed", || run.stat(&[])["counters"]["faults"].as_u64().unwrap() > 10);
        run
    }

    /// One that waits for the end of its input.
    pub fn idle() -> Run {
        Run::start(&[], &["sh", "-c", "echo ready; read line"])
    }

    /// Its number, in digits.
    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Its figures, read from outside.
    pub fn stat(&self, options: &[&str]) -> Value {
        let output = zfolio(&[&["stat", &self.pid(), "--json"], options].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Its first line of messages has the address of its metrics.
    pub fn metrics(&mut self) -> SocketAddr {
        let line = read_line(self.child.stderr.as_mut().unwrap());
        let address =
            line.strip_prefix("zfolio: metrics at http://").and_then(|rest| rest.strip_suffix("/metrics\n"));
        address.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap()
    }

    /// `zfolio run` and all of its descendants.
    pub fn all(&self) -> Vec<u32> {
        let mut all = vec![self.child.id()];
        let parents = parents();
        let mut at = 0;
        while let Some(&pid) = all.get(at) {
            all.extend(parents.iter().filter(|(_, parent)| **parent == pid).map(|(child, _)| *child));
            at += 1;
        }
        all
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // One that was stopped goes on, and one that does not end is killed.
        signal(&self.all(), libc::SIGCONT);
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line, and nothing of what follows it.
pub fn read_line(from: &mut impl Read) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.last() != Some(&b'\n') && from.read(&mut byte).unwrap() == 1 {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// The parent of each process.
pub fn parents() -> BTreeMap<u32, u32> {
    let numbers =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?))
    };
    numbers.filter_map(parent).collect()
}

/// Sends a signal to all of these.
pub fn signal(pids: &[u32], number: i32) {
    for pid in pids {
        // SAFETY: touches no memory.
        unsafe { libc::kill(*pid as i32, number) };
    }
}

/// What a command of zfolio comes to.
pub fn zfolio(arguments: &[&str]) -> Output {
    Command::new(ZFOLIO).args(arguments).output().unwrap()
}

/// What a command that fails says, which is one line.
pub fn refusal(output: &Output, status: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(status), &[][..]), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}
