//! usemem of whole runs on the model of IAA: one unit after the other against as many at a time as the device has
//! engines. The tables have the form of those of the kernel series "zswap compression batching".
//!
//! `cargo build --release && cargo run --release --package zfolio --example usemem_iaa [LATENCY_US]`
//!
//! The model computes on a thread, which has to share this machine's CPUs with the run, and a unit takes it LATENCY_US
//! at least (10,000). So what is shown is what batching does to waiting, not how fast the device is.

use iaa_model::{DeviceConfig, Files, Model, Tree};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const PROCESSES: u64 = 4;
const BYTES: u64 = 64 << 20;
/// Half of what they write.
const MEMORY: u64 = PROCESSES * BYTES / 2;
const ROUNDS: usize = 3;

/// As many as four devices have.
const ENGINES: usize = 32;

/// What a run has come to: the row's name, and the number.
type Figures = Vec<(&'static str, f64)>;

/// The binary beside this example, unless the variable says another one.
fn zfolio() -> PathBuf {
    let beside = || std::env::current_exe().expect("it runs").parent().expect("examples").join("../zfolio");
    std::env::var_os("ZFOLIO").map_or_else(beside, PathBuf::from)
}

/// One run with these parameters of deflate-iaa.
fn run(parameters: &str, latency: Duration) -> Figures {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let model = Model::new([DeviceConfig { latency, engines: ENGINES, ..DeviceConfig::default() }]);
    let tree = Tree::new("usemem");
    tree.package(0, 0..cpus, &[0]);
    let files = Files::new(&model, &tree).expect("a file system in user space");
    let json = std::env::temp_dir().join(format!("zfolio-usemem-iaa-{}.json", std::process::id()));
    let mut command = Command::new(zfolio());
    command.args(["run", "--quiet", "--memory", &MEMORY.to_string(), "--iaa-root", tree.root(), "--json"]);
    command.arg(&json).arg("--compressor").arg(format!("deflate-iaa:fixed,timeout_ms=60000{parameters}"));
    command.arg("--").arg(zfolio()).args(["bench", "usemem-crew"]);
    command.args([PROCESSES, BYTES].map(|number| number.to_string())).arg("pointers and small numbers");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("zfolio is built");
    child.stdin.take().expect("it is piped").write_all(b"\n").expect("it reads when all have written");
    let output = child.wait_with_output().expect("it ends");
    drop(files);
    assert!(output.status.success(), "{parameters}: {}", output.status);
    let told: Value =
        serde_json::from_slice(&std::fs::read(&json).expect("its figures")).expect("they are JSON");
    std::fs::remove_file(&json).expect("it is there");
    figures(&String::from_utf8_lossy(&output.stdout), &told["counters"], model.in_flight_max(1))
}

fn figures(said: &str, counters: &Value, in_flight_max: usize) -> Figures {
    let numbers =
        |line: &str| -> Vec<f64> { line.split(' ').skip(1).map(|word| word.parse().expect(said)).collect() };
    let lines: Vec<Vec<f64>> = said.lines().map(numbers).collect();
    let [written, read] = &lines[..] else { panic!("{said}") };
    let total: f64 = written[1..].iter().map(|ns| BYTES as f64 / 1024.0 / (ns / 1e9)).sum();
    let count = |name: &str| counters[name].as_u64().expect(name) as f64;
    vec![
        ("total throughput KB/s", total.round()),
        ("average KB/s", (total / PROCESSES as f64).round()),
        ("elapsed ms", (written[0] / 1e6).round()),
        ("read back ms", (read[0] / 1e6).round()),
        ("CPU ms of engines and workers", (count("engine_cpu_ns") / 1e6).round()),
        ("zswpout", count("zswpout")),
        ("zswpin", count("zswpin")),
        ("units on the device at a time, at most", in_flight_max as f64),
    ]
}

/// Of each figure the median.
fn median(rounds: &[Figures]) -> Figures {
    let names = rounds[0].iter().enumerate();
    let median = |at: usize| {
        let mut numbers: Vec<f64> = rounds.iter().map(|figures| figures[at].1).collect();
        numbers.sort_by(f64::total_cmp);
        numbers[numbers.len() / 2]
    };
    names.map(|(at, (name, _))| (*name, median(at))).collect()
}

fn main() {
    let latency_us =
        std::env::args().nth(1).map_or(10_000, |word| word.parse().expect("LATENCY_US is a number"));
    let ways = [",sync_mode=1", ""];
    let mut rounds = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (way, rounds) in ways.iter().zip(&mut rounds) {
            rounds.push(run(way, Duration::from_micros(latency_us)));
        }
    }
    println!(
        "{PROCESSES} processes write {} MiB each within {} MiB; deflate-iaa:fixed on a model of {ENGINES} engines, {latency_us} µs \
         for a unit;\nmedians of {ROUNDS} rounds in turn\n",
        BYTES >> 20,
        MEMORY >> 20
    );
    println!("{:40} {:>12} {:>12}", "", "sequential", "batching");
    for ((name, one), (_, many)) in median(&rounds[0]).iter().zip(&median(&rounds[1])) {
        println!("{name:40} {one:12} {many:12} {:+8.0}%", (many / one - 1.0) * 100.0);
    }
}
