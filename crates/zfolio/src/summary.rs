//! What a run has to tell at its end: the figures, as text for people and as JSON for programs.

mod text;

use crate::accelerator::Usage;
use crate::causes::Cause;
use crate::compressor::Compressors;
use crate::roster::Entry;
use crate::snapshot::{counters_json, folios_json};
use crate::told::Group;
use crate::unmanaged::Unmanaged;
use memcg::hist::Histogram;
use memcg::{Counts, Memcg, State};
use serde_json::{Value, json};
use std::sync::atomic::Ordering::Relaxed;
use zswap::Choice;

/// Version of the JSON: raised when a field changes its meaning or goes; new fields may come at any time.
const SCHEMA: u32 = 5;

/// Everything that is told, in bytes, nanoseconds and pages of 4 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// CMD and its arguments.
    pub command: Vec<String>,
    /// CMD's exit status, or 128 and the signal's number.
    pub exit_status: u8,
    /// When CMD was started, on the monotonic clock.
    pub began_ns: u64,
    /// From CMD's start to its end.
    pub elapsed_ns: u64,
    /// What made objects.
    pub compressors: Compressors,
    /// The limit, the highest one where it was changed.
    pub max_bytes: u64,
    /// Highest footprint: each physical page once, pool, inactive list and engine included.
    pub peak_bytes: u64,
    /// Highest footprint that the run would have had without zfolio.
    pub wanted_peak_bytes: u64,
    /// Most bytes of pages in the pool at a time, and the pool's memory at that time.
    pub stored_peak_bytes: u64,
    /// See `stored_peak_bytes`.
    pub pool_at_peak_bytes: u64,
    /// The most of the limit that was left to file pages, since the control group was full.
    pub file_room_peak_bytes: u64,
    /// The most shared memory at a time, which is part of the footprint and stays.
    pub shared_peak_bytes: u64,
    /// What could not go out and was told while the program ran.
    pub unevictable: Vec<Group>,
    /// How much memory programs were shown, where that was not all.
    pub visible_bytes: Option<u64>,
    /// Programs that go by what they are shown.
    pub askers: Vec<&'static str>,
    /// What of the processes' messages was said while CMD ran.
    pub said: Vec<String>,
    /// Processes that an engine managed.
    pub managed: u64,
    /// Processes that needed no engine, because they stayed small; as far as they were seen.
    pub small: u64,
    /// Processes that should have had an engine, and had none.
    pub unmanaged: u64,
    /// Those of the unmanaged that are known, in groups of one name and reason.
    pub unmanaged_as: Vec<Unmanaged>,
    /// What was counted.
    pub counts: Counts,
    /// What devices did, where the compressor is for one.
    pub accelerator: Option<Usage>,
    /// Fault latency: half of them, 99 of 100, all of them took no longer.
    pub fault_p50_ns: u64,
    /// See `fault_p50_ns`.
    pub fault_p99_ns: u64,
    /// See `fault_p50_ns`.
    pub fault_max_ns: u64,
    /// The processes that had a slot, one by one.
    pub processes: Vec<Entry>,
    /// Processes that should be among them, and whose figures were lost.
    pub unrecorded: u64,
}

impl Figures {
    /// Reads the shared page. Processes that live, and those whose engine was killed with them, count as far as they
    /// came. The processes are the roster's.
    pub fn collect(memcg: &Memcg, (processes, unrecorded): (Vec<Entry>, u64)) -> Figures {
        let stat = memcg.total();
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let latency: &Histogram = &stat.fault_ns;
        let mut figures = Figures {
            compressors: Compressors::read(memcg),
            max_bytes: load(&memcg.tunables.max_peak_bytes),
            peak_bytes: load(&memcg.peak_bytes),
            wanted_peak_bytes: load(&memcg.wanted_peak_bytes),
            stored_peak_bytes: load(&memcg.stored_peak_bytes),
            pool_at_peak_bytes: load(&memcg.pool_at_peak_bytes),
            managed: load(&memcg.managed),
            unmanaged: load(&memcg.unmanaged),
            counts: Counts::from(&stat),
            accelerator: Usage::read(memcg),
            fault_p50_ns: latency.quantile(0.50),
            fault_p99_ns: latency.quantile(0.99),
            fault_max_ns: latency.max(),
            unrecorded,
            ..Figures::default()
        };
        for Entry { process, words } in &processes {
            if process.state == State::Unmanaged {
                let name = String::from_utf8_lossy(process.name());
                let words = words.as_deref().unwrap_or("its engine ended");
                figures.add_unmanaged(&name, words, Cause::of_words(words), process.footprint_peak_bytes);
            }
        }
        figures.processes = processes;
        figures
    }

    /// The two compressors, if each tier has another one.
    fn tiers(&self) -> Option<Choice> {
        Choice::parse(&self.compressors.now).ok().filter(|choice| choice.fast != choice.dense)
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        json!({
            "schema": SCHEMA,
            "zfolio": env!("CARGO_PKG_VERSION"),
            "command": self.command,
            "exit_status": self.exit_status,
            "elapsed_ns": self.elapsed_ns,
            "compressor": self.compressors.now,
            "compressors_before": self.compressors.before,
            "memory": {
                "max_bytes": self.max_bytes,
                "visible_bytes": self.visible_bytes,
                "peak_bytes": self.peak_bytes,
                "wanted_peak_bytes": self.wanted_peak_bytes,
                "stored_peak_bytes": self.stored_peak_bytes,
                "pool_at_peak_bytes": self.pool_at_peak_bytes,
                "file_room_peak_bytes": self.file_room_peak_bytes,
                "shared_peak_bytes": self.shared_peak_bytes,
            },
            "tree": {
                "managed": self.managed,
                "small": self.small,
                "unmanaged": self.unmanaged,
                "unrecorded": self.unrecorded,
            },
            "counters": counters_json(&self.counts),
            "folios": folios_json(&self.counts),
            "latency": { "p50_ns": self.fault_p50_ns, "p99_ns": self.fault_p99_ns, "max_ns": self.fault_max_ns },
            "accelerator": self.accelerator.as_ref().map(Usage::json),
            "processes": self.processes_json(),
            "unmanaged": self.unmanaged_json(),
            "unevictable": self.unevictable_json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::Roster;
    use memcg::{ORDERS, Settings};

    fn figures() -> Figures {
        Figures {
            compressors: Compressors { now: "zstd:1".into(), before: Vec::new() },
            elapsed_ns: 12_345_678_901,
            max_bytes: 256 << 20,
            peak_bytes: 255 << 20,
            wanted_peak_bytes: 1_300_000_000,
            stored_peak_bytes: 1_100_000_000,
            pool_at_peak_bytes: 180_000_000,
            managed: 1,
            counts: Counts {
                zswpout: 358_502,
                folios_zswpout: [310, 0, 12, 0, 22_000, 0, 0, 0, 0, 12],
                zswpin: 288_100,
                folios_zswpin: [100, 0, 0, 0, 18_000, 0, 0, 0, 0, 0],
                pgdeactivate: 500_000,
                pgactivate: 50_000,
                readahead: 1000,
                same_filled: 311,
                clean_reused: 88_000,
                common_out: 9_000,
                common_read: 70,
                faults: 20_211,
                stall_ns: 1_234_000_000,
                parked_ns: 2_500_000_000,
                engine_cpu_ns: 3_999_000_000,
                ..Counts::default()
            },
            fault_p50_ns: 21_000,
            fault_p99_ns: 92_400,
            fault_max_ns: 1_300_000,
            ..Figures::default()
        }
    }

    #[test]
    fn the_summary_of_a_run_that_was_squeezed() {
        let text = figures().text();
        assert_eq!(
            text,
            "\
zfolio: ran in 255 MiB instead of 1.21 GiB (21 %)
  footprint   peak 255 MiB of 256 MiB allowed; wanted 1.21 GiB
  squeezed    1.02 GiB into 172 MiB at the peak (6.1 to 1) with zstd:1
  folios out  22,334, 1.37 GiB: 4K 310, 16K 12, 64K 22,000, 2M 12
  folios in   18,100, 1.10 GiB: 4K 100, 64K 18,000
  2nd chance  195 MiB touched on the inactive list, 10 % of what went there
  not stored  1.21 MiB filled by one word, 344 MiB out again unchanged
  in common   35.2 MiB out that relatives have too, 280 KiB read again
  read-ahead  3.91 MiB
  faults      20,211; half in 21.0µs, 99 % in 92.4µs, longest 1.30ms
  waited      1.23s, all threads summed, in 12.3s
  turns       2.50s of waiting for the turn of a process, all summed
  engine      4.00s of CPU
"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn the_summary_says_what_each_of_two_compressors_made() {
        let counts = Counts { fast_pages: 20_000, dense_pages: 338_502, ..figures().counts };
        for (now, expected) in [
            ("zstd:1", None),
            (
                "lz4:1,zstd:1",
                Some("\n  tiers       78.1 MiB in single pages by lz4:1, 1.29 GiB in windows by zstd:1\n"),
            ),
        ] {
            let compressors = Compressors { now: now.into(), before: Vec::new() };
            let text = Figures { counts: counts.clone(), compressors, ..figures() }.text();
            assert_eq!(text.contains("tiers"), expected.is_some(), "{text}");
            assert!(expected.is_none_or(|line| text.contains(line)), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }

    #[test]
    fn the_summary_says_what_went_to_swap_areas() {
        let counts = Counts { pswpout: 131_450, pswpin: 700, ..figures().counts };
        let text = Figures { counts: counts.clone(), ..figures() }.text();
        assert!(
            text.contains("  squeezed    1.02 GiB into 172 MiB and swap areas at the peak with zstd:1\n"),
            "{text}"
        );
        assert!(text.contains("  swap areas  513 MiB written, 2.73 MiB read\n"), "{text}");
        let text = Figures { counts: Counts { area_refused: 1234, ..counts }, ..figures() }.text();
        assert!(
            text.contains("  swap areas  513 MiB written, 2.73 MiB read, 1,234 writes refused\n"),
            "{text}"
        );
    }

    #[test]
    fn large_figures_stay_within_80_columns() {
        let figures = Figures {
            stored_peak_bytes: 999 << 30,
            pool_at_peak_bytes: 1 << 30,
            counts: Counts {
                zswpout: 1 << 40,
                folios_zswpout: [123_456_789; ORDERS],
                folios_zswpin: [123_456_789; ORDERS],
                pgactivate: 123_456_789,
                pgdeactivate: 123_456_790,
                faults: 12_345_678_901,
                ..figures().counts
            },
            fault_max_ns: 3_600_000_000_000,
            unmanaged: 1_000_000,
            ..figures()
        };
        let text = figures.text();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for size in ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "2M"] {
            assert_eq!(text.matches(&format!(" {size} 123,456,789")).count(), 2, "{size}: {text}");
        }
    }

    #[test]
    fn a_limit_that_is_a_little_too_small_is_said_to_be() {
        let enough = |wanted_mib: u64| {
            Figures { max_bytes: 84 << 20, wanted_peak_bytes: wanted_mib << 20, ..figures() }.enough_bytes()
        };
        assert_eq!(enough(85), Some(95 << 20));
        assert_eq!(enough(96), None);
        let text = Figures { max_bytes: 84 << 20, wanted_peak_bytes: 85 << 20, ..figures() }.text();
        assert!(
            text.contains("\n  headroom    with --memory 95M nothing would have had to go out\n"),
            "{text}"
        );
    }

    #[test]
    fn who_goes_by_what_he_sees_is_told_of_once_where_all_is_seen() {
        let mut figures = Figures { askers: vec!["java"], ..figures() };
        let line = "\n  visible     java goes by the machine's memory: see --visible limit\n";
        assert_eq!(figures.text().matches(line).count(), 1, "{}", figures.text());
        figures.visible_bytes = Some(256 << 20);
        assert!(!figures.text().contains("visible"));
        assert_eq!(figures.json()["memory"]["visible_bytes"], 256 << 20);
        let quiet = Figures { askers: vec!["java"], peak_bytes: 1, ..Figures::default() };
        assert_eq!(quiet.text().lines().count(), 1);
    }

    #[test]
    fn a_run_without_pressure_is_one_line() {
        let mut quiet = Figures { max_bytes: 1 << 30, peak_bytes: 40 << 20, ..Figures::default() };
        assert_eq!(quiet.text(), "zfolio: nothing had to go out; peak 40 MiB, limit 1 GiB\n");
        quiet.peak_bytes = 0;
        assert_eq!(quiet.text(), "zfolio: nothing had to go out; the limit was 1 GiB\n");
    }

    #[test]
    fn that_nothing_had_to_go_out_is_not_said_of_what_had_no_engine() {
        let one = Figures { max_bytes: 1 << 30, peak_bytes: 40 << 20, unmanaged: 1, ..Figures::default() };
        let text = one.text();
        assert!(text.starts_with("zfolio: nothing went out; peak 40 MiB, limit 1 GiB\n"), "{text}");
    }

    #[test]
    fn figures_of_ended_and_living_processes_are_added() {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        let compressor = memcg::Text::new("lz4:1").unwrap();
        memcg.init(1 << 30, Settings { compressor, ..Settings::default() });
        let ended = memcg.claim(7).unwrap();
        ended.stat.faults.fetch_add(3, Relaxed);
        ended.stat.fault_ns.record(500);
        memcg.publish(ended, 100, 300, 200, 50);
        memcg.release(ended, 1);
        let living = memcg.claim(8).unwrap();
        living.stat.faults.fetch_add(4, Relaxed);
        living.stat.count_out(u16::MAX);
        living.introduce(1, b"sh\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 1);
        living.say("no right");
        living.state.store(State::Unmanaged as u32, Relaxed);
        memcg.unmanaged.fetch_add(1, Relaxed);
        let figures = Figures::collect(&memcg, Roster::new(&memcg).finish());
        let Counts { faults, folios_zswpout, .. } = figures.counts;
        assert_eq!((faults, folios_zswpout[4], figures.fault_max_ns), (7, 1, 500));
        assert_eq!((figures.peak_bytes, figures.wanted_peak_bytes, figures.unmanaged), (100, 300, 1));
        assert_eq!((figures.processes.len(), figures.last_words().as_str()), (2, ""));
        assert_eq!(figures.unmanaged_warnings(), "zfolio: warning: sh ran without a limit: no right\n");
        assert_eq!((figures.compressors.now.as_str(), figures.max_bytes), ("lz4:1", 1 << 30));
    }

    #[test]
    fn the_json_holds_integers_under_stable_names() {
        let json = figures().json();
        assert_eq!(json["schema"], SCHEMA);
        assert_eq!(json["memory"]["wanted_peak_bytes"], 1_300_000_000);
        assert_eq!(json["folios"]["zswpout"]["64k"], 22_000);
        assert_eq!(json["folios"]["zswpin"]["2048k"], 0);
        assert_eq!(json["latency"]["p99_ns"], 92_400);
        assert_eq!(json["counters"]["pgactivate"], 50_000);
    }
}
