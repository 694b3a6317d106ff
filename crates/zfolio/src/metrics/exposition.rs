//! The figures in the text format of Prometheus, version 0.0.4.
//!
//! Names follow from the tables of the run page: `zfolio_` and the counter's name, the unit if the name does not end
//! with it, and `_total`. Times are in seconds. The same of a process that has an engine begins with `zfolio_process_`,
//! and has the labels `pid` and `name`. The run's counters have what its processes of before have counted, so that they
//! never fall.

use crate::snapshot::{Managed, Snapshot, folio_size};
use memcg::hist::Histogram;
use memcg::{Counter, Counts, GAUGES, Stat, Unit};
use std::fmt::{self, Write};

/// What a client is told that it gets.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The buckets of a histogram end below these powers of two, in nanoseconds: 1 µs to 4.3 s.
const BUCKETS: std::ops::RangeInclusive<u32> = 10..=32;

/// What is known of the run beside its page.
pub struct Labels {
    /// CMD's name.
    pub command: String,
}

/// All of it. `told` has the counters of the run as they are to be told.
pub fn text(now: &Snapshot, told: &Stat, labels: &Labels) -> String {
    let mut out = String::with_capacity(16 << 10);
    write(&mut out, now, told, labels).expect("a string takes all that is written");
    out
}

fn write(out: &mut String, now: &Snapshot, told: &Stat, labels: &Labels) -> fmt::Result {
    write_run(out, now, labels)?;
    write_counters(out, "zfolio_", &[(String::new(), told)])?;
    let of_each: Vec<(String, &Managed)> =
        now.processes.iter().map(|managed| (names(managed), managed)).collect();
    for (at, gauge) in GAUGES.iter().enumerate() {
        let values = of_each.iter().map(|(names, managed)| (&**names, managed.gauges[at]));
        write_gauge(
            out,
            &format!("zfolio_process_{}", gauge.name),
            &format!("{} {}", gauge.unit.name(), gauge.text),
            values,
        )?;
    }
    let shares = of_each.iter().map(|(names, managed)| (&**names, managed.share_bytes));
    write_gauge(out, "zfolio_process_share_bytes", "bytes that the process may hold", shares)?;
    let stats: Vec<(String, &Stat)> =
        of_each.iter().map(|(names, managed)| (names.clone(), &managed.stat)).collect();
    write_counters(out, "zfolio_process_", &stats)
}

/// What the run as a whole is and holds.
fn write_run(out: &mut String, now: &Snapshot, labels: &Labels) -> fmt::Result {
    let info = format!(
        "version=\"{}\",compressor=\"{}\",command=\"{}\"",
        env!("CARGO_PKG_VERSION"),
        escaped(&now.compressors.now),
        escaped(&labels.command)
    );
    write_gauge(out, "zfolio_run_info", "1, with what runs as labels", [(&*info, 1)].into_iter())?;
    for (name, text, value) in &now.memory {
        let unit = if name.ends_with("_pages") { Unit::Pages } else { Unit::Bytes };
        let text = format!("{} {text}", unit.name());
        write_gauge(out, &format!("zfolio_{name}"), &text, [("", *value)].into_iter())?;
    }
    let living = now.processes.len() as u64;
    write_gauge(out, "zfolio_processes", "processes that have an engine now", [("", living)].into_iter())?;
    for (name, text, value) in [
        ("managed", "processes that an engine was started for", now.managed),
        ("unmanaged", "processes whose engine could not do anything", now.unmanaged),
    ] {
        let name = format!("zfolio_processes_{name}_total");
        write_family(out, &name, "counter", text)?;
        writeln!(out, "{name} {value}")?;
    }
    Ok(())
}

/// The counters, folios and histograms of these, by their labels.
fn write_counters(out: &mut String, prefix: &str, of: &[(String, &Stat)]) -> fmt::Result {
    let counts: Vec<(&str, Counts)> =
        of.iter().map(|(labels, stat)| (&**labels, Counts::from(*stat))).collect();
    for (at, counter) in memcg::COUNTERS.iter().enumerate().filter(|_| !of.is_empty()) {
        let name = format!("{prefix}{}_total", base_name(counter));
        write_family(out, &name, "counter", &help(counter))?;
        for (labels, counts) in &counts {
            let (_, value) = counts.values().nth(at).expect("it is as long as its table");
            write_sample(out, &name, labels, &amount(counter.unit, value))?;
        }
    }
    for (at, counter) in memcg::FOLIOS.iter().enumerate().filter(|_| !of.is_empty()) {
        let name = format!("{prefix}{}_total", base_name(counter));
        write_family(out, &name, "counter", &help(counter))?;
        for (labels, counts) in &counts {
            let (_, folios) = counts.folios().nth(at).expect("it is as long as its table");
            for (order, count) in folios.iter().enumerate() {
                let labels = join(labels, &format!("size=\"{}\"", folio_size(order)));
                write_sample(out, &name, &labels, &count.to_string())?;
            }
        }
    }
    let histograms = Stat::default();
    for (at, (counter, _)) in histograms.histograms().enumerate() {
        let name = format!("{prefix}{}", base_name(counter));
        let mut is_first = true;
        for (labels, stat) in of {
            let (_, histogram) = stat.histograms().nth(at).expect("it is as long as its table");
            // Most processes never miss: they need no two dozen lines that say so.
            if labels.is_empty() || histogram.count() > 0 {
                if std::mem::take(&mut is_first) {
                    write_family(out, &name, "histogram", &help(counter))?;
                }
                write_histogram(out, &name, labels, histogram, counter.unit)?;
            }
        }
    }
    Ok(())
}

/// The buckets are read once, so that they are those of one moment.
fn write_histogram(out: &mut String, name: &str, labels: &str, of: &Histogram, unit: Unit) -> fmt::Result {
    let sum = amount(unit, of.sum());
    let buckets: Vec<(u64, u64)> = of.buckets().collect();
    let up_to = |end: u64| -> u64 {
        buckets.iter().take_while(|(last, _)| *last <= end).map(|(_, count)| count).sum()
    };
    let bucket = format!("{name}_bucket");
    for shift in BUCKETS {
        let end = (1 << shift) - 1;
        let labels = join(labels, &format!("le=\"{}\"", amount(unit, end)));
        write_sample(out, &bucket, &labels, &up_to(end).to_string())?;
    }
    let all = up_to(u64::MAX).to_string();
    write_sample(out, &bucket, &join(labels, "le=\"+Inf\""), &all)?;
    write_sample(out, &format!("{name}_sum"), labels, &sum)?;
    write_sample(out, &format!("{name}_count"), labels, &all)
}

fn write_gauge<'a>(
    out: &mut String,
    name: &str,
    text: &str,
    values: impl Iterator<Item = (&'a str, u64)>,
) -> fmt::Result {
    for (at, (labels, value)) in values.enumerate() {
        if at == 0 {
            write_family(out, name, "gauge", text)?;
        }
        write_sample(out, name, labels, &value.to_string())?;
    }
    Ok(())
}

fn write_family(out: &mut String, name: &str, kind: &str, text: &str) -> fmt::Result {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    writeln!(out, "# HELP {name} {text}\n# TYPE {name} {kind}")
}

fn write_sample(out: &mut String, name: &str, labels: &str, value: &str) -> fmt::Result {
    match labels {
        "" => writeln!(out, "{name} {value}"),
        _ => writeln!(out, "{name}{{{labels}}} {value}"),
    }
}

/// The name of a counter with its unit: `zswpout_pages`, `stall_seconds`, `faults`.
fn base_name(counter: &Counter) -> String {
    let name = counter.name;
    match counter.unit {
        Unit::Nanoseconds => format!("{}_seconds", name.trim_end_matches("_ns")),
        Unit::Times => name.to_string(),
        unit if name.ends_with(unit.name()) => name.to_string(),
        unit => format!("{name}_{}", unit.name()),
    }
}

fn help(counter: &Counter) -> String {
    let unit = if counter.unit == Unit::Nanoseconds { "seconds" } else { counter.unit.name() };
    format!("{unit} {}", counter.text)
}

/// A value in its unit: nanoseconds as seconds, with all digits.
fn amount(unit: Unit, value: u64) -> String {
    match unit {
        Unit::Nanoseconds => {
            let text = format!("{}.{:09}", value / 1_000_000_000, value % 1_000_000_000);
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        }
        _ => value.to_string(),
    }
}

/// The labels of a process.
fn names(managed: &Managed) -> String {
    format!("pid=\"{}\",name=\"{}\"", managed.process.pid, escaped(&managed.name()))
}

fn join(labels: &str, label: &str) -> String {
    if labels.is_empty() { label.to_string() } else { format!("{labels},{label}") }
}

/// A label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::{COUNTERS, Memcg, Settings, State};
    use std::collections::BTreeSet;
    use std::fs;
    use std::sync::atomic::Ordering::Relaxed;

    const LABELS: fn() -> Labels = || Labels { command: "job \"1\"\\".into() };

    fn memcg() -> Box<Memcg> {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(256 << 20, Settings::default());
        for (pid, name) in [(7, b"one\0\0\0\0\0\0\0\0\0\0\0\0\0"), (8, b"a\"\\\n\0\0\0\0\0\0\0\0\0\0\0\0")] {
            let slot = memcg.claim(pid).unwrap();
            slot.introduce(1, name, 5);
            slot.begin(pid, pid + 100);
            slot.stat.count_out(u16::MAX);
        }
        for ns in [900, 1023, 1024, 20_000, 1 << 33] {
            memcg.slots[0].stat.fault_ns.record(ns);
        }
        let one = &memcg.slots[0];
        one.stat.stall_ns.fetch_add(1_020_000_000, Relaxed);
        one.stat.count_no_room(3);
        one.stat.writeback_ns.record(5_000_000);
        memcg.publish_pages(one, [7, 6, 5, 4]);
        memcg
    }

    fn exposed(memcg: &Memcg) -> String {
        let now = Snapshot::take(memcg, 0);
        text(&now, &now.stat, &LABELS())
    }

    /// The names of all samples, each checked as it goes.
    fn samples(text: &str) -> BTreeSet<String> {
        let (mut families, mut found) = (BTreeSet::new(), BTreeSet::new());
        let mut family = ("", "");
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                family = kind.split_once(' ').unwrap();
                assert!(families.insert(family.0.to_string()), "{}: its samples are in two places", family.0);
            } else if !line.starts_with("# HELP ") {
                let (sample, value) = line.rsplit_once(' ').unwrap();
                assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
                let name = sample.split('{').next().unwrap();
                let end =
                    name.strip_prefix(family.0).unwrap_or_else(|| panic!("{line} is not of {family:?}"));
                let ends: &[&str] =
                    if family.1 == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(ends.contains(&end), "{line}");
                found.insert(name.to_string());
            }
        }
        found
    }

    #[test]
    fn every_counter_of_the_table_is_told_of_run_and_process() {
        let found = samples(&exposed(&memcg()));
        for counter in COUNTERS {
            for prefix in ["zfolio_", "zfolio_process_"] {
                let name = format!("{prefix}{}_total", base_name(counter));
                assert!(found.contains(&name), "{name}");
            }
        }
        for counter in memcg::FOLIOS {
            assert!(
                found.contains(&format!("zfolio_process_{}_folios_total", counter.name)),
                "{}",
                counter.name
            );
        }
        let named: Vec<String> =
            ["zswpout", "faults", "stall_ns", "compressed_in_bytes", "fast_objects", "events"]
                .map(|name| base_name(COUNTERS.iter().find(|counter| counter.name == name).unwrap()))
                .to_vec();
        let expected =
            ["zswpout_pages", "faults", "stall_seconds", "compressed_in_bytes", "fast_objects", "events"];
        assert_eq!(named, expected);
    }

    #[test]
    fn values_labels_and_buckets_are_as_the_format_has_them() {
        let text = exposed(&memcg());
        for line in [
            "zfolio_max_bytes 268435456",
            "zfolio_processes 2",
            "zfolio_zswpout_pages_total 32",
            "zfolio_process_zswpout_pages_total{pid=\"8\",name=\"a\\\"\\\\\\n\"} 16",
            "zfolio_zswpout_folios_total{size=\"64k\"} 2",
            "zfolio_process_swpout_fallback_folios_total{pid=\"7\",name=\"one\",size=\"8k\"} 1",
            "zfolio_swapped_pages 4",
            "zfolio_process_stored_pages{pid=\"7\",name=\"one\"} 7",
            "# HELP zfolio_stored_incompressible_pages pages that are in the pool now as they were, since they did not shrink",
            "zfolio_writeback_seconds_bucket{le=\"0.008388607\"} 1",
            "# TYPE zfolio_writeback_seconds histogram",
            "zfolio_stall_seconds_total 1.02",
            "zfolio_fault_seconds_bucket{le=\"0.000001023\"} 2",
            "zfolio_fault_seconds_bucket{le=\"0.000002047\"} 3",
            "zfolio_fault_seconds_bucket{le=\"4.294967295\"} 4",
            "zfolio_fault_seconds_bucket{le=\"+Inf\"} 5",
            "zfolio_fault_seconds_sum 8.589957539",
            "zfolio_process_fault_seconds_count{pid=\"7\",name=\"one\"} 5",
            "# TYPE zfolio_fault_seconds histogram",
            "# HELP zfolio_faults_total faults on memory that was out",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
        assert!(text.contains("command=\"job \\\"1\\\"\\\\\"} 1\n"), "{text}");
        assert!(!text.contains("zfolio_process_fault_seconds_count{pid=\"8\""), "it has never missed");
    }

    #[test]
    fn a_run_without_processes_has_whole_families_too() {
        let memcg = memcg();
        for slot in memcg.used() {
            slot.state.store(State::Ended as u32, Relaxed);
        }
        let found = samples(&exposed(&memcg));
        assert!(
            found.contains("zfolio_fault_seconds_count")
                && found.iter().all(|name| !name.contains("process_"))
        );
    }

    /// A panel that asks for what is not exported shows nothing, and nobody is told.
    #[test]
    fn every_metric_of_the_dashboard_is_exported() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana/zfolio.json");
        let dashboard: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let (exported, mut asked) = (samples(&exposed(&memcg())), BTreeSet::new());
        let mut open = vec![&dashboard];
        while let Some(value) = open.pop() {
            match value {
                serde_json::Value::Object(fields) => open.extend(fields.values()),
                serde_json::Value::Array(values) => open.extend(values),
                serde_json::Value::String(text) => {
                    let is_outside = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
                    asked.extend(text.split(is_outside).filter(|word| word.starts_with("zfolio_")));
                }
                _ => {}
            }
        }
        assert!(asked.len() > 10, "{asked:?}");
        let missing: Vec<_> = asked.iter().filter(|name| !exported.contains(**name)).collect();
        assert!(missing.is_empty(), "{missing:?} of {exported:#?}");
    }
}
