//! What a user sees when swap areas fail: full, broken, slow, or with all processes killed while something is written.

mod compile;
mod skip;
mod until;

use compile::compile;
use skip::skip;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use until::until;

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");
const MIB: u64 = 1 << 20;

/// A directory that goes with the test, and may be a file system of its own.
struct Scratch {
    path: PathBuf,
    is_mounted: bool,
}

impl Scratch {
    fn new(test: &str) -> Scratch {
        let path =
            PathBuf::from("/var/tmp").join(format!("zfolio-area-faults-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch { path, is_mounted: false }
    }

    /// A file system in memory, which takes `force`, of so many MiB; `None` where this user may mount none.
    fn mounted(test: &str, mib: u64) -> Option<Scratch> {
        let mut scratch = Scratch::new(test);
        let size = format!("size={mib}M");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&scratch.path).output();
        scratch.is_mounted = mount.is_ok_and(|output| output.status.success());
        scratch.is_mounted.then_some(scratch)
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// An empty file of so many MiB.
    fn file(&self, mib: u64) -> String {
        let path = self.path.join("file");
        fs::File::create(&path).unwrap().set_len(mib * MIB).unwrap();
        path.to_str().unwrap().to_string()
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.path).unwrap().next().is_none()
    }

    /// Blocks that are taken of its file system.
    fn used(&self) -> String {
        let stat = Command::new("stat").args(["-f", "-c", "%b %f"]).arg(&self.path).output().unwrap();
        String::from_utf8(stat.stdout).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// `zfolio run` with these options, its figures in a file, for a program that is not to hang.
fn zfolio(json: &Path, options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "300", ZFOLIO, "run", "--quiet", "--json"]).arg(json).args(options);
    command.arg("--").args(program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn figures(json: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap()
}

fn count(figures: &serde_json::Value, name: &str) -> u64 {
    figures["counters"][name].as_u64().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A program that fills so many MiB with noise, or with what shrinks to half, and goes through them twice. It may wait
/// in between.
const FILLS: &str = r#"
import hashlib, random, sys
r = random.Random(5)
made = (lambda: r.randbytes(1 << 20)) if sys.argv[2] == "noise" else lambda: r.randbytes(1 << 19).hex().encode()
pieces = [bytearray(made()) for _ in range(int(sys.argv[1]))]
for turn in range(2):
    h = hashlib.sha256()
    for i, p in enumerate(pieces):
        p[(i * 4096 + turn) % len(p)] ^= 77
        h.update(p)
    print(h.hexdigest(), flush=True)
    if turn == 0 and len(sys.argv) > 3: sys.stdin.readline()
"#;

/// What it says.
fn expected(what: [&str; 2]) -> String {
    let alone = Command::new("python3").args(["-c", FILLS]).args(what).output().unwrap();
    assert!(alone.status.success());
    text(&alone.stdout)
}

/// It says under zfolio what it says alone; its figures, and what the user was told.
fn run_right(test: &str, options: &[&str], what: [&str; 2]) -> (serde_json::Value, String) {
    let scratch = Scratch::new(test);
    let json = scratch.path.join("json");
    let area = format!("{},size=256M", scratch.path());
    let options = [&["--memory", "64M", "--max-pool-percent", "20", "--backing", &area], options].concat();
    let output = zfolio(&json, &options, &["python3", "-c", FILLS, what[0], what[1]]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), expected(what)), "{said}");
    (figures(&json), said)
}

#[test]
fn a_full_area_is_told_once_and_what_does_not_fit_stays_in_the_pool() {
    let scratch = Scratch::new("full");
    let (json, area) = (scratch.path.join("json"), format!("{},size=16M", scratch.path()));
    let options = ["--memory", "64M", "--max-pool-percent", "5", "--backing", &area];
    // What is out fits into the area and the pool.
    let output = zfolio(&json, &options, &["python3", "-c", FILLS, "88", "half"]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), expected(["88", "half"])), "{said}");
    assert_eq!(said.matches("no swap area has room any more").count(), 1, "{said}");
    let all = figures(&json);
    assert!(count(&all, "area_full") > 0 && count(&all, "pswpout") > 8 << 8, "{all}");
    assert_eq!((count(&all, "area_refused"), count(&all, "area_lost")), (0, 0));
    // This does not. On a busy machine a page finds room now and then: then it crawls, and is stopped for that.
    let options = [&["--full-timeout-ms", "2000", "--stop-when-slow", "50"], &options[..]].concat();
    let output = zfolio(&json, &options, &["python3", "-c", FILLS, "120", "noise"]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + 9), "{said}");
    let helps = ["a higher limit", "more memory"]
        .map(|helps| format!("what helps: {helps}, or more room in swap areas (--backing)"));
    assert!(helps.iter().any(|helps| said.contains(helps)), "{said}");
    assert_eq!(said.matches("no swap area has room any more").count(), 1, "{said}");
}

#[test]
fn an_area_that_fails_each_time_takes_no_more_and_the_program_goes_on() {
    for (faults, errno) in [("write_errors=1", "EIO"), ("short_writes=1", "EIO"), ("full=1", "ENOSPC")] {
        let (all, said) = run_right("refuses", &["--area-faults", faults], ["72", "half"]);
        let line = format!("refused 8 writes one after the other, with {errno}");
        assert_eq!(said.matches(&line).count(), 1, "{faults}: {said}");
        // It is closed at the engine's next look, some milliseconds later; each process has an engine.
        let refused = count(&all, "area_refused");
        assert!((8..200).contains(&refused), "{faults}: {refused}");
        assert_eq!(count(&all, "area_lost"), 0, "{faults}");
    }
}

#[test]
fn an_area_that_fails_now_and_then_is_used_all_the_same() {
    let faults =
        "write_errors=30,short_writes=40,full=50,read_errors=900,short_reads=900,wrong_reads=900,slow=10";
    let (all, said) = run_right("now-and-then", &["--seed", "7", "--area-faults", faults], ["96", "noise"]);
    assert!(count(&all, "area_refused") > 0 && count(&all, "pswpin") > 8 << 8, "seed 7: {all}");
    assert_eq!(count(&all, "area_lost"), 0, "seed 7: of three reads one is right; {said}");
}

#[test]
fn a_full_file_system_is_told_in_time_and_another_area_takes_the_rest() {
    let Some(full) = Scratch::mounted("enospc", 32) else { return skip("this user may not mount") };
    let rest = Scratch::new("enospc-rest");
    let json = rest.path.join("json");
    let [first, second] = [(&full, "24M,prio=10,force"), (&rest, "256M")]
        .map(|(of, size)| format!("{},size={size}", of.path()));
    let script = "echo started; read line; exec python3 -c \"$0\" 96 noise wait";
    let options = ["--memory", "64M", "--backing", &first, "--backing", &second];
    let mut child = zfolio(&json, &options, &["sh", "-c", script, FILLS]).spawn().unwrap();
    let (mut stdin, mut line) = (child.stdin.take().unwrap(), String::new());
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    // All but some MiB are taken by somebody else after the area was opened.
    fs::write(full.path.join("others"), vec![1; 28 * MIB as usize]).unwrap();
    stdin.write_all(b"\n").unwrap();
    // The program waits until the user has been told.
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    line.clear();
    stderr.read_line(&mut line).unwrap();
    let path = full.path();
    let told =
        format!("zfolio: warning: --backing {path}: refused 8 writes one after the other, with ENOSPC");
    assert!(line.starts_with(&told), "{line}");
    stdin.write_all(b"\n").unwrap();
    let status = child.wait().unwrap();
    let [mut said, mut others] = [String::new(), String::new()];
    stdout.read_to_string(&mut said).unwrap();
    stderr.read_to_string(&mut others).unwrap();
    assert_eq!((status.code(), said), (Some(0), expected(["96", "noise"])), "{others}");
    assert_eq!(others, "");
    let all = figures(&json);
    assert!(count(&all, "area_refused") >= 8 && count(&all, "pswpout") > 16 << 8, "{all}");
    assert_eq!(count(&all, "area_lost"), 0);
}

#[test]
fn a_slow_area_makes_writers_wait_and_nothing_grows() {
    let (all, said) = run_right("slow", &["--seed", "5", "--area-faults", "slow=1"], ["128", "noise"]);
    let peak = all["memory"]["peak_bytes"].as_u64().unwrap();
    assert!(peak <= 64 * MIB / 10 * 11, "seed 5: {peak} bytes; {said}");
    assert!(count(&all, "pswpout") > 16 << 8 && count(&all, "pswpin") > 16 << 8, "seed 5: {all}");
}

/// The program of lost.c.
fn program() -> String {
    compile("lost").into_os_string().into_string().unwrap()
}

/// Runs it with an area: `spoil` is called when it has filled its memory. What it says of pages that were lost, what
/// the user is told, and the figures.
fn run_lost(test: &str, options: &[&str], spoil: impl FnOnce(&str)) -> (u64, String, serde_json::Value) {
    let scratch = Scratch::new(test);
    let (json, file) = (scratch.path.join("json"), scratch.file(128));
    let options = [&["--memory", "64M", "--backing", &file][..], options].concat();
    let mut child = zfolio(&json, &options, &[&program(), "96"]).spawn().unwrap();
    let (mut stdout, mut line) = (BufReader::new(child.stdout.take().unwrap()), String::new());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    spoil(&file);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    line.clear();
    stdout.read_to_string(&mut line).unwrap();
    let said = text(&stderr);
    assert_eq!(status.code(), Some(0), "{test} {options:?}: {line}{said}");
    let lost = line.strip_prefix("lost ").and_then(|rest| rest.strip_suffix(" wrong 0 back 0 elsewhere 0\n"));
    let lost = lost.and_then(|lost| lost.parse().ok());
    (lost.unwrap_or_else(|| panic!("{test} {options:?}: {line}{said}")), said, figures(&json))
}

/// Each of the first pages has its line, with its address, its place and the cause; the others are counted.
fn assert_told(lost: u64, said: &str, cause: &str, figures: &serde_json::Value) {
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("cannot be restored")).collect();
    assert_eq!(lines.len() as u64, lost.min(16), "{lost} pages: {said}");
    let mut addresses = Vec::new();
    for line in lines {
        let rest = line.strip_prefix("zfolio: the page at 0x").expect(line);
        addresses.push(u64::from_str_radix(rest.split(' ').next().unwrap(), 16).expect(line));
        assert!(line.contains(cause), "{cause}: {line}");
        let (_, place) = line.split_once("in area 1 of --backing, at byte ").expect(line);
        let at: u64 = place.split(',').next().unwrap().parse().expect(line);
        assert!(at < 128 * MIB, "{line}");
    }
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len() as u64, lost.min(16), "a page was told of twice: {said}");
    let others = format!("{} more pages could not be restored", lost.saturating_sub(16));
    assert_eq!(said.contains(&others), lost > 16, "{said}");
    assert!(count(figures, "area_lost") > 0);
}

#[test]
fn what_an_area_has_lost_is_sigbus_for_whoever_touches_it_and_all_else_lives_on() {
    for (faults, cause) in [
        ("read_errors=2", "the swap area says EIO (errno 5), after 3 tries"),
        ("short_reads=2", "the swap area says EIO (errno 5), after 3 tries"),
        ("wrong_reads=1", "its seal is broken"),
        ("wrong_writes=4", "its seal is broken"),
        ("lost_writes=4", "its seal is broken"),
    ] {
        let (lost, said, figures) = run_lost("lost", &["--seed", "3", "--area-faults", faults], |_| ());
        assert!(lost > 0 && lost < 96 * 256, "{faults}, seed 3: {lost}");
        assert_told(lost, &said, cause, &figures);
    }
}

#[test]
fn a_file_that_others_write_to_is_told_page_by_page() {
    let (lost, said, figures) = run_lost("others", &[], |file| {
        let area = fs::OpenOptions::new().write(true).open(file).unwrap();
        for mib in (0..128).step_by(4) {
            area.write_all_at(&vec![mib as u8; MIB as usize], mib * MIB).unwrap();
        }
    });
    assert!(lost > 0 && lost < 48 * 256, "{lost}");
    assert_told(lost, &said, "its seal is broken", &figures);
}

/// A program that writes noise without an end.
const ENDLESS: &str = "
import os, random
print(os.getpid(), flush=True)
r, pieces = random.Random(5), [None] * 96
while True:
    for i in range(len(pieces)): pieces[i] = r.randbytes(1 << 20)
";

fn kill(pid: &str) {
    // It may have ended since.
    let _ = Command::new("kill").args(["-KILL", "--", pid]).stderr(Stdio::null()).status().unwrap();
}

/// The engine of a run: a child of `zfolio run`, if there is one yet.
fn engine_of(zfolio: u32) -> Option<String> {
    let children = Command::new("pgrep").args(["-P", &zfolio.to_string(), "zfolio-engine"]).output().unwrap();
    text(&children.stdout).lines().next().map(str::to_string)
}

fn endless(area: &Scratch) -> (Child, String) {
    let backing = format!("{},force", area.path());
    let options = ["--memory", "48M", "--area-faults", "slow=2", "--backing", &backing];
    let mut child = Command::new(ZFOLIO)
        .args(["run", "--quiet"])
        .args(options)
        .args(["--", "python3", "-c", ENDLESS])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_string())
}

#[test]
fn whoever_is_killed_whenever_no_file_and_no_space_is_left() {
    let Some(area) = Scratch::mounted("killed", 256) else { return skip("this user may not mount") };
    let before = area.used();
    let mut random = base::Random(11);
    for round in 0..12 {
        let (mut child, program) = endless(&area);
        let ms = random.below(1500) as u64;
        // From when there is something, at any moment.
        until("something is in the area", || area.used() != before);
        std::thread::sleep(Duration::from_millis(ms));
        let zfolio = child.id().to_string();
        match round % 4 {
            0 => kill(&program),
            1 => kill(&zfolio),
            2 => kill(&engine_of(child.id()).expect("there is an engine")),
            _ => kill(&format!("-{zfolio}")),
        }
        let status = child.wait().unwrap();
        assert!(!status.success(), "round {round}, after {ms} ms: {status}");
        if round % 4 == 1 {
            kill(&program);
        }
        until(&format!("seed 11, round {round}: all is free again"), || area.used() == before);
        assert!(area.is_empty(), "seed 11, round {round}");
    }
}
