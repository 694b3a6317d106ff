//! The calls by which the program or the kernel moves, looks at or takes pages past any fault (docs/past-the-fault.md).
//! Each runs `tests/c/past.c`, which fills memory, lets it leave, makes the call, and checks every word. They need the
//! right to userfaultfd, as `zfolio doctor` does.

mod compile;
mod machine_swap;
mod skip;

use compile::compile;
use machine_swap::Swap;
use skip::{skip, tell};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Instant;
use uffd::pagemap::Pagemap;
use uffd::sys::{self, consts::*};
use uffd::{Features, PAGE, Userfault};

/// What the test program says where this machine cannot do what is asked for.
const CANNOT: i32 = 77;

/// The test program.
fn past() -> PathBuf {
    compile("past")
}

/// Runs it in the manner `way` while everything goes out all the time; it must find all as it would be without zfolio.
fn is_right(way: &str) {
    judge(way, Command::new("timeout").args(["-k", "5", "100"]).args(zfolio()).arg(past()).arg(way).output());
}

fn zfolio() -> [&'static str; 6] {
    [env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet", "--evict-all", "--memory=64M", "--"]
}

fn judge(way: &str, output: std::io::Result<Output>) {
    let Output { status, stdout, stderr } = output.expect("timeout is needed");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    if status.code() == Some(CANNOT) {
        let why = format!("skipped: {way}: {out}");
        // A kernel may be built without the one, and root in a container may not do the other.
        return if matches!(way, "soft_offline" | "set_mm") { tell(&why) } else { skip(&why) };
    }
    assert_eq!((status.code(), &*out), (Some(0), "right\n"), "{way}: {err}");
}

#[test]
fn what_is_out_looks_swapped_in_the_programs_own_pagemap() {
    is_right("looks");
}

#[test]
fn pagemap_scan_finds_all_that_was_written() {
    is_right("scans");
}

#[test]
fn the_programs_own_uffdio_move_moves_what_is_out() {
    is_right("moves");
    is_right("moves_with_holes");
    is_right("moves_by_syscall");
}

#[test]
fn the_programs_own_uffdio_copy_copies_what_is_out() {
    is_right("copy");
}

#[test]
fn what_the_programs_own_userfaultfd_takes_over_is_home() {
    is_right("own");
}

#[test]
fn who_tracks_writes_by_pagemap_scan_loses_nothing() {
    is_right("tracks");
}

#[test]
fn advice_that_touches_pages_finds_what_is_out() {
    for way in ["populate_read", "populate_write", "collapse", "pageout", "soft_offline"] {
        is_right(way);
    }
}

#[test]
fn advice_of_another_process_changes_nothing() {
    is_right("advised");
}

#[test]
fn memory_that_is_out_moves_with_its_mapping() {
    is_right("remaps");
}

#[test]
fn a_child_that_is_reaped_early_takes_nothing_along() {
    is_right("mrelease");
}

#[test]
fn what_prctl_says_of_the_heap_moves_no_page() {
    is_right("set_mm");
}

/// A memory control group of this test's, in the one that it runs in.
struct Group {
    path: PathBuf,
    /// The file by which the kernel takes all that it can, and the bytes to write for that.
    reclaim: (&'static str, &'static str),
}

impl Group {
    fn make() -> Result<Group, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let v1 = own.lines().find_map(|line| line.split_once(":memory:")).map(|(_, path)| path);
        let v2 = || own.lines().find_map(|line| line.strip_prefix("0::"));
        let (root, path, reclaim) = match v1 {
            Some(path) => ("/sys/fs/cgroup/memory", path, ("memory.force_empty", "0")),
            None => ("/sys/fs/cgroup", v2().ok_or("no control group")?, ("memory.reclaim", "1G")),
        };
        let group =
            Group { path: PathBuf::from(format!("{root}{path}/past-{}", std::process::id())), reclaim };
        fs::create_dir(&group.path).map_err(|e| format!("{}: {e}", group.path.display()))?;
        // Version 2 has it where the group above passes the controller on.
        fs::metadata(group.path.join(reclaim.0)).map_err(|e| format!("{}: {e}", reclaim.0))?;
        Ok(group)
    }

    /// The kernel swaps what it can while `run` runs. A limit would do so as well, and its OOM killer with it: one run
    /// in nine was killed that had 16 MiB, and with 24 two pages were swapped at most (6.18).
    fn squeeze(&self, run: &mut Command) -> std::io::Result<Output> {
        let mut child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        while child.try_wait()?.is_none() {
            let begin = Instant::now();
            // An error says that not all of it could be had.
            let _ = fs::write(self.path.join(self.reclaim.0), self.reclaim.1);
            // The program has to get on.
            std::thread::sleep(begin.elapsed() * 9);
        }
        child.wait_with_output()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// Pages that the kernel has written to swap since it started.
fn swapped_out() -> u64 {
    let stat = fs::read_to_string("/proc/vmstat").unwrap();
    stat.lines().find_map(|line| line.strip_prefix("pswpout ")).unwrap().parse().unwrap()
}

#[test]
fn the_kernels_own_swap_beneath_loses_nothing() {
    let _swap = match Swap::on(64) {
        Ok(swap) => swap,
        Err(why) => return skip(&format!("no swap: {why}")),
    };
    a_swapped_page_is_moved_and_has_come();
    let group = match Group::make() {
        Ok(group) => group,
        Err(why) => return skip(&format!("no control group: {why}")),
    };
    let before = swapped_out();
    for way in ["looks", "moves", "remaps"] {
        let join = "echo $$ >$0/cgroup.procs && exec \"$@\"";
        let mut run = Command::new("timeout");
        run.args(["-k", "5", "200", "sh", "-c", join]).arg(&group.path).args(zfolio()).arg(past()).arg(way);
        judge(way, group.squeeze(&mut run));
    }
    assert!(swapped_out() > before, "the kernel has swapped nothing");
}

/// UFFDIO_MOVE moves a swap entry, and a look at the page tables finds it.
fn a_swapped_page_is_moved_and_has_come() {
    let Ok(uffd) = Userfault::open(Features::Quiet) else { return skip("userfaultfd is refused") };
    let pagemap = Pagemap::open().unwrap();
    let map = || sys::mmap(PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
    let (from, to) = (map(), map());
    // SAFETY: the test's own page.
    unsafe { (from as *mut u64).write(42) };
    // It may take a moment until the page is on a list of the kernel's.
    for _ in 0..100 {
        const MADV_PAGEOUT: u32 = 21;
        let _ = sys::madvise_keep(from, PAGE, MADV_PAGEOUT);
        if pagemap.is_present(from) == Ok(false) {
            break;
        }
        sys::sleep_ns(10_000_000);
    }
    if pagemap.is_present(from) != Ok(false) {
        return skip("the kernel does not swap");
    }
    assert_eq!(pagemap.has_page(from), Ok(true));
    uffd.register_silent(to..to + PAGE).unwrap();
    // SAFETY: nobody else uses the pages.
    let moved = unsafe { uffd.move_pages(&pagemap, to, from, PAGE) };
    assert_eq!((moved.bytes, moved.stop), (PAGE, None));
    assert_eq!([from, to].map(|at| pagemap.has_page(at).unwrap()), [false, true]);
    // SAFETY: as above.
    assert_eq!(unsafe { (to as *const u64).read_volatile() }, 42);
}

/// Each line of the document's table names tests of this file, or says why it cannot happen.
#[test]
fn the_document_names_tests_that_exist() {
    let document = include_str!("../../../docs/past-the-fault.md");
    let tests = include_str!("past_the_fault.rs");
    let (document, _) = document.split_once("\nWhat is not seen").unwrap();
    let lines: Vec<&str> =
        document.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---")).collect();
    assert!(lines.len() > 20, "{} lines", lines.len());
    for line in &lines[1..] {
        let shown = line.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let named: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert!(
            !named.is_empty() || shown.starts_with("none: "),
            "neither a test nor why there is none: {line}"
        );
        for name in named {
            let exists = tests.contains(&format!("fn {name}()"))
                || OTHERS.iter().any(|text| text.contains(&format!("fn {name}()")));
            assert!(exists, "there is no test {name}");
        }
    }
}

/// Where else such tests are.
const OTHERS: [&str; 4] = [
    include_str!("engine.rs"),
    include_str!("descendants.rs"),
    include_str!("../../uffd/src/userfault.rs"),
    include_str!("../../mm/src/pager/sim/waiting.rs"),
];
