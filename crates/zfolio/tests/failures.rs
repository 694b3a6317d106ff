//! How `zfolio run` fails before the program starts: the exit status, and one message that says what to do. No engine
//! is needed.

mod skip;

use skip::skip;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn zfolio(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zfolio")).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// A folder that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("zfolio-failures-{test}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        Scratch(dir)
    }

    fn file(&self, name: &str, bytes: &[u8], mode: u32) -> String {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_string()
    }

    /// A C program that says "started" and exits with 42.
    fn program(&self, flags: &[&str]) -> String {
        let source = self.file(
            "program.c",
            b"#include <stdio.h>\nint main(void) { puts(\"started\"); return 42; }",
            0o644,
        );
        let path = self.0.join(format!("program{}", flags.concat().replace('/', "-")));
        assert!(Command::new("cc").args(flags).arg(source).arg("-o").arg(&path).status().unwrap().success());
        path.to_str().unwrap().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn a_nonsense_size_is_one_line_that_names_the_option_and_the_forms() {
    for size in ["0", "-1", "12Q", "", "15M", "abc", "9999T", "0%", "200%", "1.5.5G"] {
        let output = zfolio(&["run", "--memory", size, "--", "echo", "started"]);
        assert_eq!(output.status.code(), Some(2), "{size}: {}", stderr(&output));
        assert_eq!(output.stdout, b"", "{size}");
        let line = stderr(&output).strip_suffix('\n').unwrap();
        assert!(!line.contains('\n') && line.contains("--memory"), "{line}");
        assert!(line.contains("512M") && line.contains("1.5GiB") && line.contains("50%"), "{line}");
    }
}

#[test]
fn an_unknown_compressor_or_level_is_one_line_with_the_list() {
    for compressor in
        ["brotli", "zstd:99", "zstd:fast", "lz4:", "lz4hc:2", "deflate:0", "lzo:1", "842:", "", "-1"]
    {
        let output = zfolio(&["run", "--compressor", compressor, "--", "echo", "started"]);
        assert_eq!(output.status.code(), Some(2), "{compressor}: {}", stderr(&output));
        assert_eq!(output.stdout, b"");
        let line = stderr(&output).strip_suffix('\n').unwrap();
        assert!(!line.contains('\n') && line.contains("--compressor"), "{line}");
        // Its own form, or all there are.
        let name = compressor.split(':').next().unwrap();
        let is_known = acomp::Compressor::parse(name).is_ok();
        let listed: Vec<_> = acomp::ALGORITHMS.iter().filter(|a| !is_known || a.name == name).collect();
        assert!(listed.iter().all(|a| line.contains(&a.to_string())), "{line}");
        assert!(is_known || line.contains(zswap::Choice::FORM), "{line}");
    }
    let policy = "deflate-iaa:canned,g_comp_wqs_per_iaa=8,distribute_comps=0,distribute_decomps=0,verify_compress=1,timeout_ms=500";
    let output = zfolio(&["run", "--compressor", policy, "--quiet", "--", "echo", "started"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"started\n"[..]), "{}", stderr(&output));
    for parameter in ["verify_compress", "verify_compress=2", "g_comp_wqs_per_iaa=9", "dict=x", "verify=1"] {
        let compressor = format!("deflate-iaa,{parameter}");
        let output = zfolio(&["run", "--compressor", &compressor, "--", "echo", "started"]);
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]));
        let form = acomp::ALGORITHMS.iter().find(|a| a.name == "deflate-iaa").unwrap();
        let line = format!(
            "zfolio: --compressor {compressor}: no such parameter of deflate-iaa: accepted is {form}, or {}\n",
            zswap::Choice::FORM
        );
        assert_eq!(stderr(&output), line);
    }
    for (compressor, why) in [
        ("auto", "no such compressor: accepted are "),
        ("lz4,gzip", "no such parameter of lz4: accepted is lz4["),
        ("lz4,zstd:23", "no such LEVEL of zstd: accepted is zstd["),
        ("lz4,zstd,842", "more than two compressors: accepted is one, or two as FAST,DENSE\n"),
        (
            "zstd,dict=a,zstd,dict=b",
            "two dictionaries: accepted is one dict=FILE, for one compressor or both\n",
        ),
        ("deflate-iaa,deflate-iaa:fixed", "two ways to use a device: accepted is one, for both\n"),
    ] {
        let output = zfolio(&["run", "--compressor", compressor, "--", "echo", "started"]);
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]));
        let said = stderr(&output);
        assert!(said.starts_with(&format!("zfolio: --compressor {compressor}: {why}")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn help_lists_every_compressor() {
    // A long line is wrapped, and so is a long form, between two of its parts.
    let help = |option: &str| {
        let text = String::from_utf8(zfolio(&["run", option]).stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ").replace("] [,", "][,")
    };
    for algorithm in acomp::ALGORITHMS {
        assert!(help("-h").contains(algorithm.name), "{}", help("-h"));
        assert!(help("--help").contains(&algorithm.to_string()), "{}", help("--help"));
    }
    assert!(help("-h").contains("FAST[,DENSE]") && help("-h").contains("[default: zstd:1]"));
}

#[test]
fn a_json_file_that_cannot_be_written_is_told_before_the_start() {
    let output = zfolio(&["run", "--json", "/no/such/folder/x.json", "--", "echo", "started"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]));
    assert!(stderr(&output).contains("--json /no/such/folder/x.json"), "{}", stderr(&output));
}

#[test]
fn what_is_not_found_is_127_and_what_is_not_executable_126() {
    let scratch = Scratch::new("execute");
    let plain = scratch.file("plain", b"#!/bin/sh\n", 0o644);
    let orphan = scratch.file("orphan", b"#!/no/such/interpreter\n", 0o755);
    let folder = scratch.0.to_str().unwrap();
    for (program, status, word) in [
        ("no-such-command", 127, "not found"),
        ("/no/such/command", 127, "not found"),
        (&orphan, 127, "interpreter"),
        (&plain, 126, "permission denied"),
        (folder, 126, "is a directory"),
    ] {
        let output = zfolio(&["run", "--", program]);
        assert_eq!(output.status.code(), Some(status), "{program}: {}", stderr(&output));
        assert!(stderr(&output).contains(word) && stderr(&output).contains(program), "{}", stderr(&output));
    }
}

#[test]
fn programs_that_no_library_gets_into_are_told_with_the_reason() {
    let scratch = Scratch::new("unmanageable");
    let setuid = scratch.program(&[]);
    fs::set_permissions(&setuid, Permissions::from_mode(0o4755)).unwrap();
    let mut header = fs::read(&setuid).unwrap();
    header[4] = 1; // ELFCLASS32
    let bits32 = scratch.file("32", &header, 0o755);
    let static_program = scratch.program(&["-static"]);
    let script = scratch.file("script", format!("#!{static_program}\n").as_bytes(), 0o755);
    for (program, why) in [
        (static_program.as_str(), "statically linked"),
        (&scratch.program(&["-static-pie"]), "statically linked"),
        (&script, "statically linked"),
        (&setuid, "setuid"),
        (&bits32, "32-bit"),
        (&scratch.program(&["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]), "musl"),
    ] {
        let output = zfolio(&["run", "--", program]);
        assert_eq!(output.status.code(), Some(125), "{program}: {}", stderr(&output));
        assert_eq!(output.stdout, b"", "{program} must not start");
        assert!(
            stderr(&output).contains(why) && stderr(&output).contains("--unmanaged-ok"),
            "{}",
            stderr(&output)
        );
    }
    let output = zfolio(&["run", "--unmanaged-ok", "--", &static_program]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(42), &b"started\n"[..]));
    assert!(
        stderr(&output).contains("warning") && stderr(&output).contains("statically linked"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_right_that_is_missing_is_named_with_three_ways_to_it() {
    let nobody_has_it = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd")
        .is_ok_and(|text| text.trim() == "0")
        && fs::metadata("/dev/userfaultfd").is_ok_and(|m| m.permissions().mode() & 0o006 == 0);
    let root = fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0");
    if !root || !nobody_has_it {
        return skip("not root, or every user has the right to userfaultfd");
    }
    let scratch = Scratch::new("rights");
    // By a process of its own: what this one writes cannot be executed while another test's child has inherited the
    // descriptor.
    let copy = scratch.0.join("zfolio");
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_zfolio")).arg(&copy).status().unwrap().success());
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    let as_nobody =
        |arguments: &[&str]| Command::new(&copy).args(arguments).uid(65534).gid(65534).output().unwrap();

    let output = as_nobody(&["run", "--", "echo", "started"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(125), &b""[..]));
    for part in ["CAP_SYS_PTRACE", "vm.unprivileged_userfaultfd", "/dev/userfaultfd"] {
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    }
    let output = as_nobody(&["run", "--unmanaged-ok", "--", "echo", "started"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"started\n"[..]));

    let output = as_nobody(&["doctor"]);
    let text = std::str::from_utf8(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("missing  userfaultfd") && text.contains("sysctl -w vm.unprivileged_userfaultfd=1"),
        "{text}"
    );
}

#[test]
fn a_wrong_command_line_says_what_was_meant() {
    for (arguments, part) in [
        (&["run"][..], "zfolio run [OPTIONS] [--] CMD"),
        (&["run", "--memroy", "1G", "--", "true"], "--memory"),
        (&["python3", "x.py"], "zfolio run -- python3 x.py"),
        (&["--memory", "1G", "--", "x"], "zfolio run --memory 1G -- x"),
    ] {
        let output = zfolio(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(part), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn doctor_says_what_it_found_as_text_and_as_json() {
    let scratch = Scratch::new("doctor");
    let json = scratch.0.join("doctor.json");
    let output = zfolio(&["doctor", "--json", json.to_str().unwrap()]);
    let text = std::str::from_utf8(&output.stdout).unwrap();
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(Path::new(&json)).unwrap()).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["works"], output.status.success());
    assert_eq!(text.contains("zfolio run works here."), output.status.success());
    for check in json["checks"].as_array().unwrap() {
        let (name, verdict) = (check["name"].as_str().unwrap(), check["verdict"].as_str().unwrap());
        assert!(text.lines().any(|line| line.starts_with(verdict) && line.contains(name)), "{check}\n{text}");
    }
    assert!(text.lines().all(|line| !line.contains('\x1b')), "no colours on a pipe");
}
