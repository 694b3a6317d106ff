//! `--watch`: the figures again and again, on a terminal in one place, elsewhere one block after the other.
//!
//! All signals are blocked, and taken while this waits: for the next look, or until standard output takes more. So who
//! reads a pipe slowly cannot keep Ctrl-C from ending this. On a terminal the cursor goes up by as many lines as were
//! written last, and what is there is written over. What was there before stays, and the last figures stay, too.

use super::Shown;
use crate::snapshot::Snapshot;
use crate::sys;
use std::io::{self, ErrorKind, Write};
use std::time::{Duration, Instant};

/// A pipe that takes anything takes so many bytes without waiting (PIPE_BUF).
const PIECE: usize = 4096;

/// How often it is looked for a signal while standard output takes nothing.
const LOOK: Duration = Duration::from_millis(50);

/// Erases what is left of the line, and what is below.
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";

/// Why it ends, with the exit status.
struct End(u8);

/// The figures, drawn again and again.
struct Watch<'a> {
    shown: &'a Shown,
    /// How many lines were written last, and are to be written over.
    lines: usize,
}

/// Shows the figures until the run ends, or somebody ends this; the exit status. `before` was read this moment.
pub fn watch(shown: &Shown, mut before: Snapshot, interval: Duration) -> u8 {
    // What CMD would inherit is for nobody here.
    let _ = sys::take_over_signals();
    let mut watch = Watch { shown, lines: 0 };
    let mut follow = || -> Result<(), End> {
        watch.draw(&before, None)?;
        let mut next = Instant::now();
        loop {
            next = (next + interval).max(Instant::now());
            watch.pause(next, &before)?;
            let Ok(now) = shown.look() else { return Ok(()) };
            if !shown.goes_on(&now) {
                return Ok(());
            }
            watch.draw(&now, Some(&before))?;
            before = now;
        }
    };
    follow().err().map_or(0, |End(status)| status)
}

impl Watch<'_> {
    fn draw(&mut self, now: &Snapshot, before: Option<&Snapshot>) -> Result<(), End> {
        if self.shown.json {
            return write(&format!("{}\n", self.shown.json(now, before)));
        }
        let mut lines = self.shown.lines(now, before);
        if !self.shown.is_terminal {
            // A blank line is between two blocks.
            let gap = if before.is_some() { "\n" } else { "" };
            return write(&(gap.to_string() + &lines.join("\n") + "\n"));
        }
        lines.truncate(self.shown.size().1);
        let up = if self.lines > 0 { format!("\x1b[{}F", self.lines) } else { String::new() };
        self.lines = lines.len();
        let lines: String = lines.iter().map(|line| format!("{line}{ERASE_LINE}\n")).collect();
        write(&format!("{up}{lines}{ERASE_BELOW}"))
    }

    /// Waits for the next look.
    fn pause(&mut self, until: Instant, now: &Snapshot) -> Result<(), End> {
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            match sys::next_signal(left) {
                // The terminal has another size: its lines are no longer where they were.
                Some(sys::Signal { number: libc::SIGWINCH, .. })
                    if self.shown.is_terminal && !self.shown.json =>
                {
                    write("\x1b[2J\x1b[H")?;
                    self.lines = 0;
                    self.draw(now, None)?;
                }
                signal => attend(signal)?,
            }
        }
        Ok(())
    }
}

/// Ends this, stops it, or does nothing, as the signal would.
fn attend(signal: Option<sys::Signal>) -> Result<(), End> {
    match signal.map(|signal| signal.number) {
        Some(libc::SIGINT) => Err(End(0)),
        Some(number @ (libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT | libc::SIGALRM)) => {
            Err(End(128 + number as u8))
        }
        Some(libc::SIGTSTP) => {
            sys::stop();
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Writes to standard output, and takes signals while that takes nothing.
fn write(text: &str) -> Result<(), End> {
    let stdout = io::stdout().lock();
    for mut piece in text.as_bytes().chunks(PIECE) {
        while !piece.is_empty() {
            if !sys::answers_a_write(&stdout) {
                attend(sys::next_signal(LOOK))?;
                continue;
            }
            let written = rustix::io::write(&stdout, piece).map_err(io::Error::from);
            match written {
                Ok(len) => piece = &piece[len..],
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Err(End(0)),
                Err(error) => {
                    let _ = writeln!(io::stderr(), "zfolio: standard output: {error}");
                    return Err(End(1));
                }
            }
        }
    }
    Ok(())
}
