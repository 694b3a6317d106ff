//! The footprint by the kernel's own account: `zfolio run` in a memory cgroup that only counts, or for trees ends at
//! the limit and 10 %, without swap.
//!
//! What is sampled is anonymous and shared memory of everything in the group, `zfolio` itself included. The page cache
//! is not the program's footprint: the kernel takes it back when it needs it. It counts against the group's end all the
//! same, and so does what the kernel needs for the group; where that does not do, the kernel kills.

use crate::comparison::{
    SLACK, assert_within, assert_within_by, one_at_a_time, run_alone, run_limited, skip, tell,
};
use crate::process::{Outcome, Output, field_kib};
use crate::workload::{self, Size};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A memory cgroup of one test's own, removed with it.
pub struct Cgroup {
    directory: PathBuf,
    /// The fields of `memory.stat` that are added up, and the file with the highest use, cache included.
    fields: [&'static str; 2],
    peak: &'static str,
    /// The file with the group's end, the one with what keeps it from swap and what is written there, and the one that
    /// tells of kills.
    end: &'static str,
    no_swap: (&'static str, &'static str),
    events: &'static str,
}

impl Cgroup {
    /// In the hierarchy that has the memory controller, version 1 or 2; or why that is not possible.
    pub fn new() -> Result<Cgroup, String> {
        let name = name();
        let group = if let Some(root) = mount("cgroup", "memory") {
            Cgroup {
                directory: root.join(name),
                fields: ["total_rss ", "total_shmem "],
                peak: "memory.max_usage_in_bytes",
                end: "memory.limit_in_bytes",
                no_swap: ("memory.swappiness", "0"),
                events: "memory.oom_control",
            }
        } else if let Some(root) = mount("cgroup2", "") {
            assert_controls(&root, "memory")?;
            Cgroup {
                directory: root.join(name),
                fields: ["anon ", "shmem "],
                peak: "memory.peak",
                end: "memory.max",
                no_swap: ("memory.swap.max", "0"),
                events: "memory.events",
            }
        } else {
            return Err("no cgroup file system is mounted".to_string());
        };
        fs::create_dir(&group.directory)
            .map_err(|error| format!("{}: {error}", group.directory.display()))?;
        Ok(group)
    }

    /// A command line's beginning that enters the group and then becomes the rest.
    pub fn launcher(&self) -> Vec<String> {
        enter(&self.directory)
    }

    /// Anonymous and shared memory of the group now.
    pub fn bytes(&self) -> u64 {
        let stat = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        self.fields.iter().map(|field| field_kib(&stat, field)).sum()
    }

    fn peak_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.directory.join(self.peak)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// From now on the group gets so much and 10 % of all that counts, and no swap.
    pub fn end_at(&self, limit_bytes: u64) {
        let write = |file: &str, text: &str| fs::write(self.directory.join(file), text);
        // Without a swap controller there is nothing to be kept from, or nothing to keep it with.
        let _ = write(self.no_swap.0, self.no_swap.1);
        let end = (limit_bytes as f64 * SLACK) as u64;
        write(self.end, &end.to_string()).unwrap_or_else(|error| panic!("{}: {error}", self.end));
        // What was the peak before is not, where that can be said.
        let _ = write(self.peak, "0");
    }

    /// The kernel has killed nothing for want of memory.
    pub fn assert_enough(&self, name: &str, got: &Outcome, summary: &Value) {
        let text = fs::read_to_string(self.directory.join(self.events)).unwrap_or_default();
        let kills = field_kib(&text, "oom_kill ");
        let [sampled, peak] = [got.peak_bytes, self.peak_bytes()].map(|bytes| bytes >> 20);
        assert_eq!(
            kills, 0,
            "{name}: so many were killed at the limit and 10 %, by the kernel's account: {sampled} MiB anonymous and shared at most, \
             {peak} MiB with page cache and kernel memory; {summary}"
        );
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

/// Removes a group, which is empty once its last process is reaped; the kernel may take a moment.
fn remove(directory: &Path) {
    for _ in 0..50 {
        if fs::remove_dir(directory).is_ok() || !directory.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn name() -> String {
    format!("zfolio-test-{}", std::process::id())
}

/// Where a cgroup file system of a kind is mounted, with the controller, if one is named.
fn mount(kind: &str, controller: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_else(|error| panic!("/proc/mounts: {error}"));
    let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines
        .find(|line| line[2] == kind && line[3].split(',').any(|o| controller.is_empty() || o == controller))
        .map(|line| PathBuf::from(line[1]))
}

/// Groups in a hierarchy of version 2 have the controller; or why not.
fn assert_controls(root: &Path, controller: &str) -> Result<(), String> {
    let enabled = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
    if enabled.split_whitespace().any(|enabled| enabled == controller) {
        return Ok(());
    }
    Err(format!("{}/cgroup.subtree_control does not have the {controller} controller", root.display()))
}

/// A group of which all processes together may use half a CPU's time, 50 of each 100 ms, as containers may: for the
/// rest of the time all of them stand still at once.
struct HalfACpu {
    directory: PathBuf,
    /// Of version 1 it is another group than that of the memory, and is removed here.
    is_own: bool,
}

impl HalfACpu {
    /// With the processes of `memory`, where both controllers are in one hierarchy; or why that is not possible.
    fn new(memory: &Cgroup) -> Result<HalfACpu, String> {
        let part = if let Some(root) = mount("cgroup", "cpu") {
            let directory = root.join(name());
            fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
            HalfACpu { directory, is_own: true }
        } else {
            assert_controls(&mount("cgroup2", "").ok_or("no cgroup file system is mounted")?, "cpu")?;
            HalfACpu { directory: memory.directory.clone(), is_own: false }
        };
        let limits: &[(&str, &str)] = if part.is_own {
            &[("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "50000")]
        } else {
            &[("cpu.max", "50000 100000")]
        };
        for (file, text) in limits {
            fs::write(part.directory.join(file), text).map_err(|error| format!("{file}: {error}"))?;
        }
        Ok(part)
    }

    fn launcher(&self) -> Vec<String> {
        enter(&self.directory)
    }
}

impl Drop for HalfACpu {
    fn drop(&mut self) {
        if self.is_own {
            remove(&self.directory);
        }
    }
}

/// A command line's beginning that enters a group and then becomes the rest.
fn enter(directory: &Path) -> Vec<String> {
    let procs = directory.join("cgroup.procs").display().to_string();
    ["/bin/sh", "-c", "echo $$ > \"$0\" && exec \"$@\"", &procs].map(String::from).to_vec()
}

/// python3 at a quarter of its footprint: the group's memory stays within the limit and 10 %.
pub fn check() {
    let _alone = one_at_a_time();
    let size = Size::from_env();
    let workload = match workload::python3(size) {
        Ok(workload) => workload,
        Err(missing) => return skip(missing),
    };
    let group = match Cgroup::new() {
        Ok(group) => group,
        Err(why) => return tell(&format!("skipped: no memory cgroup can be made here ({why})")),
    };
    let (wanted, _) = run_alone(&workload, size);
    let limit_bytes = ((wanted.peak_bytes as f64 * workload.share) as u64).next_multiple_of(1 << 20);
    let (got, _, summary) = run_limited(&workload, size, limit_bytes, &group.launcher(), |_| group.bytes());
    assert_eq!(got.stdout, wanted.stdout);
    assert!(got.peak_bytes > limit_bytes / 2, "the group counted {} bytes only: {summary}", got.peak_bytes);
    tell(&format!(
        "memory cgroup: limit {} MiB, anonymous and shared at most {} MiB, with page cache and kernel memory {} MiB",
        limit_bytes >> 20,
        got.peak_bytes >> 20,
        group.peak_bytes() >> 20
    ));
    assert_within("python3 in a cgroup", "the group's anonymous memory", got.peak_bytes, limit_bytes);
}

/// Thirty processes at once, under a limit of about a third of what they want: the group's memory stays within the
/// limit and 10 %.
pub fn check_crowd() {
    check_thirty("thirty at once", SLACK, |_| Ok(None));
}

/// The same while all of them together may use half a CPU: all stand still at the same time, and engines are late.
pub fn check_crowd_on_half_a_cpu() {
    check_thirty("thirty at once on half a CPU", 1.15, |memory| HalfACpu::new(memory).map(Some));
}

fn check_thirty(name: &str, slack: f64, half: impl FnOnce(&Cgroup) -> Result<Option<HalfACpu>, String>) {
    let _alone = one_at_a_time();
    let size = Size::from_env();
    let workload = match workload::crowd(size) {
        Ok(workload) => workload,
        Err(missing) => return skip(missing),
    };
    let group = match Cgroup::new() {
        Ok(group) => group,
        Err(why) => return tell(&format!("skipped: no memory cgroup can be made here ({why})")),
    };
    let half = match half(&group) {
        Ok(half) => half,
        Err(why) => return tell(&format!("skipped: no cgroup can be limited to half a CPU here ({why})")),
    };
    let launcher = [group.launcher(), half.as_ref().map(HalfACpu::launcher).unwrap_or_default()].concat();
    let limit_bytes = 256 << 20;
    let (got, _, summary) = run_limited(&workload, size, limit_bytes, &launcher, |_| group.bytes());
    assert_eq!((got.status, got.stdout.bytes), (0, 30 * "right\n".len() as u64), "{got:?}");
    let told = summary["memory"]["peak_bytes"].as_u64().expect("memory.peak_bytes");
    tell(&format!(
        "{name}: limit {} MiB, anonymous and shared at most {} MiB, with page cache and kernel memory {} MiB, by summary {} MiB",
        limit_bytes >> 20,
        got.peak_bytes >> 20,
        group.peak_bytes() >> 20,
        told >> 20
    ));
    assert!(summary["memory"]["wanted_peak_bytes"].as_u64().expect("wanted") > 2 * limit_bytes, "{summary}");
    assert_within_by(slack, name, "the group's anonymous memory", got.peak_bytes, limit_bytes);
    assert_within_by(slack, name, "the summary's peak footprint", told, limit_bytes);
}

/// A program that reads a mapped file beside more memory than its limit, in a group that ends at the limit and 10 %:
/// the file comes to stay in the page cache.
pub fn check_files() {
    let _alone = one_at_a_time();
    let size = Size::from_env();
    let workload = match workload::files(size) {
        Ok(workload) => workload,
        Err(missing) => return skip(missing),
    };
    let group = match Cgroup::new() {
        Ok(group) => group,
        Err(why) => return tell(&format!("skipped: no memory cgroup can be made here ({why})")),
    };
    let limit_bytes = 128 << 20;
    group.end_at(limit_bytes);
    let (got, _, summary) = run_limited(&workload, size, limit_bytes, &group.launcher(), |_| group.bytes());
    assert_eq!(got.stdout, Output::of(&b"it stays True\n"[..]), "{got:?}; {summary}");
    let left = summary["memory"]["file_room_peak_bytes"].as_u64().expect("memory.file_room_peak_bytes");
    tell(&format!(
        "files in a full group: {} MiB left to them after {:.1} s",
        left >> 20,
        got.elapsed.as_secs_f64()
    ));
    assert!((4 << 20..=limit_bytes / 4).contains(&left), "{left} bytes: {summary}");
    group.assert_enough(workload.name, &got, &summary);
}
