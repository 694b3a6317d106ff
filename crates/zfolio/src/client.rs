//! Who asks a run for something: `zfolio set`, `zfolio reclaim`.

use crate::control_socket::request::{ANSWER_BYTES, Answer, Request, Task};
use crate::descendants;
use crate::lines::printable;
use crate::runs::Run;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

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
    let answer = exchange(run, &line, time).map_err(|error| {
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

/// Sends a line, and takes what comes until the end.
fn exchange(run: &Run, line: &str, time: Duration) -> io::Result<Vec<u8>> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Also to connect takes no longer, where nobody takes connections.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(time))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(time))?;
    connect(&socket, &SocketAddrUnix::new(run.socket())?)?;
    let mut socket = UnixStream::from(socket);
    // Where that is refused there is an answer, too.
    let _ = socket.write_all(line.as_bytes());
    let mut answer = Vec::new();
    match socket.take(ANSWER_BYTES as u64).read_to_end(&mut answer) {
        // An answer before all of the request was read comes with an error at its end.
        Err(error) if answer.is_empty() => Err(error),
        _ => Ok(answer),
    }
}

/// Shows an answer: lines on standard output, what is wrong on standard error. The exit status.
pub fn show(answer: &Answer) -> u8 {
    let text: String = answer.lines.iter().map(|line| format!("{}\n", printable(line))).collect();
    let mut stdout = io::stdout();
    // Who has closed the pipe has seen enough.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    if let Some(error) = &answer.error {
        let _ = writeln!(io::stderr(), "zfolio: {}", printable(error));
    }
    answer.status
}
