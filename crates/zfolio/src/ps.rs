//! `zfolio ps`: a line for each run that goes on.

use crate::descendants::{self, Reason, Tree};
use crate::lines::{clock, cut, printable};
use crate::out;
use crate::runs::{self, Run};
use crate::size::Bytes;
use crate::snapshot::Snapshot;
use std::collections::HashSet;

/// What is above the columns.
const TITLES: [&str; 10] =
    ["pid", "limit", "footprint", "wanted", "stored", "pool", "ratio", "managed", "time", "command"];

/// Columns of each but the last.
const WIDTHS: [usize; 9] = [7, 6, 9, 6, 6, 6, 5, 9, 7];

/// Lists the runs that this user may see; the exit status.
pub fn run() -> u8 {
    let mut lines = vec![line(TITLES.map(str::to_string))];
    lines.extend(runs::all().iter().map(row));
    let text: String = lines.iter().map(|line| cut(line, out::width()) + "\n").collect();
    out::show_with(&text, 0)
}

/// The line of a run.
fn row(run: &Run) -> String {
    let (pid, command) = (run.pid.to_string(), run.command_line());
    let memcg = match run.read() {
        Ok(memcg) => memcg,
        Err(why) => return format!("{pid:>7} {}: {command}", printable(&why)),
    };
    let snapshot = Snapshot::take(&memcg, uffd::sys::now_ns());
    let (managed, unmanaged) = processes(run, &snapshot);
    let size = |bytes: u64| format!("{:#}", Bytes(bytes));
    let (stored, pool) = (snapshot.amount("stored_bytes"), snapshot.amount("pool_bytes"));
    // What is in swap areas takes nothing of the pool.
    let pooled = stored.saturating_sub(snapshot.amount("swapped_pages") * base::PAGE as u64);
    line([
        pid,
        size(snapshot.amount("max_bytes")),
        size(snapshot.held_bytes()),
        size(snapshot.wanted_bytes()),
        size(stored),
        size(pool),
        if pool == 0 { "-".into() } else { format!("{:.1}", pooled as f64 / pool as f64) },
        format!("{managed} of {}", managed + unmanaged),
        clock(run.elapsed_ns() / 1_000_000_000),
        command,
    ])
}

/// How many processes have an engine now, and how many should have one and have none.
fn processes(run: &Run, snapshot: &Snapshot) -> (usize, usize) {
    let managed: HashSet<u32> = snapshot.processes.iter().map(|managed| managed.process.pid).collect();
    let others = Tree::new(run.pid).find().into_iter().filter(|process| !managed.contains(&process.own_pid));
    let is_unmanaged = |pid| matches!(descendants::reason(pid, &run.library), Reason::Without(..));
    (managed.len(), others.filter(|process| is_unmanaged(process.pid)).count())
}

fn line(cells: [String; 10]) -> String {
    let mut line: Vec<String> =
        cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:>width$}")).collect();
    line.extend(cells.last().cloned());
    line.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_terminals_line_is_figures() {
        let titles = line(TITLES.map(str::to_string));
        assert_eq!(titles, "    pid  limit footprint wanted stored   pool ratio   managed    time command");
        assert!(WIDTHS.iter().zip(TITLES).all(|(width, title)| title.len() <= *width));
    }
}
