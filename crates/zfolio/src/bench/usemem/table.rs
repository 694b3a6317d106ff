//! What was measured, as a table for people and as JSON for programs.

use super::super::table::{of_rounds, unit_name};
use super::Load;
use super::figures::Figures;
use super::side::Side;
use crate::size::Bytes;
use serde_json::{Value, json};
use std::fmt::Write;

/// Version of the JSON: raised when a field changes its meaning or goes; new fields may come at any time.
const SCHEMA: u32 = 1;

/// So many sides stand beside each other: lines of 80 columns.
const SIDES: usize = 4;

/// One side, with what each round has come to.
pub type Column = (Side, Vec<Figures>);

/// All sides at a size of folios.
pub struct Block {
    /// The size, in bytes.
    pub folio_bytes: u64,
    /// In the order in which the user has named them.
    pub columns: Vec<Column>,
}

/// All that was measured.
pub struct Report {
    pub load: Load,
    pub rounds: usize,
    pub blocks: Vec<Block>,
    /// What is left out, and why.
    pub notes: Vec<String>,
}

/// A line of the table: its name, digits behind the point, and the figure of a round.
type Line = (&'static str, usize, fn(&Load, &Figures) -> f64);

const LINES: [Line; 20] = [
    ("total throughput KB/s", 0, |load, f| f.total_kib_s(load.bytes) as f64),
    ("average KB/s", 0, |load, f| (f.total_kib_s(load.bytes) / load.processes.max(1)) as f64),
    ("elapsed s", 2, |_, f| f.written_ns as f64 / 1e9),
    ("CPU s", 2, |_, f| f.cpu_s[0]),
    ("CPU s of the kernel", 2, |_, f| f.cpu_s[1]),
    ("read back MB/s", 0, |load, f| (load.processes * load.bytes) as f64 * 1e3 / f.read_ns.max(1) as f64),
    ("limit MiB", 0, |_, f| f.limit_bytes as f64 / MIB),
    ("pool MiB", 0, |_, f| f.pool_bytes as f64 / MIB),
    ("zswpout", 0, |_, f| count(f, "zswpout")),
    ("zswpin", 0, |_, f| count(f, "zswpin")),
    ("pswpout", 0, |_, f| count(f, "pswpout")),
    ("pswpin", 0, |_, f| count(f, "pswpin")),
    ("of the size: zswpout", 0, |_, f| count(f, "size_zswpout")),
    ("  swpout", 0, |_, f| count(f, "size_swpout")),
    ("  swpout_fallback", 0, |_, f| count(f, "size_swpout_fallback")),
    ("  anon_fault_alloc", 0, |_, f| count(f, "size_anon_fault_alloc")),
    ("  split", 0, |_, f| count(f, "size_split")),
    ("thp_swpout", 0, |_, f| count(f, "thp_swpout")),
    ("thp_swpout_fallback", 0, |_, f| count(f, "thp_swpout_fallback")),
    ("pgmajfault", 0, |_, f| count(f, "pgmajfault")),
];

const MIB: f64 = (1 << 20) as f64;

fn count(figures: &Figures, name: &str) -> f64 {
    figures.counts.get(name).copied().unwrap_or(0) as f64
}

/// The middle one of all rounds' figures; 0 where there is none.
fn median(load: &Load, rounds: &[Figures], of: fn(&Load, &Figures) -> f64) -> f64 {
    let mut all: Vec<f64> = rounds.iter().map(|round| of(load, round)).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

impl Report {
    /// The tables: lines of at most 80 columns.
    pub fn text(&self) -> String {
        let Load { processes, bytes, memory_bytes, contents } = &self.load;
        let mut text = format!(
            "{processes} processes write {} each within {}; {}\ncontents: {contents}\n",
            Bytes(*bytes),
            Bytes(*memory_bytes),
            of_rounds(self.rounds)
        );
        for block in &self.blocks {
            for columns in block.columns.chunks(SIDES) {
                self.table(&mut text, block, columns);
            }
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
        }
        text
    }

    fn table(&self, text: &mut String, block: &Block, columns: &[Column]) {
        let folios = format!("{} folios", unit_name(block.folio_bytes as usize));
        let mut line = |name: &str, cells: Vec<String>| {
            let cells: String = cells.iter().map(|cell| format!("{cell:>14}")).collect();
            let _ = writeln!(text, "{}", format!("{name:<22}{cells}").trim_end());
        };
        line("", Vec::new());
        line(&folios, columns.iter().map(|(side, _)| side.to_string()).collect());
        for (name, digits, of) in LINES {
            let medians: Vec<f64> =
                columns.iter().map(|(_, rounds)| median(&self.load, rounds, of)).collect();
            if medians.iter().any(|median| *median != 0.0) {
                line(name, medians.iter().map(|median| format!("{median:.digits$}")).collect());
            }
        }
        let relative: Vec<Option<f64>> =
            columns.iter().map(|column| self.relative(block.folio_bytes, column)).collect();
        if relative.iter().any(Option::is_some) {
            let percent = |of: &Option<f64>| of.map_or("-".to_string(), |of| format!("{:+.1} %", of * 100.0));
            line("throughput to 4K", relative.iter().map(percent).collect());
        }
    }

    /// How much more is written than by the same side in base pages; none where that was not measured.
    fn relative(&self, folio_bytes: u64, (side, rounds): &Column) -> Option<f64> {
        let base = self.blocks.iter().find(|block| block.folio_bytes == base::PAGE as u64)?;
        if folio_bytes == base.folio_bytes {
            return None;
        }
        let of = LINES[0].2;
        let (_, base) = base.columns.iter().find(|(other, _)| other == side)?;
        Some(median(&self.load, rounds, of) / median(&self.load, base, of).max(1.0) - 1.0)
    }

    /// The same for programs: medians, and every round.
    pub fn json(&self) -> Value {
        let round = |figures: &Figures| {
            json!({
                "limit_bytes": figures.limit_bytes,
                "pool_bytes": figures.pool_bytes,
                "uncharged_bytes": figures.uncharged_bytes,
                "written_ns": figures.written_ns,
                "read_ns": figures.read_ns,
                "writers_ns": figures.writers_ns,
                "cpu_s": figures.cpu_s[0],
                "kernel_cpu_s": figures.cpu_s[1],
                "counts": figures.counts,
            })
        };
        let column = |(side, rounds): &Column| {
            let of = |line: usize| median(&self.load, rounds, LINES[line].2);
            json!({
                "side": side.to_string(),
                "total_kib_per_s": of(0),
                "average_kib_per_s": of(1),
                "elapsed_s": of(2),
                "rounds": rounds.iter().map(round).collect::<Vec<_>>(),
            })
        };
        let block = |block: &Block| {
            json!({
                "folio_bytes": block.folio_bytes,
                "sides": block.columns.iter().map(column).collect::<Vec<_>>(),
            })
        };
        json!({
            "schema": SCHEMA,
            "zfolio": env!("CARGO_PKG_VERSION"),
            "processes": self.load.processes,
            "bytes": self.load.bytes,
            "memory_bytes": self.load.memory_bytes,
            "folios": self.blocks.iter().map(block).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(ns: u64) -> Figures {
        Figures { writers_ns: vec![ns; 2], written_ns: ns, read_ns: ns, ..Figures::default() }
    }

    #[test]
    fn tables_are_80_columns_wide_and_say_what_larger_folios_win() {
        let sides = Side::parse_all("zfolio:lz4,zfolio:zstd:1,zswap:lzo,zram:lz4,zram:lzo-rle").unwrap();
        let block = |folio_bytes, ns: [u64; 3]| Block {
            folio_bytes,
            columns: sides.iter().map(|side| (side.clone(), ns.map(round).to_vec())).collect(),
        };
        let report = Report {
            load: Load {
                processes: 2,
                bytes: 1 << 30,
                memory_bytes: 1 << 30,
                contents: "numbers".to_string(),
            },
            rounds: 3,
            blocks: vec![block(4096, [9, 4_000_000_000, 9_000_000_000]), block(65536, [2_000_000_000; 3])],
            notes: vec!["2M folios are left out".to_string()],
        };
        let text = report.text();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for words in [
            "total throughput KB/s         524288",
            "+100.0 %",
            "64K folios",
            "zram:lzo-rle",
            "2M folios are left",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("pswpin"), "there were none: {text}");
        let json = report.json();
        assert_eq!(json["folios"][1]["sides"][4]["total_kib_per_s"].as_f64(), Some(1048576.0));
        assert_eq!(json["folios"][0]["sides"][0]["rounds"][1]["writers_ns"][1], 4_000_000_000u64);
    }
}
