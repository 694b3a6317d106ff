//! Swap areas as a user gives them: what is refused, what is left of them, and what processes are handed.

mod until;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use until::until;

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");
const MIB: u64 = 1 << 20;

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Scratch {
        let path = PathBuf::from("/var/tmp").join(format!("zfolio-areas-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// A file of so many MiB that begins with this text.
    fn file(&self, mib: u64, text: &str) -> String {
        let path = self.0.join("file");
        let file = fs::File::create(&path).unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
        file.set_len(mib * MIB).unwrap();
        path.to_str().unwrap().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(ZFOLIO).args(["run", "--quiet", "--memory", "256M"]).args(arguments).output().unwrap()
}

/// Starts a shell script with an area, and waits for its first line.
fn start(backing: &str, script: &str) -> (Child, String) {
    let mut child = Command::new(ZFOLIO)
        .args(["run", "--quiet", "--memory", "256M", "--backing", backing, "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_string())
}

fn kill(process: &str) {
    assert!(Command::new("kill").args(["-KILL", "--", process]).status().unwrap().success());
}

/// How many descriptors of files in the directory processes have, with a name or without.
fn open_in(dir: &Path) -> usize {
    let all = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read_dir(entry.path().join("fd")).ok());
    let links = all.flat_map(|fds| fds.flatten()).filter_map(|fd| fs::read_link(fd.path()).ok());
    links.filter(|link| link.starts_with(dir)).count()
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn what_is_wrong_is_said_in_one_line_before_the_program_starts() {
    let scratch = Scratch::new("wrong");
    let path = scratch.path();
    let foreign = scratch.file(32, "a letter");
    for (backing, expected) in [
        ("/no/such/directory".to_string(), "cannot be used as an area: No such file or directory"),
        ("/dev/null".to_string(), "expected a directory, a file or a block device"),
        (String::new(), "no path; expected PATH[,size=SIZE]"),
        (format!("{path},size=1M"), "a size of 1 MiB, expected 16 MiB to "),
        (format!("{path},size=lots"), "size=lots: expected a size such as 512M"),
        (format!("{path},prio=40000"), "prio=40000: expected 0 to 32767"),
        (format!("{path},encrypt=no"), "all that leaves RAM is encrypted"),
        (format!("{path},fast"), "\"fast\" is no option of an area; expected PATH[,size=SIZE]"),
        (foreign.clone(), "holds data, which would be lost; with ,force it is used"),
    ] {
        // The second one is wrong, too: the first is not left behind.
        for before in [&[][..], &["--backing", path]] {
            let output = run(&[before, &["--backing", &backing, "--", "echo", "started"]].concat());
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{backing}: {said}");
            assert!(said.starts_with("zfolio: --backing") && said.lines().count() == 1, "{said}");
            assert!(said.contains(expected), "{backing}: {said}");
        }
    }
    assert_eq!(fs::read(&foreign).unwrap()[..8], *b"a letter");
    assert_eq!(fs::read_dir(path).unwrap().count(), 1);
    let nine = [["--backing", path]; 9].concat();
    let output = run(&[&nine[..], &["--", "echo", "started"]].concat());
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]));
    assert_eq!(output.stderr, b"zfolio: --backing: 9 areas, expected at most 8\n");
    let eight = [&[["--backing", path]; 8].concat()[..], &["--", "echo", "started"]].concat();
    let output = run(&eight);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"started\n"[..]), "{output:?}");
}

#[test]
fn the_pools_limits_have_ranges_and_go_with_areas_alone() {
    let scratch = Scratch::new("percent");
    for (option, value, range) in [
        ("--max-pool-percent", "101", "0..=100"),
        ("--max-pool-percent", "-1", "0..=100"),
        ("--max-pool-percent", "some", "invalid digit"),
        ("--accept-threshold-percent", "0", "1..=100"),
        ("--accept-threshold-percent", "101", "1..=100"),
    ] {
        let output = run(&["--backing", scratch.path(), option, value, "--", "echo", "started"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{said}");
        assert!(said.contains(option) && said.contains(range), "{said}");
    }
    for option in ["--max-pool-percent", "--accept-threshold-percent"] {
        let output = run(&[option, "50", "--", "echo", "started"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{said}");
        assert!(said.contains("--backing"), "{said}");
        for value in ["1", "100"] {
            let output = run(&["--backing", scratch.path(), option, value, "--", "echo", "started"]);
            assert_eq!(
                (output.status.code(), &output.stdout[..]),
                (Some(0), &b"started\n"[..]),
                "{output:?}"
            );
        }
    }
    let output = run(&["--backing", scratch.path(), "--max-pool-percent", "0", "--", "echo", "started"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_file_that_holds_something_is_used_by_force_and_left_empty() {
    let scratch = Scratch::new("force");
    let file = scratch.file(16, "a letter");
    let forced = format!("{file},force");
    let other = ["--backing", &forced, "--", "true"];
    // While one run has it no other gets it, by whatever means.
    let inner = format!("{ZFOLIO} run -q --backing {forced} -- true 2>&1; echo $?");
    let output = run(&["--backing", &forced, "--", "sh", "-c", &inner]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("another run or program has a lock on the file") && said.ends_with("2\n"),
        "{said}"
    );
    let left = fs::metadata(&file).unwrap();
    assert_eq!((left.len(), left.blocks()), (16 * MIB, 0));
    assert_eq!(run(&other).status.code(), Some(0));
    assert_eq!(run(&["--backing", &file, "--", "true"]).status.code(), Some(0), "it is empty now");
}

#[test]
fn a_directory_has_no_file_while_a_run_lasts_nor_after_it_however_it_ends() {
    for (end, what) in ["exit", "zfolio is killed", "all are killed"].into_iter().enumerate() {
        let scratch = Scratch::new(&format!("directory-{end}"));
        let backing = format!("{},size=64M", scratch.path());
        let (mut child, pid) = start(&backing, "echo $$; exec sleep 1000");
        assert!(is_empty(&scratch.0), "{what}: the file has no name");
        assert!(open_in(&scratch.0) > 0, "{what}: but there is one");
        let group = format!("-{}", child.id());
        match end {
            0 => kill(&pid),
            1 => kill(&child.id().to_string()),
            _ => kill(&group),
        }
        child.wait().unwrap();
        assert!(is_empty(&scratch.0), "{what}");
        if end == 1 {
            kill(&pid);
        }
        until(&format!("{what}, and nobody has the file open"), || open_in(&scratch.0) == 0);
        assert!(is_empty(&scratch.0), "{what}");
    }
}

/// What a process of the run does with what it is handed. It takes row 7 as an engine does (swap/table.rs): it locks
/// the row's byte, writes the number of rows that were ever taken, and that the row is its own.
const PROCESS: &str = r#"
import fcntl, os, socket, struct, sys, time
s = socket.socket(socket.AF_UNIX); s.connect(os.path.dirname(os.environ['ZFOLIO_MEMCG']) + '/handover')
text, fds, _, _ = socket.recv_fds(s, 8, 16)
table, key, first, second = fds[-4:]
print(text[0] & 4, len(os.pread(key, 4096, 0)), os.pread(key, 32, 0) != bytes(32), os.pread(key, 4064, 32) == bytes(4064))
print(os.fstat(table).st_size == int(sys.argv[1]), os.fstat(first).st_size >> 20, os.fstat(second).st_size >> 20)
shared, holder = int(sys.argv[2]), lambda: os.pread(table, 8, shared + (8 + 7) * 8)
def lock(kind): fcntl.fcntl(mine, 37, struct.pack('hhqqixxxx', kind, 0, 1 << 40 | 7, 1, 0))
s = socket.socket(socket.AF_UNIX); s.connect(os.path.dirname(os.environ['ZFOLIO_MEMCG']) + '/handover')
mine = socket.recv_fds(s, 8, 16)[1][-4]
lock(fcntl.F_RDLCK)
os.pwrite(table, struct.pack('q', 8), shared + 2 * 8)
os.pwrite(table, struct.pack('q', 99), shared + (8 + 7) * 8)
time.sleep(2.5)
print(struct.unpack('q', holder()))
os.close(mine)
while holder() != bytes(8): time.sleep(0.01)
print('buried')
"#;

#[test]
fn a_process_is_handed_the_areas_and_buried_when_it_has_closed_its_table() {
    let scratch = Scratch::new("handed");
    let areas = [32, 64].map(|mib| format!("{},size={mib}M", scratch.path()));
    let clusters = (32 + 64) / 2;
    let [bytes, shared] = [swap::Table::file_len(clusters), swap::Table::shared_at(clusters)];
    let output =
        run(&[
            &[
                "--backing",
                &areas[0],
                "--backing",
                &areas[1],
                "--",
                "timeout",
                "60",
                "python3",
                "-c",
                PROCESS,
            ][..],
            &[&bytes.to_string(), &shared.to_string()],
        ]
        .concat());
    let said = String::from_utf8(output.stdout).unwrap();
    let wrong = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "4 4096 True True\nTrue 32 64\n(99,)\nburied\n", "{wrong}");
}

#[test]
fn a_run_without_areas_hands_over_none() {
    let script = "import os, socket; s = socket.socket(socket.AF_UNIX)
s.connect(os.path.dirname(os.environ['ZFOLIO_MEMCG']) + '/handover'); print(socket.recv_fds(s, 8, 16)[0][0] & 4)";
    let output = run(&["--", "python3", "-c", script]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "0\n");
}

/// A program that fills so many MiB with noise, and goes through them twice; the children that it forks once more.
const NOISE: &str = r#"
import hashlib, os, random, sys
r = random.Random(5)
pieces = [bytearray(r.randbytes(1 << 20)) for _ in range(int(sys.argv[1]))]
def go(turn):
    h = hashlib.sha256()
    for i, p in enumerate(pieces):
        p[(i * 4096 + turn) % len(p)] ^= 77
        h.update(p)
    print(h.hexdigest(), flush=True)
go(0)
go(1)
for generation in range(int(sys.argv[2])):
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        go(7)
        os._exit(status >> 8)
    go(2 + generation)
"#;

/// Runs it alone and with an area, and checks that it says the same; the run's counters.
fn run_noise(arguments: [&str; 2], options: &[&str]) -> serde_json::Value {
    let scratch = Scratch::new(&format!("noise-{}-{}", arguments[0], options.len()));
    let program = [&["python3", "-c", NOISE][..], &arguments].concat();
    let alone = Command::new(program[0]).args(&program[1..]).output().unwrap();
    let json = scratch.0.join("json");
    let output = Command::new("timeout")
        .args(["-k", "5", "300", ZFOLIO, "run", "--quiet", "--backing", scratch.path(), "--json"])
        .arg(&json)
        .args(options)
        .arg("--")
        .args(&program)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let [out, expected] = [&output, &alone].map(|output| String::from_utf8_lossy(&output.stdout));
    assert_eq!((output.status.code(), out), (Some(0), expected), "{said}");
    let figures: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let counters = figures["counters"].clone();
    assert_eq!((counters["area_lost"].as_u64(), counters["area_refused"].as_u64()), (Some(0), Some(0)));
    counters
}

fn count(counters: &serde_json::Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap()
}

#[test]
fn what_does_not_compress_goes_to_an_area_and_comes_back() {
    for percent in ["20", "0"] {
        let counters = run_noise(["96", "0"], &["--memory", "64M", "--max-pool-percent", percent]);
        // 96 MiB, of which the limit and the pool have room for some 50.
        assert!(count(&counters, "pswpout") > 8 << 8, "{counters}");
        assert!(count(&counters, "pswpin") > 8 << 8, "{counters}");
    }
}

#[test]
fn children_have_what_their_parents_have_in_an_area() {
    let counters = run_noise(["64", "1"], &["--memory", "64M"]);
    assert!(count(&counters, "pswpout") > 8 << 8, "{counters}");
    let counters = run_noise(["8", "2"], &["--memory", "64M", "--evict-all", "--max-pool-percent", "20"]);
    assert!(count(&counters, "pswpout") > 8 << 8, "{counters}");
    assert!(count(&counters, "pswpin") > 0, "{counters}");
}

/// Memory that the program keeps from its children (MADV_DONTFORK) is a hole there, in which the kernel may put what an
/// engine maps: rings of io_uring lay there, and the child was stopped.
#[test]
fn children_have_nothing_of_an_engine_s_where_their_parent_keeps_memory_from_them() {
    let script = "import mmap, os, time
alone = dict(flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
# With every gap above filled, what comes last is where the kernel puts the next mapping of a child.
filled = [mmap.mmap(-1, 1 << 12, **alone) for _ in range(6000)]
kept = [mmap.mmap(-1, 1 << 16, **alone) for _ in range(64)]
for place in kept:
    place.write(os.urandom(1 << 16))
    place.madvise(mmap.MADV_DONTFORK)
for turn in range(8):
    time.sleep(0.1)
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    print(os.waitpid(pid, 0)[1] >> 8, flush=True)
";
    let scratch = Scratch::new("kept");
    let options = ["--backing", scratch.path(), "--evict-all", "--", "python3", "-c", script];
    let output = run(&options);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "7\n".repeat(8), "{said}");
}

/// Four processes, one forked from the other, of which each needs two thirds of the limit: those that wait make room
/// for the one that runs. Without it the last had 5 MiB, and 100,000 to 200,000 faults.
#[test]
fn relatives_that_wait_leave_their_memory_to_an_area() {
    let counters = run_noise(["40", "3"], &["--memory", "64M"]);
    assert!(count(&counters, "pswpout") > 64 << 8, "{counters}");
    assert!(count(&counters, "faults") < 50_000, "{counters}");
}

/// Holds so many MiB of hexadecimal digits, which shrink to a half, or of noise, and reads all of it so many times once
/// it is told to.
const READ_OFTEN: &str = "
import hashlib, random, sys
r, h, is_hex = random.Random(5), hashlib.sha256(), sys.argv[2] == 'hex'
piece = lambda: r.randbytes(1 << 19).hex().encode() if is_hex else r.randbytes(1 << 20)
pieces = [piece() for _ in range(int(sys.argv[1]))]
print('ready', flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[3])):
    for p in pieces:
        h.update(p)
print(h.hexdigest())
";

/// Runs it with an area and 64 MiB, and with these tunables once it has its memory: the run's counters, and what it
/// has said.
fn read_often(arguments: [&str; 3], options: &[&str], tunables: &[&str]) -> (serde_json::Value, String) {
    let scratch = Scratch::new(&format!("often-{}-{}", arguments[1], tunables.len()));
    let json = scratch.0.join("json");
    let mut child = Command::new(ZFOLIO)
        .args(["run", "--quiet", "--memory", "64M", "--backing", scratch.path(), "--json"])
        .arg(&json)
        .args(options)
        .args(["--", "python3", "-c", READ_OFTEN])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    for tunable in tunables {
        let set = Command::new(ZFOLIO).args(["set", &child.id().to_string(), tunable]).output().unwrap();
        assert_eq!(set.status.code(), Some(0), "{set:?}");
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut said = String::new();
    stdout.read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    let figures: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    (figures["counters"].clone(), said)
}

/// A swap file takes such a page once: the kernel's swap cache.
#[test]
fn what_is_read_and_not_changed_is_written_once() {
    let (counters, _) = read_often(["96", "noise", "5"], &[], &[]);
    let mib = |name| count(&counters, name) >> 8;
    // 96 MiB, and what the engine took for the oldest by mistake.
    assert!((30..130).contains(&mib("pswpout")), "{counters}");
    assert!(mib("pswpin") > 150 && mib("clean_reused") > 100, "{counters}");
}

#[test]
fn the_shrinker_writes_before_the_pool_is_at_its_limit() {
    let run = |tunables: &[&str]| read_often(["56", "hex", "4"], &["--max-pool-percent", "50"], tunables);
    let (without, expected) = run(&[]);
    let (with, said) = run(&["shrinker_enabled=Y"]);
    assert_eq!(said, expected);
    let written = [&without, &with].map(|counters| count(counters, "pswpout") >> 8);
    // Some goes without it too, while all of the memory is made at once.
    assert!(written[1] > written[0] + 10, "{written:?} MiB: {without} {with}");
}

/// Holds noise, is told when what is in the file is no longer that, and reads.
const READS: &str = "
import random, sys
r = random.Random(5)
pieces = [r.randbytes(1 << 20) for _ in range(96)]
print('ready', flush=True)
sys.stdin.readline()
for p in pieces:
    sum(p)
print('went on')
";

#[test]
fn an_area_that_returns_something_else_stops_the_program() {
    let scratch = Scratch::new("other");
    let file = scratch.file(128, "");
    let mut child = Command::new("timeout")
        .args(["-k", "5", "300", ZFOLIO, "run", "--quiet", "--memory", "64M", "--backing", &file])
        .args(["--", "python3", "-c", READS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let area = fs::OpenOptions::new().write(true).open(&file).unwrap();
    for mib in 0..128 {
        area.write_all_at(&vec![mib as u8; MIB as usize], mib * MIB).unwrap();
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && rest.is_empty(), "{said}");
    assert!(said.contains("cannot be restored: its seal is broken"), "{said}");
}
