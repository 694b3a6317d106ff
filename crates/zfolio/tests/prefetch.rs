//! What a process had before it was reclaimed comes back in large parts. The tests need the right to userfaultfd, as
//! `zfolio doctor` does.

mod dialogue;
mod skip;

use dialogue::{Dialogue, MIB, ZFOLIO, until, zfolio};

/// Fills 100 MiB, of huge pages if it has an argument, and sleeps. A number has it read so many of the pages, each once
/// and in no order, and tell their sum; no number, a checksum of all.
const KEEPER: &str = "
import mmap, random, sys, zlib
PAGES = 25600
m = mmap.mmap(-1, PAGES << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
if len(sys.argv) > 1: m.madvise(mmap.MADV_HUGEPAGE)
for page in range(PAGES):
    m[page << 12 : (page << 12) + 3000] = bytes([page % 251]) + b'%09d words ' % page * 187 + bytes(7)
order = list(range(PAGES))
random.Random(7).shuffle(order)
print('ready', flush=True)
for line in sys.stdin:
    print(sum(m[page << 12] for page in order[:int(line)]) if line.strip() else zlib.crc32(m), flush=True)
";

const PAGES: u64 = 25600;

/// A run of the keeper's in more memory than it needs.
fn keeper(arguments: &[&str]) -> Dialogue {
    let run = [ZFOLIO, "run", "--quiet", "--memory", "1G", "--", "python3", "-c", KEEPER];
    let run = Dialogue::start(&[&run, arguments].concat());
    until("its engine has seen all of it", || run.memory("footprint_bytes") > 100 * MIB);
    run
}

/// Has all of it go out that does.
fn reclaim(run: &Dialogue) {
    let output = zfolio(&["reclaim", &run.pid(), "10G"]);
    assert_eq!(output.status.code(), Some(1), "there is not so much: {output:?}");
    assert!(run.memory("footprint_bytes") < 60 * MIB, "{}", run.figures());
}

#[test]
fn all_of_it_comes_back_with_few_faults_in_whatever_order_it_is_touched() {
    let mut run = keeper(&[]);
    let sum = run.tell("");
    for _ in 0..2 {
        reclaim(&run);
        let [faults, prefetched] = ["faults", "prefetched"].map(|name| run.counter(name));
        assert_eq!(run.tell("25600"), (0..PAGES).map(|page| page % 251).sum::<u64>().to_string());
        assert!(run.counter("faults") < faults + PAGES / 8, "{}", run.figures());
        assert!(run.counter("prefetched") > prefetched + PAGES / 2, "{}", run.figures());
    }
    assert_eq!(run.tell(""), sum);
    assert_eq!(run.end(), Some(0));
}

/// Three pages of a region, in the mean. What the interpreter itself has is some 10 MiB.
#[test]
fn what_is_touched_here_and_there_comes_alone() {
    let mut run = keeper(&[]);
    reclaim(&run);
    run.tell("150");
    assert!(run.counter("zswpin") < PAGES / 4, "{}", run.figures());
    assert!(run.memory("footprint_bytes") < 60 * MIB, "{}", run.figures());
    assert_eq!(run.end(), Some(0));
}

/// Bytes of huge pages that the run's one process has.
fn huge_bytes(run: &Dialogue) -> u64 {
    let pid = run.stat()["processes"][0]["pid"].as_u64().unwrap();
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn what_was_huge_pages_is_so_again_in_whatever_order_it_is_touched() {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !enabled.contains("[always]") && !enabled.contains("[madvise]") {
        return skip::skip(
            "no transparent huge pages: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        );
    }
    let mut run = keeper(&["huge"]);
    let (sum, before) = (run.tell(""), huge_bytes(&run));
    assert!(before > 90 * MIB, "{before}");
    reclaim(&run);
    assert!(run.counter("thp_swpout") > 40, "{}", run.figures());
    run.tell("25600");
    until("nine of ten are huge again", || huge_bytes(&run) > before / 10 * 9);
    assert!(run.counter("thp_collapse_alloc") > 40, "{}", run.figures());
    assert_eq!(run.tell(""), sum);
    assert_eq!(run.end(), Some(0));
}
