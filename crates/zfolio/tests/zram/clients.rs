//! Programs that read and write, and clients that do what they should not.

use super::nbd::{Client, READ, TRIM, WRITE, WRITE_ZEROES};
use super::served::{Directory, Served, contents, has, run, success};
use super::until::until;
use std::fs;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

const MIB: usize = 1 << 20;

#[test]
fn nbdinfo_says_what_the_device_can_do() {
    if !has(&["nbdinfo"]) {
        return;
    }
    let Some(served) = Served::start("info", &["--disksize", "256M"]) else { return };
    let said = run("nbdinfo", &[&served.uri()]);
    for expected in [
        "export-size: 268435456 (256M)",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "is_read_only: false",
        "base:allocation",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn with_tls_only_who_has_a_key_comes_in() {
    if !has(&["nbdkit", "nbdinfo"]) {
        return;
    }
    let directory = Directory::new("tls");
    let file = |name: &str| directory.0.join(name).to_str().unwrap().to_string();
    let (keys, wrong) = (file("keys"), file("wrong"));
    fs::write(&keys, format!("alice:{}\n", "5a".repeat(32))).unwrap();
    fs::write(&wrong, format!("alice:{}\n", "5b".repeat(32))).unwrap();
    let psk = format!("--nbdkit-arg=--tls-psk={keys}");
    let options = ["--disksize", "16M", "--nbdkit-arg=--tls=require", &psk];
    let served = Served::again(directory, &options);
    let size = |uri: &str| Command::new("nbdinfo").args(["--size", uri]).output().unwrap();
    let uri = served.uri().replacen("nbd+unix:///", "nbds+unix://alice@/", 1);
    let answered = size(&format!("{uri}&tls-psk-file={keys}"));
    assert!(answered.stdout.starts_with(b"16777216"), "{answered:?}");
    for uri in [served.uri(), format!("{uri}&tls-psk-file={wrong}")] {
        let refused = size(&uri);
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    }
}

#[test]
fn what_nbdcopy_brings_it_takes_away_again() {
    if !has(&["nbdcopy", "nbdinfo"]) {
        return;
    }
    let Some(served) = Served::start("copy", &["--disksize", "64M", "--comp-algorithm", "lz4"]) else {
        return;
    };
    let (from, to) = (served.file("from"), served.file("to"));
    let mut data = contents(64 * MIB, 1);
    data[8 * MIB..24 * MIB].fill(0);
    fs::write(&from, &data).unwrap();
    run("nbdcopy", &[&from, &served.uri()]);
    run("nbdcopy", &[&served.uri(), &to]);
    assert!(fs::read(&to).unwrap() == data);
    // 48 MiB of data in less, and the zeros in none.
    assert!(served.figure("mem_used_bytes") < 40 * MIB as u64, "{}", served.listed());
    let map = run("nbdinfo", &["--map", &served.uri()]);
    let lines: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let starts: Vec<(&str, bool)> = lines.iter().map(|line| (line[0], line[2] == "0")).collect();
    assert_eq!(starts, [("0", true), ("8388608", false), ("25165824", true)], "{map}");
}

#[test]
fn qemu_keeps_an_image_on_it() {
    if !has(&["qemu-img"]) {
        return;
    }
    let Some(served) = Served::start("qemu", &["--disksize", "128M"]) else { return };
    let from = served.file("from");
    fs::write(&from, contents(48 * MIB, 2)).unwrap();
    let uri = served.uri();
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &from, &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &from, &uri]);
    run("qemu-img", &["create", "-f", "qcow2", &uri, "64M"]);
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "qcow2", &from, &uri]);
    let checked = run("qemu-img", &["check", "-f", "qcow2", &uri]);
    assert!(checked.contains("No errors were found"), "{checked}");
}

/// A job of fio's that checks what it reads.
fn fio(served: &Served, options: &[&str]) -> Command {
    let mut fio = Command::new("fio");
    fio.current_dir(&served.directory.0)
        .args([
            "--name=zram",
            "--thread",
            "--ioengine=nbd",
            "--iodepth=8",
            "--verify=crc32c",
            "--verify_fatal=1",
        ])
        .args(["--refill_buffers", "--buffer_compress_percentage=60", "--minimal"])
        .arg(format!("--uri={}", served.uri()))
        .args(options);
    fio
}

#[test]
fn fio_finds_what_it_wrote() {
    if !has(&["fio"]) {
        return;
    }
    let Some(served) = Served::start("fio", &["--disksize", "64M", "--comp-algorithm", "lz4"]) else {
        return;
    };
    for (way, sizes) in [("randwrite", "4k-4k"), ("randrw", "4k-1m"), ("randwrite", "512-128k")] {
        let options = [&format!("--rw={way}"), &format!("--bsrange={sizes}"), "--size=32m"];
        success(&fio(&served, &options.map(|option| option as &str)).output().unwrap());
    }
    assert_eq!((served.figure("failed_reads"), served.figure("failed_writes")), (0, 0));
}

#[test]
fn two_clients_at_once_see_the_same_device() {
    if !has(&["fio", "qemu-img"]) {
        return;
    }
    let Some(served) = Served::start("two", &["--disksize", "64M"]) else { return };
    let jobs = ["0", "32m"].map(|offset| {
        let options = [&format!("--offset={offset}"), "--rw=randwrite", "--bsrange=4k-64k", "--size=16m"];
        fio(&served, &options).stdout(Stdio::null()).spawn().unwrap()
    });
    assert!(jobs.map(|mut job| job.wait().unwrap().success()) == [true; 2]);
    let (mut one, size) = Client::connect(&served.socket);
    let (mut other, _) = Client::connect(&served.socket);
    assert_eq!((size, served.figure("clients")), (64 << 20, 2));
    for turn in 0..50u8 {
        one.begin(WRITE, 4096 * u64::from(turn), 4096);
        one.send(&[turn; 4096]);
        assert_eq!(one.answer(), 0);
        other.begin(READ, 4096 * u64::from(turn), 4096);
        assert_eq!(other.answer(), 0);
        assert_eq!(other.take(4096), [turn; 4096]);
    }
}

#[test]
fn requests_outside_of_the_device_are_refused_and_others_go_on() {
    let Some(served) = Served::start("outside", &["--disksize", "16M"]) else { return };
    let (mut client, size) = Client::connect(&served.socket);
    for (kind, offset, len_bytes) in [
        (READ, size, 4096),
        (READ, size - 512, 1024),
        (TRIM, size, 4096),
        (WRITE_ZEROES, u64::MAX - 4095, 4096),
        (READ, u64::MAX, 1),
    ] {
        client.begin(kind, offset, len_bytes);
        assert_ne!(client.answer(), 0, "{kind} at {offset}");
    }
    client.begin(WRITE, size, 4096);
    client.send(&[1; 4096]);
    assert_ne!(client.answer(), 0);
    client.begin(WRITE, size - 4096, 4096);
    client.send(&[1; 4096]);
    assert_eq!(client.answer(), 0);
    client.begin(READ, size - 4096, 4096);
    assert_eq!((client.answer(), client.take(4096)), (0, vec![1; 4096]));
}

#[test]
fn a_client_that_vanishes_in_the_middle_of_a_write_changes_nothing() {
    let Some(served) = Served::start("vanish", &["--disksize", "16M"]) else { return };
    let (mut other, _) = Client::connect(&served.socket);
    other.begin(WRITE, 0, 65536);
    other.send(&[5; 65536]);
    assert_eq!(other.answer(), 0);
    for sent in [0, 1, 4096, 65535] {
        let (mut client, _) = Client::connect(&served.socket);
        client.begin(WRITE, 0, 65536);
        client.send(&vec![6; sent]);
        drop(client);
    }
    until("all of them are gone", || served.figure("clients") == 1);
    other.begin(READ, 0, 65536);
    assert_eq!((other.answer(), other.take(65536)), (0, vec![5; 65536]));
}

#[test]
fn killed_clients_leave_a_device_that_others_use() {
    if !has(&["fio", "nbdinfo"]) {
        return;
    }
    let Some(served) = Served::start("killed", &["--disksize", "64M"]) else { return };
    for _ in 0..5 {
        let options = ["--rw=randwrite", "--bsrange=4k-1m", "--size=64m", "--time_based", "--runtime=60"];
        let mut job = fio(&served, &options).stdout(Stdio::null()).spawn().unwrap();
        until("it has the device open", || served.figure("clients") > 0);
        std::thread::sleep(std::time::Duration::from_millis(300));
        job.kill().unwrap();
        job.wait().unwrap();
        until("all of them are gone", || served.figure("clients") == 0);
        assert_eq!(run("nbdinfo", &["--size", &served.uri()]).trim(), "67108864");
    }
}

#[test]
fn ten_thousand_connects_keep_nobody_out() {
    let Some(served) = Served::start("connects", &["--disksize", "16M"]) else { return };
    for round in 0..10_000 {
        // Where all places of the queue are taken the next one waits.
        drop(UnixStream::connect(&served.socket).unwrap());
        if round % 2500 == 0 {
            let (mut client, _) = Client::connect(&served.socket);
            client.begin(READ, 0, 4096);
            assert_eq!((client.answer(), client.take(4096)), (0, vec![0; 4096]));
        }
    }
    let (mut client, _) = Client::connect(&served.socket);
    client.begin(WRITE, 0, 4096);
    client.send(&[1; 4096]);
    assert_eq!(client.answer(), 0);
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", served.child.id())).unwrap().count();
    until("their descriptors are closed", || descriptors() < 64);
}
