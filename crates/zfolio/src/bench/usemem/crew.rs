//! Who starts the processes that write: waits until all have written, then has all of them compare.

use super::{Failure, Load};
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// This program, whatever it is called.
const SELF: &str = "/proc/self/exe";

/// The words that start a crew.
pub fn command(load: &Load) -> Vec<String> {
    let program = std::env::current_exe().map_or(SELF.to_string(), |path| path.display().to_string());
    let mut words = vec![program, "bench".into(), "usemem-crew".into()];
    words.extend([load.processes, load.bytes].map(|number| number.to_string()));
    words.push(load.contents.clone());
    words
}

/// One that writes.
struct Writer {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Starts `processes` that write `bytes` each. Says in a line how long it took until all had written, and how long each
/// took; waits for a line, and says the same of the comparison; in nanoseconds.
pub fn run(processes: u64, bytes: u64, contents: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| (1, format!("a process could not be started: {error}"));
    let began = Instant::now();
    let start = |number| start(number, bytes, contents);
    let mut writers: Vec<Writer> = (0..processes).map(start).collect::<Result<_, _>>().map_err(failed)?;
    report("written", began, &mut writers)?;
    let _ = io::stdin().lock().read_line(&mut String::new());
    let began = Instant::now();
    for writer in &mut writers {
        // It goes on as its input ends.
        drop(writer.process.stdin.take());
    }
    report("read", began, &mut writers)?;
    for writer in &mut writers {
        let ended = writer.process.wait().map_err(failed)?;
        if !ended.success() {
            return Err((1, format!("a process that wrote has ended with {ended}")));
        }
    }
    Ok(())
}

fn start(number: u64, bytes: u64, contents: &str) -> io::Result<Writer> {
    let mut command = Command::new(SELF);
    command.args(["bench", "usemem-writer", &bytes.to_string(), &number.to_string(), contents]);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let stdout = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok(Writer { process, lines: BufReader::new(stdout).lines() })
}

/// Waits until each says that it is done, and says so: what, all of it, each.
fn report(done: &str, began: Instant, writers: &mut [Writer]) -> Result<(), Failure> {
    let mut each = Vec::new();
    for writer in writers {
        let line = writer.lines.next().and_then(Result::ok);
        let ns = line.as_deref().and_then(|line| line.strip_prefix(done)?.trim().parse::<u64>().ok());
        let ns = ns.ok_or_else(|| (1, "a process that wrote has ended before it was done".to_string()))?;
        each.push(ns.to_string());
    }
    let line = format!("{done} {} {}\n", began.elapsed().as_nanos(), each.join(" "));
    let mut stdout = io::stdout();
    let said = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
    said.map_err(|error| (1, format!("standard output: {error}")))
}
