//! What each stage takes, as a table for people and as JSON for programs.

use super::super::table::of_rounds;
use super::fault::Fault;
use super::way::Stages;
use serde_json::{Value, json};
use std::fmt::Write;
use zswap::Choice;

/// Version of the JSON: raised when a field changes its meaning or goes; new fields may come at any time.
const SCHEMA: u32 = 1;

/// A size, and what its stages take.
pub struct Row {
    pub name: String,
    pub bytes: usize,
    pub stages: Stages,
}

/// All that was measured.
pub struct Report {
    pub source: String,
    pub choice: Choice,
    pub rounds: usize,
    pub rows: Vec<Row>,
    /// Beside who misses, and on another CPU.
    pub faults: Vec<Fault>,
}

/// A stage by its name, and what it takes of a row.
type Stage = (&'static str, fn(&Stages) -> Option<f64>);

const OUT: [Stage; 6] = [
    ("scan", |s| Some(s.scan)),
    ("move", |s| Some(s.move_out)),
    ("TLB", |s| s.tlb),
    ("read", |s| Some(s.read)),
    ("compress", |s| Some(s.compress)),
    ("store", |s| Some(s.store)),
];

const IN: [Stage; 3] =
    [("look up", |s| Some(s.look_up)), ("decompress", |s| Some(s.decompress)), ("move", |s| Some(s.move_in))];

impl Report {
    /// What a thread and its engine take to wake each other, beside each other: of a fault, whatever its size.
    fn switches(&self) -> Option<&Fault> {
        self.faults.iter().find(|fault| fault.is_beside)
    }

    /// Of a row: the way out, and the way in for a thread that waits.
    fn sums(&self, row: &Row) -> [f64; 2] {
        let sum = |stages: &[Stage]| stages.iter().filter_map(|(_, of)| of(&row.stages)).sum::<f64>();
        [sum(&OUT), sum(&IN) + self.switches().map_or(0.0, |fault| fault.wake + fault.resume)]
    }

    /// The table: lines of at most 80 columns.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, cells: Vec<Option<f64>>| {
            let cells =
                cells.into_iter().map(|us| us.map_or(format!("{:>10}", "-"), |us| format!("{us:>10.1}")));
            let _ = writeln!(text, "  {name:<14}{}", cells.collect::<String>());
        };
        let all = |of: &dyn Fn(&Row) -> Option<f64>| self.rows.iter().map(of).collect::<Vec<_>>();
        let [sums_out, sums_in] = [0, 1].map(|way| all(&|row| Some(self.sums(row)[way])));
        for (index, (name, of)) in OUT.into_iter().enumerate() {
            line(&format!("{:<5}{name}", if index == 0 { "out" } else { "" }), all(&|row| of(&row.stages)));
        }
        line("     together", sums_out);
        line("in   wake", all(&|_| self.switches().map(|fault| fault.wake)));
        for (name, of) in IN {
            line(&format!("     {name}"), all(&|row| of(&row.stages)));
        }
        line("     resume", all(&|_| self.switches().map(|fault| fault.resume)));
        line("     together", sums_in);
        line("one page of it", all(&|row| Some(row.stages.one_page)));
        let names = self.rows.iter().map(|row| format!("{:>10}", row.name)).collect::<String>();
        format!("{}\n{}", self.head(&of_rounds(self.rounds), &names), text + &self.foot())
    }

    fn head(&self, rounds: &str, names: &str) -> String {
        let source: String = self.source.chars().take(76).collect();
        format!("{source}\n  {}; microseconds for a folio, {rounds}\n\n  {:<14}{names}", self.choice, "")
    }

    /// What is not of a size.
    fn foot(&self) -> String {
        let mut text = "\n".to_string();
        for fault in &self.faults {
            let place = if fault.is_beside { "on one CPU" } else { "on two CPUs" };
            let Fault { wake, copy, resume, .. } = fault;
            let _ = writeln!(
                text,
                "a fault of one page, {place}: wake {wake:.1}, copy {copy:.1}, resume {resume:.1}"
            );
        }
        let told = self.rows.last().map(|row| match row.stages.stays_huge {
            Some(true) => "huge pages that are moved stay huge",
            Some(false) => "huge pages that are moved do not stay huge",
            None => "there are no huge pages here: 2M huge is in base pages",
        });
        text.extend(told.map(|told| format!("{told}\n")));
        text
    }

    /// The same for programs; times in microseconds.
    pub fn json(&self) -> Value {
        let stages = |of: &[Stage], row: &Row| -> Value {
            of.iter()
                .map(|(name, of)| {
                    (name.to_lowercase().replace(' ', "_"), json!(of(&row.stages).map(thousandths)))
                })
                .collect()
        };
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let [out_us, in_us] = self.sums(row);
                json!({
                    "size": row.name,
                    "bytes": row.bytes,
                    "out": stages(&OUT, row),
                    "in": stages(&IN, row),
                    "out_us": thousandths(out_us),
                    "in_us": thousandths(in_us),
                    "one_page_us": thousandths(row.stages.one_page),
                    "stays_huge": row.stages.stays_huge,
                })
            })
            .collect();
        let fault = |fault: &Fault| {
            let Fault { is_beside, .. } = fault;
            let [wake, copy, resume] = [fault.wake, fault.copy, fault.resume].map(thousandths);
            json!({ "on_one_cpu": is_beside, "wake_us": wake, "copy_us": copy, "resume_us": resume })
        };
        json!({
            "schema": SCHEMA,
            "zfolio": env!("CARGO_PKG_VERSION"),
            "source": self.source,
            "compressor": self.choice.to_string(),
            "rounds": self.rounds,
            "rows": rows,
            "faults": self.faults.iter().map(fault).collect::<Vec<_>>(),
        })
    }
}

/// With three digits behind the point: nobody has measured more.
fn thousandths(us: f64) -> f64 {
    (us * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_80_columns_wide_and_adds_up() {
        let stages = Stages {
            scan: 1.0,
            move_out: 2.0,
            compress: 30_000.0,
            move_in: 4.0,
            stays_huge: Some(true),
            ..Stages::default()
        };
        let row = |name: &str| Row { name: name.to_string(), bytes: 4096, stages };
        let beside = Fault { is_beside: true, wake: 3.0, copy: 1.0, resume: 2.0 };
        let report = Report {
            source: "x".repeat(200),
            choice: Choice::parse("lz4,zstd:3").unwrap(),
            rounds: 3,
            rows: ["4K", "64K", "2M", "2M huge"].map(row).into(),
            faults: vec![beside, Fault { is_beside: false, ..beside }],
        };
        let text = report.text();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for words in ["lz4:1,zstd:3; ", "medians of 3", "on two CPUs: wake 3.0", "stay huge", "TLB"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(report.sums(&report.rows[0]), [30_003.0, 9.0]);
        let json = report.json();
        assert_eq!(json["rows"][3]["in_us"].as_f64(), Some(9.0));
        assert_eq!(json["rows"][0]["out"]["tlb"], Value::Null);
    }
}
