//! A workload alone and under `zfolio run`, and what must hold of the two.

use crate::process::{self, Outcome, Output, anonymous_bytes};
pub use crate::skip::tell;
use crate::workload::{Make, Missing, Size, Workload};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How far a footprint may go past its limit: "within 10 %".
pub const SLACK: f64 = 1.10;

const MIB: u64 = 1 << 20;

/// Variables that would make a program say or do something else than its command line says.
const UNWANTED: [&str; 5] = ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "NODE_OPTIONS", "GOGC", "GOMEMLIMIT"];

/// Runs a workload alone and under `zfolio run`, compares the two, and prints a line of figures.
pub fn check(make: Make) {
    let _alone = one_at_a_time();
    let size = Size::from_env();
    let workload = match make(size) {
        Ok(workload) => workload,
        Err(missing) => return skip(missing),
    };
    let (summary, limit_bytes) = compare(&workload, size, MIB, &[], anonymous_bytes, |_| {}, |_, _| {});
    assert_went_out(workload.name, &summary, limit_bytes);
}

/// Fails where the limit has pressed nobody.
pub fn assert_went_out(name: &str, summary: &Value, limit_bytes: u64) {
    assert!(
        summary["counters"]["zswpout"].as_u64() > Some(0),
        "{name}: nothing went out under {} MiB: {summary}",
        limit_bytes / MIB
    );
}

/// Runs the workload alone and in a part of what it needs, but at least `least_bytes`; both are started by `launcher`
/// and measured by `sample`. What they say must be the same, and the limit must hold; between the two `before` is told
/// it, and after them `after` what came of the second. Returns the summary and the limit in bytes.
pub fn compare(
    workload: &Workload,
    size: Size,
    least_bytes: u64,
    launcher: &[String],
    sample: impl Fn(u32) -> u64 + Copy,
    before: impl FnOnce(u64),
    after: impl FnOnce(&Outcome, &Value),
) -> (Value, u64) {
    let (wanted, answer) = run_alone_in(workload, size, launcher, sample);
    let share =
        std::env::var("ZFOLIO_SHARE").map_or(workload.share, |share| share.parse().expect("ZFOLIO_SHARE"));
    let limit_bytes = ((wanted.peak_bytes as f64 * share) as u64).max(least_bytes).next_multiple_of(MIB);
    before(limit_bytes);
    let (got, same_answer, summary) = run_limited(workload, size, limit_bytes, launcher, sample);
    after(&got, &summary);

    let name = workload.name;
    assert_eq!(got.status, wanted.status, "{name}: exit status; stderr: {:?}", got.stderr);
    assert_eq!(got.stdout, wanted.stdout, "{name}: stdout; stderr: {:?}", got.stderr);
    assert_eq!(got.stderr, wanted.stderr, "{name}: stderr");
    assert_eq!(got.client, wanted.client, "{name}: what the client saw");
    assert_eq!(same_answer, answer, "{name}: result file");
    assert_eq!(wanted.status, 0, "{name}: fails without zfolio too: {wanted:?}");
    assert!(
        wanted.stdout.bytes + wanted.client.len() as u64 + answer.bytes > 0,
        "{name}: no answer to compare"
    );

    let told = summary["memory"]["peak_bytes"].as_u64().expect("memory.peak_bytes");
    print_row(name, &wanted, limit_bytes, &got, told);
    assert_within_by(workload.told_slack, name, "the summary's peak footprint", told, limit_bytes);
    assert_within(name, "the sampled anonymous memory", got.peak_bytes, limit_bytes);
    (summary, limit_bytes)
}

/// Runs the workload without zfolio; returns what happened and its result file.
pub fn run_alone(workload: &Workload, size: Size) -> (Outcome, Output) {
    run_alone_in(workload, size, &[], anonymous_bytes)
}

/// The same, started by `launcher` and measured by `sample`.
pub fn run_alone_in(
    workload: &Workload,
    size: Size,
    launcher: &[String],
    sample: impl Fn(u32) -> u64,
) -> (Outcome, Output) {
    let mut command = prepared(workload, &[launcher, &workload.command].concat());
    let wanted = process::run(&mut command, workload.client.as_deref(), deadline(size), sample);
    (wanted, take_result(workload))
}

/// Runs the workload under `zfolio run`, itself started by `launcher`; returns what happened, its result file and the
/// summary.
pub fn run_limited(
    workload: &Workload,
    size: Size,
    limit_bytes: u64,
    launcher: &[String],
    sample: impl Fn(u32) -> u64,
) -> (Outcome, Output, Value) {
    let zfolio = std::env::var("ZFOLIO_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_zfolio").to_string());
    let json = workload.directory.path().join("summary.json");
    let (memory, json_path) = (format!("{}M", limit_bytes / MIB), json.display().to_string());
    let own = [&zfolio, "run", "--memory", &memory, "--json", &json_path, "--quiet"];
    let run: Vec<String> =
        own.iter().chain(&workload.options).chain(&["--"]).map(|&word| word.into()).collect();
    let command = [launcher, &run, &workload.command].concat();
    let got =
        process::run(&mut prepared(workload, &command), workload.client.as_deref(), deadline(size), sample);
    let summary = fs::read_to_string(&json).unwrap_or_else(|error| {
        panic!(
            "{}: no summary ({error}) after status {}; stderr: {:?}",
            workload.name, got.status, got.stderr
        )
    });
    let summary = serde_json::from_str(&summary).expect("the summary is JSON");
    (got, take_result(workload), summary)
}

/// Fails when `bytes` is past the limit by more than the promise allows.
pub fn assert_within(name: &str, what: &str, bytes: u64, limit_bytes: u64) {
    assert_within_by(SLACK, name, what, bytes, limit_bytes);
}

pub fn assert_within_by(slack: f64, name: &str, what: &str, bytes: u64, limit_bytes: u64) {
    let share = bytes as f64 / limit_bytes as f64;
    let (bytes, limit) = (bytes / MIB, limit_bytes / MIB);
    assert!(
        share <= slack,
        "{name}: {what} is {bytes} MiB, {:.0} % of the limit of {limit} MiB",
        share * 100.0
    );
}

/// Memory and processors are measured, so one workload runs at a time, whatever `--test-threads` says.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says which program is missing; fails if all are required.
pub fn skip(Missing(program, package): Missing) {
    crate::skip::skip(&format!("{program} is not installed (apt-get install {package})"));
}

fn prepared(workload: &Workload, words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(workload.directory.path()).stdin(Stdio::null()).env("LC_ALL", "C");
    UNWANTED.iter().for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// Reads the result file and removes it, so that no run can pass with the file of another.
fn take_result(workload: &Workload) -> Output {
    let take = |path: &Path| {
        let output = File::open(path).map(Output::of).unwrap_or_default();
        let _ = fs::remove_file(path);
        output
    };
    workload.result.as_deref().map(take).unwrap_or_default()
}

/// After this long a run counts as hung.
fn deadline(size: Size) -> Duration {
    Duration::from_secs(if size == Size::Full { 1800 } else { 600 })
}

/// One row of the table that the tests print.
pub fn print_row(name: &str, wanted: &Outcome, limit_bytes: u64, got: &Outcome, told_bytes: u64) {
    static HEADER: std::sync::Once = std::sync::Once::new();
    HEADER.call_once(|| {
        tell("\nprogram         wanted     limit      peak  by summary     alone   limited   times");
    });
    let mib = |bytes: u64| format!("{} MiB", bytes / MIB);
    let (alone, limited) = (wanted.elapsed.as_secs_f64(), got.elapsed.as_secs_f64());
    let [want, limit, peak, told] = [wanted.peak_bytes, limit_bytes, got.peak_bytes, told_bytes].map(mib);
    let times = limited / alone;
    tell(&format!(
        "{name:<12}{want:>10}{limit:>10}{peak:>10}{told:>12}{alone:>8.1} s{limited:>8.1} s{times:>8.2}"
    ));
}
