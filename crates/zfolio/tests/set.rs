//! `zfolio set` and `zfolio reclaim`, as a user sees them; and what the socket of a run takes from whoever connects.

mod dialogue;
mod skip;

use dialogue::{Dialogue, MIB, Scratch, ZFOLIO, until, zfolio};
use serde_json::Value;
use skip::skip;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// The user whom everybody takes for nobody.
const NOBODY: u32 = 65534;

/// Keeps 100 MiB of texts, which shrink to a tenth, and sleeps until it is asked for a sum of all of them.
const SLEEPER: &str = "
import hashlib, sys
x = [(str(i) * 60)[:300] for i in range(300000)]
print('ready', flush=True)
for line in sys.stdin:
    h = hashlib.md5()
    for s in x:
        h.update(s.encode())
    print(h.hexdigest(), flush=True)
";

/// A run of the sleeper's.
struct Run(Dialogue);

impl Run {
    fn start(options: &[&str]) -> Run {
        let own: [&[&str]; 3] = [&[ZFOLIO, "run", "--quiet"], options, &["--", "python3", "-c", SLEEPER]];
        Run(Dialogue::start(&own.concat()))
    }

    /// The sum of all that it has.
    fn sum(&mut self) -> String {
        self.0.tell("")
    }

    fn end(self) -> Option<i32> {
        self.0.end()
    }

    /// Waits until its engine has seen all that it has.
    fn settle(&self) {
        until("its engine has seen all of it", || self.memory("footprint_bytes") > 90 * MIB);
    }

    /// The number of python's process, which has an engine.
    fn program(&self) -> String {
        until("it has an engine", || Some(self.stat()["processes"][0]["pid"].as_u64()?.to_string()))
    }

    /// Where its socket is.
    fn socket(&self) -> PathBuf {
        let links = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().flatten();
        let mut files = links.filter_map(|link| fs::read_link(link.path()).ok());
        let is_dir = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("zfolio-"))
        };
        files.find(is_dir).expect("it has its directory open").join(memcg::CONTROL_FILE)
    }
}

impl std::ops::Deref for Run {
    type Target = Dialogue;

    fn deref(&self) -> &Dialogue {
        &self.0
    }
}

/// What a command that fails says, which is one line.
fn refusal(output: &Output, status: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(status), &[][..]), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// The sum that the sleeper prints, alone.
fn expected() -> String {
    Dialogue::start(&["python3", "-c", SLEEPER]).tell("")
}

#[test]
fn a_lower_limit_shrinks_a_program_that_runs_and_a_higher_one_lets_it_grow() {
    let mut run = Run::start(&["--memory", "1G"]);
    run.settle();
    let before = run.memory("footprint_bytes");
    assert!(before > 90 * MIB, "{before}");
    assert_eq!(run.set(&["memory=60M"]), "memory=60M\n");
    until("it is within its limit", || run.memory("footprint_bytes") <= 60 * MIB);
    assert_eq!(run.memory("max_bytes"), 60 * MIB);
    let sum = run.sum();
    let held = run.memory("footprint_bytes");
    assert!(held <= 66 * MIB, "{held}");
    assert_eq!(run.set(&["memory=1G"]), "memory=1G\n");
    let faults = run.counter("faults");
    assert_eq!([sum, run.sum()], [expected(), expected()]);
    assert!(faults > 0 && run.memory("footprint_bytes") > 66 * MIB, "it has grown again");
    assert_eq!(run.end(), Some(0));
}

#[test]
fn what_is_wrong_is_said_in_one_line_and_changes_nothing() {
    let run = Run::start(&["--memory", "256M"]);
    let pid = run.pid();
    let list = || run.set(&[]);
    let before = list();
    for (values, status, expected) in [
        (&["memory=1M"][..], 2, "memory=1M: expected "),
        (&["memory=x"], 2, "memory=x: expected "),
        (&["max_compression_ratio=50", "memory=1M"], 2, "memory=1M: expected "),
        (&["max_compression_ratio=0"], 2, "max_compression_ratio=0: expected 1 to 100"),
        (&["enabled=maybe"], 2, "enabled=maybe: expected Y or N"),
        (&["enabled=N", "enabled=Y"], 2, "enabled is set twice"),
        (&["memroy=64M"], 2, "there is no tunable \"memroy\"; memory is meant?"),
        (&["swappiness=60"], 2, "there is no tunable \"swappiness\", only memory, compressor, "),
        (&["compressor=gzip"], 2, "compressor=gzip: no such compressor: accepted are lz4[:ACCELERATION]"),
        (
            &["max_compression_ratio=50", "compressor=lz4:0"],
            2,
            "compressor=lz4:0: no such ACCELERATION of lz4",
        ),
        (&["compressor=auto"], 2, "compressor=auto: no such compressor: accepted are lz4[:ACCELERATION]"),
        (&["compressor=lz4,zstd,842"], 2, "more than two compressors: accepted is one, or two as FAST,DENSE"),
        (&["compressor=zstd,dict=x"], 2, "a run has the dictionary that it begins with"),
        (
            &["compressor=deflate-iaa"],
            2,
            "a device is opened when the run begins, and this one began with zstd:1",
        ),
        (&["memory"], 2, "memory: expected NAME=VALUE, such as memory=512M"),
        (&["max_pool_percent=30"], 2, "this run has no swap areas (zfolio run --backing)"),
        (&["writeback=N"], 2, "this run has no swap areas (zfolio run --backing)"),
    ] {
        let said = refusal(&zfolio(&[&["set", &pid], values].concat()), status);
        assert!(said.starts_with("zfolio: ") && said.contains(expected), "{values:?}: {said}");
    }
    assert_eq!(list(), before);
    assert!(before.starts_with(&format!("zfolio run {pid}: python3 -c ")), "{before}");
    assert!(before.lines().all(|line| line.chars().count() <= 80), "{before}");
    for value in ["\nmemory=256M ", "\ncompressor=zstd:1 ", "\nenabled=Y ", "\nzswap.max=max "] {
        assert!(before.contains(value), "{before}");
    }
    for size in ["0", "50%", "-5M", "lots"] {
        let said = refusal(&zfolio(&["reclaim", &pid, size]), 2);
        assert!(said.contains(&format!("{size}: expected a size such as 64M")), "{said}");
    }
}

#[test]
fn who_is_not_there_is_of_no_run_or_has_no_engine_is_told() {
    let run = Run::start(&["--memory", "1G"]);
    let mut child = Command::new(ZFOLIO)
        .args(["run", "--quiet", "--", "sh", "-c", "echo ready; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    for act in [&["set", "PID", "memory=64M"][..], &["set", "PID"], &["reclaim", "PID", "1M"]] {
        let of = |pid: &str| {
            zfolio(&act.iter().map(|word| if *word == "PID" { pid } else { word }).collect::<Vec<_>>())
        };
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        assert_eq!(
            refusal(&of(&gone.id().to_string()), 1),
            format!("zfolio: there is no process {}\n", gone.id())
        );
        assert!(refusal(&of("1"), 1).starts_with("zfolio: process 1 is of no run of zfolio"));
        assert_eq!(of("memory=64M").status.code(), Some(2));
    }
    let said = refusal(&zfolio(&["reclaim", &child.id().to_string(), "1M"]), 1);
    assert!(said.contains("no process of this run has an engine"), "{said}");
    drop(child.stdin.take());
    child.wait().unwrap();
    // Its engine is a process of the run, too, and has none itself.
    let engine = until("its engine is there", || {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid())).ok()?;
        let is_engine = |pid: &&str| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "zfolio-engine\n")
        };
        children.split_whitespace().find(is_engine).map(str::to_string)
    });
    let said = refusal(&zfolio(&["reclaim", &engine, "1M"]), 1);
    assert!(said.starts_with(&format!("zfolio: process {engine} has no engine")), "{said}");
}

#[test]
fn a_sleeping_process_is_reclaimed_and_reads_what_it_had() {
    let mut run = Run::start(&["--memory", "1G"]);
    run.settle();
    let program = run.program();
    let rss = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{program}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    };
    let (before, held) = (rss(), run.memory("footprint_bytes"));
    let output = zfolio(&["reclaim", &program, "60M"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("reclaimed 6") && text.ends_with(" MiB\n"), "{text}");
    assert!(rss() + 55 * MIB < before, "{} of {before}", rss());
    assert!(run.memory("footprint_bytes") + 55 * MIB < held);
    // More than there is: all that goes out does.
    let output = zfolio(&["reclaim", &run.pid(), "10G"]);
    let (text, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{text}{said}");
    assert!(text.starts_with("reclaimed ") && text.ends_with(" of 10 GiB\n"), "{text}");
    assert!(said.contains("no more goes out"), "{said}");
    let low = run.memory("footprint_bytes");
    assert_eq!(run.sum(), expected());
    assert!(run.memory("footprint_bytes") > low, "it may grow again");
    assert_eq!(run.end(), Some(0));
}

#[test]
fn a_sleeping_process_whose_memory_is_noise_is_reclaimed_to_an_area() {
    let scratch = Scratch::new("set-reclaim");
    let noise = "
import hashlib, random, sys
x = random.Random(5).randbytes(60 << 20)
print('ready', flush=True)
for line in sys.stdin:
    print(hashlib.md5(x).hexdigest(), flush=True)
";
    let backing = scratch.backing();
    let words = [ZFOLIO, "run", "--quiet", "--memory", "2G", "--backing", &backing, "--"];
    let mut run = Run(Dialogue::start(&[&words[..], &["python3", "-c", noise]].concat()));
    until("its engine has seen all of it", || run.memory("footprint_bytes") > 60 * MIB);
    let sum = run.sum();
    let held = run.memory("footprint_bytes");
    let output = zfolio(&["reclaim", &run.pid(), "30M"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (left, out) = (run.memory("footprint_bytes"), run.counter("pswpout"));
    assert!(left + 25 * MIB < held && left > 4 * MIB, "{left} of {held}");
    assert!(out * 4096 > 25 * MIB, "{out} pages");
    assert_eq!(run.sum(), sum);
    assert_eq!(run.end(), Some(0));
}

#[test]
fn who_gives_up_withdraws_what_he_has_asked_for() {
    let run = Run::start(&["--memory", "1G"]);
    let pid = run.pid();
    let mut asks = Command::new(ZFOLIO).args(["reclaim", &pid, "10G"]).spawn().unwrap();
    until("it goes out", || run.counter("zswpout") > 0);
    asks.kill().unwrap();
    asks.wait().unwrap();
    let output = until("the next one may ask", || {
        let output = zfolio(&["reclaim", &pid, "1M", "--timeout", "30"]);
        let said = String::from_utf8(output.stderr.clone()).unwrap();
        (!said.contains("another zfolio reclaim")).then_some(output)
    });
    assert!(output.status.code().is_some_and(|status| status < 2), "{output:?}");
}

#[test]
fn without_writeback_nothing_goes_to_areas_and_a_smaller_pool_sends_it_there() {
    let scratch = Scratch::new("set-writeback");
    let backing = scratch.backing();
    let options = ["--memory", "64M", "--max-pool-percent", "5", "--backing", &backing];
    let mut run = Run::start(&options);
    assert_eq!(run.set(&["writeback=N"]), "writeback=N\n");
    let still = until("what is under way is written", || {
        let before = run.counter("pswpout");
        std::thread::sleep(Duration::from_millis(300));
        (run.counter("pswpout") == before).then_some(before)
    });
    let sums = [run.sum(), run.sum()];
    assert_eq!(run.counter("pswpout"), still, "nothing is written");
    let values = ["max_pool_percent=2", "accept_threshold_percent=50", "writeback=Y"];
    assert_eq!(run.set(&values), "max_pool_percent=2\naccept_threshold_percent=50\nwriteback=Y\n");
    until("the pool has gone to the area", || run.counter("pswpout") > still);
    let pool =
        until("it is within its limit", || Some(run.memory("pool_bytes")).filter(|pool| *pool < 4 * MIB));
    let sum = run.sum();
    assert_eq!(sums.map(|sum| sum == expected()), [true; 2], "{pool}");
    assert_eq!(sum, expected());
    let program = run.program();
    let output = zfolio(&["set", &program, "zswap.max=1M", "writeback=N"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "zswap.max=1M\nwriteback=N\n");
    assert!(run.set(&[]).contains("\nzswap.max=max "), "it is that process's alone");
    assert_eq!(run.end(), Some(0));
}

#[test]
fn a_pool_that_takes_nothing_new_lets_a_program_pass_its_limit() {
    let mut run = Run::start(&["--memory", "64M"]);
    assert_eq!(run.set(&["enabled=N"]), "enabled=N\n");
    let out = run.counter("zswpout");
    assert_eq!(run.sum(), expected());
    assert!(run.memory("footprint_bytes") > 70 * MIB, "{}", run.memory("footprint_bytes"));
    let said = refusal(&zfolio(&["reclaim", &run.pid(), "1M"]), 1);
    assert!(said.contains("enabled=N"), "{said}");
    run.set(&["enabled=Y"]);
    until("it is within its limit", || run.memory("footprint_bytes") <= 64 * MIB);
    assert!(run.counter("zswpout") > out);
    assert_eq!(run.sum(), expected());
    assert_eq!(run.end(), Some(0));
}

#[test]
fn nonsense_and_clients_that_hang_disturb_nobody() {
    let mut run = Run::start(&["--memory", "64M"]);
    let path = run.socket();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", run.pid())).unwrap().count();
    let before = descriptors();
    let mut hanging = Vec::new();
    for number in 0..500 {
        let mut socket = UnixStream::connect(&path).unwrap();
        match number % 3 {
            0 => {}
            1 => drop(socket.write_all(b"{\"do\":")),
            _ => drop(socket.write_all(&[number as u8; 8192])),
        }
        hanging.push(socket);
        assert!(descriptors() <= before + 16, "{}", descriptors());
    }
    for nonsense in
        [&b"\n"[..], b"nonsense\n", b"{\"do\":\"set\",\"pid\":0,\"start\":0,\"values\":7}\n", b"\xff\0\n"]
    {
        let mut socket = UnixStream::connect(&path).unwrap();
        socket.write_all(nonsense).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert!(answer["error"].is_string() && answer["status"] == 2, "{answer}");
    }
    assert!(run.set(&[]).contains("\nmemory=64M "));
    assert_eq!(run.sum(), expected());
    drop(hanging);
    assert_eq!(run.end(), Some(0));
    assert!(!path.exists());
}

#[test]
fn a_stranger_is_refused_in_one_line() {
    if !fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0") {
        return skip("this takes root");
    }
    let run = Run::start(&["--memory", "256M"]);
    let path = run.socket();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let script = "
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
except PermissionError:
    sys.exit(print('refused by the kernel'))
try:
    s.sendall(b'{\"do\":\"set\",\"pid\":0,\"start\":0,\"values\":[[\"memory\",\"64M\"]]}\\n')
except OSError:
    pass
print(s.recv(4096).decode(), end='')
";
    let ask = || {
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(&path).uid(NOBODY).gid(NOBODY).current_dir("/");
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(ask(), "refused by the kernel\n");
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    assert!(ask().contains("this is another user's"));
    assert!(run.set(&[]).contains("\nmemory=256M "), "nothing has changed");
}

#[test]
fn a_run_that_is_stopped_is_told_of_in_time() {
    let run = Run::start(&["--memory", "256M"]);
    let signal = |number: i32| {
        // SAFETY: touches no memory.
        unsafe { libc::kill(run.child.id() as i32, number) };
    };
    signal(libc::SIGSTOP);
    let said = refusal(&zfolio(&["set", &run.pid(), "memory=200M"]), 1);
    signal(libc::SIGCONT);
    assert_eq!(said, format!("zfolio: run {} does not answer: it may be stopped\n", run.pid()));
}
