//! What a command has to show, on the standard output.

use std::io::{self, ErrorKind, IsTerminal, Write};
use terminal_size::{Width, terminal_size_of};

/// Columns that there are for a line: those of a terminal, or any number.
pub fn width() -> usize {
    match terminal_size_of(io::stdout()) {
        Some((Width(width @ 1..), _)) if io::stdout().is_terminal() => width.into(),
        _ => usize::MAX,
    }
}

/// Writes it. An error is one line for the user; a pipe that was closed is none, since who closed it has seen enough.
pub fn show(text: &str) -> Result<(), String> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}

/// The same, and says what fails; the exit status: `status`, or 1 where that is 0 and something fails.
pub fn show_with(text: &str, status: u8) -> u8 {
    match show(text) {
        Ok(()) => status,
        Err(why) => {
            let _ = writeln!(io::stderr(), "zfolio: {why}");
            status.max(1)
        }
    }
}
