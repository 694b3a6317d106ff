//! `zfolio ps`, `zfolio stat` and `zfolio run --metrics`, as a user sees them: of runs that work, that hang, that are
//! another user's, or that are not there.

mod pty;
mod skip;

use pty::Terminal;
use serde_json::Value;
use skip::skip;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// The user whom everybody takes for nobody.
const NOBODY: u32 = 65534;

/// Which runs there are is asked by one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

/// Takes 48 MiB of texts, says so, and reads them again and again until its input ends.
const SQUEEZED: &str = "
import select, sys, time
x = [str(i) * 8 + 'abcdefgh' for i in range(400000)]
print('ready', flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    sum(map(len, x[::31]))
    time.sleep(0.01)
";

/// A run of this test's.
struct Run {
    child: Child,
    _machine: Option<MutexGuard<'static, ()>>,
}

impl Run {
    /// Starts a run, alone among those of this file's tests, and waits for the program's first line.
    fn start(options: &[&str], command: &[&str]) -> Run {
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut run = Run::beside(options, command);
        run._machine = Some(machine);
        run
    }

    /// One more, for a test that has one already.
    fn beside(options: &[&str], command: &[&str]) -> Run {
        let mut child = Command::new(ZFOLIO)
            .args(["run", "--quiet"])
            .args(options)
            .arg("--")
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(read_line(child.stdout.as_mut().unwrap()), "ready\n");
        Run { child, _machine: None }
    }

    /// One whose memory is half out.
    fn squeezed(options: &[&str]) -> Run {
        let run = Run::start(&[options, &["--memory", "24M"]].concat(), &["python3", "-c", SQUEEZED]);
        until("something has been missed", || {
            (run.stat(&[])["counters"]["faults"].as_u64().unwrap() > 10).then_some(())
        });
        run
    }

    fn idle() -> Run {
        Run::start(&[], &["sh", "-c", "echo ready; read line"])
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Its figures, read from outside.
    fn stat(&self, options: &[&str]) -> Value {
        let output = zfolio(&[&["stat", &self.pid(), "--json"], options].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Its first line of messages has the address of its metrics.
    fn metrics(&mut self) -> SocketAddr {
        let line = read_line(self.child.stderr.as_mut().unwrap());
        let address =
            line.strip_prefix("zfolio: metrics at http://").and_then(|rest| rest.strip_suffix("/metrics\n"));
        address.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap()
    }

    /// `zfolio run` and all of its descendants.
    fn all(&self) -> Vec<u32> {
        let mut all = vec![self.child.id()];
        let parents = parents();
        let mut at = 0;
        while let Some(&pid) = all.get(at) {
            all.extend(parents.iter().filter(|(_, parent)| **parent == pid).map(|(child, _)| *child));
            at += 1;
        }
        all
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // One that was stopped goes on, and one that does not end is killed.
        signal(&self.all(), libc::SIGCONT);
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line, and nothing of what follows it.
fn read_line(from: &mut impl Read) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.last() != Some(&b'\n') && from.read(&mut byte).unwrap() == 1 {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// Stops all of these, and waits until they are.
fn stop(pids: &[u32]) {
    signal(pids, libc::SIGSTOP);
    let is_stopped = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    };
    until("all of them are stopped", || pids.iter().all(is_stopped).then_some(()));
}

/// The parent of each process.
fn parents() -> BTreeMap<u32, u32> {
    let numbers =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?))
    };
    numbers.filter_map(parent).collect()
}

fn signal(pids: &[u32], number: i32) {
    for pid in pids {
        // SAFETY: touches no memory.
        unsafe { libc::kill(*pid as i32, number) };
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn zfolio(arguments: &[&str]) -> Output {
    Command::new(ZFOLIO).args(arguments).output().unwrap()
}

/// What a command that fails says, which is one line.
fn refusal(output: &Output, status: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(status), &[][..]), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
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

/// What a server answers: its status line with the headers, and the body.
fn ask(address: SocketAddr, request: &[u8]) -> (String, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(request).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    (head.to_string(), body.to_string())
}

/// All samples, by name and labels.
fn scrape(address: SocketAddr) -> BTreeMap<String, f64> {
    let (head, body) = ask(address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    let split =
        |line: &str| line.rsplit_once(' ').map(|(name, value)| (name.to_string(), value.parse().unwrap()));
    samples.map(|line| split(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

#[test]
fn metrics_are_those_of_stat_and_their_counters_only_grow() {
    let mut run = Run::squeezed(&["--metrics", "0"]);
    let address = run.metrics();
    assert!(address.ip().is_loopback());
    let first = scrape(address);
    let json = run.stat(&[]);
    // The same text is given for a tenth of a second.
    std::thread::sleep(Duration::from_millis(300));
    let second = scrape(address);
    let grows = |name: &str| name.contains("_total") || name.contains("_bucket") || name.ends_with("_count");
    for (name, before) in first.iter().filter(|(name, _)| grows(name)) {
        assert!(second[name] >= *before, "{name}: {before}, then {}", second[name]);
    }
    let faults = json["counters"]["faults"].as_u64().unwrap() as f64;
    assert!(first["zfolio_faults_total"] <= faults && faults <= second["zfolio_faults_total"]);
    assert!(second["zfolio_faults_total"] > first["zfolio_faults_total"], "it goes on");
    assert_eq!(second["zfolio_max_bytes"], (24 << 20) as f64);
    let all = second["zfolio_fault_seconds_bucket{le=\"+Inf\"}"];
    assert_eq!(all, second["zfolio_fault_seconds_count"]);
    let pid = &json["processes"][0]["pid"];
    assert!(second[&format!("zfolio_process_faults_total{{pid=\"{pid}\",name=\"python3\"}}")] > 0.0);
}

#[test]
fn nonsense_and_silence_at_the_port_harm_nobody() {
    let mut run = Run::squeezed(&["--metrics", "127.0.0.1:0"]);
    let address = run.metrics();
    let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    for nonsense in [&b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"[..], b"GET\r\n\r\n", &[0xff; 300]] {
        assert!(ask(address, nonsense).0.starts_with("HTTP/1.1 400 "), "{nonsense:?}");
    }
    assert!(ask(address, b"DELETE /metrics HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 405 "));
    assert!(ask(address, b"GET /etc/passwd HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 404 "));
    // Without an end: it is cut off.
    let mut endless = TcpStream::connect(address).unwrap();
    let sent = (0..10_000).take_while(|_| endless.write_all(&[b'a'; 1000]).is_ok()).count();
    assert!(sent < 10_000, "{sent} kB were taken");
    scrape(address);
    drop(silent);
    assert!(run.child.try_wait().unwrap().is_none());
    drop(run.child.stdin.take());
    assert_eq!(run.child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_address_that_cannot_be_had_is_told_before_the_program_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (address, why) in [(&*taken, "another process has this port"), ("nonsense", "[::1]:9464")] {
        let output = zfolio(&["run", "--metrics", address, "--", "echo", "started"]);
        let said = refusal(&output, 2);
        assert!(said.starts_with(&format!("zfolio: --metrics {address}: ")) && said.contains(why), "{said}");
    }
}

/// The server runs in `zfolio run`: no process of the program has the port, or a thread of it.
#[test]
fn the_program_has_neither_the_port_nor_a_thread_of_the_server() {
    let mut run = Run::start(
        &["--metrics", "0"],
        &[
            "sh",
            "-c",
            "echo ready; ls -l /proc/self/fd /proc/$$/fd | grep -c socket:; ls /proc/$$/task | wc -l; read line",
        ],
    );
    let out = run.child.stdout.as_mut().unwrap();
    assert_eq!((read_line(out), read_line(out)), ("0\n".to_string(), "1\n".to_string()));
    scrape(run.metrics());
    let mut threads = fs::read_dir(format!("/proc/{}/task", run.pid())).unwrap().flatten();
    let is_server = |name: String| name == "zfolio-metrics\n";
    let server = threads.find(|thread| fs::read_to_string(thread.path().join("comm")).is_ok_and(is_server));
    let status = fs::read_to_string(server.expect("the server is a thread").path().join("status")).unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
    let blocked = u64::from_str_radix(blocked, 16).unwrap();
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD, libc::SIGPIPE, libc::SIGWINCH] {
        assert!(blocked & 1 << (number - 1) != 0, "signal {number}: {status}");
    }
}
