//! `tests/c/descend.c`, which tells by its own memory whether it is managed, and shows with what arguments and what
//! environment it was started: alone and under zfolio.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

pub const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/");

/// A folder that every user gets into, with the test program; it goes with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(test: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("zfolio-descendants-{test}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        let scratch = Scratch(dir);
        scratch.compile("descend.c", "descend", &["-O1", "-Wall", "-pthread"]);
        scratch
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }

    pub fn compile(&self, source: &str, name: &str, flags: &[&str]) -> String {
        let path = self.path(name);
        let source = format!("{SOURCES}{source}");
        let built = Command::new("gcc").args(flags).args(["-o", &path, &source]).status();
        assert!(built.expect("gcc is needed").success(), "gcc {flags:?} {source}");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub fn file(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A program without a C library that is started by this loader.
    pub fn bare(&self, name: &str, loader: &str, flags: &[&str]) -> String {
        let loader = format!("-Wl,--dynamic-linker={loader}");
        let bare = ["-nostdlib", "-nostartfiles", "-fPIE", "-pie", "-fno-stack-protector", &loader];
        self.compile("bare.c", name, &[&bare, flags].concat())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub fn alone(command: &[&str]) -> Output {
    Command::new(command[0]).args(&command[1..]).output().unwrap()
}

pub fn under_zfolio(command: &[&str]) -> Output {
    Command::new(ZFOLIO).args(["run", "--memory", "32M", "--"]).args(command).output().unwrap()
}

/// What there is without zfolio's own: its variables in an environment, its lines on stderr.
pub fn without_ours(output: &[u8]) -> String {
    let mut lines = String::new();
    for line in text(output).lines() {
        let line = match line.strip_prefix("LD_PRELOAD=") {
            Some(value) => {
                let theirs: Vec<_> =
                    value.split(':').filter(|entry| !entry.ends_with("/libzfolio.so")).collect();
                if theirs.is_empty() { String::new() } else { format!("LD_PRELOAD={}", theirs.join(":")) }
            }
            None if line.starts_with("ZFOLIO_MEMCG=") => String::new(),
            None => line.to_string(),
        };
        if !line.is_empty() {
            lines += &format!("{line}\n");
        }
    }
    lines
}

/// The lines that zfolio does not begin, or go on with after a summary's first.
pub fn not_zfolios(stderr: &[u8]) -> String {
    let is_ours = |line: &&str| line.starts_with("zfolio: ") || line.starts_with("  ");
    text(stderr).lines().filter(|line| !is_ours(line)).map(|line| format!("{line}\n")).collect()
}

/// Runs a command alone and under zfolio, and sees that there is no difference; returns the latter.
pub fn is_the_same(command: &[&str]) -> Output {
    let (before, after) = (alone(command), under_zfolio(command));
    let said = text(&after.stderr);
    assert_eq!(after.status.code(), before.status.code(), "{command:?}: {said}");
    assert_eq!(without_ours(&after.stdout), text(&before.stdout), "{command:?}: {said}");
    assert_eq!(not_zfolios(&after.stderr), text(&before.stderr), "{command:?}");
    after
}

pub fn ways(descend: &str) -> Vec<String> {
    let ways: Vec<_> = text(&alone(&[descend, "ways"]).stdout).lines().map(str::to_string).collect();
    assert!(ways.len() > 20, "{ways:?}");
    ways
}
