//! `zfolio ps` and `zfolio stat`, as a user sees them: of runs that work, that hang, that are another user's, or that
//! are not there.

mod pty;
mod runs;
mod skip;

use pty::Terminal;
use runs::{Run, ZFOLIO, read_line, refusal, signal, until, zfolio};
use serde_json::Value;
use skip::skip;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// The user whom everybody takes for nobody.
const NOBODY: u32 = 65534;

/// Stops all of these, and waits until they are.
fn stop(pids: &[u32]) {
    signal(pids, libc::SIGSTOP);
    let is_stopped = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    };
    until("all of them are stopped", || pids.iter().all(is_stopped));
}

/// The lines of `zfolio ps` that begin with this number.
fn listed(output: &Output, pid: &str) -> Vec<String> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let lines = text.lines().filter(|line| line.split_whitespace().next() == Some(pid));
    lines.map(str::to_string).collect()
}

#[test]
fn what_cannot_be_written_is_no_success() {
    let run = Run::squeezed(&[]);
    for words in [&["ps"][..], &["stat", &run.pid()], &["set", &run.pid()], &["doctor"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(ZFOLIO).args(words).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.starts_with("zfolio: standard output: No space left on device"), "{words:?}: {said}");
    }
}

#[test]
fn ps_lists_a_run_with_its_command_and_its_figures() {
    let run = Run::squeezed(&[]);
    let output = zfolio(&["ps"]);
    let [line] = &listed(&output, &run.pid())[..] else { panic!("{output:?}") };
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!((words[1], words[11]), ("24M", "python3"), "{line}");
    assert_eq!(words[7..10], ["1", "of", "1"], "{line}");
    assert!(words[6].parse::<f64>().is_ok_and(|ratio| ratio > 1.0), "{line}");
}

#[test]
fn stat_needs_nobody_and_works_while_all_of_the_run_hangs() {
    let run = Run::squeezed(&[]);
    let all = run.all();
    assert!(all.len() >= 3, "zfolio, python3 and its engine: {all:?}");
    stop(&all);
    let json = run.stat(&[]);
    let process = &json["processes"][0];
    assert_eq!((&process["name"], &process["state"]), (&"python3".into(), &"awake".into()), "{json:#}");
    assert_eq!(process["counters"], json["counters"], "it is the only one");
    for name in ["stored_bytes", "pool_bytes", "footprint_bytes"] {
        assert!(process["memory"][name].as_u64().unwrap() > 0, "{name}: {json:#}");
    }
    let latency = &json["latency"]["fault_ns"];
    let of = |name: &str| latency[name].as_u64().unwrap();
    assert_eq!(of("count"), json["counters"]["faults"].as_u64().unwrap());
    assert!(0 < of("p50_ns") && of("p50_ns") <= of("p99_ns") && of("p99_ns") <= of("max_ns"), "{latency}");
    assert_eq!(listed(&zfolio(&["ps"]), &run.pid()).len(), 1);
    assert_eq!(run.stat(&[])["counters"], json["counters"], "all of them hang");
}

#[test]
fn any_process_of_a_run_stands_for_it() {
    let run = Run::squeezed(&[]);
    let json = run.stat(&[]);
    let pid = json["processes"][0]["pid"].to_string();
    let output = zfolio(&["stat", &pid]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(&format!("zfolio run {}, ", run.pid())), "{text}");
    assert!(text.contains(&format!("  process     {pid} python3, its engine is awake\n")), "{text}");
    // Its engine is of the run, too, and has no engine itself.
    let engine = run.all().into_iter().find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "zfolio-engine\n")
    });
    let engine = engine.expect("it is awake").to_string();
    let output = zfolio(&["stat", &engine]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, format!("zfolio: process {engine} has no engine: these are the figures of its run\n"));
    assert!(String::from_utf8(output.stdout).unwrap().contains("  limit       24 MiB"));
}

#[test]
fn who_is_of_no_run_and_who_is_not_there_are_told() {
    let _run = Run::idle();
    let said = refusal(&zfolio(&["stat", "1"]), 1);
    assert!(said.starts_with("zfolio: process 1 is of no run of zfolio"), "{said}");
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let said = refusal(&zfolio(&["stat", &gone.id().to_string()]), 1);
    assert_eq!(said, format!("zfolio: there is no process {}\n", gone.id()));
    assert_eq!(zfolio(&["stat", "x"]).status.code(), Some(2));
}

#[test]
fn of_two_runs_one_is_to_be_named() {
    let (first, second) = (Run::idle(), Run::beside(&[], &["sh", "-c", "echo ready; read line"]));
    let said = refusal(&zfolio(&["stat"]), 1);
    assert!(
        said.starts_with("zfolio: there are several runs: say which one of ") && said.contains("`zfolio ps`")
    );
    for run in [&first, &second] {
        assert!(said.contains(&run.pid()), "{said}");
        assert_eq!(run.stat(&[])["pid"], run.child.id());
        assert_eq!(listed(&zfolio(&["ps"]), &run.pid()).len(), 1);
    }
}

/// A process that has a directory open as `zfolio run` has that of a run, whose page begins so.
fn pretender(name: &str, settings: &[u8], page: &[u8]) -> (Child, PathBuf) {
    let dir = std::env::temp_dir().join(format!("zfolio-{}-{name}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join(memcg::FIXED_FILE), settings).unwrap();
    fs::write(dir.join(memcg::PAGE_FILE), page).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "exec 9<\"$1\"; echo ready; read line", "sh", dir.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(read_line(child.stdout.as_mut().unwrap()), "ready\n");
    (child, dir)
}

#[test]
fn a_page_of_another_version_is_told_and_one_that_is_cut_off_is_none() {
    let older = memcg::MAGIC - 1;
    let mut all = Vec::new();
    for (name, magic, len) in
        [("other", older, 8), ("cut", memcg::MAGIC, 8), ("short", memcg::MAGIC, 1 << 20)]
    {
        let mut settings = magic.to_ne_bytes().to_vec();
        settings.resize(len, 0);
        all.push((name, pretender(name, &settings, &[0; 4096])));
    }
    let output = zfolio(&["ps"]);
    for (name, (child, _)) in &all {
        let pid = child.id().to_string();
        let (lines, said) = (listed(&output, &pid), refusal(&zfolio(&["stat", &pid]), 1));
        let (other, own) = (older & 0xffff, memcg::MAGIC & 0xffff);
        let why = format!("is of another version of zfolio (layout {other}, this one reads {own})");
        if *name == "other" {
            assert_eq!(said, format!("zfolio: run {pid} {why}\n"));
            assert!(lines.len() == 1 && lines[0].contains(&why), "{lines:?}");
        } else {
            assert!(
                lines.is_empty() && said.contains(" is of no run of zfolio"),
                "{name}: {lines:?}, {said}"
            );
        }
    }
    for (_, (mut child, dir)) in all {
        drop(child.stdin.take());
        child.wait().unwrap();
        fs::remove_dir_all(dir).unwrap();
    }
}

/// The command as nobody, who may not reach the file by its path.
fn as_nobody(arguments: &[&str]) -> Output {
    static FILE: OnceLock<File> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let file = File::open(ZFOLIO).unwrap();
        // SAFETY: touches no memory. Programs inherit it from now on.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) };
        file
    });
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Command::new(path).args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap()
}

#[test]
fn a_stranger_sees_no_run_of_another_user() {
    if !fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0") {
        return skip("this takes root");
    }
    let run = Run::idle();
    let output = as_nobody(&["ps"]);
    assert_eq!((output.status.code(), listed(&output, &run.pid())), (Some(0), vec![]));
    for arguments in [&["stat"][..], &["stat", &run.pid()]] {
        let said = refusal(&as_nobody(arguments), 1);
        assert!(said.contains(" no run of zfolio that this user may see"), "{said}");
    }
}

#[test]
fn without_a_run_there_is_none_to_show() {
    // Nobody has one; this test's user may have others than this file's.
    if !fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0") {
        return skip("this takes root");
    }
    let output = as_nobody(&["ps"]);
    assert_eq!(
        (output.status.code(), String::from_utf8(output.stdout).unwrap().lines().count()),
        (Some(0), 1)
    );
    assert_eq!(
        refusal(&as_nobody(&["stat", "--json"]), 1),
        "zfolio: there is no run of zfolio that this user may see\n"
    );
}

#[test]
fn watch_writes_a_line_of_json_each_time_until_the_run_ends() {
    let mut run = Run::squeezed(&[]);
    let mut watch = Command::new(ZFOLIO)
        .args(["stat", &run.pid(), "--json", "--watch", "0.2"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Option<Value> { Some(serde_json::from_str(&lines.next()?.unwrap()).unwrap()) };
    let (first, second) = (next().unwrap(), next().unwrap());
    assert_eq!((&first["per_second"], second["per_second"].is_object()), (&Value::Null, true));
    for counter in memcg::COUNTERS {
        let [before, now] = [&first, &second].map(|json| json["counters"][counter.name].as_u64().unwrap());
        assert!(now >= before && second["per_second"][counter.name].is_u64(), "{}", counter.name);
    }
    drop(run.child.stdin.take());
    while next().is_some() {}
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

#[test]
fn watch_ends_quietly_when_its_pipe_is_closed_or_full() {
    let run = Run::idle();
    let watch = || {
        let mut command = Command::new(ZFOLIO);
        command.args(["stat", &run.pid(), "--watch", "0.1"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut closed = watch();
    let mut pipe = BufReader::new(closed.stdout.take().unwrap());
    pipe.read_line(&mut String::new()).unwrap();
    drop(pipe);
    let output = closed.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &[][..]));
    // Nobody reads: when the pipe is full it still hears.
    let mut full = watch();
    // SAFETY: a pipe's capacity is a number.
    let room = unsafe { libc::fcntl(full.stdout.as_ref().unwrap().as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
    assert!(room >= 4096);
    std::thread::sleep(Duration::from_millis(1500));
    signal(&[full.id()], libc::SIGINT);
    assert_eq!(full.wait().unwrap().code(), Some(0));
}

/// What a terminal shows after all this was written to it, in lines.
fn screen(text: &str) -> Vec<String> {
    let (mut lines, mut row, mut column) = (vec![Vec::new()], 0usize, 0);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\r' => column = 0,
            '\n' => row += 1,
            '\x1b' => {
                assert_eq!(rest.next(), Some('['), "{text:?}");
                let (mut number, mut letter) = (String::new(), rest.next());
                while let Some(digit) = letter.filter(char::is_ascii_digit) {
                    number.push(digit);
                    letter = rest.next();
                }
                match letter {
                    Some('F') => (row, column) = (row - number.parse::<usize>().unwrap(), 0),
                    Some('K') => lines[row].truncate(column),
                    Some('J') => {
                        lines[row].truncate(column);
                        lines.truncate(row + 1);
                    }
                    _ => panic!("no such sequence is known here: {text:?}"),
                }
            }
            c => {
                if lines[row].len() <= column {
                    lines[row].resize(column + 1, ' ');
                }
                lines[row][column] = c;
                column += 1;
            }
        }
        if lines.len() <= row {
            lines.resize(row + 1, Vec::new());
        }
    }
    lines.into_iter().map(|line| line.into_iter().collect()).collect()
}

#[test]
fn watch_draws_in_one_place_on_a_terminal_of_80_columns() {
    let run = Run::squeezed(&[]);
    let mut terminal = Terminal::with(Command::new(ZFOLIO).args(["stat", &run.pid(), "--watch", "0.2"]));
    let head = format!("zfolio run {}, ", run.pid());
    let text = until("it has been drawn three times", || {
        let text = terminal.idles(Duration::from_millis(100));
        (text.matches(&head).count() >= 3 && text.ends_with("\x1b[J")).then(|| text.to_string())
    });
    let shown = screen(&text);
    assert_eq!(shown.iter().filter(|line| line.starts_with(&head)).count(), 1, "{shown:#?}");
    assert!(shown.iter().any(|line| line.starts_with("  faults   ")), "{shown:#?}");
    assert!(shown.len() <= 24 && shown.iter().all(|line| line.chars().count() < 80), "{shown:#?}");
    terminal.resizes();
    terminal.shows("\x1b[2J\x1b[H");
    let text = until("it is drawn anew", || {
        let text = terminal.idles(Duration::from_millis(100));
        text.ends_with("\x1b[J").then(|| text.to_string())
    });
    assert!(screen(&text).iter().all(|line| line.chars().count() < 44), "{text:?}");
    terminal.types("\x03");
    assert_eq!(terminal.ends().1.code(), Some(0));
}
