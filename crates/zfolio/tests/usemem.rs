//! `zfolio bench usemem` as a user meets it. It changes the machine while it runs, so that it is alone here.

mod skip;

use serde_json::Value;
use skip::lacks;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// One at a time: the machine has one zswap.
static ALONE: Mutex<()> = Mutex::new(());

fn usemem(arguments: &[&str]) -> Output {
    Command::new(ZFOLIO).args(["bench", "usemem"]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// What the kernel's sides change.
fn machine() -> Vec<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut state = vec![read("/proc/swaps")];
    state.extend(
        ["enabled", "compressor", "max_pool_percent"]
            .map(|name| read(&format!("/sys/module/zswap/parameters/{name}"))),
    );
    for folder in
        ["/sys/kernel/mm/transparent_hugepage", "/sys/block", "/sys/fs/cgroup/memory", "/sys/fs/cgroup"]
    {
        let mut names: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
        names.sort();
        state.extend(
            names.iter().map(|path| format!("{path:?} {}", read(path.join("enabled").to_str().unwrap()))),
        );
    }
    state
}

#[test]
fn a_crew_under_zfolio_and_under_the_kernel_reads_what_it_has_written() {
    let _alone = ALONE.lock();
    let before = machine();
    let output = usemem(&[
        "-n",
        "4",
        "-b",
        "16M",
        "-m",
        "48M",
        "--folios",
        "4K,64K",
        "--sides",
        "zfolio:lz4,zswap:lzo,zram:lz4",
        "-r",
        "1",
        "--json",
    ]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(machine(), before, "all is as it was");
    assert_eq!((report["processes"].as_u64(), report["memory_bytes"].as_u64()), (Some(4), Some(48 << 20)));
    let notes = report["notes"].as_array().unwrap();
    notes.iter().for_each(|note| lacks(note.as_str().unwrap()));
    for folios in report["folios"].as_array().unwrap() {
        let size = folios["folio_bytes"].as_u64().unwrap();
        for side in folios["sides"].as_array().unwrap() {
            let round = &side["rounds"][0];
            let count = |name: &str| round["counts"][name].as_u64().unwrap();
            assert_eq!(round["writers_ns"].as_array().unwrap().len(), 4, "{side}");
            assert!(
                side["total_kib_per_s"].as_f64().unwrap() > 1000.0 && round["read_ns"].as_u64().unwrap() > 0,
                "{side}"
            );
            // A quarter of it has no room.
            assert!(count("zswpout") + count("pswpout") > 3000, "{side}");
            let [limit, pool, uncharged] =
                ["limit_bytes", "pool_bytes", "uncharged_bytes"].map(|name| round[name].as_u64().unwrap());
            assert!(pool > 1 << 20 && limit + uncharged <= 56 << 20, "{side}");
            let is_kernels = !side["side"].as_str().unwrap().starts_with("zfolio");
            assert!(!is_kernels || size == 4096 || count("size_anon_fault_alloc") > 100, "{side}");
        }
    }
    if notes.is_empty() {
        assert!(
            report["folios"].as_array().unwrap().iter().all(|folios| folios["sides"]
                .as_array()
                .unwrap()
                .len()
                == 3),
            "{report}"
        );
    }
}

#[test]
fn a_side_that_cannot_be_had_is_left_out_and_named() {
    let _alone = ALONE.lock();
    let before = machine();
    let output = usemem(&[
        "-n",
        "2",
        "-b",
        "16M",
        "-m",
        "28M",
        "--folios",
        "4K",
        "--sides",
        "zfolio,zram:nothing",
        "-r",
        "1",
    ]);
    let told = text(&output.stdout);
    assert!(output.status.success() && told.contains("zram:nothing is left out: "), "{output:?}");
    assert!(
        told.lines().filter(|line| !line.contains("left out")).all(|line| line.chars().count() <= 80),
        "{told}"
    );
    let output = usemem(&["-n", "2", "-b", "16M", "--folios", "12K", "--sides", "zfolio", "-r", "1"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    assert!(text(&output.stderr).starts_with("zfolio: 12K folios are left out: "), "{output:?}");
    assert_eq!(machine(), before);
}

#[test]
fn a_command_line_that_is_wrong_is_told_so() {
    for (arguments, expected) in [
        (&["--sides", "swap"][..], "--sides swap: expected zfolio, zswap or zram"),
        (&["--bytes", "1K"], "--bytes 1K: expected a size"),
        (&["--memory", "50%"], "--memory 50%: expected a size"),
        (&["--bytes", "1M", "-n", "2"], "--memory: 1 MiB is less than 16 MiB"),
        (&["--folios", "1"], "--folios 1: expected sizes of whole pages"),
    ] {
        let output = usemem(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(expected), "{expected}: {output:?}");
    }
    let output = usemem(&[
        "-n", "1", "-b", "16M", "--memory", "16M", "--folios", "4K", "--sides", "zfolio", "--file",
        "/nowhere",
    ]);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("/nowhere"), "{output:?}");
}

#[test]
fn whoever_ends_it_has_the_machine_as_it_was() {
    let _alone = ALONE.lock();
    let before = machine();
    let mut run = Command::new(ZFOLIO)
        .args([
            "bench",
            "usemem",
            "-n",
            "4",
            "-b",
            "64M",
            "--folios",
            "64K",
            "--sides",
            "zswap:lzo,zfolio",
            "-r",
            "9",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let changed = machine() != before;
    if !changed && !Path::new("/sys/class/zram-control").exists() {
        lacks("there is no zram");
    }
    assert!(Command::new("kill").args(["-TERM", &run.id().to_string()]).status().unwrap().success());
    let status = run.wait().unwrap();
    assert_eq!(status.code(), Some(128 + 15), "{run:?}");
    assert_eq!(machine(), before);
}
