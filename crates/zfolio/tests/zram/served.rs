//! A device that is served for a test, and the programs that are its clients.

use super::skip::skip;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

pub const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// Where a server's standard error output goes, in its directory.
const SAID: &str = "said";

/// One that is served at a socket of NBD, until this is dropped.
pub struct Served {
    pub child: Child,
    pub number: u32,
    pub directory: Directory,
    pub socket: PathBuf,
}

/// A directory that goes with its value.
pub struct Directory(pub PathBuf);

impl Directory {
    /// One of a test's.
    pub fn new(test: &str) -> Directory {
        let directory = std::env::temp_dir().join(format!("zfolio-zram-{test}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        Directory(directory)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // One that has been handed on has no name.
        if !self.0.as_os_str().is_empty() {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

impl Served {
    /// Serves a device by NBD, with these options beside. `None` where nbdkit is not there.
    pub fn start(test: &str, options: &[&str]) -> Option<Served> {
        if !has(&["nbdkit"]) {
            return None;
        }
        Some(Served::again(Directory::new(test), options))
    }

    /// Serves in a directory of one that has ended.
    pub fn again(directory: Directory, options: &[&str]) -> Served {
        let socket = directory.0.join("nbd.sock");
        let place = format!("unix:{}", socket.display());
        let mut command = Command::new(ZFOLIO);
        command.args(["zram", "serve", "--nbd", &place]).args(options).stdout(Stdio::piped());
        // nbdkit has a line for each client that goes without a word.
        command.stderr(fs::File::create(directory.0.join(SAID)).unwrap());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let number = line.strip_prefix("zram").and_then(|rest| rest.split(' ').next());
        let number = number.and_then(|number| number.parse().ok());
        let said = || fs::read_to_string(directory.0.join(SAID)).unwrap();
        let number = number.unwrap_or_else(|| panic!("it says {line:?} {}", said()));
        Served { number, child, directory, socket }
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// What the server has said so far on its standard error output.
    pub fn on_stderr(&self) -> String {
        fs::read_to_string(self.directory.0.join(SAID)).unwrap()
    }

    pub fn file(&self, name: &str) -> String {
        self.directory.0.join(name).to_str().unwrap().to_string()
    }

    /// What `zfolio zram ACT N ARGUMENTS` says.
    pub fn zram(&self, act: &str, arguments: &[&str]) -> Output {
        let number = self.number.to_string();
        Command::new(ZFOLIO).args(["zram", act, &number]).args(arguments).output().unwrap()
    }

    /// The same, which must go well.
    pub fn said(&self, act: &str, arguments: &[&str]) -> String {
        success(&self.zram(act, arguments))
    }

    /// What `zfolio zram list --json` says of it.
    pub fn listed(&self) -> Value {
        let output = Command::new(ZFOLIO).args(["zram", "list", "--json"]).output().unwrap();
        let list: Value = serde_json::from_str(&success(&output)).unwrap();
        let devices = list["zram"].as_array().unwrap();
        devices.iter().find(|device| device["number"] == self.number).unwrap().clone()
    }

    pub fn figure(&self, name: &str) -> u64 {
        self.listed()[name].as_u64().unwrap()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Ends it by a signal; the exit status, and its directory.
    pub fn end(mut self, signal: i32) -> (Option<i32>, Directory) {
        self.signal(signal);
        self.wait()
    }

    /// Waits until it ends.
    pub fn wait(&mut self) -> (Option<i32>, Directory) {
        let status = self.child.wait().unwrap().code();
        (status, std::mem::replace(&mut self.directory, Directory(PathBuf::new())))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = fs::read_to_string(self.file(SAID)).unwrap_or_default();
            said.lines().take(20).for_each(|line| println!("{line}"));
        }
        if self.child.try_wait().unwrap().is_none() {
            self.signal(libc::SIGTERM);
            let _ = self.child.wait();
        }
    }
}

/// True where these programs are there; says loudly which one is not.
pub fn has(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap();
    let is_there =
        |name: &&&str| std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
    match programs.iter().find(|name| !is_there(name)) {
        Some(missing) => {
            skip(&format!("{missing} is not installed"));
            false
        }
        None => true,
    }
}

/// What a program says, which must go well.
pub fn run(program: &str, arguments: &[&str]) -> String {
    success(&Command::new(program).args(arguments).output().unwrap())
}

pub fn success(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line that a refusal has, and its status.
pub fn refusal(output: &Output) -> (Option<i32>, String) {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    (output.status.code(), said)
}

/// Bytes of a file that shrink to about a third, from a seed.
pub fn contents(bytes: usize, seed: u64) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes + 64);
    let mut word = seed | 1;
    while text.len() < bytes {
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        text.extend_from_slice(format!("{:08x} the same in each line\n", word >> 40).as_bytes());
    }
    text.truncate(bytes);
    text
}
