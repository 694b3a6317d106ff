//! The summary as text.

use super::Figures;
use crate::accelerator::Usage;
use crate::askers;
use crate::coordinator::RESERVE;
use crate::lines::{Count, INDENT, Time, percent, ratio};
use crate::size::Bytes;
use memcg::ORDERS;
use std::fmt::{self, Write};
use vmscan::watermark::Watermarks;
use zswap::Choice;

/// A limit that falls short by no more than one part in so many is worth a word.
const LITTLE: u64 = 4;

/// Writes a line of the summary.
macro_rules! line {
    ($out:expr, $name:expr, $($text:tt)*) => {{
        write!($out, "  {:<width$}", $name, width = INDENT - 2)?;
        writeln!($out, $($text)*)
    }};
}

impl Figures {
    /// The summary for people: lines of at most 80 columns, one line alone when nothing went out.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write_text(&mut text).expect("a String takes all");
        text
    }

    fn write_text(&self, out: &mut String) -> fmt::Result {
        let counts = &self.counts;
        if counts.zswpout + counts.same_filled + counts.pgdeactivate == 0 {
            self.write_nothing_out(out)?;
        } else {
            self.write_limit(out)?;
            self.write_pool(out)?;
            self.write_pages(out)?;
            self.write_waits(out)?;
            self.write_processes(out)?;
        }
        self.write_unevictable(out)?;
        self.write_unmanaged(out)
    }

    fn too_much_bytes(&self) -> u64 {
        self.peak_bytes.saturating_sub(self.max_bytes)
    }

    fn write_nothing_out(&self, out: &mut String) -> fmt::Result {
        let (peak, max, too_much) = (Bytes(self.peak_bytes), Bytes(self.max_bytes), self.too_much_bytes());
        // Whether one without an engine had to is not known: it may have ended before the first look at it.
        let nothing = if self.unmanaged > 0 { "nothing went out" } else { "nothing had to go out" };
        match self.peak_bytes {
            0 => writeln!(out, "zfolio: {nothing}; the limit was {max}"),
            _ if too_much > 0 => {
                let above = Bytes(too_much);
                writeln!(out, "zfolio: nothing could go out; peak {peak}, {above} above the limit of {max}")
            }
            _ => writeln!(out, "zfolio: {nothing}; peak {peak}, limit {max}"),
        }
    }

    /// What the run held, and what it was allowed.
    fn write_limit(&self, out: &mut String) -> fmt::Result {
        let (peak, max, wanted) =
            (Bytes(self.peak_bytes), Bytes(self.max_bytes), Bytes(self.wanted_peak_bytes));
        let share = percent(self.peak_bytes, self.wanted_peak_bytes);
        writeln!(out, "zfolio: ran in {peak} instead of {wanted} ({share})")?;
        let above = match self.too_much_bytes() {
            0 => String::new(),
            bytes => format!(", {} too much", Bytes(bytes)),
        };
        line!(out, "footprint", "peak {peak} of {max} allowed{above}; wanted {wanted}")?;
        if let Some(enough) = self.enough_bytes() {
            let mib = enough >> 20;
            line!(out, "headroom", "with --memory {mib}M nothing would have had to go out")?;
        }
        if let Some(advice) = askers::advice(&self.askers).filter(|_| self.visible_bytes.is_none()) {
            line!(out, "visible", "{advice}")?;
        }
        if self.file_room_peak_bytes > 0 {
            let files = Bytes(self.file_room_peak_bytes);
            line!(out, "files", "{files} of that left to them, as the control group was full")?;
        }
        Ok(())
    }

    /// A limit with which nothing would have gone out, in bytes; none where it is larger than this one by more than a
    /// part in [`LITTLE`].
    pub(super) fn enough_bytes(&self) -> Option<u64> {
        let wanted = self.wanted_peak_bytes;
        let enough = wanted + wanted / RESERVE + Watermarks::kept_free(wanted as usize, 1) as u64;
        let enough = enough.next_multiple_of(1 << 20);
        (enough <= self.max_bytes + self.max_bytes / LITTLE).then_some(enough)
    }

    /// What was stored, in how much, by what.
    fn write_pool(&self, out: &mut String) -> fmt::Result {
        let counts = &self.counts;
        let (stored, pool) = (self.stored_peak_bytes, self.pool_at_peak_bytes);
        // What lies in areas takes nothing of the pool.
        let (beside, ratio) = match counts.pswpout {
            0 => ("", ratio(stored, pool)),
            _ => (" and swap areas", String::new()),
        };
        let (stored, pool, with) = (Bytes(stored), Bytes(pool), &self.compressors);
        line!(out, "squeezed", "{stored} into {pool}{beside} at the peak{ratio} with {with}")?;
        if counts.pswpout > 0 {
            let [written, read] = [counts.pswpout, counts.pswpin].map(Bytes::of_pages);
            let refused = match counts.area_refused {
                0 => String::new(),
                times => format!(", {} writes refused", Count(times)),
            };
            line!(out, "swap areas", "{written} written, {read} read{refused}")?;
        }
        if let Some(Choice { fast, dense }) = self.tiers() {
            let [alone, together] = [counts.fast_pages, counts.dense_pages].map(Bytes::of_pages);
            line!(out, "tiers", "{alone} in single pages by {fast}, {together} in windows by {dense}")?;
        }
        if let Some(said) = self.accelerator.as_ref().and_then(Usage::text) {
            line!(out, "accelerator", "{said}")?;
        }
        Ok(())
    }

    /// What went out and came in.
    fn write_pages(&self, out: &mut String) -> fmt::Result {
        let (counts, pages) = (&self.counts, Bytes::of_pages);
        line!(out, "folios out", "{}", by_size(&counts.folios_zswpout))?;
        line!(out, "folios in", "{}", by_size(&counts.folios_zswpin))?;
        let listed = percent(counts.pgactivate, counts.pgdeactivate);
        let touched = pages(counts.pgactivate);
        line!(out, "2nd chance", "{touched} touched on the inactive list, {listed} of what went there")?;
        let (same, clean) = (pages(counts.same_filled), pages(counts.clean_reused));
        line!(out, "not stored", "{same} filled by one word, {clean} out again unchanged")?;
        if counts.common_out > 0 {
            let (sent, read) = (pages(counts.common_out), pages(counts.common_read));
            line!(out, "in common", "{sent} out that relatives have too, {read} read again")?;
        }
        line!(out, "read-ahead", "{}", pages(counts.readahead))
    }

    /// What threads waited, and what engines took.
    fn write_waits(&self, out: &mut String) -> fmt::Result {
        let counts = &self.counts;
        let [p50, p99, longest] = [self.fault_p50_ns, self.fault_p99_ns, self.fault_max_ns].map(Time);
        let faults = Count(counts.faults);
        line!(out, "faults", "{faults}; half in {p50}, 99 % in {p99}, longest {longest}")?;
        let (waited, elapsed) = (Time(counts.stall_ns), Time(self.elapsed_ns));
        line!(out, "waited", "{waited}, all threads summed, in {elapsed}")?;
        if counts.parked_ns > 0 {
            let parked = Time(counts.parked_ns);
            line!(out, "turns", "{parked} of waiting for the turn of a process, all summed")?;
        }
        line!(out, "engine", "{} of CPU", Time(counts.engine_cpu_ns))
    }
}

/// Folios and their bytes, then how many there are of each size: `12, 6.2 MiB: 4K 2, 64K 7, 2M 3`. Wrapped at 80
/// columns.
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
