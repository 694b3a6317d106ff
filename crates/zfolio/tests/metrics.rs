//! `zfolio run --metrics`: what the server says, to whom, and that it is no burden to the program.

mod runs;

use runs::{Run, read_line, refusal, zfolio};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

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
