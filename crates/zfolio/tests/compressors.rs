//! A program's output is the same whatever its memory is compressed with.

use iaa::descriptor::{Descriptor, Opcode};
use iaa_model::{DeviceConfig, Fault, Files, Model, Tree};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// 96 MiB of words, small numbers and zeros, filled in, gone through twice and changed in between. It prints a hash of
/// all.
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

/// Runs a program in python with a compressor; what it wrote, and the run's figures.
fn run_python(program: &str, compressor: &str, options: &[&str]) -> (Output, serde_json::Value) {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let json = scratch(&format!("run-{}", RUNS.fetch_add(1, Relaxed)));
    let mut run = Command::new("timeout");
    run.args(["-k", "5", "300", ZFOLIO, "run", "--compressor", compressor, "--json"]).arg(&json);
    let output = succeed(run.args(options).args(["--", "python3", "-c", program]));
    let figures = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    (output, figures)
}

/// What a run has counted agrees with itself: pages that went out with folios, objects with their bytes, guesses with
/// what came of them.
fn check_counters(name: &str, figures: &serde_json::Value) {
    let of = |group: &str, what: &str| figures[group][what].as_u64().unwrap();
    let count = |what: &str| of("counters", what);
    let (plain, objects) = (count("compressed_in_bytes"), count("compressed_out_bytes"));
    assert_eq!(plain % 4096, 0, "{name}: {figures:#}");
    let pages_of = |way: &str| -> u64 {
        let by_size = figures["folios"][way].as_object().unwrap().iter();
        by_size
            .map(|(size, folios)| {
                size.trim_end_matches('k').parse::<u64>().unwrap() / 4 * folios.as_u64().unwrap()
            })
            .sum()
    };
    let (out, back, faults) = (count("zswpout"), count("zswpin"), count("faults"));
    println!("{name}: {plain} bytes became {objects}; {out} pages out, {back} in, {faults} faults");
    assert_eq!((pages_of("zswpout"), pages_of("zswpin")), (out, back), "{name}: {figures:#}");
    // What a program takes back or unmaps meanwhile was compressed in vain.
    assert!(out > 0 && out <= plain / 4096, "{name}: {figures:#}");
    // Every page that came in went out before, and somebody asked for it or what lies beside it.
    assert!(faults > 0 && back > 0, "{name}: {figures:#}");
    let (kept, tried, wrong) = (count("incompressible"), count("tried_noise"), count("wrong_noise"));
    assert!(wrong <= tried, "{name}: {figures:#}");
    assert!(count("believed_noise") + tried - wrong <= kept, "{name}: {figures:#}");
    let [poor, failed] = ["reject_compress_poor", "reject_compress_fail"].map(count);
    let others = count("believed_noise") + poor + failed;
    // What the pool had no memory for is not kept.
    assert!(others == kept || count("reject_alloc_fail") > 0 && others > kept, "{name}: {figures:#}");
    // Each that was kept as it is has a page at least, and all of it.
    assert!(kept * 4096 <= objects && kept * 4096 <= plain, "{name}: {figures:#}");
    let took = |what: &str| of("latency", what);
    assert!(took("p50_ns") <= took("p99_ns") && took("p99_ns") <= took("max_ns"), "{name}: {figures:#}");
    let memory = |what: &str| of("memory", what);
    assert!(memory("stored_peak_bytes") <= memory("wanted_peak_bytes"), "{name}: {figures:#}");
}

#[test]
fn output_is_the_same_with_each_algorithm() {
    let expected = succeed(Command::new("python3").args(["-c", PROGRAM])).stdout;
    assert_eq!(expected.len(), 130);
    let names = acomp::ALGORITHMS.iter().map(|algorithm| algorithm.name);
    let levels = ["zstd:-7", "zstd:19", "lz4hc:12", "deflate:12", "deflate-iaa:fixed", "deflate-iaa:canned"];
    for name in names.chain(levels) {
        // Some write a MiB a second, and less where others are at work: what is out is then what there was time for.
        let memory = if matches!(name, "zstd:19" | "lz4hc:12" | "deflate:12") { "96M" } else { "64M" };
        let (output, figures) = run_python(PROGRAM, name, &["--quiet", "--memory", memory]);
        assert!(output.stdout == expected, "{name}: {output:?}");
        let compressor = acomp::Compressor::parse(name).unwrap();
        assert_eq!(figures["compressor"], compressor.to_string());
        let bytes = |what: &str| figures["counters"][what].as_u64().unwrap();
        let (plain, objects) = (bytes("compressed_in_bytes"), bytes("compressed_out_bytes"));
        assert!(plain > 8 << 20 && objects > 0 && objects < plain, "{name}: {figures:#}");
        // Whether they have a device or not.
        let workers = figures["accelerator"]["workers"].as_object();
        let workers = workers.map(|workers| workers.values().filter_map(|count| count.as_u64()).sum::<u64>());
        assert_eq!(workers.map(|count| count > 0), compressor.is_for_device().then_some(true), "{name}");
        check_counters(name, &figures);
    }
}

/// 80,000 objects of Python's own, looked at here and there: what is out is single pages too.
const HEAP: &str = "
import random, zlib
r = random.Random(1)
words = [bytes(r.choices(b'abcdefghijklmnopqrstuvwxyz', k=r.randrange(2, 10))).decode() for _ in range(3000)]
rows = [{'id': i, 'name': r.choice(words) + ' ' + r.choice(words), 'tags': [r.choice(words), r.choice(words)], 'price': r.random()}
        for i in range(80000)]
for n in range(10000):
    rows[r.randrange(len(rows))]['price'] += n
print(zlib.crc32(repr(rows).encode()))
";

#[test]
fn with_a_dictionary_output_is_the_same() {
    let expected = succeed(Command::new("python3").args(["-c", HEAP])).stdout;
    let (output, figures) = run_python(HEAP, &with_words("heap"), &["--memory", "32M"]);
    assert!(output.stdout == expected, "{output:?}");
    assert_eq!(figures["compressor"], "zstd:1,dict=FILE");
    let bytes = |what: &str| figures["counters"][what].as_u64().unwrap();
    assert!(bytes("compressed_out_bytes") < bytes("compressed_in_bytes") / 2, "{figures:#}");
}

/// A compressor whose dictionary is in a file of this name.
fn with_words(name: &str) -> String {
    let file = scratch(name);
    fs::write(&file, b"{'id': 'name': 'tags': 'price': abcdefgh".repeat(100)).unwrap();
    format!("zstd:1,dict={}", file.display())
}

#[test]
fn a_file_that_is_no_dictionary_is_refused_in_one_line() {
    for (name, why) in [
        ("/dev/null", "an empty file is no dictionary"),
        ("/dev/zero", "a dictionary has 128 KiB at most"),
        ("/none", "No such file"),
    ] {
        let compressor = format!("zstd,dict={name}");
        let output = Command::new(ZFOLIO)
            .args(["run", "--compressor", &compressor, "--", "/bin/true"])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with(&format!("zfolio: --compressor zstd,dict={name}: {name}: {why}")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// A program whose forked children read what their parent has out, and add to it.
const FORKS: &str = "
import os, random, zlib
r = random.Random(3)
words = [bytes(r.choices(b'abcdefghijklmnop', k=r.randrange(2, 10))) for _ in range(500)]
pieces = [b' '.join(r.choices(words, k=900)) * 4 for _ in range(400)]
for generation in range(4):
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        os._exit(status >> 8)
    for i in range(0, 400, 3):
        pieces[i] = b' '.join(r.choices(words, k=900)) * 4
    print(zlib.crc32(b''.join(pieces)), flush=True)
";

#[test]
fn forked_children_have_the_dictionary_of_what_they_inherit() {
    let expected = succeed(Command::new("python3").args(["-c", FORKS])).stdout;
    assert_eq!(expected.iter().filter(|byte| **byte == b'\n').count(), 4);
    let options = ["--quiet", "--evict-all", "--memory", "48M"];
    let (output, _) = run_python(FORKS, &with_words("forks"), &options);
    assert!(output.stdout == expected, "{output:?}");
}

/// 40 MiB of words, gone through, touched here and there so many times, and gone through again.
fn touched(times: u32) -> String {
    format!(
        "
import hashlib, random
r = random.Random(7)
words = [b'%010x ' % r.getrandbits(40) for _ in range(200)]
memory = bytearray(40 << 20)
for at in range(0, len(memory), 1 << 20):
    memory[at:at + (1 << 20)] = b''.join(r.choices(words, k=100000))[:1 << 20]
print(hashlib.sha256(memory).hexdigest())
for n in range({times}):
    memory[r.randrange(len(memory))] = n & 255
print(hashlib.sha256(memory).hexdigest())
"
    )
}

#[test]
fn a_page_asked_for_alone_is_made_by_the_fast_one_and_a_window_by_the_dense_one() {
    for (compressor, printed) in [("lz4,zstd:1", "lz4:1,zstd:1"), ("zstd:-3,zstd:3", "zstd:-3,zstd:3")] {
        let made = [0, 5000].map(|times| {
            let program = touched(times);
            let expected = succeed(Command::new("python3").args(["-c", &program])).stdout;
            // What each has made is read back as it was.
            let (output, figures) = run_python(&program, compressor, &["--memory", "40M"]);
            assert!(output.stdout == expected, "{compressor}: {output:?}");
            assert_eq!(figures["compressor"], printed);
            let said = String::from_utf8(output.stderr).unwrap();
            let (fast, dense) = printed.split_once(',').unwrap();
            let by = [format!(" in single pages by {fast}, "), format!(" in windows by {dense}\n")];
            assert!(by.iter().all(|by| said.contains(by)), "{said}");
            let counters = &figures["counters"];
            println!("{compressor}, {times} touches: {counters}");
            let names = ["fast_objects", "fast_pages", "dense_objects", "dense_pages"];
            let [fast, fast_pages, dense, dense_pages] = names.map(|name| counters[name].as_u64().unwrap());
            assert!(fast == fast_pages && (dense..=16 * dense).contains(&dense_pages), "{counters}");
            [fast_pages, dense_pages]
        });
        let [[fast, dense], [fast_touched, _]] = made;
        assert!(dense > 4096 && fast < dense / 2, "gone through: {fast} and {dense}");
        assert!(fast_touched > fast + 2000, "touched here and there: {fast_touched}");
    }
}

#[test]
fn forked_children_read_what_either_of_two_has_made() {
    let expected = succeed(Command::new("python3").args(["-c", FORKS])).stdout;
    for compressor in ["lz4,zstd:1", "zstd:3,lz4"] {
        let options = ["--quiet", "--evict-all", "--memory", "48M"];
        let (output, figures) = run_python(FORKS, compressor, &options);
        assert!(output.stdout == expected, "{output:?}");
        let made = ["fast_objects", "dense_objects"].map(|name| figures["counters"][name].as_u64().unwrap());
        assert!(made.iter().all(|objects| *objects > 0), "{compressor}: {made:?}");
    }
}

/// A fourth of that, which takes long all the same where all goes out all the time.
#[test]
fn forked_children_read_what_is_compressed_by_canned_codes() {
    let program = FORKS.replace("400", "100");
    let expected = succeed(Command::new("python3").args(["-c", &program])).stdout;
    let options = ["--quiet", "--evict-all", "--memory", "48M"];
    let (output, _) = run_python(&program, "deflate-iaa:canned", &options);
    assert!(output.stdout == expected, "{output:?}");
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
        (&["--compressor", "lz4,deflate-iaa"], true),
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

/// All counts of one name, of all queues that there were.
fn count_all(accelerator: &serde_json::Value, what: &str) -> u64 {
    let devices = accelerator["devices"].as_array().unwrap();
    let queues = devices.iter().flat_map(|device| device["queues"].as_array().unwrap());
    queues.map(|queue| queue[what].as_u64().unwrap()).sum()
}

/// Engine, workers and driver as they are where there is a device: but its queues are files of a file system in user
/// space, behind which is the model.
#[test]
fn a_run_on_the_model_of_the_device() {
    let program = PROGRAM.replace("range(32)", "range(16)");
    let expected = succeed(Command::new("python3").args(["-c", &program])).stdout;
    let cpus = std::thread::available_parallelism().unwrap().get();
    let is_compression = |d: &Descriptor| d.opcode() == Opcode::Compress as u8;
    type Plan = fn(u64, bool) -> Option<Fault>;
    let cases: [(&str, &str, Plan); 8] = [
        ("deflate-iaa", "", |_, _| None),
        ("lz4,deflate-iaa", "", |_, _| None),
        ("deflate-iaa:canned,g_comp_wqs_per_iaa=1", "", |_, _| None),
        ("deflate-iaa:fixed", "queue_full", |n, _| (n % 512 < 300).then_some(Fault::Full)),
        ("deflate-iaa:fixed", "timeout", |n, _| (n % 300 == 50).then_some(Fault::Lost)),
        ("deflate-iaa:fixed,verify_compress=1", "verify_failed", |n, compresses| {
            (compresses && n % 8 == 3).then_some(Fault::WrongOutput)
        }),
        ("deflate-iaa:fixed,verify_compress=1", "verify_failed", |n, _| {
            (n % 8 == 3).then_some(Fault::WrongCrc)
        }),
        // Taken away while it works: what is under way then is lost.
        ("deflate-iaa:fixed", "no_queue", |n, _| (n == 200).then_some(Fault::Gone)),
    ];
    let mut used = BTreeSet::new();
    for (compressor, reason, plan) in cases {
        let model = Model::new([DeviceConfig { queues: vec![16, 16], ..DeviceConfig::default() }]);
        model.set_faults(1, Box::new(move |serial, d| plan(serial, is_compression(d))));
        let tree = Tree::new("run");
        tree.package(0, 0..cpus, &[0]);
        let files = match Files::new(&model, &tree) {
            Ok(files) => files,
            Err(why) => return println!("skipped: no file system in user space: {why}"),
        };
        let loses = ["timeout", "no_queue"].contains(&reason);
        // The model is a thread, which is late by seconds where the machine has other work: it is waited for, but where
        // units get lost.
        let patience = if loses { "" } else { ",timeout_ms=60000" };
        let options = ["--memory", "36M", "--iaa-root", tree.root()];
        let (output, figures) = run_python(&program, &format!("{compressor}{patience}"), &options);
        drop(files);
        assert!(output.stdout == expected, "{compressor}, {reason}: {output:?}");
        let (said, accelerator) = (String::from_utf8(output.stderr).unwrap(), &figures["accelerator"]);
        println!("{compressor}, {reason}: {accelerator}\n{said}");
        for (counted, count) in accelerator["software"].as_object().unwrap() {
            assert!(counted != reason || *count != 0, "{compressor}, {reason}: {accelerator:#}");
            assert!(counted != "timeout" || loses || *count == 0, "{compressor}: {accelerator:#}");
        }
        assert!(!said.contains("runs in software"), "{said}");
        assert!(said.contains("  accelerator ") && said.contains(" units by "), "{said}");
        assert!(count_all(accelerator, "comp_calls") > 8, "{accelerator:#}");
        assert!(!reason.is_empty() || count_all(accelerator, "decomp_calls") > 0, "{accelerator:#}");
        let workers = ["with_queue", "no_queue", "not_apart"].map(|what| accelerator["workers"][what] != 0);
        assert_eq!(workers, [true, false, false], "{accelerator:#}");
        if compressor.contains("g_comp_wqs") {
            let queues = accelerator["devices"][0]["queues"].as_array().unwrap();
            let counts = |queue: usize| ["comp_calls", "decomp_calls"].map(|what| queues[queue][what] != 0);
            assert_eq!([counts(0), counts(1)], [[false, true], [true, false]], "{accelerator:#}");
        }
        used.extend(accelerator["cpus"].as_array().unwrap().iter().map(|cpu| cpu["cpu"].as_u64().unwrap()));
    }
    assert!(used.iter().all(|&cpu| cpu < cpus as u64) && (cpus == 1 || used.len() > 1), "{used:?} of {cpus}");
    let (_, figures) = run_python("print(1)", "zstd", &[]);
    assert!(figures["accelerator"].is_null());
}

/// As the kernel's series on batches compares them. Of each worker, four at most with so little memory, one unit is on
/// the device where they come one after the other.
#[test]
fn units_are_on_the_device_one_at_a_time_or_many() {
    let program = PROGRAM.replace("range(32)", "range(8)");
    let expected = succeed(Command::new("python3").args(["-c", &program])).stdout;
    let cpus = std::thread::available_parallelism().unwrap().get();
    let at_once = |parameter: &str| {
        let model = Model::new([DeviceConfig::default()]);
        let tree = Tree::new("batches");
        tree.package(0, 0..cpus, &[0]);
        let files = Files::new(&model, &tree).ok()?;
        let compressor = format!("deflate-iaa:fixed,timeout_ms=60000{parameter}");
        let options = ["--memory", "24M", "--quiet", "--iaa-root", tree.root()];
        let (output, _) = run_python(&program, &compressor, &options);
        assert!(output.stdout == expected, "{compressor}: {output:?}");
        drop(files);
        Some(model.in_flight_max(1))
    };
    let Some((one, many)) = at_once(",sync_mode=1").zip(at_once("")) else {
        return println!("skipped: no file system in user space");
    };
    assert!((1..=cpus.min(4)).contains(&one) && many > one, "{one} and {many} at a time, {cpus} CPUs");
}

/// Workers that are under way, and may open nothing else any more, open a queue that is enabled now.
#[test]
fn a_queue_that_is_enabled_during_a_run_is_used() {
    let model = Model::new([DeviceConfig { queues: vec![16, 16], ..DeviceConfig::default() }]);
    // A short path: it is to fit where the workers keep it.
    let tree = Tree::at(format!("/tmp/q{}", std::process::id()));
    let files = match Files::new(&model, &tree) {
        Ok(files) => files,
        Err(why) => return println!("skipped: no file system in user space: {why}"),
    };
    if iaa::doors::seal(tree.root()).is_none() {
        return println!("skipped: this kernel does not seal");
    }
    tree.set(1, "wq1.1/state", "disabled");
    let program = format!("import time\n{}", PROGRAM.replace("    p[i", "    time.sleep(0.08)\n    p[i"));
    let (output, figures) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = std::time::Instant::now();
            while model.done(1) == 0 && began.elapsed().as_secs() < 60 {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            tree.set(1, "wq1.1/state", "enabled");
        });
        let options = ["--memory", "64M", "--iaa-root", tree.root()];
        run_python(&program, "deflate-iaa:fixed,timeout_ms=60000", &options)
    });
    drop(files);
    let expected = succeed(Command::new("python3").args(["-c", PROGRAM])).stdout;
    assert!(output.stdout == expected, "{output:?}");
    let queues = figures["accelerator"]["devices"][0]["queues"].as_array().unwrap();
    let used = ["wq1.0", "wq1.1"]
        .map(|name| queues.iter().any(|queue| queue["name"] == name && queue["comp_calls"] != 0));
    assert_eq!(used, [true, true], "{:#}", figures["accelerator"]);
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
        let (output, figures) = run_python(NOISE, name, &["--quiet", "--memory", "80M"]);
        assert!(output.stdout == expected, "{name}: {output:?}");
        let count = |what: &str| figures["counters"][what].as_u64().unwrap();
        assert!(count("incompressible") > 100, "{name}: {figures:#}");
        let guessed = (count("believed_noise") > 50, count("tried_noise") > 8);
        assert_eq!(guessed, (guesses, guesses), "{name}: {figures:#}");
        assert!(count("wrong_noise") == 0, "{name}: {figures:#}");
    }
}
