//! What was measured, as a table for people and as JSON for programs.

use super::front::{Point, front};
use super::measure::Row;
use super::sample::{PAGE, Sample};
use crate::lines::Count;
use crate::size::Bytes;
use serde_json::{Value, json};
use std::fmt::{self, Write};

/// Version of the JSON: raised when a field changes its meaning or goes; new fields may come at any time.
const SCHEMA: u32 = 1;

/// Columns of a compressor's name.
const NAME_COLUMNS: usize = 20;

/// What was tried, and what came of it.
pub struct Report {
    /// What the memory is of: `process 123 (redis-server)`, or files.
    pub source: String,
    /// What of it was taken.
    pub sample: Sample,
    /// What else there is to know about that, a line each.
    pub notes: Vec<String>,
    /// How often each was tried.
    pub rounds: usize,
    /// In the order of units, within each the fastest out first.
    pub rows: Vec<Row>,
    /// For each row, whether it is on the front of its unit.
    pub on_front: Vec<bool>,
}

impl Report {
    /// Of rows in any order.
    pub fn new(
        source: String,
        sample: Sample,
        notes: Vec<String>,
        rounds: usize,
        mut rows: Vec<Row>,
    ) -> Report {
        rows.sort_by(|a, b| {
            a.unit_bytes.cmp(&b.unit_bytes).then(b.out_bytes_per_s().total_cmp(&a.out_bytes_per_s()))
        });
        let on_front =
            by_unit(&rows).flat_map(|rows| front(&rows.iter().map(point).collect::<Vec<_>>())).collect();
        Report { source, sample, notes, rounds, rows, on_front }
    }

    /// Bytes that the compressors got.
    fn tried_bytes(&self) -> u64 {
        self.sample.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// The table: lines of at most 80 columns. `bold` is what goes before and behind a row of the front.
    pub fn text(&self, bold: [&str; 2]) -> String {
        let mut text = String::new();
        self.write_text(bold, &mut text).expect("a String takes all");
        text
    }

    fn write_text(&self, [on, off]: [&str; 2], out: &mut String) -> fmt::Result {
        let Sample { looked_at_bytes, there_are_bytes, same_filled, .. } = self.sample;
        writeln!(out, "{}", cut(&self.source, 80))?;
        let of = if looked_at_bytes < there_are_bytes { "spread over the" } else { "all of the" };
        writeln!(out, "  {} tried, {of} {} that there are", Bytes(looked_at_bytes), Bytes(there_are_bytes))?;
        if same_filled > 0 {
            let share = same_filled as f64 * PAGE as f64 * 100.0 / looked_at_bytes as f64;
            let (pages, bytes) = (Count(same_filled), Bytes(same_filled * PAGE));
            writeln!(
                out,
                "  {pages} pages ({bytes}, {share:.1} %) filled by one word: left out, never compressed"
            )?;
        }
        for note in &self.notes {
            writeln!(out, "  {note}")?;
        }
        let rounds = of_rounds(self.rounds);
        writeln!(out, "  speeds in GB of pages a second of one processor's time, {rounds}")?;
        writeln!(
            out,
            "\n  {:<6}{:<NAME_COLUMNS$}{:>8}{:>11}{:>10}{:>14}",
            "unit", "compressor", "ratio", "out GB/s", "in GB/s", "kept as is"
        )?;
        let mut marks = self.on_front.iter();
        for (index, rows) in by_unit(&self.rows).enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            for row in rows {
                let is_on = marks.next() == Some(&true);
                let (mark, on, off) = if is_on { ('*', on, off) } else { (' ', "", "") };
                let (unit, name) =
                    (unit_name(row.unit_bytes), cut(&row.compressor.to_string(), NAME_COLUMNS));
                let speed_in = row.in_bytes_per_s().map_or("-".to_string(), gigabytes);
                let kept = row.kept_share() * 100.0;
                writeln!(
                    out,
                    "{on}{mark} {unit:<6}{name:<NAME_COLUMNS$}{:>8.2}{:>11}{speed_in:>10}{kept:>12.1} %{off}",
                    row.ratio(),
                    gigabytes(row.out_bytes_per_s()),
                )?;
            }
        }
        writeln!(out, "\n* no other compressor is both denser and faster out with units of this size")?;
        writeln!(out, "  (`zfolio run` works on units of up to 64K; `in` counts where much comes back)")
    }

    /// The same for programs; speeds in bytes a second.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().zip(&self.on_front).map(|(row, on_front)| {
            json!({
                "compressor": row.compressor.to_string(),
                "dictionary": (!row.compressor.file.is_empty())
                    .then(|| json!({ "from": row.compressor.file, "bytes": row.compressor.dictionary.len() })),
                "unit_bytes": row.unit_bytes,
                "ratio": row.ratio(),
                "out_bytes_per_s": row.out_bytes_per_s().round(),
                "in_bytes_per_s": row.in_bytes_per_s().map(f64::round),
                "plain_bytes": row.plain_bytes,
                "object_bytes": row.object_bytes,
                "units": row.units,
                "kept_units": row.kept,
                "on_front": on_front,
            })
        });
        let rows: Vec<Value> = rows.collect();
        json!({
            "schema": SCHEMA,
            "zfolio": env!("CARGO_PKG_VERSION"),
            "source": self.source,
            "notes": self.notes,
            "there_are_bytes": self.sample.there_are_bytes,
            "looked_at_bytes": self.sample.looked_at_bytes,
            "same_filled_pages": self.sample.same_filled,
            "tried_bytes": self.tried_bytes(),
            "rounds": self.rounds,
            "rows": rows,
        })
    }
}

/// How often it was measured, and what counts.
pub fn of_rounds(rounds: usize) -> String {
    if rounds == 1 { "1 round".to_string() } else { format!("medians of {rounds} rounds") }
}

/// The rows of each unit.
pub fn by_unit(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| a.unit_bytes == b.unit_bytes)
}

/// Where a row stands.
pub fn point(row: &Row) -> Point {
    Point { ratio: row.ratio(), speed: row.out_bytes_per_s() }
}

/// A unit as a user names it: `64K`.
pub fn unit_name(bytes: usize) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{}M", bytes >> 20) } else { format!("{}K", bytes >> 10) }
}

/// A speed in GB/s, with three digits.
fn gigabytes(bytes_per_s: f64) -> String {
    let value = bytes_per_s / 1e9;
    let digits = match value {
        v if v < 0.0995 => 3,
        v if v < 9.995 => 2,
        _ => 1,
    };
    format!("{value:.digits$}")
}

/// A text in so many columns: its end, where it is too long, since that is what differs between long paths.
fn cut(text: &str, columns: usize) -> String {
    let len = text.chars().count();
    if len <= columns {
        text.to_string()
    } else {
        format!("...{}", text.chars().skip(len - columns + 3).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::candidate::Candidate;
    use crate::bench::measure::measure;
    use acomp::Compressor;
    use std::rc::Rc;

    fn report() -> Report {
        let mut memory: Vec<u8> =
            (0..200_000u32).flat_map(|n| (n / 3).wrapping_mul(0x01_0001).to_le_bytes()).collect();
        memory[..8192].fill(0);
        let mut sample = Sample { there_are_bytes: 9 << 30, ..Sample::default() };
        sample.add(&memory);
        let candidate = |name| Rc::new(Candidate::new(Compressor::parse(name).unwrap()));
        let compressors = ["lz4:65537", "zstd:-1", "deflate-iaa:dynamic"].map(candidate);
        let rows = measure(&sample.pieces, &[4096, 2 << 20], &compressors, 1, |_| {}).unwrap();
        Report::new("process 4711 (x)".to_string(), sample, vec!["a note".to_string()], 1, rows)
    }

    #[test]
    fn the_table_is_sorted_marked_and_80_columns_wide() {
        let report = report();
        let text = report.text(["", ""]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for words in [
            "process 4711 (x)\n",
            "spread over the 9 GiB",
            "2 pages (8 KiB, 1.0 %) filled by one word",
            "a note\n",
            ", 1 round\n",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        for rows in by_unit(&report.rows) {
            assert_eq!(rows.len(), 3);
            assert!(rows.is_sorted_by(|a, b| a.out_bytes_per_s() >= b.out_bytes_per_s()));
        }
        // The fastest out is on the front, whatever else is.
        assert!(report.on_front[0] && report.on_front[3]);
        let marked = text.lines().filter(|line| line.starts_with("* ") && !line.contains("denser")).count();
        assert_eq!(marked, report.on_front.iter().filter(|is_on| **is_on).count());
        assert_eq!(report.text(["<", ">"]).matches('<').count(), marked);
    }

    #[test]
    fn the_json_has_every_row_with_its_counts() {
        let report = report();
        let json = report.json();
        let rows = json["rows"].as_array().unwrap();
        assert_eq!((rows.len(), json["same_filled_pages"].as_u64()), (6, Some(2)));
        let tried = json["tried_bytes"].as_u64().unwrap();
        assert_eq!(tried, 800_000 - 8192);
        for row in rows {
            assert_eq!(row["plain_bytes"].as_u64(), Some(tried));
            let ratio = tried as f64 / row["object_bytes"].as_u64().unwrap() as f64;
            assert_eq!(row["ratio"].as_f64(), Some(ratio));
        }
    }

    #[test]
    fn numbers_and_names_fit_their_columns() {
        let speeds = [0.004e9, 0.0996e9, 0.5e9, 9.994e9, 9.996e9, 123.4e9].map(gigabytes);
        assert_eq!(speeds, ["0.004", "0.10", "0.50", "9.99", "10.0", "123.4"]);
        assert_eq!([4096, 12 << 10, 1 << 20, 2 << 20].map(unit_name), ["4K", "12K", "1M", "2M"]);
        assert_eq!((cut("abcdefgh", 8), cut("abcdefghi", 8)), ("abcdefgh".into(), "...efghi".into()));
    }
}
