//! Attributes of a device that is served, its figures, and its control socket.

use super::nbd::{Client, READ, WRITE};
use super::pty::Terminal;
use super::served::{Served, ZFOLIO, refusal, success};
use super::until::until;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

fn write(served: &Served, offset: u64, data: &[u8]) {
    let (mut client, _) = Client::connect(&served.socket);
    client.begin(WRITE, offset, data.len() as u32);
    client.send(data);
    assert_eq!(client.answer(), 0);
}

#[test]
fn a_device_is_listed_as_zramctl_does() {
    let Some(served) = Served::start("list", &["--disksize", "64M", "--comp-algorithm", "zstd:3"]) else {
        return;
    };
    write(&served, 0, &super::served::contents(1 << 20, 3));
    let text = success(&Command::new(ZFOLIO).args(["zram", "list"]).output().unwrap());
    assert!(
        text.starts_with("NAME    ALGORITHM   DISKSIZE   DATA  COMPR  TOTAL CLIENTS     PID FRONT-ENDS\n")
    );
    let name = format!("zram{} ", served.number);
    let line = text.lines().find(|line| line.starts_with(&name)).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[1..4], ["zstd", "64M", "1M"], "{line}");
    assert_eq!(words[7], served.child.id().to_string(), "{line}");
    assert_eq!(words[8], served.uri(), "{line}");
    let listed = served.listed();
    assert_eq!(listed["disksize_bytes"], 64 << 20);
    assert_eq!(listed["orig_data_bytes"], 1 << 20);
    assert!(listed["compr_data_bytes"].as_u64().unwrap() < 600 << 10, "{listed}");
}

#[test]
fn a_terminal_shows_a_line_for_each_device() {
    let Some(served) = Served::start("narrow", &["--disksize", "64M", "--comp-algorithm", "deflate-iaa"])
    else {
        return;
    };
    let narrow = format!("stty rows 33 cols 60; exec {ZFOLIO} zram list");
    let (shown, status) = Terminal::with(Command::new("sh").args(["-c", &narrow])).ends();
    let line = shown.lines().find(|line| line.starts_with(&format!("zram{} ", served.number))).unwrap();
    assert!(status.success() && line.contains(" deflate-iaa      64M "), "{shown}");
    assert!(shown.lines().all(|line| line.trim_end().chars().count() <= 60), "{shown}");
}

#[test]
fn a_full_standard_output_is_an_error() {
    let Some(served) = Served::start("full", &["--disksize", "64M"]) else { return };
    let number = served.number;
    for task in ["list", &format!("show {number}"), &format!("set {number} mem_limit=1M")] {
        let full = format!("{ZFOLIO} zram {task} >/dev/full");
        let (status, said) = refusal(&Command::new("sh").args(["-c", &full]).output().unwrap());
        assert!(
            status == Some(1) && said.starts_with("zfolio: standard output: No space left"),
            "{task}: {said}"
        );
        let closed = format!("{ZFOLIO} zram {task} | :");
        let output = Command::new("sh").args(["-c", &closed]).output().unwrap();
        assert!(output.stderr.is_empty(), "{task}: {output:?}");
    }
}

#[test]
fn attributes_are_shown_and_set() {
    let Some(served) = Served::start("set", &["--disksize", "64M", "--mem-limit", "32M"]) else { return };
    write(&served, 0, &super::served::contents(1 << 20, 3));
    assert_eq!(served.said("show", &["disksize"]), "67108864\n");
    let mm_stat = served.said("show", &["mm_stat"]);
    let figures: Vec<u64> = mm_stat.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!((figures[0], figures[3]), (1 << 20, 32 << 20), "{mm_stat}");
    let all = served.said("show", &[]);
    for name in ["disksize", "comp_algorithm", "mm_stat", "io_stat", "bd_stat"] {
        assert!(all.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}: {all}");
    }
    served.said("set", &["mem_limit=48M", "compact=1", "idle=all"]);
    assert_eq!(served.figure("mem_limit_bytes"), 48 << 20);
    for (values, status, expected) in [
        (&["mem_limit=much"][..], 2, "mem_limit"),
        (&["comp_algorithm=lz4"], 1, ""),
        (&["comapct=1"], 2, "no attribute"),
        (&["compact"], 2, "NAME=VALUE"),
    ] {
        let output = served.zram("set", values);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{values:?}: {said}");
        assert!(said.contains(expected), "{values:?}: {said}");
    }
    let none = Command::new(ZFOLIO).args(["zram", "set", "60000", "compact=1"]).output().unwrap();
    let (status, said) = refusal(&none);
    assert_eq!((status, said.contains("there is no zram60000")), (Some(1), true), "{said}");
}

#[test]
fn a_device_is_reset_and_removed_only_while_nobody_has_it_open() {
    let Some(mut served) = Served::start("reset", &["--disksize", "16M"]) else { return };
    write(&served, 0, &[3; 4096]);
    let (mut client, _) = Client::connect(&served.socket);
    until("it is open", || served.figure("clients") == 1);
    for act in ["reset", "hot_remove"] {
        let (status, said) = refusal(&served.zram(act, &[]));
        assert_eq!((status, said.contains("a client has it open")), (Some(1), true), "{said}");
    }
    let (status, said) = refusal(&served.zram("set", &["reset=1"]));
    assert_eq!((status, said.contains("a client has it open")), (Some(1), true), "{said}");
    client.begin(READ, 0, 4096);
    assert_eq!((client.answer(), client.take(4096)), (0, vec![3; 4096]));
    drop(client);
    until("it is closed", || served.figure("clients") == 0);
    served.said("reset", &[]);
    assert_eq!((served.figure("disksize_bytes"), served.figure("orig_data_bytes")), (0, 0));
    served.said("set", &["comp_algorithm=lz4", "disksize=32M"]);
    let (mut client, size) = Client::connect(&served.socket);
    client.begin(READ, 0, 4096);
    assert_eq!((size, client.answer(), client.take(4096)), (32 << 20, 0, vec![0; 4096]));
    drop(client);
    until("it is closed", || served.figure("clients") == 0);
    served.said("hot_remove", &[]);
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
    assert!(!served.socket.exists());
}

#[test]
fn nonsense_at_the_control_socket_is_refused_and_harms_nothing() {
    let Some(served) = Served::start("nonsense", &["--disksize", "16M"]) else { return };
    write(&served, 4096, &[9; 4096]);
    let path = format!("/dev/shm/zfolio.zram{}/control", served.number);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let answer = |line: &[u8]| {
        let mut socket = UnixStream::connect(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // What is refused while it is still being sent is refused.
        let _ = socket.write_all(line);
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer);
        answer
    };
    for (line, reason) in [
        (&b"nonsense\n"[..], "no JSON"),
        (b"\xff\xfe\n", "no JSON"),
        (b"7\n", "do is none of"),
        (b"{\"do\":\"format\"}\n", "do is none of"),
        (b"{\"do\":\"set\"}\n", "values is missing"),
        (b"{\"do\":\"set\",\"values\":[[\"a\"]]}\n", "no list of pairs"),
        (b"{\"do\":\"set\",\"values\":[[\"no_such\",\"1\"]]}\n", "no_such"),
        (b"{\"do\":\"set\",\"values\":[[\"disksize\",\"-1\"]]}\n", "\"error\""),
        (b"{\"do\":\"show\",\"name\":\"../../etc/passwd\"}\n", "\"error\""),
        (&[b'x'; 5000], "more than 4096 bytes"),
    ] {
        let said = answer(line);
        assert!(said.contains(reason), "{}: {said}", String::from_utf8_lossy(line));
    }
    let mut word = 1u64;
    for _ in 0..300 {
        let mut line = b"{\"do\":\"set\",\"values\":[[\"compact\",\"1\"]]}\n".to_vec();
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1);
        let at = (word >> 33) as usize % (line.len() - 1);
        line[at] = (word >> 56) as u8;
        line.push(b'\n');
        answer(&line);
    }
    // Many who say nothing.
    let silent: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&path).unwrap()).collect();
    assert_eq!(served.figure("disksize_bytes"), 16 << 20);
    drop(silent);
    let (mut client, _) = Client::connect(&served.socket);
    client.begin(READ, 4096, 4096);
    assert_eq!((client.answer(), client.take(4096)), (0, vec![9; 4096]));
}
