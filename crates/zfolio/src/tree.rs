//! The part of the summary that tells the processes of a run apart.

use crate::causes::Cause;
use crate::lines::{Count, INDENT, Time, cut, printable, times, write_wrapped};
use crate::roster::{Entry, LISTED};
use crate::size::Bytes;
use crate::summary::Figures;
use crate::told::Group;
use crate::unmanaged::{self, Unmanaged};
use memcg::{Process, State};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::fmt::{self, Write};
use unicode_width::UnicodeWidthStr;

/// So many processes are no reason to list them, unless more than one had memory out.
const FEW: u64 = 3;

/// Of those that had nothing out only these are listed: that held as large a part of what the run held.
const WORTH_A_LINE: u64 = 50;

/// Columns of a name.
const NAME: usize = 15;

impl Figures {
    /// Adds a process that ran without a limit to those of its name and reason. It does not raise
    /// [`Figures::unmanaged`].
    pub fn add_unmanaged(&mut self, name: &str, reason: &str, cause: Cause, peak_bytes: u64) {
        // Its user is not to be asked for any more.
        let help = if cause == Cause::User { String::new() } else { cause.help(name, 0) };
        let (name, reason) = (name.into(), reason.into());
        unmanaged::add(&mut self.unmanaged_as, Unmanaged { name, reason, cause, help, count: 1, peak_bytes });
    }

    /// Adds processes that were seen to run without a limit, and of which their engines know nothing.
    pub fn add_seen(&mut self, group: Unmanaged) {
        self.unmanaged += group.count;
        unmanaged::add(&mut self.unmanaged_as, group);
    }

    /// Writes how many processes there were, and a line for each of the largest; nothing where one process is all there
    /// is to tell.
    pub(crate) fn write_processes(&self, out: &mut impl Write) -> fmt::Result {
        let went_out = self.processes.iter().filter(|entry| entry.process.pages_out > 0).count();
        if went_out < 2 && self.managed + self.small + self.unmanaged <= FEW {
            return Ok(());
        }
        let counts = [(self.managed, "managed"), (self.small, "small"), (self.unmanaged, "unmanaged")];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let counts: Vec<_> = counts.map(|(count, what)| format!("{} {what}", Count(count))).collect();
        writeln!(out, "  {:<width$}{}", "processes", counts.join(", "), width = INDENT - 2)?;
        self.write_table(out)
    }

    fn write_table(&self, out: &mut impl Write) -> fmt::Result {
        let mut by_size: Vec<&Process> = self.processes.iter().map(|entry| &entry.process).collect();
        by_size.sort_by_key(|p| (Reverse(p.footprint_peak_bytes), p.started_ns, p.pid));
        let is_worth =
            |p: &&Process| p.pages_out > 0 || p.footprint_peak_bytes > self.peak_bytes / WORTH_A_LINE;
        let listed = by_size.iter().position(|p| !is_worth(p)).unwrap_or(by_size.len()).min(LISTED);
        if listed == 0 || by_size.len() == 1 {
            return Ok(());
        }
        let titles = ["peak", "wanted", "out", "in", "faults", "waited"].map(str::to_string);
        write_row(out, "pid", "name", titles)?;
        for process in &by_size[..listed] {
            let (name, pages) = (String::from_utf8_lossy(process.name()), Bytes::of_pages);
            let cells = [
                Bytes(process.footprint_peak_bytes).to_string(),
                Bytes(process.wanted_peak_bytes).to_string(),
                pages(process.pages_out).to_string(),
                pages(process.pages_in).to_string(),
                Count(process.faults).to_string(),
                Time(process.stall_ns).to_string(),
            ];
            write_row(out, &process.pid.to_string(), &name, cells)?;
        }
        if let Some(next) = by_size.get(listed) {
            let (more, most) = (by_size.len() - listed, Bytes(next.footprint_peak_bytes));
            writeln!(out, "  {:>7} and {} more, none larger than {most}", "", Count(more as u64))?;
        }
        if self.unrecorded > 0 {
            writeln!(out, "  {:>7} and {} of which there is no record", "", Count(self.unrecorded))?;
        }
        Ok(())
    }

    /// Writes what could not go out of processes that were managed, and of memory that is nobody's alone.
    pub(crate) fn write_unevictable(&self, out: &mut impl Write) -> fmt::Result {
        // Processes of which nothing was managed have their own lines.
        let groups: Vec<&Group> = self.unevictable.iter().filter(|group| !group.cause.is_process()).collect();
        let mut lines = String::new();
        for group in groups.iter().take(LISTED) {
            let (bytes, name, pid, what) =
                (Bytes(group.peak_bytes), printable(&group.name), group.pid, group.cause.what());
            write_wrapped(&mut lines, &format!("{bytes} of {name} ({pid}): {what}; {}", group.help))?;
        }
        if !lines.is_empty() {
            lines.replace_range(..INDENT, &format!("  {:<width$}", "unevictable", width = INDENT - 2));
        }
        out.write_str(&lines)
    }

    /// Writes who ran without a limit, and why.
    pub(crate) fn write_unmanaged(&self, out: &mut impl Write) -> fmt::Result {
        if self.unmanaged == 0 {
            return Ok(());
        }
        let all = self.managed + self.small + self.unmanaged;
        let width = INDENT - 2;
        writeln!(
            out,
            "  {:<width$}{} of {} processes",
            "unmanaged",
            Count(self.unmanaged),
            Count(all.max(self.unmanaged))
        )?;
        let mut groups: Vec<&Unmanaged> = self.unmanaged_as.iter().collect();
        groups.sort_by_key(|group| Reverse((group.peak_bytes, group.count)));
        for group in groups.iter().take(LISTED) {
            let (name, reason) = (printable(&group.name), printable(&group.reason));
            let size = match group.peak_bytes {
                0 => String::new(),
                bytes => format!(", {}", Bytes(bytes)),
            };
            let help = if group.help.is_empty() { String::new() } else { format!("; {}", group.help) };
            write_wrapped(out, &format!("{} x {name}{size}: {reason}{help}", Count(group.count)))?;
        }
        let others = groups.iter().skip(LISTED).map(|group| group.count).sum::<u64>();
        if others > 0 {
            write_wrapped(out, &format!("{} others", Count(others)))?;
        }
        // Those without a slot could not say who they are.
        let nameless = self.unmanaged.saturating_sub(self.unmanaged_as.iter().map(|group| group.count).sum());
        if nameless > 0 {
            write_wrapped(
                out,
                &format!("{} found no place among the run's {} processes", Count(nameless), memcg::SLOTS),
            )?;
        }
        Ok(())
    }

    /// What engines had to say of processes that they managed and the user has not read yet: a line each, ten of all
    /// messages.
    pub fn last_words(&self) -> String {
        let mut all: Vec<(&str, u64)> = Vec::new();
        for entry in self.processes.iter().filter(|entry| entry.process.state != State::Unmanaged) {
            let Some(words) =
                entry.words.as_deref().filter(|words| !self.said.iter().any(|said| said == words))
            else {
                continue;
            };
            match all.iter_mut().find(|(said, _)| *said == words) {
                Some((_, count)) => *count += 1,
                None => all.push((words, 1)),
            }
        }
        let line = |(words, count): &(&str, u64)| format!("zfolio: {}{}\n", printable(words), times(*count));
        let room = LISTED - self.said.len().min(LISTED);
        let mut text: String = all.iter().take(room).map(line).collect();
        if all.len() > room {
            text += &format!("zfolio: and {} messages more; --json has all\n", all.len() - room);
        }
        text
    }

    /// Who ran without a limit, as warnings for a run without a summary.
    pub fn unmanaged_warnings(&self) -> String {
        let line = |Unmanaged { name, reason, count, .. }: &Unmanaged| {
            let (name, reason, times) = (printable(name), printable(reason), times(*count));
            format!("zfolio: warning: {name} ran without a limit{times}: {reason}\n")
        };
        self.unmanaged_as.iter().take(LISTED).map(line).collect()
    }

    /// `processes` of the JSON: all of which there is a record. `began_ns` is when CMD was started.
    pub(crate) fn processes_json(&self) -> Value {
        self.processes.iter().map(|entry| process_json(entry, self.began_ns, self.elapsed_ns)).collect()
    }

    /// `unmanaged` of the JSON.
    pub(crate) fn unmanaged_json(&self) -> Value {
        self.unmanaged_as.iter().map(unmanaged_json).collect()
    }

    /// `unevictable` of the JSON.
    pub(crate) fn unevictable_json(&self) -> Value {
        self.unevictable.iter().map(unevictable_json).collect()
    }
}

fn unmanaged_json(group: &Unmanaged) -> Value {
    json!({
        "name": group.name,
        "reason": group.reason,
        "cause": group.cause.key(),
        "remedy": group.help,
        "count": group.count,
        "peak_bytes": group.peak_bytes,
    })
}

fn unevictable_json(group: &Group) -> Value {
    json!({
        "name": group.name,
        "pid": group.pid,
        "cause": group.cause.key(),
        "remedy": group.help,
        "count": group.count,
        "peak_bytes": group.peak_bytes,
    })
}

fn process_json(entry: &Entry, began_ns: u64, elapsed_ns: u64) -> Value {
    let Entry { process, words } = entry;
    json!({
        "pid": process.pid,
        "parent": process.parent,
        "name": String::from_utf8_lossy(process.name()),
        "state": state(process),
        "began_ns": process.started_ns.saturating_sub(began_ns),
        "elapsed_ns": process.elapsed_ns(began_ns + elapsed_ns),
        "peak_bytes": process.footprint_peak_bytes,
        "wanted_peak_bytes": process.wanted_peak_bytes,
        "stored_peak_bytes": process.stored_peak_bytes,
        "pool_at_peak_bytes": process.pool_at_peak_bytes,
        "pages_out": process.pages_out,
        "pages_in": process.pages_in,
        "faults": process.faults,
        "stall_ns": process.stall_ns,
        "parked_ns": process.parked_ns,
        "engine_cpu_ns": process.engine_cpu_ns,
        "words": words,
    })
}

/// How a process ended, in a word; `running` where it did not.
fn state(process: &Process) -> &'static str {
    match process.state {
        State::Unmanaged => "unmanaged",
        State::Stopped => "stopped",
        State::Killed => "killed",
        _ if process.ended_ns == 0 => "running",
        _ => "ended",
    }
}

/// A row of the table: 78 columns, if no figure is out of all proportion.
fn write_row(out: &mut impl Write, pid: &str, name: &str, cells: [String; 6]) -> fmt::Result {
    let name = cut(&printable(name), NAME);
    let [peak, wanted, went_out, came_in, faults, waited] = cells;
    writeln!(
        out,
        "  {pid:>7} {name}{:pad$} {peak:>8} {wanted:>8} {went_out:>8} {came_in:>8} {faults:>9} {waited:>6}",
        "",
        pad = NAME - name.width()
    )
}

#[cfg(test)]
mod tests;
