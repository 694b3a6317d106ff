//! What a run has to tell at its end: the figures, as text for people and as JSON for programs.

use crate::accelerator::Usage;
use crate::askers;
use crate::causes::Cause;
use crate::coordinator::RESERVE;
use crate::roster::Entry;
use crate::size::Bytes;
use crate::told::Group;
use crate::unmanaged::Unmanaged;
use memcg::hist::Histogram;
use memcg::{Counts, Memcg, ORDERS, Stat, State};
use serde_json::{Value, json};
use std::fmt::{self, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use vmscan::watermark::Watermarks;
use zswap::{Auto, Choice};

/// Columns before a line's text.
pub(crate) const INDENT: usize = 14;

/// A limit that falls short by no more than one part in so many is worth a word.
const LITTLE: u64 = 4;

/// Version of the JSON: raised when a field changes its meaning or goes; new fields may come at any time.
const SCHEMA: u32 = 3;

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
    /// The compressor in the notation of the command line.
    pub compressor: String,
    /// The limit.
    pub max_bytes: u64,
    /// Highest footprint: each physical page once, pool, stage and engine included.
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
    /// Reads the shared page. Processes that live, and those whose engine was killed with them, count as far as they came. The processes
    /// are the roster's.
    pub fn collect(memcg: &Memcg, (processes, unrecorded): (Vec<Entry>, u64)) -> Figures {
        let stat = Stat::default();
        stat.add(&memcg.ended);
        for slot in memcg.used().iter().filter(|slot| slot.state() != State::Free) {
            stat.add(&slot.stat);
        }
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let latency: &Histogram = &stat.fault_ns;
        let mut figures = Figures {
            compressor: memcg.settings.compressor.as_str().to_string(),
            max_bytes: load(&memcg.max_bytes),
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

    /// The summary for people: lines of at most 80 columns, one line alone when nothing went out.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write_text(&mut text).expect("a String takes all");
        text
    }

    /// A limit with which nothing would have gone out, in bytes; none where it is larger than this one by more than a part in [`LITTLE`].
    fn enough_bytes(&self) -> Option<u64> {
        let wanted = self.wanted_peak_bytes;
        let enough = wanted + wanted / RESERVE + Watermarks::kept_free(wanted as usize, 1) as u64;
        let enough = enough.next_multiple_of(1 << 20);
        (enough <= self.max_bytes + self.max_bytes / LITTLE).then_some(enough)
    }

    fn write_text(&self, out: &mut String) -> fmt::Result {
        let (peak, max) = (Bytes(self.peak_bytes), Bytes(self.max_bytes));
        let too_much = self.peak_bytes.saturating_sub(self.max_bytes);
        let counts = &self.counts;
        let nothing_out = counts.zswpout + counts.same_filled == 0;
        if nothing_out && counts.pgdeactivate == 0 {
            match self.peak_bytes {
                0 => writeln!(out, "zfolio: nothing had to go out; the limit was {max}")?,
                _ if too_much > 0 => {
                    writeln!(
                        out,
                        "zfolio: nothing could go out; peak {peak}, {} above the limit of {max}",
                        Bytes(too_much)
                    )?;
                }
                _ => writeln!(out, "zfolio: nothing had to go out; peak {peak}, limit {max}")?,
            }
            self.write_unevictable(out)?;
            return self.write_unmanaged(out);
        }
        let wanted = Bytes(self.wanted_peak_bytes);
        let share = percent(self.peak_bytes, self.wanted_peak_bytes);
        writeln!(out, "zfolio: ran in {peak} instead of {wanted} ({share})")?;
        let mut line =
            |name: &str, text: fmt::Arguments| writeln!(out, "  {name:<width$}{text}", width = INDENT - 2);
        let above = if too_much > 0 { format!(", {} too much", Bytes(too_much)) } else { String::new() };
        line("footprint", format_args!("peak {peak} of {max} allowed{above}; wanted {wanted}"))?;
        if let Some(enough) = self.enough_bytes() {
            let mib = enough >> 20;
            line("headroom", format_args!("with --memory {mib}M nothing would have had to go out"))?;
        }
        if let Some(advice) = askers::advice(&self.askers).filter(|_| self.visible_bytes.is_none()) {
            line("visible", format_args!("{advice}"))?;
        }
        if self.file_room_peak_bytes > 0 {
            let files = Bytes(self.file_room_peak_bytes);
            line("files", format_args!("{files} of that left to them, as the control group was full"))?;
        }
        let (stored, pool) = (self.stored_peak_bytes, self.pool_at_peak_bytes);
        let ratio = ratio(stored, pool);
        let with = &self.compressor;
        line(
            "squeezed",
            format_args!("{} into {} at the peak{ratio} with {with}", Bytes(stored), Bytes(pool)),
        )?;
        if let Some((choice, auto)) = self.auto() {
            let [fast, dense] = [counts.auto_fast_pages, counts.auto_dense_pages].map(Bytes::of_pages);
            let used = percent(counts.auto_extra_ns, self.budget_ns(auto));
            let by = format!("{dense} by {}, {fast} by {}", choice.compressor, auto.fast);
            line("auto", format_args!("{by}; {used} of the budget, {}", Time(counts.auto_extra_ns)))?;
        }
        if let Some(said) = self.accelerator.as_ref().and_then(Usage::text) {
            line("accelerator", format_args!("{said}"))?;
        }
        line("folios out", format_args!("{}", by_size(&counts.folios_out)))?;
        line("folios in", format_args!("{}", by_size(&counts.folios_in)))?;
        let pages = Bytes::of_pages;
        let staged = percent(counts.pgactivate, counts.pgdeactivate);
        line(
            "2nd chance",
            format_args!("{} touched on the stage, {staged} of what went there", pages(counts.pgactivate)),
        )?;
        let (same, clean) = (pages(counts.same_filled), pages(counts.clean_reused));
        line("not stored", format_args!("{same} filled by one word, {clean} out again unchanged"))?;
        if counts.common_out > 0 {
            let (out, read) = (pages(counts.common_out), pages(counts.common_read));
            line("in common", format_args!("{out} out that relatives have too, {read} read again"))?;
        }
        line("read-ahead", format_args!("{}", pages(counts.readahead)))?;
        let (p50, p99) = (Time(self.fault_p50_ns), Time(self.fault_p99_ns));
        let longest = Time(self.fault_max_ns);
        line(
            "faults",
            format_args!("{}; half in {p50}, 99 % in {p99}, longest {longest}", Count(counts.faults)),
        )?;
        line(
            "waited",
            format_args!("{}, all threads summed, in {}", Time(counts.stall_ns), Time(self.elapsed_ns)),
        )?;
        if counts.parked_ns > 0 {
            let parked = Time(counts.parked_ns);
            line("turns", format_args!("{parked} of waiting for the turn of a process, all summed"))?;
        }
        line("engine", format_args!("{} of CPU", Time(counts.engine_cpu_ns)))?;
        self.write_processes(out)?;
        self.write_unevictable(out)?;
        self.write_unmanaged(out)
    }

    /// The two compressors, if there were two.
    fn auto(&self) -> Option<(Choice, Auto)> {
        let choice = Choice::parse(&self.compressor).ok()?;
        Some((choice, choice.auto?))
    }

    /// What their budget came to.
    fn budget_ns(&self, auto: Auto) -> u64 {
        self.elapsed_ns / 100 * u64::from(auto.percent)
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let folios = |counts: &[u64; ORDERS]| {
            let by_size: serde_json::Map<_, _> = counts
                .iter()
                .enumerate()
                .map(|(order, count)| (format!("{}k", 4 << order), json!(count)))
                .collect();
            json!(by_size)
        };
        let counters: serde_json::Map<_, _> =
            self.counts.values().map(|(counter, value)| (counter.name.to_string(), json!(value))).collect();
        json!({
            "schema": SCHEMA,
            "zfolio": env!("CARGO_PKG_VERSION"),
            "command": self.command,
            "exit_status": self.exit_status,
            "elapsed_ns": self.elapsed_ns,
            "compressor": self.compressor,
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
            "counters": counters,
            "folios": { "out": folios(&self.counts.folios_out), "in": folios(&self.counts.folios_in) },
            "latency": { "p50_ns": self.fault_p50_ns, "p99_ns": self.fault_p99_ns, "max_ns": self.fault_max_ns },
            "auto": self.auto().map(|(_, auto)| json!({
                "cpu_percent": auto.percent,
                "budget_ns": self.budget_ns(auto),
            })),
            "accelerator": self.accelerator.as_ref().map(Usage::json),
            "processes": self.processes_json(),
            "unmanaged": self.unmanaged_json(),
            "unevictable": self.unevictable_json(),
        })
    }
}

/// Folios and their bytes, then how many there are of each size: `12, 6.2 MiB: 4K 2, 64K 7, 2M 3`. Wrapped at 80 columns.
fn by_size(counts: &[u64; ORDERS]) -> String {
    let bytes: u64 = counts.iter().enumerate().map(|(order, count)| count << (12 + order)).sum();
    let total = format!("{}, {}", Count(counts.iter().sum()), Bytes(bytes));
    let mut lines = vec![total];
    let used = (0..ORDERS).filter(|&order| counts[order] > 0);
    for (index, order) in used.enumerate() {
        let size = if order < 8 { format!("{}K", 4 << order) } else { format!("{}M", 1 << (order - 8)) };
        let entry = format!("{size} {}", Count(counts[order]));
        let line = lines.last_mut().expect("begins with one");
        line.push(if index == 0 { ':' } else { ',' });
        if INDENT + line.len() + 1 + entry.len() < 80 {
            *line += &format!(" {entry}");
        } else {
            lines.push(entry);
        }
    }
    lines.join(&format!("\n{:INDENT$}", ""))
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "0 %".into() } else { format!("{:.0} %", part as f64 * 100.0 / whole as f64) }
}

fn ratio(stored: u64, pool: u64) -> String {
    if pool == 0 { String::new() } else { format!(" ({:.1} to 1)", stored as f64 / pool as f64) }
}

/// A count with its thousands set apart.
pub(crate) struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_char(',')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// Nanoseconds for people, as std writes a duration, with three digits.
pub(crate) struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let unit = match self.0 {
            0..1_000 => 1,
            1_000..1_000_000 => 1_000,
            1_000_000..1_000_000_000 => 1_000_000,
            _ => 1_000_000_000,
        };
        let digits = match self.0 / unit {
            _ if unit == 1 => 0,
            0..10 => 2,
            10..100 => 1,
            _ => 0,
        };
        write!(f, "{:.digits$?}", Duration::from_nanos(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::Roster;
    use memcg::Settings;

    fn figures() -> Figures {
        Figures {
            compressor: "zstd:1".into(),
            elapsed_ns: 12_345_678_901,
            max_bytes: 256 << 20,
            peak_bytes: 255 << 20,
            wanted_peak_bytes: 1_300_000_000,
            stored_peak_bytes: 1_100_000_000,
            pool_at_peak_bytes: 180_000_000,
            managed: 1,
            counts: Counts {
                zswpout: 358_502,
                folios_out: [310, 0, 12, 0, 22_000, 0, 0, 0, 0, 12],
                zswpin: 288_100,
                folios_in: [100, 0, 0, 0, 18_000, 0, 0, 0, 0, 0],
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
  2nd chance  195 MiB touched on the stage, 10 % of what went there
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
    fn large_figures_stay_within_80_columns() {
        let figures = Figures {
            stored_peak_bytes: 999 << 30,
            pool_at_peak_bytes: 1 << 30,
            counts: Counts {
                zswpout: 1 << 40,
                folios_out: [123_456_789; ORDERS],
                folios_in: [123_456_789; ORDERS],
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
    fn figures_of_ended_and_living_processes_are_added() {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        let compressor = memcg::Text::new("lz4").unwrap();
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
        let Counts { faults, folios_out, .. } = figures.counts;
        assert_eq!((faults, folios_out[4], figures.fault_max_ns), (7, 1, 500));
        assert_eq!((figures.peak_bytes, figures.wanted_peak_bytes, figures.unmanaged), (100, 300, 1));
        assert_eq!((figures.processes.len(), figures.last_words().as_str()), (2, ""));
        assert_eq!(figures.unmanaged_warnings(), "zfolio: warning: sh ran without a limit: no right\n");
        assert_eq!((figures.compressor.as_str(), figures.max_bytes), ("lz4", 1 << 30));
    }

    #[test]
    fn the_json_holds_integers_under_stable_names() {
        let json = figures().json();
        assert_eq!(json["schema"], SCHEMA);
        assert_eq!(json["memory"]["wanted_peak_bytes"], 1_300_000_000);
        assert_eq!(json["folios"]["out"]["64k"], 22_000);
        assert_eq!(json["folios"]["in"]["2048k"], 0);
        assert_eq!(json["latency"]["p99_ns"], 92_400);
        assert_eq!(json["counters"]["pgactivate"], 50_000);
    }

    #[test]
    fn counts_and_times() {
        let counts: Vec<_> = [0, 999, 1000, 1_234_567].map(|n| Count(n).to_string()).to_vec();
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
        let times: Vec<_> =
            [0, 999, 1_234, 45_600, 1_500_000_000, 123_400_000_000].map(|n| Time(n).to_string()).to_vec();
        assert_eq!(times, ["0ns", "999ns", "1.23µs", "45.6µs", "1.50s", "123s"]);
    }
}
