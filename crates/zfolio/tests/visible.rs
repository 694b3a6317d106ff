//! `--visible`: programs that ask how much memory there is are told what the user says, in whatever way they ask;
//! without it nothing is another than it was. They need the right to userfaultfd, as `zfolio doctor` does.

mod compile;
mod skip;

use compile::compile_with;
use skip::{skip, tell};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");
const MIB: u64 = 1 << 20;

/// Runs a command line, under zfolio with these options if there are any.
fn run(options: &[&str], words: &[&str]) -> Output {
    let mut all = vec!["timeout", "-k", "5", "120"];
    if !options.is_empty() {
        all.extend([ZFOLIO, "run"]);
        all.extend(options);
        all.push("--");
    }
    all.extend(words);
    Command::new(all[0]).args(&all[1..]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What `tests/c/visible.c` has been told, by its names; `fortified` is built so that open's other names are called.
fn answers(options: &[&str], files: &[&str], fortified: bool) -> BTreeMap<String, u64> {
    let flags: &[&str] = if fortified { &["-D_FORTIFY_SOURCE=2", "-D_FILE_OFFSET_BITS=64"] } else { &[] };
    let program = compile_with("visible", flags);
    let output = run(options, &[&[program.to_str().unwrap()], files].concat());
    let stdout = text(&output.stdout);
    assert!(output.status.success() && !stdout.contains("wrong"), "{stdout}{}", text(&output.stderr));
    let answer = |line: &str| {
        let (name, bytes) = line.rsplit_once(' ').unwrap();
        (name.to_string(), bytes.parse().unwrap())
    };
    stdout.lines().map(answer).collect()
}

/// Answers about how much there is, of which each must be the same.
fn totals(answers: &BTreeMap<String, u64>) -> impl Iterator<Item = (&str, u64)> {
    const CALLS: [&str; 8] = ["sysinfo", "syscall", "sysconf", "get_phys_pages", "r", "re", "rm", "freopen"];
    let is_total = |name: &str| {
        let name = name.strip_prefix("child ").unwrap_or(name);
        CALLS.contains(&name) || name.ends_with("/MemTotal:")
    };
    answers.iter().filter(move |(name, _)| is_total(name)).map(|(name, bytes)| (name.as_str(), *bytes))
}

#[test]
fn every_question_has_the_same_answer_in_children_too() {
    for fortified in [false, true] {
        let real = answers(&[], &[], fortified);
        let there = real["sysinfo"];
        assert!(totals(&real).all(|(_, bytes)| bytes == there), "{real:?}");
        // Off: all that is always the same is as it was.
        let off = answers(&["--memory", "100M"], &[], fortified);
        assert_eq!(totals(&off).collect::<Vec<_>>(), totals(&real).collect::<Vec<_>>());
        assert!(off["open/Cached:"] > 0 && off["open/SwapTotal:"] == real["open/SwapTotal:"], "{off:?}");

        for (visible, expected) in [("limit", 100 * MIB), ("77M", 77 * MIB), ("1G", 1024 * MIB)] {
            let on = answers(&["--memory", "100M", "--visible", visible], &[], fortified);
            assert_eq!(on.len(), real.len());
            let other: Vec<_> = totals(&on).filter(|(_, bytes)| *bytes != expected).collect();
            assert!(other.is_empty(), "{visible}: {other:?}");
            assert_eq!(totals(&on).count(), totals(&real).count());
            for (name, bytes) in &on {
                assert!(*bytes <= expected, "{visible}: {name} {bytes}");
                let is_free =
                    name.ends_with("/free") || name.ends_with("Available:") || name.ends_with("avphys_pages");
                // The run holds a few megabytes by itself.
                assert!(!is_free || *bytes > expected / 2, "{visible}: {name} {bytes}");
                assert!(
                    !name.contains("Swap") && !name.ends_with("swap") || *bytes == 0,
                    "{visible}: {name} {bytes}"
                );
            }
        }
    }
}

/// While all that the threads have goes out all the time: their stacks, on which files are looked at, and the names of
/// files.
#[test]
fn threads_handlers_and_children_have_it_while_memory_is_out() {
    let on = answers(&["--memory", "64M", "--visible", "limit", "--evict-all"], &["threads"], false);
    assert_eq!(on["threads"], 64 * MIB);
    assert!(on["reads"] >= 2000, "{on:?}");
}

#[test]
fn what_the_run_holds_is_not_available() {
    let python = "import os\n\
        before = os.sysconf('SC_AVPHYS_PAGES')\n\
        held = bytearray(b'x') * (64 << 20)\n\
        import time\n\
        time.sleep(0.5)\n\
        print((before - os.sysconf('SC_AVPHYS_PAGES')) * 4096, os.sysconf('SC_PHYS_PAGES') * 4096)";
    let output = run(&["--memory", "256M", "--visible", "limit"], &["/usr/bin/python3", "-c", python]);
    let stdout = text(&output.stdout);
    let figures: Vec<u64> = stdout.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!((60 * MIB..80 * MIB).contains(&figures[0]) && figures[1] == 256 * MIB, "{output:?}");
}

/// This process's memory control group of version 1 or 2: its directory, and the name of the file with its limit.
fn own_group() -> Option<(PathBuf, &'static str)> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = |line: &str| line.splitn(3, ':').nth(2).unwrap().trim_start_matches('/').to_string();
    let v1 = cgroup.lines().find(|line| line.contains(":memory:")).map(path);
    let v2 = cgroup.lines().find(|line| line.starts_with("0::")).map(path);
    let v1 = v1.map(|path| (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"));
    let v2 = v2.map(|path| (Path::new("/sys/fs/cgroup").join(path), "memory.max"));
    v1.into_iter().chain(v2).find(|(dir, file)| dir.join(file).exists())
}

#[test]
fn limits_of_the_own_group_and_those_above_are_told_and_others_are_not() {
    let Some((own, limit)) = own_group() else {
        return tell("skipped: this process's control group has no file with a limit of memory");
    };
    let of = |dir: &Path, name: &str| dir.join(name).to_str().unwrap().to_string();
    let mut files = vec![of(&own, limit)];
    let above = own.parent().map(|dir| of(dir, limit)).filter(|path| Path::new(path).exists());
    files.extend(above);
    let usage = if limit == "memory.max" { "memory.current" } else { "memory.usage_in_bytes" };
    files.push(of(&own, usage));
    // Through a link, and by a path that goes up and down.
    let link = std::env::temp_dir().join(format!("zfolio-visible-group-{}", std::process::id()));
    std::os::unix::fs::symlink(&own, &link).unwrap();
    files.push(of(&link, limit));
    files.push(format!("{}/../{}/{limit}", own.display(), own.file_name().unwrap_or_default().display()));
    // A group that nobody of the run is in.
    let other = own.join(format!("zfolio-visible-{}", std::process::id()));
    let is_made = fs::create_dir(&other).is_ok() && other.join(limit).exists();
    if is_made {
        files.push(of(&other, limit));
    }
    if limit != "memory.max" {
        files.push(of(&own, "memory.stat"));
    }
    let paths: Vec<&str> = files.iter().map(String::as_str).collect();
    let (real, on) =
        (answers(&[], &paths, false), answers(&["--memory", "100M", "--visible", "limit"], &paths, false));
    let off = answers(&["--memory", "100M"], &paths, false);
    fs::remove_file(&link).unwrap();
    let _ = fs::remove_dir(&other);
    for prefix in ["", "child "] {
        for path in &paths {
            let name = format!("{prefix}{path}");
            if path.ends_with("memory.stat") {
                assert_eq!(on[&format!("{prefix}hierarchical")], (100 * MIB).min(real["hierarchical"]));
            } else if path.ends_with(usage) {
                assert!(on[&name] < 50 * MIB, "{name}: {}", on[&name]);
            } else if path.starts_with(other.to_str().unwrap()) {
                assert_eq!(on[&name], real[&name], "{name}");
            } else {
                assert_eq!((on[&name], off[&name]), ((100 * MIB).min(real[&name]), real[&name]), "{name}");
            }
        }
    }
}

/// The figure that a command line prints alone.
fn figure(options: &[&str], words: &[&str]) -> f64 {
    let output = run(options, words);
    text(&output.stdout).trim().parse().unwrap_or_else(|_| panic!("{words:?}: {output:?}"))
}

fn is_there(program: &str) -> bool {
    let is = Command::new(program).arg("--version").output().is_ok();
    if !is {
        skip(&format!("{program} is not installed"));
    }
    is
}

#[test]
fn java_takes_a_quarter_of_it_for_its_heap() {
    if !is_there("java") {
        return;
    }
    let script = "java -XX:+PrintFlagsFinal -version 2>/dev/null | awk '$2 == \"MaxHeapSize\" { print $4 }'";
    let heap = |options: &[&str]| figure(options, &["sh", "-c", script]);
    let limit = (512 * MIB / 4) as f64;
    assert_eq!(heap(&["--memory", "512M", "--visible", "limit"]), limit);
    assert_eq!(heap(&["--memory", "512M", "--visible", "1G"]), 2.0 * limit);
    assert_eq!(heap(&["--memory", "512M"]), heap(&[]));
}

#[test]
fn node_and_python_see_it() {
    let on = &["--memory", "512M", "--visible", "limit"][..];
    if is_there("node") {
        let node = |options: &[&str], what: &str| figure(options, &["node", "-p", what]);
        assert_eq!(node(on, "os.totalmem()"), 512.0 * MIB as f64);
        assert!(node(on, "os.freemem()") <= 512.0 * MIB as f64);
        let heap = "v8.getHeapStatistics().heap_size_limit";
        let (less, all) = (node(on, heap), node(&[], heap));
        assert!(less <= 400.0 * MIB as f64 && all > less, "{less} of {all}");
        assert_eq!(node(&["--memory", "512M"], "os.totalmem()"), node(&[], "os.totalmem()"));
    }
    let sysconf = "import os; print(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))";
    assert_eq!(figure(on, &["/usr/bin/python3", "-c", sysconf]), 512.0 * MIB as f64);
    let meminfo = "print(int(open('/proc/meminfo').readline().split()[1]) * 1024)";
    assert_eq!(figure(on, &["/usr/bin/python3", "-c", meminfo]), 512.0 * MIB as f64);
}

/// A squeezed program that is known to go by what it sees is told of, once, and only while it sees all.
#[test]
fn the_summary_says_whom_it_would_help() {
    if !is_there("node") {
        return;
    }
    let script = "for (let i = 0, all = []; i < 120; i++) all.push(Buffer.alloc(1 << 20, i));";
    let said = |options: &[&str]| text(&run(options, &["node", "-e", script]).stderr);
    let off = said(&["--memory", "96M"]);
    assert_eq!(
        off.matches("\n  visible     node goes by the machine's memory: see --visible limit\n").count(),
        1,
        "{off}"
    );
    let on = said(&["--memory", "96M", "--visible", "limit"]);
    assert!(on.contains("  footprint ") && !on.contains("  visible "), "{on}");
    let room = said(&["--memory", "1G"]);
    assert!(!room.contains("visible"), "{room}");
}

#[test]
fn a_size_that_is_none_is_refused() {
    for size in ["8M", "0", "none", "999T"] {
        let output = run(&["--memory", "100M", "--visible", size], &["true"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{size}");
        assert!(
            said.starts_with(&format!("zfolio: --visible {size}: ")) && said.lines().count() == 1,
            "{said}"
        );
    }
}
