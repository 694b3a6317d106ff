//! The figures for people.

use super::Rate;
use crate::lines::{Count, INDENT, Time, clock, cut, printable, ratio};
use crate::roster::LISTED;
use crate::size::Bytes;
use crate::snapshot::{Managed, Snapshot};
use memcg::hist::Histogram;
use memcg::{Counts, Stat, Unit};
use std::cmp::Reverse;
use unicode_width::UnicodeWidthStr;

/// Columns of a counter's name, of its total and of its rate.
const COLUMNS: [usize; 3] = [21, 15, 11];

/// Columns of a process's name.
const NAME: usize = 15;

/// What is shown.
pub struct View<'a> {
    /// Process id of `zfolio run`.
    pub run: u32,
    /// CMD and its arguments, as can be shown.
    pub command: &'a str,
    /// How long the run has been going on.
    pub elapsed_ns: u64,
    /// The process whose counters are shown instead of the run's.
    pub subject: Option<u32>,
    /// The figures.
    pub now: &'a Snapshot,
    /// Earlier ones; without them there are no rates.
    pub before: Option<&'a Snapshot>,
}

fn find(snapshot: &Snapshot, pid: u32) -> Option<&Managed> {
    snapshot.processes.iter().find(|managed| managed.process.pid == pid)
}

fn line(name: &str, text: String) -> String {
    format!("  {name:<width$} {text}", width = INDENT - 3)
}

impl View<'_> {
    /// All of it, in lines of so many columns at most.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let mut lines = self.head();
        lines.extend(self.latencies());
        lines.extend(self.processes());
        lines.extend(self.counters());
        lines.into_iter().map(|line| cut(&line, width)).collect()
    }

    fn subject(&self) -> Option<&Managed> {
        find(self.now, self.subject?)
    }

    /// The counters that are shown, and the same of the earlier look.
    fn stats(&self) -> (&Stat, Option<&Stat>) {
        match self.subject() {
            Some(managed) => {
                let before = self.before.and_then(|before| find(before, managed.process.pid));
                (&managed.stat, before.map(|managed| &managed.stat))
            }
            None => (&self.now.stat, self.before.map(|before| &before.stat)),
        }
    }

    fn head(&self) -> Vec<String> {
        let now = self.now;
        let clock = clock(self.elapsed_ns / 1_000_000_000);
        let mut lines = vec![format!("zfolio run {}, {clock}: {}", self.run, self.command)];
        let squeezed = |stored: u64, pool: u64, swapped: u64| {
            let (areas, ratio) = match swapped {
                0 => ("", ratio(stored, pool)),
                _ => (" and swap areas", String::new()),
            };
            match stored {
                0 => "nothing".into(),
                _ => format!("{} in {}{areas}{ratio} with {}", Bytes(stored), Bytes(pool), now.compressors),
            }
        };
        let holds = |held: u64, peak: u64, wanted: u64| {
            format!("{}, {} at the peak; wanted {}", Bytes(held), Bytes(peak), Bytes(wanted))
        };
        if let Some(managed) = self.subject() {
            let process = &managed.process;
            let name = printable(&managed.name());
            lines.push(line("process", format!("{} {name}, its engine is {}", process.pid, managed.state())));
            lines.push(line("share", format!("{} of {}", Bytes(managed.share_bytes), self.limit())));
            let (held, wanted) = (managed.amount("footprint_bytes"), managed.amount("wanted_bytes"));
            lines.push(line("footprint", holds(held, process.footprint_peak_bytes, wanted)));
            lines.push(line(
                "squeezed",
                squeezed(
                    managed.amount("stored_bytes"),
                    managed.amount("pool_bytes"),
                    managed.amount("swapped_pages"),
                ),
            ));
        } else {
            let free = Bytes(now.amount("pot_bytes"));
            lines.push(line("limit", format!("{}; {free} in the pot", self.limit())));
            lines.push(line(
                "footprint",
                holds(now.held_bytes(), now.amount("peak_bytes"), now.wanted_bytes()),
            ));
            let [stored, pool, swapped] =
                ["stored_bytes", "pool_bytes", "swapped_pages"].map(|name| now.amount(name));
            lines.push(line("squeezed", squeezed(stored, pool, swapped)));
        }
        lines.extend(self.pages());
        lines
    }

    /// What of it is out now and how, if anything is.
    fn pages(&self) -> Option<String> {
        let amount = |name: &str| match self.subject() {
            Some(managed) => managed.amount(name),
            None => self.now.amount(name),
        };
        let names = ["stored_pages", "same_filled_pages", "stored_incompressible_pages", "swapped_pages"];
        let [stored, filled, incompressible, swapped] = names.map(|name| Count(amount(name)));
        (stored.0 + swapped.0 > 0).then(|| {
            let text = format!(
                "{stored} stored, {filled} same-filled, {incompressible} incompressible, {swapped} swapped"
            );
            line("pages", text)
        })
    }

    fn limit(&self) -> Bytes {
        Bytes(self.now.amount("max_bytes"))
    }

    /// A line for each histogram that has counted anything, and one for what it has counted since the earlier look.
    fn latencies(&self) -> Vec<String> {
        let (now, before) = self.stats();
        let mut lines = Vec::new();
        for (at, (counter, histogram)) in now.histograms().enumerate().filter(|(_, (_, h))| h.count() > 0) {
            let of = |share: f64| Time(histogram.quantile(share));
            let longest = Time(histogram.max());
            let text = format!("half in {}, 99 % in {}, longest {longest}", of(0.5), of(0.99));
            lines.push(line(counter.name, text));
            let earlier = before.and_then(|before| before.histograms().nth(at));
            if let Some((_, earlier)) = earlier.filter(|(_, earlier)| earlier.count() < histogram.count()) {
                let of = |share: f64| Time(quantile_since(histogram, earlier, share));
                lines
                    .push(line("", format!("half in {}, 99 % in {} since the last look", of(0.5), of(0.99))));
            }
        }
        lines
    }

    /// The counters that are not 0, with what they say.
    fn counters(&self) -> Vec<String> {
        let (now, before) = self.stats();
        let before = before.map(Counts::from);
        let rate = self.before.map(|before| Rate::between(before, self.now));
        let [name, total, per_second] = COLUMNS;
        let row = |cells: [&str; 3], text: &str| match rate {
            Some(_) => {
                format!("  {:<name$} {:>total$} {:>per_second$}  {text}", cells[0], cells[1], cells[2])
            }
            None => format!("  {:<name$} {:>total$}  {text}", cells[0], cells[1]),
        };
        let mut lines = vec![row(["counter", "total", "a second"], "")];
        for (index, (counter, value)) in Counts::from(now).values().enumerate().filter(|(_, (_, v))| *v > 0) {
            let earlier = before.as_ref().and_then(|before| Some(before.values().nth(index)?.1));
            let grown = match (&rate, earlier) {
                (Some(rate), Some(earlier)) => amount(counter.unit, rate.of(earlier, value)),
                _ => String::new(),
            };
            let text = match counter.unit {
                Unit::Nanoseconds | Unit::Bytes => counter.text.to_string(),
                unit => format!("{} {}", unit.name(), counter.text),
            };
            lines.push(row([counter.name, &amount(counter.unit, value), &grown], &text));
        }
        if lines.len() == 1 {
            return Vec::new();
        }
        lines.into_iter().map(|line| line.trim_end().to_string()).collect()
    }

    /// How many processes there are, and a line for each of the largest.
    fn processes(&self) -> Vec<String> {
        let mut all: Vec<&Managed> = self.now.processes.iter().collect();
        all.sort_by_key(|managed| (Reverse(managed.amount("footprint_bytes")), managed.process.pid));
        let unmanaged = match self.now.amount("unmanaged_bytes") {
            0 => String::new(),
            bytes => format!("; {} in others, or shared", Bytes(bytes)),
        };
        let mut lines =
            vec![line("processes", format!("{} with an engine{unmanaged}", Count(all.len() as u64)))];
        if self.subject.is_some() || all.is_empty() {
            return lines.split_off(usize::from(self.subject.is_some()));
        }
        let rate = self.before.map(|before| Rate::between(before, self.now));
        let faults = if rate.is_some() { "faults/s" } else { "faults" };
        lines.push(row(
            "pid",
            "name",
            ["footprint", "wanted", "stored", "pool", faults, "99 % in"].map(String::from),
        ));
        for managed in all.iter().take(LISTED) {
            let stat = &managed.stat;
            let count = |stat: &Stat| Counts::from(stat).faults;
            let earlier = self.before.and_then(|before| find(before, managed.process.pid));
            let faults = match (&rate, earlier) {
                (Some(rate), Some(earlier)) => Count(rate.of(count(&earlier.stat), count(stat))).to_string(),
                (Some(_), None) => String::new(),
                (None, _) => Count(count(stat)).to_string(),
            };
            let size = |name| Bytes(managed.amount(name)).to_string();
            let cells = [
                size("footprint_bytes"),
                size("wanted_bytes"),
                size("stored_bytes"),
                size("pool_bytes"),
                faults,
                Time(stat.fault_ns.quantile(0.99)).to_string(),
            ];
            lines.push(row(&managed.process.pid.to_string(), &printable(&managed.name()), cells));
        }
        if all.len() > LISTED {
            lines.push(format!("  {:>7} and {} more", "", Count((all.len() - LISTED) as u64)));
        }
        lines
    }
}

/// A row of the table of processes: 79 columns, if no figure is out of all proportion.
fn row(pid: &str, name: &str, cells: [String; 6]) -> String {
    let name = cut(name, NAME);
    let [footprint, wanted, stored, pool, faults, slow] = cells;
    let pad = NAME - name.width();
    format!(
        "  {pid:>7} {name}{:pad$} {footprint:>9} {wanted:>8} {stored:>8} {pool:>8} {faults:>8} {slow:>7}",
        ""
    )
}

/// A counter's value by its unit.
fn amount(unit: Unit, value: u64) -> String {
    match unit {
        Unit::Bytes => Bytes(value).to_string(),
        Unit::Nanoseconds => Time(value).to_string(),
        _ => Count(value).to_string(),
    }
}

/// The value that a share of what a histogram has counted since then does not exceed, 25 % too high at most.
fn quantile_since(now: &Histogram, before: &Histogram, share: f64) -> u64 {
    let grown = || {
        now.buckets().zip(before.buckets()).map(|((end, now), (_, before))| (end, now.saturating_sub(before)))
    };
    let rank = (grown().map(|(_, count)| count).sum::<u64>() as f64 * share) as u64;
    let mut seen = 0;
    let found = grown().find(|(_, count)| {
        seen += count;
        seen > rank
    });
    found.map_or(now.max(), |(end, _)| end.min(now.max()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::{Memcg, Settings, Text};
    use std::sync::atomic::Ordering::Relaxed;

    fn memcg() -> Box<Memcg> {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        let compressor = Text::new("zstd:1").unwrap();
        memcg.init(256 << 20, Settings { compressor, ..Settings::default() });
        let slot = memcg.claim(4711).unwrap();
        slot.introduce(1, b"python3\0\0\0\0\0\0\0\0\0", 5);
        slot.begin(4711, 4712);
        memcg.publish(slot, 250 << 20, 1_300_000_000, 1_100_000_000, 125 << 20);
        memcg.publish_pages(slot, [268_000, 1200, 31, 554]);
        memcg
    }

    fn miss(memcg: &Memcg, count: u64, ns: u64) {
        let stat = &memcg.slots[0].stat;
        stat.faults.fetch_add(count, Relaxed);
        stat.stall_ns.fetch_add(count * ns, Relaxed);
        stat.zswpin.fetch_add(16 * count, Relaxed);
        (0..count).for_each(|_| stat.fault_ns.record(ns));
    }

    #[test]
    fn a_view_has_rates_beside_totals_in_79_columns() {
        let memcg = memcg();
        miss(&memcg, 1000, 20_000);
        let before = Snapshot::take(&memcg, 0);
        miss(&memcg, 500, 90_000);
        let now = Snapshot::take(&memcg, 2_000_000_000);
        let view = View {
            run: 4700,
            command: "python3 job.py",
            elapsed_ns: 72_000_000_000,
            subject: None,
            now: &now,
            before: Some(&before),
        };
        assert_eq!(
            view.lines(79).join("\n"),
            "\
zfolio run 4700, 1:12: python3 job.py
  limit       256 MiB; 0 B in the pot
  footprint   250 MiB, 250 MiB at the peak; wanted 1.21 GiB
  squeezed    1.02 GiB in 125 MiB and swap areas with zstd:1
  pages       268,000 stored, 1,200 same-filled, 31 incompressible, 554 swapped
  fault_ns    half in 20.5µs, 99 % in 90.0µs, longest 90.0µs
              half in 90.0µs, 99 % in 90.0µs since the last look
  processes   1 with an engine
      pid name            footprint   wanted   stored     pool faults/s 99 % in
     4711 python3           250 MiB 1.21 GiB 1.02 GiB  125 MiB      250  90.0µs
  counter                         total    a second
  zswpin                         24,000       4,000  pages loaded from the pool
  faults                          1,500         250  faults on memory that was…
  stall_ns                       65.0ms      22.5ms  that threads waited for f…"
        );
        let of_process = View { subject: Some(4711), before: None, ..view };
        let lines = of_process.lines(usize::MAX);
        assert_eq!(lines[1], "  process     4711 python3, its engine is asleep");
        assert!(
            lines.contains(
                &"  faults                          1,500  faults on memory that was out".to_string()
            )
        );
        assert!(lines.iter().all(|line| !line.contains("since") && !line.contains("a second")), "{lines:?}");
    }

    #[test]
    fn what_was_counted_since_is_told_apart() {
        let (now, before) = (Histogram::default(), Histogram::default());
        (0..100).for_each(|_| [&now, &before].into_iter().for_each(|h| h.record(1000)));
        assert_eq!(quantile_since(&now, &before, 0.5), 1000, "nothing: the highest of all");
        (0..10).for_each(|_| now.record(50_000));
        assert_eq!(quantile_since(&now, &before, 0.5), 50_000);
    }
}
