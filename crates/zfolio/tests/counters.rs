//! How the counters of a run add up, as `zfolio stat` and the summary tell them.

use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// Pages of each kind, which are gone through twice and then left alone; with an argument by a child, too, that is
/// forked when most of them are out.
const KINDS: &str = r#"
import hashlib, os, random, sys
r = random.Random(5)
MIB = 1 << 20
noise = [bytearray(r.randbytes(MIB)) for _ in range(16)]
texts = [bytearray((b"%d" % i * 7) * MIB)[:MIB] for i in range(16)]
words = [bytearray(b"\7" * MIB) for _ in range(16)]
zeros = [bytearray(b"\1" * MIB) for _ in range(16)]
for z in zeros:
    z[:] = bytes(MIB)
def go():
    for pieces in noise, texts, words, zeros:
        for n, p in enumerate(pieces):
            sum(p[::4096])
            p[n * 4096] = p[n * 4096] ^ 1
go()
if len(sys.argv) > 1:
    child = os.fork()
    go()
    if child:
        os.waitpid(child, 0)
    os._exit(0)
go()
print("ready", flush=True)
sys.stdin.readline()
"#;

/// A directory of this test's.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = PathBuf::from("/var/tmp").join(format!("zfolio-counters-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A run whose program does nothing any more.
struct Quiet(Child);

impl Quiet {
    fn start(options: &[&str]) -> Quiet {
        let mut child = Command::new(ZFOLIO)
            .args(["run", "--quiet", "--compressor", "lz4"])
            .args(options)
            .args(["--", "python3", "-c", KINDS])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"ready\n");
        Quiet(child)
    }

    fn look(&self) -> Value {
        let output =
            Command::new(ZFOLIO).args(["stat", "--json", &self.0.id().to_string()]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The figures of the one process, once its engine has come to rest and all of them add up.
    fn at_rest(&self) -> Figures {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let json = self.look();
            let figures = Figures(json["processes"][0].clone());
            // The run's were read before.
            let runs = json["memory"]["stored_pages"] == figures.0["memory"]["stored_pages"];
            let sum = figures.check().and_then(|()| figures.check_gauges());
            let sum = sum.and_then(|()| if runs { Ok(()) } else { Err("the run has others stored".into()) });
            let Err(why) = sum else { return figures };
            assert!(Instant::now() < deadline, "{why}: {json:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// What is told of a process or a run.
struct Figures(Value);

impl Figures {
    fn count(&self, name: &str) -> u64 {
        self.0["counters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {:#}", self.0))
    }

    fn gauge(&self, name: &str) -> u64 {
        self.0["memory"][name].as_u64().unwrap_or_else(|| panic!("{name}: {:#}", self.0))
    }

    /// The pages of all folios that are counted under this name.
    fn pages(&self, name: &str) -> u64 {
        let by_size = self.0["folios"][name].as_object().unwrap_or_else(|| panic!("{name}: {:#}", self.0));
        let kib = |size: &str| size.trim_end_matches('k').parse::<u64>().unwrap();
        by_size.iter().map(|(size, count)| kib(size) / 4 * count.as_u64().unwrap()).sum()
    }

    /// Pages that went out, less those that are out no more.
    fn balance(&self) -> i64 {
        let sum = |names: &[&str]| names.iter().map(|name| self.count(name) as i64).sum::<i64>();
        sum(&["inherited", "zswpout", "same_filled", "clean_reused"])
            - sum(&["zswpin", "swpin_zero", "packed", "parted", "dropped"])
    }

    /// What counters say of one another.
    fn check(&self) -> Result<(), String> {
        let count = |name| self.count(name);
        let plain = ["believed_noise", "reject_compress_poor", "reject_compress_fail"].map(count);
        for (what, holds) in [
            ("zswpout by size", self.pages("zswpout") == count("zswpout")),
            ("zswpin by size", self.pages("zswpin") == count("zswpin")),
            ("swpout by size", self.pages("swpout") == count("zswpwb")),
            ("zeros are filled by one word", count("swpout_zero") <= count("same_filled")),
            ("zeros went out before", count("swpin_zero") <= count("swpout_zero") + count("inherited")),
            (
                "each that did not shrink has a reason",
                count("reject_alloc_fail") > 0 || plain.iter().sum::<u64>() == count("incompressible"),
            ),
            (
                "objects have the pages that are stored",
                count("zswpout") * 4096 <= count("compressed_in_bytes"),
            ),
            ("what came in went out", self.balance() >= 0),
            ("what was written took slots", (count("zswpwb") > 0) == (count("pswpout") > 0)),
            ("what was read was in slots", (self.pages("swpin") > 0) <= (count("pswpin") > 0)),
        ] {
            if !holds {
                return Err(what.into());
            }
        }
        Ok(())
    }

    /// What they say of what is out now.
    fn check_gauges(&self) -> Result<(), String> {
        let (stored, swapped) = (self.gauge("stored_pages"), self.gauge("swapped_pages"));
        for (what, holds) in [
            (
                "what is out is in the pool or in an area",
                self.gauge("stored_bytes") == (stored + swapped) * 4096,
            ),
            ("what went out is out or came in", self.balance() as u64 == stored + swapped),
            ("what is filled went out so", self.gauge("same_filled_pages") <= self.count("same_filled")),
            ("what did not shrink is in the pool", self.gauge("stored_incompressible_pages") <= stored),
            ("what is in an area was written there", swapped <= self.count("zswpwb")),
        ] {
            if !holds {
                return Err(what.into());
            }
        }
        Ok(())
    }
}

#[test]
fn what_went_out_is_in_the_pool_or_has_come_in() {
    let figures = Quiet::start(&["--memory", "40M"]).at_rest();
    for name in ["zswpout", "zswpin", "same_filled", "swpout_zero", "swpin_zero", "reject_compress_poor"] {
        assert!(figures.count(name) > 0, "{name}: {:#}", figures.0);
    }
    // 16 MiB of noise, and of 32 MiB that one word fills what is out.
    assert!(figures.gauge("same_filled_pages") > 1 << 8, "{:#}", figures.0);
    assert!(figures.gauge("stored_incompressible_pages") > 0, "{:#}", figures.0);
    assert_eq!((figures.gauge("swapped_pages"), figures.count("zswpwb")), (0, 0));
    assert_eq!(figures.0["latency"]["writeback_ns"]["count"], 0);
}

#[test]
fn what_went_out_is_in_the_pool_or_in_an_area_or_has_come_in() {
    let area = Scratch::new("area");
    let figures = Quiet::start(&["--memory", "24M", "--backing", area.0.to_str().unwrap()]).at_rest();
    for name in ["zswpwb", "pool_limit_hit"] {
        assert!(figures.count(name) > 0, "{name}: {:#}", figures.0);
    }
    assert!(figures.gauge("swapped_pages") > 0 && figures.pages("swpin") > 0, "{:#}", figures.0);
    assert!(figures.0["latency"]["writeback_ns"]["count"].as_u64() > Some(0), "{:#}", figures.0);
}

#[test]
fn counters_of_all_processes_of_a_run_add_up() {
    let scratch = Scratch::new("family");
    let json = scratch.0.join("json");
    let status = Command::new(ZFOLIO)
        .args(["run", "--quiet", "--memory", "32M", "--backing", scratch.0.to_str().unwrap(), "--json"])
        .arg(&json)
        .args(["--", "python3", "-c", KINDS, "forks"])
        .status()
        .unwrap();
    assert!(status.success());
    let figures = Figures(serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap());
    assert_eq!(figures.check(), Ok(()), "{:#}", figures.0);
    assert!(figures.count("inherited") > 0 && figures.count("zswpwb") > 0, "{:#}", figures.0);
}
