//! `zfolio stat`: the figures of a run that goes on, once or again and again.

mod text;
mod watch;

use crate::args;
use crate::descendants;
use crate::lines::WIDTH;
use crate::out;
use crate::runs::{self, Run};
use crate::snapshot::Snapshot;
use memcg::Counts;
use serde_json::{Map, Value, json};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;
use terminal_size::{Height, Width, terminal_size_of};
use text::View;

/// Version of the JSON: raised when a field changes its meaning or goes; new fields may come at any time.
const SCHEMA: u32 = 3;

/// There is no such run, or more than one.
const NONE: u8 = 1;

/// What is shown, and how.
struct Shown {
    run: Run,
    command: Vec<String>,
    /// The process whose counters are shown instead of the run's, by the number that it has for itself.
    subject: Option<u32>,
    json: bool,
    is_terminal: bool,
}

/// Shows the figures; the exit status.
pub fn run(args: &args::Stat) -> u8 {
    show(args).unwrap_or_else(|why| {
        let _ = writeln!(io::stderr(), "zfolio: {why}");
        NONE
    })
}

fn show(args: &args::Stat) -> Result<u8, String> {
    let run = args.pid.map_or_else(runs::only, runs::of)?;
    let command = run.command();
    let is_terminal = io::stdout().is_terminal();
    let mut shown = Shown { run, command, subject: None, json: args.json, is_terminal };
    let first = shown.look()?;
    let own_pid = args.pid.filter(|pid| *pid != shown.run.pid).map(descendants::own_pid);
    shown.subject = own_pid.filter(|pid| first.processes.iter().any(|managed| managed.process.pid == *pid));
    if let (Some(pid), None, false) = (args.pid, shown.subject, args.pid == Some(shown.run.pid)) {
        let _ =
            writeln!(io::stderr(), "zfolio: process {pid} has no engine: these are the figures of its run");
    }
    if let Some(seconds) = args.watch {
        return Ok(watch::watch(&shown, first, Duration::from_secs_f64(seconds)));
    }
    let text = match args.json {
        true => format!("{:#}\n", shown.json(&first, None)),
        false => shown.lines(&first, None).into_iter().map(|line| line + "\n").collect(),
    };
    out::show(&text).map(|()| 0)
}

impl Shown {
    /// Reads the figures as they are now. An error is one line for the user.
    fn look(&self) -> Result<Snapshot, String> {
        let memcg = self.run.read().map_err(|why| format!("run {} {why}", self.run.pid))?;
        Ok(Snapshot::take(&memcg, uffd::sys::now_ns()))
    }

    /// False where the run has ended, or the process that is shown.
    fn goes_on(&self, now: &Snapshot) -> bool {
        let lives = |pid| now.processes.iter().any(|managed| managed.process.pid == pid);
        self.run.goes_on() && self.subject.is_none_or(lives)
    }

    /// The figures for people, with rates where there is an earlier look.
    fn lines(&self, now: &Snapshot, before: Option<&Snapshot>) -> Vec<String> {
        let view = View {
            run: self.run.pid,
            command: &self.run.command_line(),
            elapsed_ns: self.run.elapsed_ns(),
            subject: self.subject,
            now,
            before,
        };
        view.lines(if self.is_terminal { self.size().0 } else { usize::MAX })
    }

    /// Columns and lines that there are for the figures. The terminal's last column stays free: some go on to the next
    /// line there.
    fn size(&self) -> (usize, usize) {
        match terminal_size_of(io::stdout()) {
            Some((Width(width @ 2..), Height(height @ 2..))) => (width as usize - 1, height as usize - 1),
            _ => (WIDTH - 1, 23),
        }
    }

    /// The figures for programs, with the counters' rates where there is an earlier look.
    fn json(&self, now: &Snapshot, before: Option<&Snapshot>) -> Value {
        let mut all = Map::new();
        for (name, value) in [
            ("schema", json!(SCHEMA)),
            ("zfolio", json!(env!("CARGO_PKG_VERSION"))),
            ("pid", json!(self.run.pid)),
            ("command", json!(self.command)),
            ("elapsed_ns", json!(self.run.elapsed_ns())),
        ] {
            all.insert(name.into(), value);
        }
        all.extend(now.json());
        if let Some(before) = before {
            let rate = Rate::between(before, now);
            let values = Counts::from(&now.stat);
            let earlier = Counts::from(&before.stat);
            let pairs = values.values().zip(earlier.values());
            let rates: Map<_, _> = pairs
                .map(|((counter, now), (_, before))| (counter.name.into(), json!(rate.of(before, now))))
                .collect();
            all.insert("per_second".into(), json!(rates));
        }
        if let Some(pid) = self.subject
            && let Some(Value::Array(processes)) = all.get_mut("processes")
        {
            processes.retain(|process| process["pid"] == pid);
        }
        json!(all)
    }
}

/// What has become of counters between two looks.
struct Rate {
    elapsed_ns: u64,
}

impl Rate {
    fn between(before: &Snapshot, now: &Snapshot) -> Rate {
        Rate { elapsed_ns: now.at_ns.saturating_sub(before.at_ns).max(1) }
    }

    /// How much a counter has grown in a second. One that moves from slot to slot may seem to fall.
    fn of(&self, before: u64, now: u64) -> u64 {
        let grown = u128::from(now.saturating_sub(before)) * 1_000_000_000;
        ((grown + u128::from(self.elapsed_ns) / 2) / u128::from(self.elapsed_ns)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_a_second() {
        let rate = Rate { elapsed_ns: 2_000_000_000 };
        assert_eq!((rate.of(100, 300), rate.of(100, 103), rate.of(300, 100)), (100, 2, 0));
        assert_eq!(rate.of(0, u64::MAX), 1 << 63, "nothing overflows");
    }
}
