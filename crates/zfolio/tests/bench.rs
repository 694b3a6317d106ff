//! `zfolio bench` as a user meets it: a file, a process, a pipe, and what goes wrong.

mod pty;
mod skip;

use base::Random;
use pty::Terminal;
use serde_json::Value;
use skip::skip;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// A file that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Scratch {
        let path = std::env::temp_dir().join(format!("zfolio-bench-{name}-{}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn compress(arguments: &[&str]) -> Output {
    Command::new(ZFOLIO).args(["bench", "compress"]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// So many pages of counted words, of which the first is zeros.
fn memory(pages: u32) -> Vec<u8> {
    let mut memory: Vec<u8> = (0..pages * 1024).flat_map(|n| (n.wrapping_mul(n) / 7).to_le_bytes()).collect();
    memory[..4096].fill(0);
    memory
}

#[test]
fn every_algorithm_is_measured_on_a_file_at_every_unit() {
    let file = Scratch::new("file", &memory(80));
    let json = json(&compress(&[file.path(), "--json", "--rounds", "1"]));
    assert_eq!(
        (json["looked_at_bytes"].as_u64(), json["same_filled_pages"].as_u64()),
        (Some(80 * 4096), Some(1))
    );
    let rows = json["rows"].as_array().unwrap();
    for algorithm in acomp::ALGORITHMS {
        let compressor = acomp::Compressor::parse(algorithm.name).unwrap().to_string();
        let units: Vec<_> = rows
            .iter()
            .filter(|row| row["compressor"] == *compressor)
            .map(|row| row["unit_bytes"].as_u64().unwrap())
            .collect();
        assert_eq!(units, [4 << 10, 16 << 10, 64 << 10, 256 << 10, 2 << 20], "{compressor}");
    }
    for row in rows {
        assert_eq!(row["plain_bytes"].as_u64(), Some(79 * 4096), "{row}");
        assert!(
            row["out_bytes_per_s"].as_f64().unwrap() > 1e5 && row["ratio"].as_f64().unwrap() >= 1.0,
            "{row}"
        );
    }
}

#[test]
fn the_table_fits_and_the_drawing_is_well_formed() {
    let file = Scratch::new("table", &memory(40));
    let drawing = Scratch::new("drawing", b"");
    let output = compress(&[
        file.path(),
        "--unit",
        "4K,64K",
        "--compressor",
        "lz4,zstd:3,842",
        "--plot",
        drawing.path(),
    ]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let table = text(&output.stdout);
    assert!(table.lines().skip(1).all(|line| line.len() <= 80), "{table}");
    for name in ["lz4:1", "zstd:3", "842"] {
        // The file's name and figures may have these digits too.
        assert_eq!(table.split_whitespace().filter(|word| *word == name).count(), 2, "{table}");
    }
    assert!(table.contains("medians of 3 rounds"), "{table}");
    let svg = fs::read_to_string(&drawing.0).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    assert_eq!((svg.matches("<circle").count(), svg.matches("units of").count()), (6, 2));
}

/// Pages that have a text in common and are noise otherwise: only a dictionary knows the text beforehand.
fn kindred(pages: u64) -> Vec<u8> {
    let text: Vec<u8> =
        (0..60u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).cycle().take(1800).collect();
    let mut random = Random(1);
    let mut memory = Vec::new();
    for page in 0..pages {
        memory.extend(&text[page as usize % 240..][..1500]);
        while !memory.len().is_multiple_of(4096) {
            memory.push(random.word() as u8);
        }
    }
    memory
}

#[test]
fn a_dictionary_is_a_row() {
    let file = Scratch::new("kindred", &kindred(512));
    let given = Scratch::new("given", &kindred(4)[..2000]);
    let drawing = Scratch::new("dictionaries", b"");
    let list = format!("zstd:1,zstd:1,dict={},lz4", given.path());
    let arguments = [file.path(), "--unit", "4K,64K", "--rounds", "1", "--compressor", &list];
    let with_plot = [&arguments[..], &["--plot", drawing.path()]].concat();
    let json = json(&compress(&[&arguments[..], &["--json"]].concat()));
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    let ratio = |from: Value| {
        let is_it = |row: &&Value| {
            row["unit_bytes"] == 4096 && row["compressor"] != "lz4:1" && row["dictionary"]["from"] == from
        };
        rows.iter().find(is_it).unwrap()["ratio"].as_f64().unwrap()
    };
    let (none, with) = (ratio(Value::Null), ratio(given.path().into()));
    assert!(with > none * 1.05, "{none} {with}");
    let output = compress(&with_plot);
    let table = text(&output.stdout);
    assert!(table.lines().skip(1).all(|line| line.len() <= 80), "{table}");
    // A long name loses its beginning.
    let name = format!("given-{}", std::process::id());
    assert_eq!(table.matches(&name).count(), 2, "{table}");
    let svg = fs::read_to_string(&drawing.0).unwrap();
    assert_eq!((svg.matches("<circle").count(), svg.matches(&format!("{name}<")).count()), (6, 2));
}

/// The child's memory is as much as it says, one word in every page of a part of it.
#[test]
fn a_process_is_measured_while_it_runs() {
    let script = "import sys\nmemory = bytearray(b''.join(b'%d ' % n for n in range(3000000)))\nzeros = b'z' * (8 << 20)\n\
                  print('ready', flush=True)\nsys.stdin.read()";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let pid = child.id().to_string();
    let all =
        compress(&["--pid", &pid, "--json", "--unit", "64K", "--compressor", "lz4,zstd", "--rounds", "1"]);
    let part = compress(&[
        "--pid",
        &pid,
        "--json",
        "--unit",
        "64K",
        "--compressor",
        "lz4",
        "--rounds",
        "1",
        "--sample",
        "4M",
    ]);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let (all, part) = (json(&all), json(&part));
    assert!(all["source"].as_str().unwrap().starts_with(&format!("process {pid} (python3")), "{all}");
    assert!(
        all["looked_at_bytes"].as_u64().unwrap() > 30 << 20
            && all["looked_at_bytes"] == all["there_are_bytes"],
        "{all}"
    );
    assert!((2000..4000).contains(&all["same_filled_pages"].as_u64().unwrap()), "{all}");
    let ratio = all["rows"][1]["ratio"].as_f64().unwrap();
    assert!(ratio > 1.5, "{all}");
    assert_eq!(part["looked_at_bytes"].as_u64(), Some(4 << 20));
    assert!(part["there_are_bytes"].as_u64().unwrap() > 30 << 20);
}

/// The engine keeps its pool in the process's own memory: that is no memory of the program's, and does not shrink.
#[test]
fn of_a_managed_process_what_is_in_is_measured_without_the_engine() {
    let script = "import os, sys\nmemory = [b'%d ' % n * 50 for n in range(400000)]\n\
                  print('%7d' % os.getpid(), flush=True)\nsys.stdin.read()";
    let mut child = Command::new("timeout")
        .args(["-k", "5", "120", ZFOLIO, "run", "-q", "-m", "64M", "--", "python3", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    let pid = text(&line).trim();
    let output =
        compress(&["--pid", pid, "--json", "--unit", "64K", "--compressor", "zstd", "--rounds", "1"]);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let json = json(&output);
    assert!(json["notes"][0].as_str().unwrap().contains("what zfolio has out"), "{json}");
    let (looked, row) = (json["looked_at_bytes"].as_u64().unwrap(), &json["rows"][0]);
    assert!((1 << 20..64 << 20).contains(&looked), "{json}");
    assert_eq!(row["kept_units"].as_u64(), Some(0), "{json}");
    assert!(row["ratio"].as_f64().unwrap() > 3.0, "{json}");
}

#[test]
fn standard_input_is_a_file_or_a_pipe() {
    let bytes = memory(700);
    let file = Scratch::new("input", &bytes);
    let arguments =
        ["bench", "compress", "-", "--json", "--unit", "2M", "--compressor", "lz4", "--rounds", "1"];
    let from_file =
        Command::new(ZFOLIO).args(arguments).stdin(fs::File::open(&file.0).unwrap()).output().unwrap();
    let mut piped = Command::new(ZFOLIO)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    piped.stdin.take().unwrap().write_all(&bytes).unwrap();
    let from_pipe = piped.wait_with_output().unwrap();
    for output in [&from_file, &from_pipe] {
        let json = json(output);
        assert_eq!(
            (&json["source"], json["looked_at_bytes"].as_u64()),
            (&Value::from("-"), Some(700 * 4096))
        );
    }
    // A device without an end gives what is asked for, and a process's file has no length.
    let noise = json(&compress(&[
        "/dev/urandom",
        "--sample",
        "1M",
        "--unit",
        "64K",
        "--compressor",
        "zstd",
        "--rounds",
        "1",
        "--json",
    ]));
    assert_eq!(
        (noise["looked_at_bytes"].as_u64(), noise["rows"][0]["kept_units"].as_u64()),
        (Some(1 << 20), Some(16))
    );
    assert_eq!(noise["rows"][0]["in_bytes_per_s"], Value::Null);
    json(&compress(&["/proc/self/maps", "--unit", "4K", "--compressor", "lz4", "--rounds", "1", "--json"]));
}

#[test]
fn what_cannot_be_measured_is_one_line_that_says_why() {
    let empty = Scratch::new("empty", b"");
    let zeros = Scratch::new("zeros", &[0; 8192]);
    let some = Scratch::new("some", &memory(2));
    for (arguments, status, words) in [
        (vec!["--pid", "2147483647"], 1, "there is no process 2147483647"),
        (vec!["--pid", "2"], 1, "process 2"),
        (vec!["--pid", "x"], 2, "--pid x: expected the number of a process"),
        (vec![empty.path()], 1, "it is empty"),
        (vec!["/no/such/file"], 1, "/no/such/file: No such file"),
        (vec!["/"], 1, "/: Is a directory"),
        (vec![zeros.path()], 1, "one word fills each of its 2 pages"),
        (
            vec![some.path(), "--compressor", "lz4,zip"],
            2,
            "--compressor zip: no such compressor: accepted are lz4[",
        ),
        (vec![some.path(), "--compressor", "zstd:99"], 2, "LEVEL -7 to 22"),
        (vec![some.path(), "--unit", "4K,3K"], 2, "such as 4K,16K,64K,256K,2M"),
        (vec![some.path(), "--sample", "1"], 2, "--sample 1: expected"),
        (
            vec![some.path(), "--plot", "/no/such/folder/x.svg"],
            2,
            "--plot /no/such/folder/x.svg: No such file",
        ),
    ] {
        let output = compress(&arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let line = text(&output.stderr).strip_prefix("zfolio: ").unwrap().strip_suffix('\n').unwrap();
        assert!(line.contains(words) && !line.contains('\n'), "{arguments:?}: {line}");
    }
}

#[test]
fn without_a_right_to_the_memory_it_is_said_what_gives_it() {
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root can become somebody without the right");
    }
    let nobody = 65534;
    let own = std::process::id().to_string();
    // Where the tests are built nobody may get to: the command is taken along.
    let copy = Scratch::new("command", &fs::read(ZFOLIO).unwrap());
    fs::set_permissions(&copy.0, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output = Command::new(&copy.0)
        .args(["bench", "compress", "--pid", &own])
        .uid(nobody)
        .gid(nobody)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = text(&output.stderr).trim_end();
    assert!(line.contains("no right to read its memory") && line.contains("CAP_SYS_PTRACE"), "{line}");
    assert!(!line.contains('\n'), "{line}");
}

#[test]
fn bench_alone_says_what_there_is_and_what_is_missing_is_asked_for() {
    let output = Command::new(ZFOLIO).arg("bench").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("compress"), "{output:?}");
    let output = compress(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--pid PID | FILE..."), "{output:?}");
    let both = compress(&["--pid", "1", "x"]);
    assert!(both.status.code() == Some(2) && text(&both.stderr).contains("cannot be used with"), "{both:?}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let file = Scratch::new("closed", &memory(20));
    let script = format!("{ZFOLIO} bench compress {} --unit 4K --compressor lz4 --rounds 1 | :", file.path());
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    let full =
        format!("{ZFOLIO} bench compress {} --unit 4K --compressor lz4 --rounds 1 >/dev/full", file.path());
    let output = Command::new("bash").args(["-c", &full]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("zfolio: standard output: No space left"), "{output:?}");
}

#[test]
fn a_terminal_shows_how_far_it_is_and_ctrl_c_ends_it_without_a_file() {
    let file = Scratch::new("interrupted", &memory(700));
    let drawing = Scratch::new("unfinished", b"");
    fs::remove_file(&drawing.0).unwrap();
    let arguments = [
        "bench",
        "compress",
        file.path(),
        "--compressor",
        "zstd:22",
        "--rounds",
        "999",
        "--plot",
        drawing.path(),
    ];
    let mut terminal = Terminal::with(Command::new(ZFOLIO).args(arguments).env("TERM", "xterm"));
    terminal.shows("round 1 of 999, 0 %: zstd:22 in units of 4K");
    terminal.types("\x03");
    let (seen, status) = terminal.ends();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGINT), "{seen}");
    assert!(!drawing.0.exists());
}

/// As `zfolio bench path`; `None`, and it is said, where there is no userfaultfd.
fn path(arguments: &[&str]) -> Option<Output> {
    let output =
        Command::new(ZFOLIO).args(["bench", "path", "--rounds", "1"]).args(arguments).output().unwrap();
    if text(&output.stderr).contains("`zfolio doctor` says what helps") {
        skip("userfaultfd is refused");
        return None;
    }
    Some(output)
}

#[test]
fn every_stage_of_a_folio_s_way_is_measured_on_a_file() {
    let scratch = Scratch::new("path", &memory(300));
    let Some(output) = path(&[scratch.path(), "--json", "-c", "lz4,zstd:3"]) else { return };
    let report = json(&output);
    assert_eq!((report["compressor"].as_str(), report["rounds"].as_u64()), (Some("lz4:1,zstd:3"), Some(1)));
    let rows = report["rows"].as_array().unwrap();
    let sizes: Vec<_> = rows.iter().map(|row| row["size"].as_str().unwrap()).collect();
    assert_eq!(sizes, ["4K", "64K", "2M", "2M huge"]);
    for row in rows {
        let positive = |way: &str, stages: &[&str]| {
            stages
                .iter()
                .for_each(|stage| assert!(row[way][stage].as_f64().unwrap() > 0.0, "{way} {stage}: {row}"));
        };
        positive("out", &["scan", "move", "read", "compress", "store"]);
        positive("in", &["look_up", "decompress", "move"]);
        let sum: f64 = row["out"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
        assert!((row["out_us"].as_f64().unwrap() - sum).abs() < 0.01, "{row}");
    }
    // A window is more work than a page of it, and 2M than a window.
    let out_us = |row: usize| rows[row]["out_us"].as_f64().unwrap();
    assert!(out_us(0) < out_us(1) && out_us(1) < out_us(2), "{rows:?}");
    assert!(report["faults"].as_array().unwrap()[0]["on_one_cpu"].as_bool().unwrap());
}

#[test]
fn the_way_s_table_and_what_cannot_be_measured_are_said() {
    let Some(output) = path(&[]) else { return };
    let table = text(&output.stdout);
    assert!(output.status.success() && table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(
        table.starts_with("made up: ") && table.contains("\n  out  scan ") && table.contains("resume"),
        "{table}"
    );
    let zeros = Scratch::new("zeros", &[0; 65536]);
    for (arguments, status, expected) in [
        (&["--compressor", "gzip"][..], 2, "--compressor gzip: no such compressor"),
        (&["--compressor", "deflate-iaa"], 2, "expected none with a device or a dictionary"),
        (&["/nowhere"], 1, "/nowhere: "),
        (&[zeros.path()], 1, "there is no whole page that more than one word fills"),
    ] {
        let output = path(arguments).expect("it was measured above");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(
            said.starts_with("zfolio: ") && said.contains(expected) && said.lines().count() == 1,
            "{said}"
        );
    }
}
