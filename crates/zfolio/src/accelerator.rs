//! Intel's accelerator as a user sees it: what `zfolio doctor` says of it, why a run with `deflate-iaa` does without,
//! and what it did in a run.

use crate::check::{Check, Remedy, Verdict};
use crate::lines::{Count, INDENT};
use acomp::Compressor;
use iaa::Reason;
use iaa::setup::Setup;
use iaa::stats::{CpuStats, QueueStats};
use memcg::Memcg;
use memcg::accelerator::{Attached, CPU_COUNTERS, QUEUE_COUNTERS, REASONS};
use serde_json::{Value, json};
use zswap::Choice;

/// Devices and queues, each tried, and what to run where none can be used.
pub fn check(setup: Setup) -> Check {
    let has_devices = setup.devices.as_ref().is_ok_and(|devices| !devices.is_empty());
    let verdict = if has_devices && setup.usable_count() == 0 { Verdict::Note } else { Verdict::Ok };
    let mut found = setup.summary();
    for (at, (name, state)) in setup.queues.iter().enumerate() {
        found += if at == 0 { ": " } else { "; " };
        found += name;
        match state {
            Ok(()) => found += " works",
            Err(why) => found += &format!(": {why}"),
        }
    }
    // They live as long as the few milliseconds of this process.
    let command = |command: String| Remedy { who: "root", command: command.leak() };
    let mut remedies: Vec<Remedy> = setup.commands.into_iter().map(command).collect();
    if verdict == Verdict::Note {
        remedies.push(Remedy { who: "user", command: "ask root for it, or take another --compressor" });
        remedies.push(Remedy { who: "container", command: "docker run --device /dev/iax ..." });
    }
    Check { name: "IAA", found, verdict, remedies: remedies.leak() }
}

/// What a user who asked for `deflate-iaa` should know: why it runs in software.
pub fn shortfall(compressor: Compressor, look: impl FnOnce() -> Setup) -> Option<String> {
    if compressor.name() != "deflate-iaa" {
        return None;
    }
    let setup = look();
    match &setup.devices {
        Ok(devices) if devices.is_empty() => Some(setup.summary()),
        _ if setup.usable_count() > 0 => None,
        _ => Some(format!(
            "{}: deflate-iaa runs in software (`zfolio doctor` says what helps)",
            setup.summary()
        )),
    }
}

/// What a user who measures `deflate-iaa` should know where a device could do it: processor time is measured, of which
/// a device takes next to none.
pub fn unmeasured(setup: &Setup) -> Option<String> {
    (setup.usable_count() > 0).then(|| "deflate-iaa in software, though there is a device for it".to_string())
}

/// What devices did in a run, for all of its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Workers, by [`Attached`].
    workers: [u64; 3],
    /// By device and number.
    queues: Vec<(u32, u32, [u64; QUEUE_COUNTERS])>,
    cpus: Vec<(usize, [u64; CPU_COUNTERS])>,
    /// What the CPU did of what a device was asked for.
    reasons: [u64; REASONS],
}

impl Usage {
    /// Reads the shared page; `None` where the compressor is for no device.
    pub fn read(memcg: &Memcg) -> Option<Usage> {
        let choice = Choice::parse(memcg.settings.compressor.as_str()).ok()?;
        let page = choice.device().map(|_| &memcg.accelerator)?;
        let mut queues: Vec<_> = page.queues().collect();
        queues.sort_unstable();
        Some(Usage { workers: page.workers(), queues, cpus: page.cpus().collect(), reasons: page.reasons() })
    }

    /// For the summary: how many units the device did, what the CPU did instead and why, and who had no device; lines
    /// of at most 80 columns. `None` where nobody was to have one.
    pub fn text(&self) -> Option<String> {
        let workers: u64 = self.workers.iter().sum();
        if workers == 0 {
            return None;
        }
        let mut parts = Vec::new();
        if self.workers[Attached::Yes as usize] > 0 {
            let mut by_device = CpuStats::default().values();
            for (_, counts) in &self.cpus {
                by_device.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            let queues = self.queues.len();
            let plural = if queues == 1 { "" } else { "s" };
            parts.push(format!("{} units by {queues} queue{plural}", Count(by_device[0] + by_device[1])));
            let software: u64 = self.reasons.iter().sum();
            let counted = Reason::ALL.into_iter().zip(self.reasons).filter(|(_, count)| *count > 0);
            for (at, (reason, count)) in counted.enumerate() {
                let total =
                    if at == 0 { format!("{} in software: ", Count(software)) } else { String::new() };
                parts.push(format!("{total}{} {}", reason.name().replace('_', " "), Count(count)));
            }
        }
        let mut lack = |attached: Attached, what: &str| match self.workers[attached as usize] {
            0 => {}
            count if count == workers => {
                parts.push(format!("all in software: {count} of {workers} workers {what}"))
            }
            count => parts.push(format!("{count} of {workers} workers {what}")),
        };
        lack(Attached::NoQueue, "had no queue");
        lack(Attached::NotApart, "had no memory of their own");
        Some(wrap(&parts))
    }

    /// For programs. `devices` are those with a queue that was open in any process, each with its `queues` and what
    /// these have done: `comp_calls` and `decomp_calls` units, `comp_bytes_out` and `decomp_bytes_in` compressed bytes,
    /// the same of CRCs (`crc_`), of which a run makes none, `descriptors` that were taken and `refused`, `timeouts`,
    /// `page_faults`, and other `errors`. `cpus` are those on which a worker asked: units done by a device, and by the
    /// CPU (`sw_`). `software` has the latter by their reason. `workers` are those of all processes: that had a queue
    /// (`with_queue`), that could open none (`no_queue`), and that must not since they share their program's memory
    /// (`not_apart`).
    pub fn json(&self) -> Value {
        let mut devices: Vec<(u32, Vec<Value>)> = Vec::new();
        for (device, id, counts) in &self.queues {
            let mut queue = named(QueueStats::NAMES, counts);
            queue["name"] = json!(format!("wq{device}.{id}"));
            match devices.last_mut().filter(|(last, _)| last == device) {
                Some((_, queues)) => queues.push(queue),
                None => devices.push((*device, vec![queue])),
            }
        }
        let device =
            |(device, queues)| json!({ "name": format!("iax{device}"), "queues": Value::Array(queues) });
        let cpu = |(cpu, counts): &(usize, [u64; CPU_COUNTERS])| {
            let mut json = named(CpuStats::NAMES, counts);
            json["cpu"] = json!(cpu);
            json
        };
        json!({
            "devices": devices.into_iter().map(device).collect::<Vec<_>>(),
            "cpus": self.cpus.iter().map(cpu).collect::<Vec<_>>(),
            "software": named(&Reason::ALL.map(Reason::name), &self.reasons),
            "workers": named(&["with_queue", "no_queue", "not_apart"], &self.workers),
        })
    }
}

/// An object of counts.
fn named(names: &[&str], counts: &[u64]) -> Value {
    names.iter().zip(counts).map(|(name, count)| (name.to_string(), json!(count))).collect()
}

/// Joins parts with semicolons, in lines that fit behind a name.
fn wrap(parts: &[String]) -> String {
    let mut lines = vec![String::new()];
    for (at, part) in parts.iter().enumerate() {
        let mark = if at + 1 < parts.len() { ";" } else { "" };
        let line = lines.last_mut().expect("begins with one");
        if line.is_empty() || INDENT + line.len() + 1 + part.len() + mark.len() <= 80 {
            *line += &format!("{}{part}{mark}", if line.is_empty() { "" } else { " " });
        } else {
            lines.push(format!("{part}{mark}"));
        }
    }
    lines.join(&format!("\n{:INDENT$}", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(comp_calls: u64) -> [u64; QUEUE_COUNTERS] {
        QueueStats { comp_calls, descriptors: 2 * comp_calls, ..QueueStats::default() }.values()
    }

    #[test]
    fn what_a_device_did_is_said_and_why_it_did_not() {
        let mut usage = Usage { workers: [3, 1, 0], ..Usage::default() };
        usage.queues = vec![(1, 0, queue(1000)), (1, 1, queue(200)), (3, 0, queue(34))];
        usage.cpus = vec![(0, [1000, 5, 20, 0, 0, 0]), (63, [234, 0, 1, 1, 0, 0])];
        assert_eq!(usage.text().unwrap(), "1,239 units by 3 queues; 1 of 4 workers had no queue");
        usage.reasons[Reason::Full as usize] = 20;
        usage.reasons[Reason::Timeout as usize] = 2;
        assert_eq!(
            usage.text().unwrap(),
            "1,239 units by 3 queues; 22 in software: queue full 20; timeout 2;\n              1 of 4 workers had no queue"
        );
        let json = usage.json();
        assert_eq!(json["devices"][0]["name"], "iax1");
        assert_eq!(json["devices"][0]["queues"][1]["name"], "wq1.1");
        assert_eq!(json["devices"][0]["queues"][1]["descriptors"], 400);
        assert_eq!(json["devices"][1]["queues"][0]["comp_calls"], 34);
        assert_eq!((&json["cpus"][1]["cpu"], &json["cpus"][1]["sw_decomp_calls"]), (&json!(63), &json!(1)));
        assert_eq!((&json["software"]["queue_full"], &json["workers"]["no_queue"]), (&json!(20), &json!(1)));
        usage.reasons = [1_234_567_890_123; REASONS];
        let text = usage.text().unwrap();
        assert!(text.lines().all(|line| line.trim_start().len() <= 80 - INDENT), "{text}");
    }

    #[test]
    fn who_had_no_device_is_said() {
        let text = |workers| Usage { workers, ..Usage::default() }.text();
        assert_eq!(text([0; 3]), None);
        assert_eq!(text([0, 4, 0]).unwrap(), "all in software: 4 of 4 workers had no queue");
        assert_eq!(
            text([0, 1, 1]).unwrap(),
            "1 of 2 workers had no queue;\n              1 of 2 workers had no memory of their own"
        );
        assert_eq!(text([2, 0, 0]).unwrap(), "0 units by 0 queues");
    }

    #[test]
    fn the_page_is_read_where_the_compressor_is_for_a_device() {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.accelerator.add_queue(3, 1, queue(5));
        memcg.accelerator.add_queue(1, 0, queue(7));
        memcg.accelerator.count_worker(Attached::Yes);
        for (name, is_read) in [
            ("zstd:1", false),
            ("lz4:1,zstd:1", false),
            ("deflate-iaa:fixed", true),
            ("lz4:1,deflate-iaa:fixed", true),
            ("deflate-iaa:fixed,zstd:1", true),
        ] {
            let compressor = memcg::Text::new(name).unwrap();
            memcg.init(1 << 30, memcg::Settings { compressor, ..memcg::Settings::default() });
            assert_eq!(Usage::read(&memcg).is_some(), is_read, "{name}");
        }
        let usage = Usage::read(&memcg).unwrap();
        assert_eq!(usage.queues, [(1, 0, queue(7)), (3, 1, queue(5))]);
    }
    use iaa_model::Tree;

    fn why(compressor: &str, tree: &Tree) -> Option<String> {
        shortfall(Compressor::parse(compressor).unwrap(), || Setup::look(tree.root()))
    }

    #[test]
    fn no_device_is_one_line() {
        let tree = Tree::new("zfolio-none");
        let check = check(Setup::look(tree.root()));
        assert_eq!(check.found, "no IAA device: deflate-iaa runs in software");
        assert_eq!((check.verdict, check.remedies.len()), (Verdict::Ok, 0));
        assert_eq!(why("deflate-iaa", &tree).unwrap(), check.found);
        assert_eq!(unmeasured(&Setup::look(tree.root())), None);
        assert_eq!(shortfall(Compressor::parse("zstd").unwrap(), || panic!("nobody asked")), None);
    }

    #[test]
    fn a_device_that_is_set_up_is_named_with_its_queues() {
        let tree = Tree::new("zfolio-works");
        tree.device(1, 0);
        tree.queue(1, 0, "shared", 64);
        tree.queue(1, 1, "dedicated", 64);
        tree.set(1, "wq1.1/type", "kernel");
        let check = check(Setup::look(tree.root()));
        assert_eq!(
            check.found,
            "1 IAA device, 1 of 2 work queues usable: wq1.0 works; wq1.1: it is not of type user"
        );
        assert_eq!(check.verdict, Verdict::Ok);
        assert_eq!(why("deflate-iaa", &tree), None);
        assert!(unmeasured(&Setup::look(tree.root())).is_some());
    }

    #[test]
    fn a_device_that_is_not_set_up_gets_the_commands() {
        let tree = Tree::new("zfolio-kernels");
        tree.device(1, 0);
        tree.queue(1, 0, "dedicated", 128);
        tree.set(1, "wq1.0/type", "kernel");
        let check = check(Setup::look(tree.root()));
        assert_eq!(check.verdict, Verdict::Note);
        assert_eq!(check.found, "1 IAA device, 0 of 1 work queue usable: wq1.0: it is not of type user");
        let commands: Vec<_> = check.remedies.iter().map(|remedy| (remedy.who, remedy.command)).collect();
        assert_eq!(commands[0], ("root", "accel-config disable-wq iax1/wq1.0"));
        assert!(commands.contains(&("root", "accel-config enable-wq iax1/wq1.0")), "{commands:?}");
        assert_eq!(
            why("deflate-iaa", &tree).unwrap(),
            "1 IAA device, 0 of 1 work queue usable: deflate-iaa runs in software (`zfolio doctor` says what helps)"
        );
    }
}
