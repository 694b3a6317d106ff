//! `zfolio set PID compressor=NAME`: what is out was made by one compressor, what goes out by another, and all of it
//! is read.

mod dialogue;
mod skip;

use dialogue::{Dialogue, MIB, Scratch, ZFOLIO, until, zfolio};
use iaa_model::{DeviceConfig, Files, Model, Tree};
use serde_json::Value;
use skip::skip;
use std::fs;
use std::time::Duration;

/// Keeps texts, and does what it is told: more of them, with this seed; the sum of all; a child that has more, and
/// lives until it is told; another program that has. Words of ten letters from a few hundred come to half as much by
/// zstd as by lz4.
const PROGRAM: &str = "
import hashlib, os, random, subprocess, sys
def texts(seed):
    r = random.Random(seed)
    words = ['%010x ' % r.getrandbits(40) for _ in range(200)]
    return [''.join(r.choices(words, k=90)) for _ in range(25000)]
def total(of):
    h = hashlib.md5()
    for text in of:
        for s in text:
            h.update(s.encode())
    return h.hexdigest()
if len(sys.argv) > 2:
    kept = [texts(int(sys.argv[2]))]
    print(total(kept), flush=True)
    sys.exit(sys.stdin.readline() == 'no')
kept = [texts(1)]
print('ready', flush=True)
for line in sys.stdin:
    what, seed = line.split()
    if what == 'more':
        kept.append(texts(int(seed)))
        print('ok', flush=True)
    elif what == 'sum':
        print(total(kept), flush=True)
    elif what == 'spawn':
        other = subprocess.Popen([sys.executable, '-c', CODE, 'x', seed], stdin=subprocess.PIPE)
        ends = other.stdin.close
        pid = other.pid
    elif what == 'fork':
        held, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(end)
            kept.append(texts(int(seed)))
            print(total(kept), flush=True)
            os.read(held, 1)
            os._exit(0)
        os.close(held)
        ends = lambda: os.close(end)
    elif what == 'pid':
        print(pid, flush=True)
    elif what == 'end':
        ends()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
";

/// The program, told one thing after the other.
struct Told(Dialogue);

impl Told {
    fn start(command: &[&str]) -> Told {
        let code = format!("CODE = {}\n{PROGRAM}", "open('/proc/self/cmdline').read().split(chr(0))[2]");
        Told(Dialogue::start(&[command, &["python3", "-c", &code]].concat()))
    }

    /// The same for all of these.
    fn tell_all(&mut self, all: &[&str]) -> Vec<String> {
        all.iter().map(|what| self.0.tell(what)).collect()
    }

    /// A counter of one process.
    fn own_counter(&self, pid: &str, name: &str) -> Option<u64> {
        let stat = self.stat();
        let all = stat["processes"].as_array().unwrap();
        let pid: u64 = pid.parse().unwrap();
        let process = all.iter().find(|process| process["pid"] == pid)?;
        process["counters"][name].as_u64()
    }

    /// Bytes of pages with data that have gone out in new objects, and of these.
    fn squeezed(&self) -> [u64; 2] {
        ["compressed_in_bytes", "compressed_out_bytes"].map(|name| self.counter(name))
    }

    fn end(self) -> Option<i32> {
        self.0.end()
    }
}

impl std::ops::Deref for Told {
    type Target = Dialogue;

    fn deref(&self) -> &Dialogue {
        &self.0
    }
}

impl std::ops::DerefMut for Told {
    fn deref_mut(&mut self) -> &mut Dialogue {
        &mut self.0
    }
}

/// How many times as large pages are as the objects that were made of them between these.
fn density([plain, made]: [u64; 2], [plain_then, made_then]: [u64; 2]) -> f64 {
    assert!(plain_then > plain + 4 * MIB, "something has gone out: {plain} {plain_then}");
    (plain_then - plain) as f64 / (made_then - made) as f64
}

#[test]
fn what_is_out_is_read_and_what_goes_out_is_made_by_another_one() {
    let scratch = Scratch::new("set-compressor");
    let json = scratch.0.join("json");
    let mut run = Told::start(&[
        ZFOLIO,
        "run",
        "--quiet",
        "--memory",
        "48M",
        "--compressor",
        "zstd:3",
        "--json",
        json.to_str().unwrap(),
        "--",
    ]);
    let mut alone = Told::start(&["env"]);
    assert_eq!(run.tell("more 2"), alone.tell("more 2"));
    let by_zstd = run.squeezed();
    assert!(by_zstd[0] > 4 * MIB && run.figures().contains(" with zstd:3\n"));
    assert_eq!(run.set(&["compressor=lz4"]), "compressor=lz4:1\n");
    assert!(run.set(&[]).contains("\ncompressor=lz4:1 "));
    let began = run.squeezed();
    assert_eq!(run.tell("more 3"), alone.tell("more 3"));
    let by_lz4 = run.squeezed();
    let (dense, fast) = (density([0; 2], by_zstd), density(began, by_lz4));
    assert!(dense > 1.4 * fast, "{dense:.2} by zstd, {fast:.2} by lz4");
    let said = run.figures();
    assert!(said.contains(" with lz4:1, before with zstd\n"), "{said}");
    let stat = run.stat();
    assert_eq!((&stat["compressor"], &stat["compressors_before"]), (&"lz4:1".into(), &vec!["zstd"].into()));
    assert_eq!(run.tell_all(&["sum 0", "sum 0"]), alone.tell_all(&["sum 0", "sum 0"]));

    run.set(&["memory=120M"]);
    // Children have it too, and read what their parent has; and so have those that come later.
    assert_eq!(run.set(&["compressor=lz4,zstd:3"]), "compressor=lz4:1,zstd:3\n");
    for what in ["fork 4", "spawn 5"] {
        assert_eq!(run.tell(what), alone.tell(what), "{what}");
        let pid = run.tell("pid 0");
        let output = zfolio(&["reclaim", &pid, "4M"]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "as much as goes in a second: {output:?}");
        let made = ["fast_pages", "dense_pages"].map(|name| run.own_counter(&pid, name).unwrap());
        assert!(made[0] + made[1] > 100, "{what}: {made:?}");
        alone.tell("pid 0");
        assert_eq!((run.tell("end 0"), alone.tell("end 0")), ("0".into(), "0".into()), "{what}");
    }
    assert_eq!(run.set(&["compressor=lzo-rle"]), "compressor=lzo-rle\n");
    let all = ["more 6", "sum 0", "fork 7", "end 0", "sum 0"];
    assert_eq!(run.tell_all(&all), alone.tell_all(&all));
    assert_eq!(run.end(), Some(0));
    let figures: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(figures["compressor"], "lzo-rle");
    assert_eq!(figures["compressors_before"], serde_json::json!(["lz4", "zstd"]));
}

#[test]
fn what_lies_in_a_swap_area_is_read_whatever_has_made_it() {
    let scratch = Scratch::new("set-compressor-area");
    let backing = scratch.backing();
    let mut run = Told::start(&[
        ZFOLIO,
        "run",
        "--quiet",
        "--memory",
        "96M",
        "--max-pool-percent",
        "3",
        "--backing",
        &backing,
        "--",
    ]);
    let mut alone = Told::start(&["env"]);
    run.set(&["zswap.max=512K"]);
    for (compressor, seed) in [("lz4hc:3", 2), ("deflate", 3), ("842", 4)] {
        let more = format!("more {seed}");
        let written = run.counter("pswpout");
        assert_eq!(run.tell(&more), alone.tell(&more));
        let reclaim = zfolio(&["reclaim", &run.pid(), "10M"]);
        assert!(matches!(reclaim.status.code(), Some(0 | 1)), "as much as goes in a second: {reclaim:?}");
        until("the area has some of it", || run.counter("pswpout") > written + 50);
        run.set(&[&format!("compressor={compressor}")]);
    }
    let read = run.counter("pswpin");
    assert_eq!(run.tell_all(&["sum 0", "sum 0"]), alone.tell_all(&["sum 0", "sum 0"]));
    assert!(run.counter("pswpin") > read + 500);
    assert_eq!(run.stat()["compressors_before"], serde_json::json!(["deflate", "lz4hc", "zstd"]));
    assert_eq!(run.end(), Some(0));
}

/// All of one name that devices did.
fn device_calls(run: &Told, what: &str) -> u64 {
    let stat = run.stat();
    let devices = stat["accelerator"]["devices"].as_array().unwrap();
    let queues = devices.iter().flat_map(|device| device["queues"].as_array().unwrap());
    queues.map(|queue| queue[what].as_u64().unwrap()).sum()
}

/// Once nothing is under way.
fn settled_calls(run: &Told) -> u64 {
    until("the device rests", || {
        let before = device_calls(run, "comp_calls");
        std::thread::sleep(Duration::from_millis(500));
        (device_calls(run, "comp_calls") == before).then_some(before)
    })
}

#[test]
fn a_run_that_has_begun_with_a_device_leaves_it_and_comes_back() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let model = Model::new([DeviceConfig { queues: vec![16, 16], ..DeviceConfig::default() }]);
    let tree = Tree::new("set");
    tree.package(0, 0..cpus, &[0]);
    let files = match Files::new(&model, &tree) {
        Ok(files) => files,
        Err(why) => return skip(&format!("no file system in user space: {why}")),
    };
    let device = "deflate-iaa:fixed,timeout_ms=60000";
    let options = ["--memory", "64M", "--iaa-root", tree.root(), "--compressor", device, "--"];
    let mut run = Told::start(&[&[ZFOLIO, "run", "--quiet"], &options[..]].concat());
    let mut alone = Told::start(&["env"]);
    let all = ["more 2", "more 3"];
    assert_eq!(run.tell_all(&all), alone.tell_all(&all));
    let began = settled_calls(&run);
    assert!(began > 0);
    assert_eq!(run.set(&["compressor=lz4"]), "compressor=lz4:1\n");
    run.set(&["memory=90M"]);
    let (all, read) = (["sum 0", "more 4", "sum 0"], device_calls(&run, "decomp_calls"));
    assert_eq!(run.tell_all(&all), alone.tell_all(&all));
    assert_eq!(settled_calls(&run), began, "lz4 is the processor's work");
    assert!(device_calls(&run, "decomp_calls") > read, "the device reads what it has made");
    assert_eq!(run.set(&[&format!("compressor={device}")]), format!("compressor={device}\n"));
    run.set(&["memory=112M"]);
    let all = ["fork 5", "end 0", "sum 0"];
    assert_eq!(run.tell_all(&all), alone.tell_all(&all));
    assert!(settled_calls(&run) > began);
    assert_eq!(run.end(), Some(0));
    drop(files);
}
