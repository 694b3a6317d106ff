//! `--progress`: a line on the terminal that says how the run goes.
//!
//! The terminal is CMD's, and nobody tells zfolio when CMD writes, or where the cursor is. So the line stands *below*
//! the cursor's, and the cursor is put back to where it was:
//!
//! ```text
//!   compiling main.c                      what CMD has written
//!   checking [===>      ]_                its cursor: a prompt or a bar of its own stays whole
//!   zfolio 0:12: 62.1 MiB, saved ...      erased and written again once a second, and erased at the end
//! ```
//!
//! A line that CMD writes between two looks is written where it always was. Only where it writes several within a
//! second does one of them go over this line, of which the rest may then be seen behind it. (In the cursor's own line
//! it would be seen behind the first, and a prompt would be lost; in the terminal's last line it would go up with what
//! scrolls, or need a scroll region, which stays behind when zfolio is killed.) A program that has taken the terminal
//! out of its line mode, as editors, pagers and prompts for a password do, draws the screen itself: nothing is written
//! then. Nor is it while zfolio is in the background, or the terminal takes nothing more (Ctrl-S), or is none.

use crate::lines::{Count, clock};
use crate::size::Bytes;
use crate::sys;
use memcg::{Memcg, State};
use std::io::{IsTerminal, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use terminal_size::{Width, terminal_size_of};

/// A run that is over sooner needs no line.
const FIRST: Duration = Duration::from_secs(2);
/// How often the line is written again.
const AGAIN: Duration = Duration::from_secs(1);

/// Erases from the cursor to the end of the screen: the line, and what is left of it behind something that CMD wrote.
const ERASE: &str = "\x1b[J";
/// One line down and up again, which scrolls where there was no line below; the cursor is kept in mind; to the
/// beginning of the line below.
const BELOW: &str = "\x1bD\x1bM\x1b7\r\x1bD";
/// The cursor goes back.
const BACK: &str = "\x1b8";

/// The line.
pub struct Progress {
    began: Instant,
    /// When it was written last, and how many faults there had been.
    written: (Instant, u64),
    is_shown: bool,
}

impl Progress {
    /// For a run that begins now; `None` where there is no terminal that could show it.
    pub fn new() -> Option<Progress> {
        let can = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
        let now = Instant::now();
        let progress = Progress { began: now, written: (now, 0), is_shown: false };
        (can && std::io::stderr().is_terminal()).then_some(progress)
    }

    /// Writes the line, if it is time and there is a place.
    pub fn tick(&mut self, memcg: &Memcg) {
        let now = Instant::now();
        let (before, faults_before) = self.written;
        if now - self.began < FIRST || now - before < AGAIN {
            return;
        }
        if !sys::is_line_mode(std::io::stderr()) {
            // Whoever draws the screen now has drawn over it, too.
            self.is_shown = false;
            return;
        }
        if !sys::takes_output(std::io::stderr()) {
            return;
        }
        let faults = faults(memcg);
        let unmanaged = memcg.division.unmanaged_bytes.load(Relaxed);
        let state = Now {
            elapsed: now - self.began,
            footprint_bytes: memcg.current.footprint() + unmanaged,
            max_bytes: memcg.max_bytes.load(Relaxed),
            wanted_bytes: memcg.current.wanted() + unmanaged,
            faults_each_second: faults.saturating_sub(faults_before) as f64 / (now - before).as_secs_f64(),
            processes: memcg.living(),
        };
        let width = terminal_size_of(std::io::stderr()).map_or(80, |(Width(width), _)| width);
        let width = if width == 0 { 80 } else { width as usize };
        let erase = if self.is_shown { ERASE } else { "" };
        // In one piece, so that nothing of CMD's comes between. The last column stays free: some terminals go on to the
        // next line there.
        write(&format!("{erase}{BELOW}{}{BACK}", state.line(width - 1)));
        (self.written, self.is_shown) = ((now, faults), true);
    }

    /// Erases the line: something else is to be written, or the run has ended.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) && sys::takes_output(std::io::stderr()) {
            write(ERASE);
        }
    }
}

/// What cannot be written is not worth an end.
fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Faults of all processes so far.
fn faults(memcg: &Memcg) -> u64 {
    let slots = memcg.used().iter().filter(|slot| slot.state() != State::Free);
    memcg.ended.faults.load(Relaxed) + slots.map(|slot| slot.stat.faults.load(Relaxed)).sum::<u64>()
}

/// What the line says.
struct Now {
    elapsed: Duration,
    footprint_bytes: u64,
    max_bytes: u64,
    wanted_bytes: u64,
    faults_each_second: f64,
    processes: usize,
}

impl Now {
    /// The line in `width` columns: with the limit if there is room for it, and without what comes last if there is not
    /// enough.
    fn line(&self, width: usize) -> String {
        let Now { footprint_bytes, max_bytes, wanted_bytes, .. } = *self;
        let time = clock(self.elapsed.as_secs());
        let saved = match wanted_bytes.saturating_sub(footprint_bytes) {
            0 => ", nothing saved".into(),
            saved => {
                let times = wanted_bytes as f64 / footprint_bytes.max(1) as f64;
                format!(", saved {} ({times:.1}x)", Bytes(saved))
            }
        };
        let parts = [
            saved,
            format!(", {} faults/s", Count(self.faults_each_second.round() as u64)),
            format!(", {} {}", self.processes, if self.processes == 1 { "process" } else { "processes" }),
        ];
        let begin = format!("zfolio {time}: {}", Bytes(footprint_bytes));
        let limit = format!(" of {}", Bytes(max_bytes));
        // All of it is ASCII: a byte is a column.
        let all: usize = parts.iter().map(String::len).sum();
        let mut line = if begin.len() + limit.len() + all <= width { begin + &limit } else { begin };
        for part in &parts {
            if line.len() + part.len() > width {
                break;
            }
            line += part;
        }
        line.truncate(width);
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Now {
        Now {
            elapsed: Duration::from_millis(12_900),
            footprint_bytes: 62 << 20,
            max_bytes: 64 << 20,
            wanted_bytes: 276 << 20,
            faults_each_second: 3210.4,
            processes: 2,
        }
    }

    #[test]
    fn the_line_says_how_it_goes() {
        assert_eq!(now().line(79), "zfolio 0:12: 62 MiB, saved 214 MiB (4.5x), 3,210 faults/s, 2 processes");
        assert_eq!(
            now().line(99),
            "zfolio 0:12: 62 MiB of 64 MiB, saved 214 MiB (4.5x), 3,210 faults/s, 2 processes"
        );
        let long = Now { elapsed: Duration::from_secs(7325), processes: 1, ..now() };
        assert_eq!(long.line(79), "zfolio 2:02:05: 62 MiB, saved 214 MiB (4.5x), 3,210 faults/s, 1 process");
    }

    #[test]
    fn what_there_is_no_room_for_is_left_out_from_the_end() {
        assert_eq!(now().line(60), "zfolio 0:12: 62 MiB, saved 214 MiB (4.5x), 3,210 faults/s");
        assert_eq!(now().line(45), "zfolio 0:12: 62 MiB, saved 214 MiB (4.5x)");
        assert_eq!(now().line(30), "zfolio 0:12: 62 MiB");
        assert_eq!(now().line(9), "zfolio 0:");
        let large = Now {
            elapsed: Duration::from_secs(1_000_000),
            footprint_bytes: u64::MAX,
            wanted_bytes: 0,
            faults_each_second: 1e15,
            processes: 512,
            ..now()
        };
        for width in 0..200 {
            assert!(now().line(width).len() <= width && large.line(width).len() <= width, "{width}");
        }
    }

    #[test]
    fn what_holds_nothing_yet_divides_nothing() {
        let nothing = Now { footprint_bytes: 0, wanted_bytes: 0, processes: 0, ..now() };
        assert!(nothing.line(79).contains(": 0 B of 64 MiB, nothing saved, "), "{}", nothing.line(79));
    }
}
