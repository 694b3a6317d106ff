//! Who asks a run for something: `zfolio set`, `zfolio reclaim`.

use crate::control_socket::request::{Request, Task};
use crate::descendants;
use crate::lines::printable;
use crate::out;
use crate::runs::Run;
use ask::{Answer, exchange};
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

/// The longest answer of a run, in bytes.
const ANSWER_BYTES: usize = 64 << 10;

/// How long a run may take to answer, beside what engines take.
pub const ANSWERS: Duration = Duration::from_secs(10);

/// Asks the run for something: of itself, or of one of its processes where `pid` is not that of `zfolio run`. It has so
/// long to answer. An error is one line for the user.
pub fn ask(run: &Run, pid: u32, task: Task, time: Duration) -> Result<Answer, String> {
    // One of another version is told by its page.
    run.read().map_err(|why| format!("run {} {why}", run.pid))?;
    let (pid, start) = match pid == run.pid {
        true => (0, 0),
        false => (descendants::own_pid(pid), descendants::start(pid).unwrap_or(0)),
    };
    let line = Request { task, pid, start }.line();
    let answer = exchange(&run.socket(), &line, time, ANSWER_BYTES).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "does not answer: it may be stopped".to_string(),
            ErrorKind::NotFound | ErrorKind::ConnectionRefused if !run.goes_on() => "has ended".into(),
            ErrorKind::NotFound => "has no socket by which it could be asked".into(),
            ErrorKind::PermissionDenied => "is another user's".into(),
            _ => format!("cannot be asked: {error}"),
        };
        format!("run {} {why}", run.pid)
    })?;
    Answer::parse(&answer).ok_or_else(|| match run.goes_on() {
        true => format!("run {} has too many to answer: try again", run.pid),
        false => format!("run {} has ended", run.pid),
    })
}

/// Shows an answer: lines on standard output, what is wrong on standard error. The exit status.
pub fn show(answer: &Answer) -> u8 {
    let text: String = answer.lines.iter().map(|line| format!("{}\n", printable(line))).collect();
    let status = out::show_with(&text, answer.status);
    if let Some(error) = &answer.error {
        let _ = writeln!(io::stderr(), "zfolio: {}", printable(error));
    }
    status
}
