//! A program that answers on standard output what it is told on standard input, under zfolio or alone; and what
//! `zfolio stat` and `zfolio set` say of its run.

#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../until/mod.rs"]
mod until;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub use until::until;

pub const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");
pub const MIB: u64 = 1 << 20;

/// One that runs, and ends with the test.
pub struct Dialogue {
    pub child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Dialogue {
    /// Starts one that says "ready" first.
    pub fn start(words: &[&str]) -> Dialogue {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut dialogue = Dialogue { child, input, output };
        assert_eq!(dialogue.line(), "ready");
        dialogue
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    /// Tells it something, and returns what it prints.
    pub fn tell(&mut self, what: &str) -> String {
        self.input.as_mut().unwrap().write_all(format!("{what}\n").as_bytes()).unwrap();
        self.line()
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// What `zfolio ACT PID ARGUMENTS` prints, which must go well.
    fn zfolio(&self, act: &str, arguments: &[&str]) -> String {
        let output = zfolio(&[&[act, &self.pid()], arguments].concat());
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &[][..]), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Sets something of its run, and returns what is printed.
    pub fn set(&self, values: &[&str]) -> String {
        self.zfolio("set", values)
    }

    /// What `zfolio stat` prints.
    pub fn figures(&self) -> String {
        self.zfolio("stat", &[])
    }

    pub fn stat(&self) -> Value {
        serde_json::from_str(&self.zfolio("stat", &["--json"])).unwrap()
    }

    pub fn memory(&self, name: &str) -> u64 {
        self.stat()["memory"][name].as_u64().unwrap()
    }

    pub fn counter(&self, name: &str) -> u64 {
        self.stat()["counters"][name].as_u64().unwrap()
    }

    /// Ends it; its exit status.
    pub fn end(mut self) -> Option<i32> {
        self.input = None;
        self.child.wait().unwrap().code()
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        self.input = None;
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that goes with the test, where files are no memory.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(test: &str) -> Scratch {
        let path = PathBuf::from("/var/tmp").join(format!("zfolio-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    /// It as a swap area.
    pub fn backing(&self) -> String {
        format!("{},size=256M", self.0.display())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

pub fn zfolio(arguments: &[&str]) -> Output {
    Command::new(ZFOLIO).args(arguments).output().unwrap()
}
