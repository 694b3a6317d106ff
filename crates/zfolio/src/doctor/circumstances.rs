//! What zfolio works without, with less than it could have.

use super::remedies::{ADDRESS_SPACE, HUGE_PAGES, MAPS, OVERCOMMIT, PROCESSES, SCHEDULING, SWAP};
use super::{read, status};
use crate::cgroup::Memory;
use crate::check::{Check, Remedy, Verdict};
use crate::size::Bytes;
use crate::swap::Swap;
use rustix::process::{Resource, getrlimit};
use std::fs;

/// The chosen word of `always [madvise] never`.
pub(super) fn chosen(text: &str) -> &str {
    text.split(['[', ']']).nth(1).unwrap_or("")
}

pub(super) const HUGE_PAGES_DIR: &str = "/sys/kernel/mm/transparent_hugepage";

pub(super) fn huge_pages() -> Check {
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

pub(super) fn max_map_count() -> Check {
    let value = read("/proc/sys/vm/max_map_count").parse().unwrap_or(0);
    at_least("max_map_count", value, 65530, "a program with many mappings may reach it earlier", MAPS)
}

pub(super) fn overcommit() -> Check {
    let (found, verdict) = match read("/proc/sys/vm/overcommit_memory").as_str() {
        "0" => ("0, heuristic".to_string(), Verdict::Ok),
        "1" => ("1, always".to_string(), Verdict::Ok),
        "2" => ("2, strict: what is squeezed still counts as committed".to_string(), Verdict::Note),
        other => (format!("unknown ({other})"), Verdict::Note),
    };
    Check { name: "overcommit", found, verdict, remedies: OVERCOMMIT }
}

pub(super) fn address_space() -> Check {
    let (found, verdict) = match getrlimit(Resource::As).current {
        None => ("no limit".to_string(), Verdict::Ok),
        Some(bytes) => (format!("{}: the pool's addresses count, too", Bytes(bytes)), Verdict::Note),
    };
    Check { name: "address space", found, verdict, remedies: ADDRESS_SPACE }
}

pub(super) fn processes() -> Check {
    match getrlimit(Resource::Nproc).current {
        None => {
            Check { name: "processes", found: "no limit".into(), verdict: Verdict::Ok, remedies: PROCESSES }
        }
        Some(count) => at_least(
            "processes",
            count,
            128,
            "each managed process takes two more, and up to nine",
            PROCESSES,
        ),
    }
}

/// The engine runs on the CPU of a thread that misses often, as SCHED_IDLE, and must be able to leave that again
/// (the engine's placement.rs).
pub(super) fn scheduling() -> Check {
    let (found, verdict) = match std::thread::spawn(uffd::sys::may_yield).join() {
        Ok(true) => ("SCHED_IDLE can be left again".into(), Verdict::Ok),
        _ => ("SCHED_IDLE cannot be left again: slower at random access".into(), Verdict::Note),
    };
    Check { name: "scheduling", found, verdict, remedies: SCHEDULING }
}

pub(super) fn seccomp() -> Check {
    // A filter that refuses what zfolio needs shows in the trials above.
    let found = match status("Seccomp").as_str() {
        "0" | "" => "none",
        "1" => "strict",
        _ => "a filter; what it refuses shows above",
    };
    Check { name: "seccomp", found: found.into(), verdict: Verdict::Ok, remedies: &[] }
}

pub(super) fn memory(memory: &Memory) -> Check {
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
pub(super) fn swap(swap: &Swap, may_swap: bool) -> Check {
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

    #[test]
    fn swap_is_told_with_what_it_means() {
        let [none, on] = ["", "title\n/swap.img file 2097152 0 -2\n"].map(Swap::listed);
        assert_eq!(swap(&none, true).verdict, Verdict::Ok);
        assert_eq!(swap(&on, false).found, "/swap.img of 2 GiB; not for this control group");
        let beneath = swap(&on, true);
        assert_eq!(beneath.verdict, Verdict::Note);
        assert!(beneath.found.starts_with("/swap.img of 2 GiB: the kernel may swap"), "{}", beneath.found);
    }
}
