//! The figures of a run at one moment, copied from its page: what `zfolio stat`, `zfolio ps` and `--metrics` show.
//!
//! Reading takes part in nothing: no lock, no message, no answer. A run whose processes all hang is read like any
//! other.

use crate::accelerator::Usage;
use crate::compressor::Compressors;
use memcg::hist::Histogram;
use memcg::{Counts, GAUGES, Memcg, ORDERS, Process, Slot, Stat, State};
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering::*;

/// The shares of all faults whose latencies are told, and their names in the JSON.
pub const QUANTILES: [(f64, &str); 4] =
    [(0.5, "p50_ns"), (0.9, "p90_ns"), (0.99, "p99_ns"), (0.999, "p999_ns")];

/// Figures of the whole run, in bytes, by their names in the JSON, with a sentence each. [`GAUGES`] come beside them.
const OF_RUN: [Reading; 7] = [
    Reading {
        name: "max_bytes",
        text: "that the run may hold: the limit",
        read: |m| m.max_bytes.load(Relaxed),
    },
    Reading {
        name: "unmanaged_bytes",
        text: "held by processes without an engine, and shared memory",
        read: |m| m.division.unmanaged_bytes.load(Relaxed),
    },
    Reading { name: "pot_bytes", text: "of the limit that no process has", read: |m| m.division.pot_bytes() },
    Reading {
        name: "peak_bytes",
        text: "held at most: the highest footprint of all together",
        read: |m| m.peak_bytes.load(Relaxed),
    },
    Reading {
        name: "wanted_peak_bytes",
        text: "that would have been held at most without zfolio",
        read: |m| m.wanted_peak_bytes.load(Relaxed),
    },
    Reading {
        name: "stored_peak_bytes",
        text: "of pages that were in the pool at most",
        read: |m| m.stored_peak_bytes.load(Relaxed),
    },
    Reading {
        name: "pool_at_peak_bytes",
        text: "of the pool's memory then",
        read: |m| m.pool_at_peak_bytes.load(Relaxed),
    },
];

/// A figure of the run in bytes.
struct Reading {
    name: &'static str,
    text: &'static str,
    read: fn(&Memcg) -> u64,
}

/// A figure in bytes or pages: its name, which ends with its unit, what it says, and its value.
pub type Amount = (&'static str, &'static str, u64);

/// The figures of a run.
pub struct Snapshot {
    /// When they were read, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// What made objects.
    pub compressors: Compressors,
    /// What the run holds and may hold.
    pub memory: Vec<Amount>,
    /// Processes that an engine was ever started for, and those for which it could not do anything.
    pub managed: u64,
    /// See `managed`.
    pub unmanaged: u64,
    /// The counters of all processes, those that have ended included.
    pub stat: Stat,
    /// What devices did, where the compressor is for one.
    pub accelerator: Option<Usage>,
    /// The processes that have an engine now.
    pub processes: Vec<Managed>,
}

/// A process that has an engine.
pub struct Managed {
    /// Who it is, and its peaks.
    pub process: Process,
    /// What it holds, in the order of [`GAUGES`].
    pub gauges: [u64; GAUGES.len()],
    /// What it may hold, in bytes.
    pub share_bytes: u64,
    /// What its engine has said, if anything.
    pub words: Option<String>,
    /// Its counters.
    pub stat: Stat,
}

impl Snapshot {
    /// Copies the figures of a page.
    pub fn take(memcg: &Memcg, at_ns: u64) -> Snapshot {
        let gauges = GAUGES.iter().zip(memcg.current.values());
        let memory = OF_RUN.iter().map(|reading| (reading.name, reading.text, (reading.read)(memcg)));
        Snapshot {
            at_ns,
            compressors: Compressors::read(memcg),
            memory: memory.chain(gauges.map(|(gauge, value)| (gauge.name, gauge.text, value))).collect(),
            managed: memcg.managed.load(Relaxed),
            unmanaged: memcg.unmanaged.load(Relaxed),
            stat: memcg.total(),
            accelerator: Usage::read(memcg),
            processes: memcg.used().iter().filter_map(Managed::read).collect(),
        }
    }

    /// A figure of [`Snapshot::memory`].
    pub fn amount(&self, name: &str) -> u64 {
        let found = self.memory.iter().find(|(known, ..)| *known == name);
        found.expect("a name of this file's or of the gauges' table").2
    }

    /// What the run holds, those that nobody manages and shared memory included, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.amount("footprint_bytes").saturating_add(self.amount("unmanaged_bytes"))
    }

    /// What the run would hold without zfolio, in bytes.
    pub fn wanted_bytes(&self) -> u64 {
        self.amount("wanted_bytes").saturating_add(self.amount("unmanaged_bytes"))
    }

    /// All of it for programs, without who the run is.
    pub fn json(&self) -> Map<String, Value> {
        let memory: Map<_, _> =
            self.memory.iter().map(|(name, _, value)| (name.to_string(), json!(value))).collect();
        let counts = Counts::from(&self.stat);
        let all = json!({
            "at_ns": self.at_ns,
            "compressor": self.compressors.now,
            "compressors_before": self.compressors.before,
            "memory": memory,
            "tree": { "living": self.processes.len(), "managed": self.managed, "unmanaged": self.unmanaged },
            "counters": counters_json(&counts),
            "folios": folios_json(&counts),
            "latency": latency_json(&self.stat),
            "accelerator": self.accelerator.as_ref().map(Usage::json),
            "processes": self.processes.iter().map(Managed::json).collect::<Value>(),
        });
        let Value::Object(all) = all else { unreachable!("it is made as one") };
        all
    }
}

impl Managed {
    /// Copies a slot's figures; `None` where no process has it, or it has changed hands meanwhile.
    fn read(slot: &Slot) -> Option<Managed> {
        let living = || match slot.state() {
            State::Free | State::Ended => None,
            _ => Some(slot.pid.load(Acquire)).filter(|pid| *pid != 0),
        };
        let pid = living()?;
        let stat = Stat::default();
        stat.add(&slot.stat);
        let managed = Managed {
            process: slot.process(),
            gauges: slot.gauges(),
            share_bytes: slot.share.bytes.load(Relaxed),
            words: slot.said(&mut [0; 512]).map(str::to_string),
            stat,
        };
        (living() == Some(pid)).then_some(managed)
    }

    /// The kernel's name of it.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(self.process.name()).into_owned()
    }

    /// One of its gauges by its name.
    pub fn amount(&self, name: &str) -> u64 {
        let at = GAUGES.iter().position(|gauge| gauge.name == name);
        self.gauges[at.expect("a name of the gauges' table")]
    }

    /// What its engine does, in a word.
    pub fn state(&self) -> &'static str {
        match self.process.state {
            State::Asleep => "asleep",
            State::Awake => "awake",
            State::Unmanaged => "unmanaged",
            State::Stopped => "stopped",
            _ => "starting",
        }
    }

    fn json(&self) -> Value {
        let gauges = GAUGES.iter().zip(self.gauges);
        let mut memory: Map<_, _> =
            gauges.map(|(gauge, value)| (gauge.name.to_string(), json!(value))).collect();
        memory.insert("share_bytes".into(), json!(self.share_bytes));
        memory.insert("peak_bytes".into(), json!(self.process.footprint_peak_bytes));
        memory.insert("wanted_peak_bytes".into(), json!(self.process.wanted_peak_bytes));
        memory.insert("stored_peak_bytes".into(), json!(self.process.stored_peak_bytes));
        memory.insert("pool_at_peak_bytes".into(), json!(self.process.pool_at_peak_bytes));
        let counts = Counts::from(&self.stat);
        json!({
            "pid": self.process.pid,
            "parent": self.process.parent,
            "name": self.name(),
            "state": self.state(),
            "began_at_ns": self.process.started_ns,
            "memory": memory,
            "counters": counters_json(&counts),
            "folios": folios_json(&counts),
            "latency": latency_json(&self.stat),
            "words": self.words,
        })
    }
}

/// `counters` of any JSON: the table.
pub fn counters_json(counts: &Counts) -> Value {
    let all: Map<_, _> =
        counts.values().map(|(counter, value)| (counter.name.to_string(), json!(value))).collect();
    json!(all)
}

/// `folios` of any JSON, by size.
pub fn folios_json(counts: &Counts) -> Value {
    let by_size = |counts: &[u64; ORDERS]| {
        let sizes = counts.iter().enumerate();
        json!(sizes.map(|(order, count)| (folio_size(order), json!(count))).collect::<Map<_, _>>())
    };
    let all: Map<_, _> =
        counts.folios().map(|(counter, folios)| (counter.name.to_string(), by_size(folios))).collect();
    json!(all)
}

/// The size of a folio of this order as JSON and metrics have it: `4k` to `2048k`.
pub fn folio_size(order: usize) -> String {
    format!("{}k", 4 << order)
}

/// Each histogram by its name.
fn latency_json(stat: &Stat) -> Value {
    let of = |histogram: &Histogram| {
        let mut all = Map::new();
        all.insert("count".into(), json!(histogram.count()));
        all.insert("sum_ns".into(), json!(histogram.sum()));
        for (share, name) in QUANTILES {
            all.insert(name.into(), json!(histogram.quantile(share)));
        }
        all.insert("max_ns".into(), json!(histogram.max()));
        json!(all)
    };
    let all: Map<_, _> =
        stat.histograms().map(|(counter, histogram)| (counter.name.to_string(), of(histogram))).collect();
    json!(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::Settings;

    #[test]
    fn a_page_is_copied_whole() {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(1 << 30, Settings::default());
        for (pid, name) in [(7, b"ended\0\0\0\0\0\0\0\0\0\0\0"), (8, b"living\0\0\0\0\0\0\0\0\0\0")] {
            let slot = memcg.claim(pid).unwrap();
            slot.introduce(1, name, 5);
            slot.begin(pid, pid + 100);
            memcg.publish(slot, 100, 300, 200, 50);
            memcg.publish_pages(slot, [7, 6, 5, 4]);
            slot.stat.faults.fetch_add(u64::from(pid), Relaxed);
            slot.stat.fault_ns.record(1000);
        }
        memcg.release(&memcg.slots[0], 9);
        memcg.division.unmanaged_bytes.store(11, Relaxed);
        let snapshot = Snapshot::take(&memcg, 42);
        assert_eq!((snapshot.held_bytes(), snapshot.wanted_bytes()), (111, 311));
        let json = Value::from(snapshot.json());
        assert_eq!(
            (&json["counters"]["faults"], &json["latency"]["fault_ns"]["sum_ns"]),
            (&15.into(), &2000.into())
        );
        assert_eq!(
            (&json["memory"]["peak_bytes"], &json["memory"]["max_bytes"]),
            (&200.into(), &(1 << 30).into())
        );
        let [living] = &json["processes"].as_array().unwrap()[..] else { panic!("{json:#}") };
        assert_eq!((&living["name"], &living["state"]), (&"living".into(), &"asleep".into()));
        assert_eq!(
            (&living["memory"]["swapped_pages"], &json["memory"]["stored_pages"]),
            (&4.into(), &7.into())
        );
        assert_eq!(living["folios"]["swpout_fallback"]["64k"], 0);
        assert_eq!((&living["memory"]["pool_bytes"], &living["counters"]["faults"]), (&50.into(), &8.into()));
        for counter in memcg::COUNTERS {
            assert!(living["counters"][counter.name].is_u64(), "{}", counter.name);
        }
    }
}
