//! How serving begins and ends: files that are saved and loaded, sockets, what is missing.

use super::nbd::{Client, READ, WRITE};
use super::served::{Served, ZFOLIO, contents, has, refusal, run};
use super::skip::lacks;
use super::until::until;
use std::fs;
use std::path::Path;
use std::process::Command;

fn zfolio(arguments: &[&str]) -> std::process::Output {
    Command::new(ZFOLIO).args(["zram", "serve"]).args(arguments).output().unwrap()
}

#[test]
fn a_device_outlives_its_server_in_a_file() {
    if !has(&["nbdcopy"]) {
        return;
    }
    let file = std::env::temp_dir().join(format!("zfolio-zram-{}.saved", std::process::id()));
    let file = file.to_str().unwrap();
    // At the first start there is no file yet.
    let options = ["--disksize", "32M", "--load", file, "--save", file];
    let Some(served) = Served::start("save", &options) else { return };
    let data = contents(32 << 20, 4);
    fs::write(served.file("from"), &data).unwrap();
    run("nbdcopy", &[&served.file("from"), &served.uri()]);
    // A client that stays keeps nobody from ending it.
    let (_client, _) = Client::connect(&served.socket);
    let socket = served.socket.clone();
    let place = format!("/dev/shm/zfolio.zram{}", served.number);
    let (status, directory) = served.end(libc::SIGTERM);
    assert_eq!(status, Some(0));
    assert!(!socket.exists() && !Path::new(&place).exists());
    assert!(fs::metadata(file).unwrap().len() < 24 << 20, "it is saved as it is in memory");

    let served = Served::again(directory, &options);
    run("nbdcopy", &[&served.uri(), &served.file("to")]);
    assert!(fs::read(served.file("to")).unwrap() == data);
    assert!(!served.on_stderr().contains("saved"), "{}", served.on_stderr());
    let (_, directory) = served.end(libc::SIGTERM);

    // The default's algorithm, at another level.
    let others = ["--disksize", "64M", "--comp-algorithm", "lz4:9", "--load", file];
    let served = Served::again(directory, &others);
    let said = served.on_stderr();
    assert!(said.contains("has the size and the algorithms that it was saved with"), "{said}");
    assert_eq!(served.figure("disksize_bytes"), 32 << 20);
    drop(served);
    let mut damaged = fs::read(file).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(file, damaged).unwrap();
    let output = zfolio(&["--load", file, "--vhost-user", &format!("{file}.sock")]);
    let (status, said) = refusal(&output);
    assert_eq!((status, said.contains(file)), (Some(1), true), "{said}");
    fs::remove_file(file).unwrap();
}

#[test]
fn a_writer_that_was_answered_is_in_the_file() {
    let file = std::env::temp_dir().join(format!("zfolio-zram-{}.answered", std::process::id()));
    let file = file.to_str().unwrap();
    let Some(mut served) = Served::start("answered", &["--disksize", "16M", "--save", file]) else { return };
    let (mut client, _) = Client::connect(&served.socket);
    let pid = served.child.id() as i32;
    let ends = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        // SAFETY: the child has not been waited for.
        unsafe { libc::kill(pid, libc::SIGINT) }
    });
    let mut answered = 0;
    // Until the server ends in the middle of it.
    let write = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for turn in 0..u64::MAX {
            client.begin(WRITE, turn % 4096 * 4096, 4096);
            client.send(&[turn as u8 ^ (turn >> 12) as u8; 4096]);
            if client.answer() != 0 {
                return;
            }
            answered = turn + 1;
        }
    }));
    drop(write);
    assert_eq!(ends.join().unwrap(), 0);
    let (status, directory) = served.wait();
    assert_eq!(status, Some(0));
    assert!(answered > 0);
    let loaded = Served::again(directory, &["--load", file]);
    let (mut client, _) = Client::connect(&loaded.socket);
    for turn in answered.saturating_sub(4096)..answered {
        client.begin(READ, turn % 4096 * 4096, 4096);
        let expected = vec![turn as u8 ^ (turn >> 12) as u8; 4096];
        assert_eq!(client.answer(), 0);
        // The write after the last answered one may be there, too.
        let found = client.take(4096);
        assert!(found == expected || turn + 4096 == answered, "{turn} of {answered}: {}", found[0]);
    }
    fs::remove_file(file).unwrap();
}

/// A machine whose kernel has ublk is tools/zram-guest's.
#[test]
fn a_kernel_without_ublk_is_told_of_and_no_other_front_end_is_left_behind() {
    if Path::new("/dev/ublk-control").exists() {
        return lacks("this kernel has ublk");
    }
    let socket = std::env::temp_dir().join(format!("zfolio-zram-{}.no-ublk", std::process::id()));
    let both = ["--disksize", "1G", "--ublk", "--vhost-user", socket.to_str().unwrap()];
    let (status, said) = refusal(&zfolio(&both));
    assert_eq!((status, said.contains("--ublk: there is no /dev/ublk-control")), (Some(1), true), "{said}");
    assert!(!socket.exists(), "the other front end's socket is still there");
}

#[test]
fn each_front_end_that_cannot_be_had_is_told_in_a_line() {
    let missing = Command::new(ZFOLIO)
        .args(["zram", "serve", "--disksize", "1G", "--nbd", "tcp:0"])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let (status, said) = refusal(&missing);
    assert_eq!(status, Some(1));
    assert!(said.contains("nbdkit, which is not installed (Debian's package: nbdkit)"), "{said}");

    let (status, said) = refusal(&zfolio(&["--disksize", "1G", "--vhost-user", "/nonexistent/a"]));
    assert_eq!((status, said.contains("--vhost-user /nonexistent/a")), (Some(1), true), "{said}");
    if !has(&["nbdkit"]) {
        return;
    }
    for place in ["unix:/nonexistent/a", "tcp:no.such.host.invalid:1"] {
        let (status, said) = refusal(&zfolio(&["--disksize", "1G", "--nbd", place]));
        assert_eq!((status, said.contains(&format!("--nbd {place}"))), (Some(1), true), "{said}");
    }
}

#[test]
fn a_value_that_is_wrong_is_told_with_what_is_accepted() {
    let socket = std::env::temp_dir().join(format!("zfolio-zram-{}.wrong", std::process::id()));
    let machine = ["--vhost-user", socket.to_str().unwrap()];
    let mut front_ends = vec![&machine[..]];
    front_ends.extend(has(&["nbdkit"]).then_some(&["--nbd", "tcp:0"][..]));
    let size = "accepted is a number of bytes";
    for (option, value, expected) in [
        ("--disksize", "5X", format!("disksize: 5X: {size} up to 16T, with K, M, G, T or without")),
        ("--disksize", "0", format!("disksize: 0: {size}")),
        ("--disksize", "17T", format!("disksize: 17T: {size}")),
        ("--disksize", "", format!("disksize: \"\": {size}")),
        ("--mem-limit", "x", format!("mem_limit: x: {size}")),
        ("--comp-algorithm", "foo", "comp_algorithm: foo: no such compressor: accepted are lz4[".into()),
        (
            "--comp-algorithm",
            "zstd:99",
            "comp_algorithm: zstd:99: no such LEVEL of zstd: accepted is ".into(),
        ),
        ("--recomp-algorithm", "foo", "recomp_algorithm: foo: no such compressor: accepted are lz4[".into()),
        (
            "--recomp-algorithm",
            "842:1",
            "recomp_algorithm: 842:1: 842 takes no number: accepted is 842".into(),
        ),
    ] {
        for front_end in &front_ends {
            let disksize = if option == "--disksize" { &[][..] } else { &["--disksize", "1G"] };
            let arguments = [disksize, &[option, value], front_end].concat();
            let (status, said) = refusal(&zfolio(&arguments));
            assert_eq!((status, said.contains(&expected)), (Some(2), true), "{arguments:?}: {said}");
        }
    }
    for place in ["foo", "unix:", "tcp:", "tcp:99999", "udp:1"] {
        let output = zfolio(&["--disksize", "1G", "--nbd", place]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.contains(place)), (Some(2), true), "{said}");
    }
}

#[test]
fn several_front_ends_serve_one_device_with_nbdkits_filters() {
    if !has(&["nbdinfo"]) {
        return;
    }
    let other = std::env::temp_dir().join(format!("zfolio-zram-{}.other", std::process::id()));
    let place = format!("unix:{}", other.display());
    let filter = ["--nbdkit-arg=--filter=offset", "--nbdkit-arg=offset=1M", "--nbdkit-arg=range=2M"];
    let options = [&["--disksize", "16M", "--nbd", &place][..], &filter].concat();
    let Some(served) = Served::start("several", &options) else { return };
    let (mut client, size) = Client::connect(&served.socket);
    client.begin(WRITE, 0, 4096);
    client.send(&[8; 4096]);
    assert_eq!((client.answer(), size), (0, 2 << 20));
    let (mut client, _) = Client::connect(&other);
    client.begin(READ, 0, 4096);
    assert_eq!((client.answer(), client.take(4096)), (0, vec![8; 4096]));
    drop(client);
    assert_eq!(served.end(libc::SIGHUP).0, Some(0));
    assert!(!other.exists());
}

#[test]
fn one_that_was_killed_leaves_its_number_and_its_sockets_to_the_next() {
    let Some(served) = Served::start("sigkill", &["--disksize", "16M"]) else { return };
    let (number, socket) = (served.number, served.socket.clone());
    let (_, directory) = served.end(libc::SIGKILL);
    assert!(socket.exists());
    let next = Served::again(directory, &["--disksize", "16M"]);
    // Another test's device may have taken it first.
    let control = std::path::PathBuf::from(format!("/dev/shm/zfolio.zram{number}/control"));
    let is_left = control.exists() && std::os::unix::net::UnixStream::connect(&control).is_err();
    assert!(next.number <= number || !is_left);
    assert_eq!(Client::connect(&next.socket).1, 16 << 20);
}

#[test]
fn a_file_that_cannot_be_saved_to_is_told_at_the_start() {
    let arguments = ["--disksize", "1G", "--save", "/nonexistent/a", "--vhost-user", "/nonexistent/b"];
    let (status, said) = refusal(&zfolio(&arguments));
    assert_eq!((status, said.contains("--save /nonexistent/a.new")), (Some(1), true), "{said}");
}

#[test]
fn a_device_that_cannot_be_saved_is_served_on_and_one_without_a_size_saves_nothing() {
    let file = std::env::temp_dir().join(format!("zfolio-zram-{}.unsaved", std::process::id()));
    let options = ["--disksize", "16M", "--save", file.to_str().unwrap()];
    let Some(served) = Served::start("unsaved", &options) else { return };
    fs::create_dir(&file).unwrap();
    let (status, said) = refusal(&served.zram("hot_remove", &[]));
    assert_eq!((status, said.contains("is not saved")), (Some(1), true), "{said}");
    let (mut client, _) = Client::connect(&served.socket);
    client.begin(READ, 0, 4096);
    assert_eq!((client.answer(), client.take(4096)), (0, vec![0; 4096]));
    drop(client);
    fs::remove_dir(&file).unwrap();
    until("it is closed", || served.figure("clients") == 0);
    served.said("reset", &[]);
    assert_eq!(served.end(libc::SIGTERM).0, Some(0));
    assert!(!file.exists());
}

/// Writes what does not shrink to a device, and has it leave RAM.
fn write_back(served: &Served) {
    let (mut client, _) = Client::connect(&served.socket);
    let mut word = 1u64;
    let mut noise = || {
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (word >> 56) as u8
    };
    let data: Vec<u8> = (0..65536).map(|_| noise()).collect();
    client.begin(WRITE, 0, 65536);
    client.send(&data);
    assert_eq!(client.answer(), 0);
    drop(client);
    served.said("set", &["writeback=huge"]);
    assert_eq!(served.figure("bd_count"), 16);
}

#[test]
fn a_file_that_blocks_go_to_is_refused_with_data_and_left_empty() {
    let path = std::env::temp_dir().join(format!("zfolio-zram-{}.backing", std::process::id()));
    let name = path.to_str().unwrap();
    let is_empty = || fs::read(&path).unwrap() == vec![0; 2 << 20];
    let mut foreign = b"mine".to_vec();
    foreign.resize(2 << 20, 0);
    fs::write(&path, &foreign).unwrap();
    let refused = || {
        let socket = format!("{name}.sock");
        let output = zfolio(&["--disksize", "16M", "--backing-dev", name, "--vhost-user", &socket]);
        let (status, said) = refusal(&output);
        let expected =
            format!("{name}: holds data, which would be lost; backing_dev={name},force (--backing-dev ");
        assert_eq!((status, said.contains(&expected)), (Some(1), true), "{said}");
    };
    refused();
    assert!(fs::read(&path).unwrap() == foreign);
    let (saved, forced) = (format!("{name}.saved"), format!("{name},force"));
    let Some(served) =
        Served::start("backing", &["--disksize", "16M", "--backing-dev", &forced, "--save", &saved])
    else {
        return;
    };
    assert_eq!(served.said("show", &["backing_dev"]), format!("{name}\n"));
    write_back(&served);
    let (status, directory) = served.end(libc::SIGTERM);
    assert_eq!((status, is_empty()), (Some(0), true));

    // What was written back is in the file that it was saved to.
    let mut served = Served::again(directory, &["--load", &saved, "--backing-dev", name]);
    assert_eq!(served.figure("orig_data_bytes"), 65536);
    write_back(&served);
    until("it is closed", || served.figure("clients") == 0);
    served.said("hot_remove", &[]);
    let (status, directory) = served.wait();
    assert_eq!((status, is_empty()), (Some(0), true));

    let served = Served::again(directory, &["--disksize", "16M", "--backing-dev", name]);
    write_back(&served);
    drop(served.end(libc::SIGKILL));
    refused();
    fs::remove_file(path).unwrap();
    fs::remove_file(saved).unwrap();
}
