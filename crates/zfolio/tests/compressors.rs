//! A program's output is the same whatever its memory is compressed with.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// 96 MiB of words, small numbers and zeros, filled in, gone through twice and changed in between. It prints a hash of all.
const PROGRAM: &str = "
import array, hashlib, random
r = random.Random(7)
words = [bytes(r.choices(b'abcdefghij', k=r.randrange(2, 9))) for _ in range(300)]
texts = [b' '.join(r.choices(words, k=40000)) for _ in range(6)]
pieces = []
for i in range(32):
    pieces.append(bytearray((texts[i % 6] + texts[i * 5 % 6] * 9)[i:i + (1 << 20)]))
    pieces.append(bytearray(array.array('q', r.choices(range(i, i + 99), k=1 << 17)).tobytes()))
    pieces.append(bytearray(1 << 20))
def all():
    h = hashlib.sha256()
    for p in pieces:
        h.update(p)
    return h.hexdigest()
print(all())
for i, p in enumerate(pieces):
    p[i * 4096 + 5] = 77
print(all())
";

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("compressors-{name}-{}", std::process::id()))
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn output_is_the_same_with_each_algorithm() {
    let expected = succeed(Command::new("python3").args(["-c", PROGRAM])).stdout;
    assert_eq!(expected.len(), 130);
    for algorithm in acomp::ALGORITHMS {
        let json = scratch(algorithm.name);
        let output = succeed(
            Command::new("timeout")
                .args([
                    "-k",
                    "5",
                    "300",
                    ZFOLIO,
                    "run",
                    "--quiet",
                    "--memory",
                    "64M",
                    "--compressor",
                    algorithm.name,
                ])
                .arg("--json")
                .arg(&json)
                .args(["--", "python3", "-c", PROGRAM]),
        );
        let figures: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        fs::remove_file(json).unwrap();
        assert!(output.stdout == expected, "{}: {output:?}", algorithm.name);
        let compressor = acomp::Compressor::parse(algorithm.name).unwrap();
        assert_eq!(figures["compressor"], compressor.to_string());
        let bytes = |way: &str| figures["compression"][way].as_u64().unwrap();
        let (plain, objects) = (bytes("in_bytes"), bytes("out_bytes"));
        println!("{}: {plain} bytes became {objects}", algorithm.name);
        assert!(plain > 8 << 20 && objects > 0 && objects < plain, "{}: {figures:#}", algorithm.name);
    }
}

#[test]
fn that_there_is_no_accelerator_is_said_in_one_line() {
    let has_device = fs::read_dir("/sys/bus/dsa/devices").is_ok_and(|mut devices| {
        devices.any(|device| device.unwrap().file_name().to_string_lossy().starts_with("iax"))
    });
    if has_device {
        println!("skipped: this machine has an IAA device");
        return;
    }
    const LINE: &str = "zfolio: no IAA device: deflate-iaa runs in software\n";
    for (options, is_said) in [
        (&["--compressor", "deflate-iaa"][..], true),
        (&["--compressor", "deflate-iaa", "--quiet"], false),
        (&["--compressor", "deflate"], false),
    ] {
        let output = succeed(
            Command::new(ZFOLIO).args(["run", "--memory", "64M"]).args(options).args(["--", "/bin/true"]),
        );
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.contains(LINE), is_said, "{options:?}: {said}");
    }
    let doctor = Command::new(ZFOLIO).arg("doctor").output().unwrap();
    let text = String::from_utf8(doctor.stdout).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("IAA")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(lines[0].starts_with("ok ") && lines[0].contains("no IAA device"), "{}", lines[0]);
}

/// 20 MiB that do not shrink beside 80 that do.
const NOISE: &str = "
import hashlib, random
r = random.Random(7)
text = b' '.join(b'%d' % (n // 9) for n in range(300000))
pieces = [r.randbytes(1 << 20) if i % 5 == 0 else bytearray(text[i:i + (1 << 20)]) for i in range(100)]
for _ in range(2):
    h = hashlib.sha256()
    for p in pieces:
        h.update(p)
    print(h.hexdigest())
";

#[test]
fn memory_that_looks_like_noise_is_kept_as_it_is_and_counted() {
    let expected = succeed(Command::new("python3").args(["-c", NOISE])).stdout;
    for (name, guesses) in [("zstd:1", true), ("lz4", false)] {
        let json = scratch(&format!("noise-{name}"));
        let run = ["-k", "5", "300", ZFOLIO, "run", "-q", "--memory", "80M", "--compressor", name, "--json"];
        let output =
            succeed(Command::new("timeout").args(run).arg(&json).args(["--", "python3", "-c", NOISE]));
        let figures: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        fs::remove_file(json).unwrap();
        assert!(output.stdout == expected, "{name}: {output:?}");
        let compression = &figures["compression"];
        let count = |what: &str| compression["noise_objects"][what].as_u64().unwrap();
        println!("{name}: {compression}");
        assert!(compression["incompressible_objects"].as_u64().unwrap() > 100, "{name}: {compression}");
        assert_eq!((count("kept") > 50, count("tried") > 8), (guesses, guesses), "{name}: {compression}");
        assert!(count("wrong") == 0, "{name}: {compression}");
    }
}
