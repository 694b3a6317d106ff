//! Can this machine do it? Each check says what was found, what that means, and the command that changes it. `zfolio
//! doctor` shows all of them; `zfolio run` stops at the first that makes it impossible.

mod circumstances;
mod remedies;

use crate::accelerator;
use crate::args::Doctor;
use crate::cgroup::Memory;
use crate::check::{Check, Remedy, Verdict};
use crate::glibc;
use crate::kernels::{self, Needs};
use crate::library::LIBRARY;
use crate::out;
use crate::probe::{self, Refused, Way};
use crate::rundir::RunDir;
use crate::swap::Swap;
use crate::sys;
use circumstances::{
    HUGE_PAGES_DIR, address_space, chosen, huge_pages, max_map_count, memory, overcommit, processes,
    scheduling, seccomp, swap,
};
use iaa::setup::Setup;
use linux_raw_sys::general as g;
use memcg::Settings;
use remedies::{CODE, GLIBC, NEWER_KERNEL, PROC, RIGHTS};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use uffd::sites::Site;
use uffd::sys::Errno;

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
        touches(),
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
    let colour =
        std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let status = out::show_with(&text(&checks, colour), (!works(&checks)).into());
    if let Some(path) = &args.json
        && let Err(e) = fs::write(path, format!("{:#}\n", json(&checks)))
    {
        eprintln!("zfolio: --json {}: {e}", path.display());
        return 2;
    }
    status
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

fn kernel() -> Check {
    let (major, minor, _) = kernels::OLDEST;
    let is_new = kernels::running() >= kernels::OLDEST;
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
    kernels::defects(kernels::running(), &in_use).into_iter().map(check).collect()
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

/// Whether the kernel tells which pages are touched. Without it pages are sampled.
fn touches() -> Check {
    let (found, verdict) = match probe::tells_touches() {
        Ok(true) => ("told by the kernel".to_string(), Verdict::Ok),
        Ok(false) => ("sampled; Linux 7.3 and later tell them".to_string(), Verdict::Ok),
        Err(errno) => (format!("cannot be tried: {errno}"), Verdict::Note),
    };
    Check { name: "touched pages", found, verdict, remedies: &[] }
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

#[cfg(test)]
mod tests {
    use super::remedies::*;
    use super::*;

    fn refused() -> Check {
        let found = "the system call: EPERM; /dev/userfaultfd: EACCES".to_string();
        Check { name: "userfaultfd", found, verdict: Verdict::Missing, remedies: RIGHTS }
    }

    #[test]
    fn versions() {
        let (release, _) = sys::kernel();
        let (major, minor, _) = kernels::running();
        assert!(release.starts_with(&format!("{major}.{minor}")), "{release}");
        assert_eq!(chosen("always [madvise] never"), "madvise");
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
