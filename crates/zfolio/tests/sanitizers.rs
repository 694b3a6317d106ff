//! Programs that are built with a sanitizer, or have its runtime preloaded: they run, also in half of what they take,
//! and mistakes are found as without zfolio.

mod compile;

use compile::{compile, compile_with};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");
const MIB: u64 = 1 << 20;

/// What `overflow.c` prints: the sum of `i & 15` over 100,000 allocations.
const SUM: &str = "750000\n";

fn run(preload: Option<&Path>, command: &[&str]) -> Output {
    let mut run = Command::new(ZFOLIO);
    run.args(["run", "--quiet", "--memory", "200M", "--"]).args(command);
    match preload {
        Some(library) => run.env("LD_PRELOAD", library),
        None => run.env_remove("LD_PRELOAD"),
    };
    run.output().unwrap()
}

fn assert_sum(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), SUM, "{stderr}");
}

#[test]
fn a_program_built_with_a_sanitizer_runs_and_its_errors_are_found() {
    let built = compile_with("overflow", &["-g", "-fsanitize=address"]);
    let program = built.to_str().unwrap();
    assert_sum(&run(None, &[program]));
    assert_sum(&run(None, &["sh", "-c", &format!("{program}; exit $?")]));
    let found = run(None, &[program, "17"]);
    assert!(!found.status.success());
    let stderr = String::from_utf8_lossy(&found.stderr);
    assert!(stderr.contains("heap-buffer-overflow"), "{stderr}");
}

#[test]
fn a_sanitizer_that_is_preloaded_into_any_program_starts() {
    let plain = compile("overflow");
    let name = Command::new("gcc").arg("-print-file-name=libasan.so").output().unwrap();
    let library = String::from_utf8(name.stdout).unwrap();
    let library = Path::new(library.trim());
    assert!(library.is_absolute(), "gcc has no libasan.so");
    assert_sum(&run(Some(library), &[plain.to_str().unwrap()]));
}

/// `tests/c/heap.c` with a sanitizer: what it says and takes alone.
struct Heap {
    program: PathBuf,
    arguments: [&'static str; 2],
    sum: String,
    held_bytes: u64,
}

impl Heap {
    /// Compiles it, and runs it alone with so many MiB and threads.
    fn alone(sanitizers: &str, arguments: [&'static str; 2]) -> Heap {
        let program = compile_with("heap", &["-g", &format!("-fsanitize={sanitizers}")]);
        let output = Command::new(&program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let (sum, kib) = sum_and_kib(&output);
        Heap { program, arguments, sum, held_bytes: kib * 1024 }
    }

    /// Runs it in half of that. Memory has to go out, the limit to be kept, and what was read to be what was written.
    fn in_half(&self, mistakes: &str) -> Output {
        let limit = self.held_bytes / 2;
        let json = self.program.with_extension(format!("{mistakes}.json"));
        let mut run = Command::new("timeout");
        run.args(["-k", "5", "250", ZFOLIO, "run", "--memory", &limit.to_string(), "--json"]).arg(&json);
        let output = run.arg("--").arg(&self.program).args(self.arguments).arg(mistakes).output().unwrap();
        let figures = fs::read_to_string(&json).unwrap_or_default();
        let _ = fs::remove_file(json);
        let said = format!("{mistakes}, {} MiB: {output:?}", limit / MIB);
        let figures: Value = serde_json::from_str(&figures).expect(&said);
        assert_eq!(sum_and_kib(&output).0, self.sum, "{said}");
        let peak = figures["memory"]["peak_bytes"].as_u64().unwrap();
        assert!(peak <= limit / 10 * 11, "{} MiB: {said}", peak / MIB);
        let out = figures["counters"]["pgdeactivate"].as_u64().unwrap() << 12;
        assert!(out > limit / 2, "{} MiB went out: {said}", out / MIB);
        assert_eq!(figures["tree"]["unmanaged"], 0, "{said}");
        output
    }

    /// Mistakes are found, each reported with its words, and nothing else is; the exit status is that which they have
    /// alone.
    fn is_found_out(&self, mistakes: &str, words: &[&str]) {
        let alone = Command::new(&self.program).args(self.arguments).arg(mistakes).output().unwrap();
        let squeezed = self.in_half(mistakes);
        let all = found(&alone);
        assert!(
            all.len() == words.len() && all.iter().zip(words).all(|(line, words)| line.contains(words)),
            "{all:?}"
        );
        assert_eq!(found(&squeezed), found(&alone), "{squeezed:?}");
        assert_eq!(squeezed.status.code(), alone.status.code(), "{squeezed:?}");
    }
}

/// The sum, and what there was in memory, in KiB.
fn sum_and_kib(output: &Output) -> (String, u64) {
    let said = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = said.split_whitespace().collect();
    let &[sum, kib] = &words[..] else { panic!("{output:?}") };
    (sum.to_string(), kib.parse().unwrap())
}

/// What a sanitizer has found, in a line each, without addresses.
fn found(output: &Output) -> Vec<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    let is_one = |line: &&str| line.starts_with("SUMMARY: ") || line.contains(": runtime error: ");
    said.lines().filter(is_one).map(str::to_string).collect()
}

/// LeakSanitizer looks for what is lost as the program ends: it stops all threads by ptrace, and reads all memory that
/// may name some.
#[test]
fn address_and_leak_sanitizers_find_mistakes_in_memory_that_is_out() {
    let heap = Heap::alone("address,undefined", ["40", "2"]);
    heap.is_found_out("use", &["heap-use-after-free"]);
    heap.is_found_out("shift,leak", &["too large for 32-bit type", "12345 byte(s) leaked"]);
}

#[test]
fn thread_sanitizer_finds_a_race_in_half_of_the_memory() {
    let heap = Heap::alone("thread", ["24", "4"]);
    heap.is_found_out("race", &["data race"]);
}

/// MemorySanitizer ends a program in which something is where its shadow goes, and an engine may be there before it.
#[test]
fn an_engine_is_where_no_sanitizer_has_its_shadow() {
    let program = compile("shadow");
    let output = Command::new(ZFOLIO).args(["run", "--memory", "40M", "--"]).arg(program).output().unwrap();
    let [said, told] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(said, "right\n", "{told}");
    assert!(told.contains("ran in"), "nothing has gone out: {told}");
}
