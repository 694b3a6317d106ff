//! What cannot go out counts against the limit, is told while the program runs, and is in the summary: shared memory,
//! processes that cannot be managed, and memory of managed ones that stays. They need the right to userfaultfd, as
//! `zfolio doctor` does.
//!
//! Each runs `tests/c/stays.c`, which holds memory of some kind until its standard input ends, or a program like it of
//! another language: what is told is read while it runs.

mod skip;

use serde_json::Value;
use skip::skip;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");
const MIB: u64 = 1 << 20;

/// Whoever says nothing for so long will say nothing.
const PATIENCE: Duration = Duration::from_secs(100);

/// `stays`, built with these flags; it goes with the test.
struct Program(PathBuf);

impl Program {
    fn new(test: &str, flags: &[&str]) -> Program {
        let path = std::env::temp_dir().join(format!("zfolio-told-{test}-{}", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/stays.c");
        let built =
            Command::new("gcc").args(["-O1", "-Wall"]).args(flags).arg("-o").arg(&path).arg(source).status();
        assert!(built.expect("gcc is needed").success());
        Program(path)
    }

    /// None that is built by a C compiler.
    fn other(test: &str) -> Program {
        Program(std::env::temp_dir().join(format!("zfolio-told-{test}-{}", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Starts it under zfolio.
    fn run(&self, options: &[&str], arguments: &[&str]) -> Running {
        let json = self.0.with_extension(format!(
            "{}.json",
            arguments[arguments.len().saturating_sub(2)..].join("-").replace(['/', ' '], "_")
        ));
        let mut command = Command::new(ZFOLIO);
        command.arg("run").args(options).arg("--json").arg(&json).arg("--").args(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Running { child, lines, said: Vec::new(), json }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A run that goes on.
struct Running {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
    json: PathBuf,
}

impl Running {
    /// Waits for the line with this in it, and sees that CMD still runs.
    fn waits_for(&mut self, part: &str) -> String {
        while !self.said.iter().any(|line| line.contains(part)) {
            let line = self.lines.recv_timeout(PATIENCE);
            self.said.push(line.unwrap_or_else(|_| panic!("{part} is not said: {:?}", self.said)));
        }
        assert_eq!(self.child.try_wait().unwrap(), None, "it is said before the end: {:?}", self.said);
        self.said.iter().find(|line| line.contains(part)).unwrap().clone()
    }

    /// Waits until so many of its processes hold all that they are to hold.
    fn is_held(&mut self, processes: usize) {
        let mut stdout = [0; 5];
        for _ in 0..processes {
            self.child.stdout.as_mut().unwrap().read_exact(&mut stdout).unwrap();
            assert_eq!(&stdout, b"held\n");
        }
    }

    /// Ends it: its exit status, all that was said, and the figures.
    fn ends(mut self) -> (Option<i32>, String, Value) {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        self.said.extend(self.lines.iter());
        let json = fs::read_to_string(&self.json).unwrap();
        fs::remove_file(&self.json).unwrap();
        (status.code(), self.said.join("\n"), serde_json::from_str(&json).unwrap())
    }
}

/// A figure of the JSON's `memory`.
fn memory(json: &Value, name: &str) -> u64 {
    json["memory"][name].as_u64().unwrap_or_else(|| panic!("{name}: {json}"))
}

#[test]
fn shared_memory_of_every_kind_is_counted_and_told() {
    let program = Program::new("shared", &[]);
    for kind in ["shared", "memfd", "file", "left", "sysv"] {
        let mut run = program.run(&["--memory", "64M"], &[program.path(), kind, "100"]);
        let line = run.waits_for("are shared memory and cannot go out");
        assert!(
            line.starts_with("zfolio: warning: ") && line.contains(" of zfolio-told-sh"),
            "{kind}: {line}"
        );
        run.is_held(1);
        // Until it has been counted to the end.
        std::thread::sleep(Duration::from_secs(3));
        let (status, said, json) = run.ends();
        assert_eq!(status, Some(0), "{kind}: {said}");
        let shared = memory(&json, "shared_peak_bytes");
        assert!((100 * MIB..105 * MIB).contains(&shared), "{kind}: {shared}: {said}");
        assert!(memory(&json, "peak_bytes") >= shared, "{kind}: {said}");
        assert!(!said.contains("nothing had to go out") && said.contains("  unevictable "), "{kind}: {said}");
        let told = &json["unevictable"][0];
        assert_eq!(told["cause"], "shared", "{kind}: {json}");
        assert!(told["peak_bytes"].as_u64().unwrap() >= 100 * MIB, "{kind}: {told}");
    }
}

#[test]
fn what_ten_processes_share_counts_once() {
    let program = Program::new("ten", &[]);
    let mut run = program.run(&["--memory", "500M"], &[program.path(), "tenfold", "100"]);
    run.waits_for("are shared memory");
    run.is_held(10);
    std::thread::sleep(Duration::from_secs(3));
    let (status, said, json) = run.ends();
    let shared = memory(&json, "shared_peak_bytes");
    assert_eq!(status, Some(0), "{said}");
    // A page may count twice for a moment, while it is touched for the first time.
    assert!((100 * MIB..150 * MIB).contains(&shared), "{shared}: {said}");
}

#[test]
fn others_have_less_for_what_is_shared() {
    let program = Program::new("less", &[]);
    let arguments = [program.path(), "private", "60", "shared", "60"];
    let mut run = program.run(&["--memory", "100M"], &arguments);
    run.waits_for("are shared memory");
    run.is_held(1);
    std::thread::sleep(Duration::from_secs(2));
    let (status, said, json) = run.ends();
    assert_eq!(status, Some(0), "{said}");
    assert!(json["processes"][0]["pages_out"].as_u64().unwrap() > 1000, "{said}");
    // It comes faster than anybody looks, so that the peak may be above the limit.
    assert!(memory(&json, "peak_bytes") >= 100 * MIB - 16 * MIB, "{said}");
}

#[test]
fn processes_that_no_engine_manages_are_told_with_what_helps() {
    let program = Program::new("static", &["-static"]);
    let shell = format!("{} private 40; true", program.path());
    let mut run = program.run(&["--memory", "32M"], &["sh", "-c", &shell]);
    let line = run.waits_for("cannot go out");
    assert!(line.contains("it is statically linked; a dynamically linked build of it is managed"), "{line}");
    run.is_held(1);
    std::thread::sleep(Duration::from_secs(1));
    let (status, said, json) = run.ends();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("above the limit of 32 MiB") && !said.contains("nothing had to"), "{said}");
    let group = &json["unmanaged"][0];
    assert_eq!((&group["cause"], &group["count"]), (&"static".into(), &1.into()), "{json}");
    assert!(group["peak_bytes"].as_u64().unwrap() >= 40 * MIB, "{group}");
}

#[test]
fn a_process_whose_environment_lacks_the_library_is_told() {
    let program = Program::new("bare", &[]);
    let mut run = program.run(&["--memory", "32M"], &[program.path(), "bare", "private", "20"]);
    let line = run.waits_for("cannot go out");
    assert!(line.contains("its environment does not ask for zfolio; let it inherit LD_PRELOAD"), "{line}");
    let (status, said, _) = run.ends();
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn locked_memory_of_a_managed_process_is_told() {
    let program = Program::new("locked", &[]);
    let mut run = program.run(&["--memory", "64M"], &[program.path(), "locked", "30", "private", "40"]);
    run.waits_for("are locked memory and cannot go out; the program without mlock, or a higher limit, helps");
    let (status, said, json) = run.ends();
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(json["unevictable"][0]["cause"], "locked", "{json}");
}

#[test]
fn a_program_that_is_well_managed_is_told_nothing() {
    let program = Program::new("well", &[]);
    let mut run = program.run(&["--memory", "40M"], &[program.path(), "private", "60"]);
    run.is_held(1);
    std::thread::sleep(Duration::from_secs(3));
    let (status, said, json) = run.ends();
    assert_eq!(status, Some(0), "{said}");
    assert!(!said.contains("warning") && !said.contains("unevictable"), "{said}");
    assert_eq!(json["unevictable"], Value::Array(vec![]), "{json}");
}

#[test]
fn a_strict_run_is_stopped_with_the_same_line() {
    let program = Program::new("strict", &[]);
    let shell = format!("{} shared 60; echo went on", program.path());
    let mut run = program.run(&["--memory", "64M", "--strict"], &["sh", "-c", &shell]);
    // Whose input ends would end by itself.
    let input = run.child.stdin.take();
    let status = run.child.wait().unwrap();
    drop(input);
    assert_eq!(status.code(), Some(125));
    let mut stdout = String::new();
    run.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    assert!(!stdout.contains("went on"), "{stdout}");
    let (_, said, json) = run.ends();
    assert!(said.contains("are shared memory and cannot go out") && said.contains("(--strict)"), "{said}");
    assert_eq!(json["exit_status"], 125);
    let mut run = program.run(&["--memory", "64M", "--strict"], &[program.path(), "private", "30"]);
    run.is_held(1);
    assert_eq!(run.ends().0, Some(0), "what can go out stops nobody");
}

/// Who waits for what a stopped process was to do may wait for ever.
#[test]
fn a_process_that_is_stopped_is_told_while_others_go_on() {
    let program = Program::new("stopped", &[]);
    let options = ["--quiet", "--memory", "32M", "--full-timeout-ms", "2000"];
    let mut run = program.run(&options, &["sh", "-c", "\"$0\" noise 64; cat", program.path()]);
    let line = run.waits_for("was stopped");
    assert!(line.starts_with("zfolio: the limit of 32 MiB is full and nothing more can go out"), "{line}");
    let (status, said, json) = run.ends();
    assert_eq!((status, said.matches("was stopped").count()), (Some(0), 1), "{said}");
    let stopped = |process: &&Value| process["state"] == "stopped";
    assert_eq!(json["processes"].as_array().unwrap().iter().filter(stopped).count(), 1, "{json}");
}

/// A program of another language, in the repository.
fn source(name: &str) -> String {
    format!("{}/../../tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Where a program is, or that it is not.
fn find(program: &str) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path.split(':').chain(["/usr/local/go/bin"]).map(|dir| Path::new(dir).join(program));
    let found = found.filter(|path| path.is_file()).find_map(|path| Some(path.to_str()?.to_string()));
    found.or_else(|| {
        skip(&format!("{program} is not installed"));
        None
    })
}

#[test]
fn a_heap_of_javas_zgc_is_told_with_the_collector_that_helps() {
    let Some(java) = find("java") else { return };
    let program = Program::other("zgc");
    let arguments = [&java, "-XX:+UseZGC", "-Xmx400m", &source("Hold.java"), "150"];
    let mut run = program.run(&["--memory", "800M"], &arguments);
    let line = run.waits_for("are shared memory and cannot go out");
    assert!(line.contains(" of java ") && line.ends_with("; -XX:+UseG1GC has a heap that can"), "{line}");
    run.is_held(1);
    let (status, said, json) = run.ends();
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(json["unevictable"][0]["cause"], "shared", "{json}");
}

#[test]
fn a_static_go_program_that_node_starts_is_told_with_what_bounds_it() {
    let (Some(node), Some(go)) = (find("node"), find("go")) else { return };
    let program = Program::other("go");
    let mut build = Command::new(go);
    build.args(["build", "-o", program.path(), &source("hold.go")]).env("CGO_ENABLED", "0");
    // The cache stays: it holds the standard library, which takes half a minute to compile.
    build.env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache")).env("GO111MODULE", "off");
    assert!(build.env("GOFLAGS", "").env("GOTOOLCHAIN", "local").status().unwrap().success());
    let script = "process.exitCode = require('child_process').spawnSync(process.argv[1], ['150'], {stdio: 'inherit'}).status";
    let mut run = program.run(&["--memory", "200M"], &[&node, "-e", script, program.path()]);
    let line = run.waits_for("it is statically linked");
    assert!(line.starts_with("zfolio: warning: ") && line.contains("GOMEMLIMIT"), "{line}");
    run.is_held(1);
    let (status, said, json) = run.ends();
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(json["unmanaged"][0]["cause"], "static_go", "{json}");
}
