//! Can this machine do it? Each check says what was found, what that means, and the command that changes it. `zfolio doctor`
//! shows all of them; `zfolio run` stops at the first that makes it impossible.

use crate::accelerator;
use crate::args::Doctor;
use crate::cgroup::Memory;
use crate::glibc;
use crate::kernels::{self, Needs};
use crate::probe::{self, Refused, Way};
use crate::rundir::{LIBRARY, RunDir};
use crate::size::Bytes;
use crate::swap::Swap;
use crate::sys;
use iaa::setup::Setup;
use linux_raw_sys::general as g;
use memcg::Settings;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use uffd::sites::Site;
use uffd::sys::Errno;

/// What a finding means for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// zfolio works, with less than it could have.
    Note,
    /// zfolio does not work.
    Missing,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Missing => "missing",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Verdict::Ok => "\x1b[32m",
            Verdict::Note => "\x1b[33m",
            Verdict::Missing => "\x1b[1;31m",
        }
    }
}

/// Who can change something, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// "root", "user" or "container".
    pub who: &'static str,
    /// A command, or where there is none, what to do.
    pub command: &'static str,
}

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// What there is.
    pub found: String,
    /// What it means.
    pub verdict: Verdict,
    /// Ways to a better verdict; any one is enough.
    pub remedies: &'static [Remedy],
}

/// A remedy.
pub const fn remedy(who: &'static str, command: &'static str) -> Remedy {
    Remedy { who, command }
}

const RIGHTS: &[Remedy] = &[
    remedy("root", "run zfolio as root, or give it CAP_SYS_PTRACE"),
    remedy("root", "sysctl -w vm.unprivileged_userfaultfd=1    (for every user)"),
    remedy("user", "sudo setfacl -m u:$USER:rw /dev/userfaultfd"),
    remedy("container", "docker run --device /dev/userfaultfd ..."),
];
const SCHEDULING: &[Remedy] = &[
    remedy("root", "give zfolio CAP_SYS_NICE"),
    remedy("user", "root can allow `ulimit -e 20`: \"USER - nice 0\" in /etc/security/limits.conf"),
    remedy("container", "docker run --cap-add SYS_NICE ...   (or --ulimit nice=20)"),
];
const NEWER_KERNEL: &[Remedy] = &[
    remedy("root", "Debian 12: apt install -t bookworm-backports linux-image-amd64"),
    remedy("root", "Ubuntu 24.04: apt install linux-generic-hwe-24.04"),
    remedy("user", "ask for a machine with Linux 6.12 or later"),
    remedy("container", "the host's kernel counts: move to a node with 6.12 or later"),
];
const PROC: &[Remedy] = &[
    remedy("root", "mount -t proc proc /proc"),
    remedy("user", "start zfolio where /proc is mounted and readable"),
    remedy("container", "leave /proc as docker mounts it"),
];
const CODE: &[Remedy] = &[
    remedy("root", "mount -o remount,exec /tmp"),
    remedy("user", "export XDG_RUNTIME_DIR=DIR, of your own and not on a noexec mount"),
    remedy("container", "docker run --tmpfs /tmp:exec ..."),
];
const GLIBC: &[Remedy] = &[
    remedy("root", "nothing to do: it works, and costs more"),
    remedy("user", "nothing to do: it works, and costs more"),
    remedy("container", "an image with Debian's or Ubuntu's glibc, 2.31 or newer"),
];
const HUGE_PAGES: &[Remedy] = &[
    remedy("root", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
    remedy("user", "nothing to do: it works in base pages"),
    remedy("container", "set on the host"),
];
const MAPS: &[Remedy] = &[
    remedy("root", "sysctl -w vm.max_map_count=1048576"),
    remedy("user", "ask root for it"),
    remedy("container", "set on the host"),
];
const OVERCOMMIT: &[Remedy] = &[
    remedy("root", "sysctl -w vm.overcommit_memory=0"),
    remedy("user", "ask root for it, or leave more room in CommitLimit"),
    remedy("container", "set on the host"),
];
const ADDRESS_SPACE: &[Remedy] = &[
    remedy("root", "prlimit --as=unlimited --pid $$"),
    remedy("user", "ulimit -v unlimited"),
    remedy("container", "docker run --ulimit as=-1 ..."),
];
const PROCESSES: &[Remedy] = &[
    remedy("root", "prlimit --nproc=4096 --pid $$"),
    remedy("user", "ulimit -u 4096"),
    remedy("container", "docker run --ulimit nproc=4096 ..."),
];

const SWAP: &[Remedy] = &[
    remedy("root", "swapoff -a, or for one run: systemd-run --scope -p MemorySwapMax=0 zfolio run ..."),
    remedy("user", "nothing to do: it works, and what is in swap too takes longer to come back"),
    remedy("container", "docker run --memory 1G --memory-swap 1G ...    (the same size: no swap)"),
];

/// What a run cannot do without, each tried for real.
fn essentials() -> Vec<Check> {
    let userfaultfd = userfaultfd();
    let moves = match userfaultfd.verdict {
        Verdict::Missing => {
            let found = "cannot be tried without userfaultfd".to_string();
            Check { name: "UFFDIO_MOVE", found, verdict: Verdict::Note, remedies: &[] }
        }
        _ => moves(),
    };
    vec![userfaultfd, moves, pagemap_scan(), procmap_query()]
}

/// What a run feels.
fn circumstances(libc: Option<PathBuf>) -> Vec<Check> {
    let (own, machines) = (Memory::of_this_process(), Swap::of_this_machine());
    vec![
        library(),
        hooks(libc),
        huge_pages(),
        max_map_count(),
        overcommit(),
        address_space(),
        processes(),
        scheduling(),
        seccomp(),
        accelerator::check(Setup::look("")),
        memory(&own),
        swap(&machines, own.may_swap),
    ]
}

/// Why `zfolio run` cannot manage any program here, with the ways out; `None` when it can.
pub fn obstacle() -> Option<String> {
    let check = essentials().into_iter().find(|check| check.verdict == Verdict::Missing)?;
    let mut text =
        format!("cannot manage memory here: {}: {}\n  any one of these helps:\n", check.name, check.found);
    write_remedies(&mut text, "    ", check.remedies);
    Some(text.trim_end().to_string())
}

/// `zfolio doctor`; returns the exit status.
pub fn run(args: &Doctor) -> u8 {
    let circumstances = circumstances(args.libc.clone());
    let checks: Vec<Check> =
        [kernel()].into_iter().chain(defects()).chain(essentials()).chain(circumstances).collect();
    let mut stdout = std::io::stdout();
    let colour = stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let _ = stdout.write_all(text(&checks, colour).as_bytes());
    if let Some(path) = &args.json
        && let Err(e) = fs::write(path, format!("{:#}\n", json(&checks)))
    {
        eprintln!("zfolio: --json {}: {e}", path.display());
        return 2;
    }
    (!works(&checks)).into()
}

fn works(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.verdict != Verdict::Missing)
}

fn text(checks: &[Check], colour: bool) -> String {
    let mut text = String::new();
    for check in checks {
        let (on, off) = if colour { (check.verdict.colour(), "\x1b[0m") } else { ("", "") };
        let _ = writeln!(text, "{on}{:<8}{off} {:<16} {}", check.verdict.word(), check.name, check.found);
        if check.verdict != Verdict::Ok {
            write_remedies(&mut text, "           ", check.remedies);
        }
    }
    let missing = checks.iter().filter(|check| check.verdict == Verdict::Missing).count();
    let _ = match missing {
        0 => writeln!(text, "\nzfolio run works here."),
        1 => writeln!(text, "\nzfolio run does not work here: one thing is missing."),
        n => writeln!(text, "\nzfolio run does not work here: {n} things are missing."),
    };
    text
}

fn write_remedies(text: &mut String, indent: &str, remedies: &[Remedy]) {
    for Remedy { who, command } in remedies {
        let _ = writeln!(text, "{indent}{:<11}{command}", format!("{who}:"));
    }
}

fn json(checks: &[Check]) -> Value {
    let checks_json = checks.iter().map(|check| {
        let remedies = check.remedies.iter().filter(|_| check.verdict != Verdict::Ok);
        json!({
            "name": check.name,
            "found": check.found,
            "verdict": check.verdict.word(),
            "remedies": remedies.map(|r| json!({ "who": r.who, "command": r.command })).collect::<Vec<_>>(),
        })
    });
    json!({ "schema": 1, "works": works(checks), "checks": checks_json.collect::<Vec<_>>() })
}

/// The text of a file of /proc or /sys without the line's end; empty where there is none.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim_end().to_string()
}

/// A line of /proc/self/status.
fn status(name: &str) -> String {
    let text = read("/proc/self/status");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_string()
}

fn version() -> kernels::Version {
    let (release, build) = sys::kernel();
    kernels::version(&release, &build, &read("/proc/version_signature"))
}

fn kernel() -> Check {
    let (major, minor, _) = kernels::OLDEST;
    let is_new = version() >= kernels::OLDEST;
    let (release, _) = sys::kernel();
    Check {
        name: "kernel",
        found: format!(
            "Linux {release}{}",
            if is_new { String::new() } else { format!(", older than {major}.{minor}") }
        ),
        // What the version promises is tried below, since distributions take features back to older kernels.
        verdict: if is_new { Verdict::Ok } else { Verdict::Note },
        remedies: NEWER_KERNEL,
    }
}

/// What is known of this kernel's version and matters here.
fn defects() -> Vec<Check> {
    let swaps = Swap::of_this_machine().is_on() && Memory::of_this_process().may_swap;
    let has_huge_pages = chosen(&read(&format!("{HUGE_PAGES_DIR}/enabled"))) != "never";
    let in_use = [(swaps, Needs::Swap), (has_huge_pages, Needs::HugePages)];
    let in_use: Vec<Needs> = in_use.into_iter().filter_map(|(is, what)| is.then_some(what)).collect();
    let check = |defect: &kernels::Defect| Check {
        name: "kernel's defect",
        found: defect.sentence(),
        verdict: Verdict::Note,
        remedies: defect.remedies,
    };
    kernels::defects(version(), &in_use).into_iter().map(check).collect()
}

/// The features that make evicted memory safe, then those that make it better.
const NEEDED: [(u32, &str); 3] = [
    (g::UFFD_FEATURE_EVENT_REMAP, "EVENT_REMAP"),
    (g::UFFD_FEATURE_EVENT_REMOVE, "EVENT_REMOVE"),
    (g::UFFD_FEATURE_EVENT_UNMAP, "EVENT_UNMAP"),
];

fn userfaultfd() -> Check {
    let (found, verdict, remedies) = match probe::userfaultfd() {
        Ok((way, features)) => {
            let way = match way {
                Way::SystemCall => "by the system call",
                Way::Device => "by /dev/userfaultfd",
            };
            let lacking: Vec<_> =
                NEEDED.iter().filter(|(bit, _)| features & *bit as u64 == 0).map(|(_, name)| *name).collect();
            match lacking.is_empty() {
                true => (format!("{way}, {} features", features.count_ones()), Verdict::Ok, RIGHTS),
                false => (format!("{way}, without {}", lacking.join(", ")), Verdict::Missing, NEWER_KERNEL),
            }
        }
        Err(refused) => (refusal(refused), Verdict::Missing, RIGHTS),
    };
    Check { name: "userfaultfd", found, verdict, remedies }
}

/// Which right is missing.
fn refusal(refused: Refused) -> String {
    let capability = u64::from_str_radix(&status("CapEff"), 16).is_ok_and(|set| set >> 19 & 1 == 1);
    let open_to_all = read("/proc/sys/vm/unprivileged_userfaultfd") == "1";
    let why = match refused.system_call {
        Errno::ENOSYS => "not in this kernel, or a seccomp filter",
        _ if capability || open_to_all => "a seccomp filter or a security module",
        _ => "no CAP_SYS_PTRACE, vm.unprivileged_userfaultfd is 0",
    };
    let device = match refused.device {
        Errno::ENOENT => "not there",
        errno => errno.name(),
    };
    format!("{} ({why}); /dev/userfaultfd: {device}", refused.system_call.name())
}

/// A check that is a trial.
fn tried(name: &'static str, since: &str, trial: Result<(), Errno>, remedies: &'static [Remedy]) -> Check {
    match trial {
        Ok(()) => Check { name, found: "works".into(), verdict: Verdict::Ok, remedies },
        Err(Errno::ENOTTY | Errno::EINVAL) => Check {
            name,
            found: format!("not in this kernel ({since})"),
            verdict: Verdict::Missing,
            remedies: NEWER_KERNEL,
        },
        Err(errno) => {
            Check { name, found: format!("{errno} ({since})"), verdict: Verdict::Missing, remedies }
        }
    }
}

fn moves() -> Check {
    tried("UFFDIO_MOVE", "since Linux 6.8", probe::moves_pages(), RIGHTS)
}

fn pagemap_scan() -> Check {
    tried("PAGEMAP_SCAN", "since Linux 6.7", probe::scans_pagemap(), PROC)
}

fn procmap_query() -> Check {
    tried("PROCMAP_QUERY", "since Linux 6.11", probe::queries_mappings(), PROC)
}

/// The directory that libzfolio.so is loaded from, created for a trial.
fn library() -> Check {
    let (found, verdict) = match RunDir::create(LIBRARY, 0, Settings::default(), &[]) {
        Ok(dir) => (format!("loads from {}", dir.parent().display()), Verdict::Ok),
        Err(e) => (format!("{e:#}"), Verdict::Missing),
    };
    Check { name: "library", found, verdict, remedies: CODE }
}

/// What it means that a call of libc's does not pass the library.
fn without(site: Site) -> &'static str {
    match site {
        Site::Clone => {
            "a fork brings all memory home first, and a process has an engine from its first larger mapping"
        }
        Site::Mmap => "what is mapped is not seen, and every process has an engine",
        Site::Mremap => "mappings grow unseen, and a process has an engine from its first larger one",
        Site::Brk => "the heap grows unseen, and every process has an engine",
    }
}

/// Which of libc's own system calls pass the library.
fn hooks(libc: Option<PathBuf>) -> Check {
    let inspected = libc.or_else(glibc::loaded).map(|file| glibc::inspect(&file));
    let names = |sites: &[Site]| sites.iter().map(|site| site.name()).collect::<Vec<_>>().join(", ");
    let (found, verdict) = match inspected {
        None => ("no glibc".to_string(), Verdict::Note),
        Some(Err(e)) => (format!("{e:#}"), Verdict::Note),
        Some(Ok(libc)) => match libc.missing.is_empty() {
            true => (format!("glibc {}: {}", libc.version, names(&libc.found)), Verdict::Ok),
            false => {
                let meaning = libc.missing.iter().map(|site| without(*site)).collect::<Vec<_>>().join("; ");
                (format!("glibc {}: not {}: {meaning}", libc.version, names(&libc.missing)), Verdict::Note)
            }
        },
    };
    Check { name: "hooks in libc", found, verdict, remedies: GLIBC }
}

/// The chosen word of `always [madvise] never`.
fn chosen(text: &str) -> &str {
    text.split(['[', ']']).nth(1).unwrap_or("")
}

const HUGE_PAGES_DIR: &str = "/sys/kernel/mm/transparent_hugepage";

fn huge_pages() -> Check {
    let mode = read(&format!("{HUGE_PAGES_DIR}/enabled"));
    let mode = chosen(&mode);
    let mut sizes: Vec<(u64, String)> = fs::read_dir(HUGE_PAGES_DIR)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_str()?.to_string();
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let mode = read(&format!("{HUGE_PAGES_DIR}/{name}/enabled"));
            Some((kib << 10, chosen(&mode).to_string()))
        })
        .filter(|(_, mode)| !["", "never"].contains(&mode.as_str()))
        .collect();
    sizes.sort();
    let sizes: Vec<_> = sizes.iter().map(|(bytes, mode)| format!("{} {mode}", Bytes(*bytes))).collect();
    let sizes = if sizes.is_empty() { "no size enabled".into() } else { sizes.join(", ") };
    let (found, verdict) = match mode {
        "" => ("not in this kernel".to_string(), Verdict::Note),
        "never" => ("never: memory moves in base pages".to_string(), Verdict::Note),
        _ => (format!("{mode} ({sizes})"), Verdict::Ok),
    };
    Check { name: "huge pages", found, verdict, remedies: HUGE_PAGES }
}

/// A check of a number that is better not below `least`.
fn at_least(name: &'static str, value: u64, least: u64, why: &str, remedies: &'static [Remedy]) -> Check {
    match value < least {
        true => Check { name, found: format!("{value}: {why}"), verdict: Verdict::Note, remedies },
        false => Check { name, found: value.to_string(), verdict: Verdict::Ok, remedies },
    }
}

fn max_map_count() -> Check {
    let value = read("/proc/sys/vm/max_map_count").parse().unwrap_or(0);
    at_least("max_map_count", value, 65530, "a program with many mappings may reach it earlier", MAPS)
}

fn overcommit() -> Check {
    let (found, verdict) = match read("/proc/sys/vm/overcommit_memory").as_str() {
        "0" => ("0, heuristic".to_string(), Verdict::Ok),
        "1" => ("1, always".to_string(), Verdict::Ok),
        "2" => ("2, strict: what is squeezed still counts as committed".to_string(), Verdict::Note),
        other => (format!("unknown ({other})"), Verdict::Note),
    };
    Check { name: "overcommit", found, verdict, remedies: OVERCOMMIT }
}

fn address_space() -> Check {
    let (found, verdict) = match sys::soft_limit(libc::RLIMIT_AS) {
        None => ("no limit".to_string(), Verdict::Ok),
        Some(bytes) => (format!("{}: the pool's addresses count, too", Bytes(bytes)), Verdict::Note),
    };
    Check { name: "address space", found, verdict, remedies: ADDRESS_SPACE }
}

fn processes() -> Check {
    match sys::soft_limit(libc::RLIMIT_NPROC) {
        None => {
            Check { name: "processes", found: "no limit".into(), verdict: Verdict::Ok, remedies: PROCESSES }
        }
        Some(count) => at_least("processes", count, 128, "each managed process takes one more", PROCESSES),
    }
}

/// The engine runs on the CPU of a thread that misses often, as SCHED_IDLE, and must be able to leave that again (the engine's placement.rs).
fn scheduling() -> Check {
    let (found, verdict) = match std::thread::spawn(uffd::sys::may_yield).join() {
        Ok(true) => ("SCHED_IDLE can be left again".into(), Verdict::Ok),
        _ => ("SCHED_IDLE cannot be left again: slower at random access".into(), Verdict::Note),
    };
    Check { name: "scheduling", found, verdict, remedies: SCHEDULING }
}

fn seccomp() -> Check {
    // A filter that refuses what zfolio needs shows in the trials above.
    let found = match status("Seccomp").as_str() {
        "0" | "" => "none",
        "1" => "strict",
        _ => "a filter; what it refuses shows above",
    };
    Check { name: "seccomp", found: found.into(), verdict: Verdict::Ok, remedies: &[] }
}

fn memory(memory: &Memory) -> Check {
    let (ram, default) = (Bytes(memory.ram_bytes), Bytes(memory.default_bytes()));
    let found = match &memory.cgroup {
        Some(limit) => {
            format!("{ram}, cgroup limit {}; --memory is {default} by default", Bytes(limit.bytes))
        }
        None => format!("{ram}, no cgroup limit; --memory is {default} by default"),
    };
    Check { name: "memory", found, verdict: Verdict::Ok, remedies: &[] }
}

/// Nothing of zfolio's is locked in memory (docs/kernels.md says why), so the kernel may swap all of it.
fn swap(swap: &Swap, may_swap: bool) -> Check {
    let words = swap.words();
    let (found, verdict) = match (swap.is_on(), may_swap) {
        (false, _) => ("none".to_string(), Verdict::Ok),
        (true, false) => (format!("{words}; not for this control group"), Verdict::Ok),
        (true, true) => (
            format!(
                "{words}: the kernel may swap what is squeezed, too; that counts against the limit all the same"
            ),
            Verdict::Note,
        ),
    };
    Check { name: "swap", found, verdict, remedies: SWAP }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Check {
        let found = "the system call: EPERM; /dev/userfaultfd: EACCES".to_string();
        Check { name: "userfaultfd", found, verdict: Verdict::Missing, remedies: RIGHTS }
    }

    #[test]
    fn versions() {
        let (release, _) = sys::kernel();
        let (major, minor, _) = version();
        assert!(release.starts_with(&format!("{major}.{minor}")), "{release}");
        assert_eq!(chosen("always [madvise] never"), "madvise");
    }

    #[test]
    fn swap_is_told_with_what_it_means() {
        let [none, on] = ["", "title\n/swap.img file 2097152 0 -2\n"].map(Swap::listed);
        assert_eq!(swap(&none, true).verdict, Verdict::Ok);
        assert_eq!(swap(&on, false).found, "/swap.img of 2 GiB; not for this control group");
        let beneath = swap(&on, true);
        assert_eq!(beneath.verdict, Verdict::Note);
        assert!(beneath.found.starts_with("/swap.img of 2 GiB: the kernel may swap"), "{}", beneath.found);
    }

    #[test]
    fn what_is_missing_is_shown_with_its_remedies() {
        let fine = Check {
            name: "kernel",
            found: "Linux 6.18".into(),
            verdict: Verdict::Ok,
            remedies: NEWER_KERNEL,
        };
        assert_eq!(
            text(&[fine.clone(), refused()], false),
            "\
ok       kernel           Linux 6.18
missing  userfaultfd      the system call: EPERM; /dev/userfaultfd: EACCES
           root:      run zfolio as root, or give it CAP_SYS_PTRACE
           root:      sysctl -w vm.unprivileged_userfaultfd=1    (for every user)
           user:      sudo setfacl -m u:$USER:rw /dev/userfaultfd
           container: docker run --device /dev/userfaultfd ...

zfolio run does not work here: one thing is missing.
"
        );
        let json = json(&[fine, refused()]);
        assert_eq!(json["works"], false);
        assert_eq!(json["checks"][1]["remedies"][3]["who"], "container");
        assert_eq!(json["checks"][0]["remedies"], json!([]));
    }

    #[test]
    fn every_check_that_can_fail_has_a_remedy_for_each_kind_of_person() {
        for remedies in [
            RIGHTS,
            NEWER_KERNEL,
            PROC,
            CODE,
            GLIBC,
            HUGE_PAGES,
            MAPS,
            OVERCOMMIT,
            ADDRESS_SPACE,
            PROCESSES,
            SWAP,
        ] {
            for who in ["root", "user", "container"] {
                assert!(remedies.iter().any(|r| r.who == who), "{remedies:?}");
            }
        }
    }
}
