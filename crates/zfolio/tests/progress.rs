//! `--progress` shows a line where there is a place for it, and leaves nothing behind.

mod pty;

use pty::Terminal;
use std::process::Command;
use std::time::Duration;

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// A terminal of 80 columns with zfolio on it, and `script` under zfolio.
fn zfolio(script: &str) -> Terminal {
    zfolio_on("xterm", script)
}

fn zfolio_on(term: &str, script: &str) -> Terminal {
    let arguments = ["run", "--quiet", "--memory", "64M", "--progress", "--", "sh", "-c", script];
    Terminal::with(Command::new(ZFOLIO).args(arguments).env("TERM", term))
}

/// What a terminal of 24 lines shows after all this was written to it: those of its lines that are not empty, and what
/// went up.
#[derive(Default)]
struct Screen {
    /// What went up, and then the screen's own lines.
    lines: Vec<Vec<char>>,
    /// The first of these.
    top: usize,
    row: usize,
    column: usize,
    saved: (usize, usize),
}

impl Screen {
    const ROWS: usize = 24;

    fn after(text: &str) -> Vec<String> {
        let mut screen = Screen::default();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '\r' => screen.column = 0,
                '\n' => screen.down(),
                '\x1b' => match rest.next() {
                    Some('D') => screen.down(),
                    Some('M') => {
                        assert!(screen.row > 0, "it would scroll down");
                        screen.row -= 1;
                    }
                    // Like a terminal's, in rows of the screen, whatever scrolls meanwhile.
                    Some('7') => screen.saved = (screen.row, screen.column),
                    Some('8') => (screen.row, screen.column) = screen.saved,
                    Some('[') => {
                        assert_eq!(rest.next(), Some('J'), "no other sequence is known here: {text:?}");
                        screen.erase();
                    }
                    other => panic!("no such sequence is known here: {other:?} in {text:?}"),
                },
                c => screen.put(c),
            }
        }
        let lines = screen.lines.iter().map(|line| line.iter().collect::<String>().trim_end().to_string());
        lines.filter(|line| !line.is_empty()).collect()
    }

    fn line(&mut self) -> &mut Vec<char> {
        let at = self.top + self.row;
        if self.lines.len() <= at {
            self.lines.resize(at + 1, Vec::new());
        }
        &mut self.lines[at]
    }

    fn down(&mut self) {
        if self.row + 1 == Self::ROWS { self.top += 1 } else { self.row += 1 }
    }

    fn erase(&mut self) {
        let column = self.column;
        self.line().truncate(column);
        let at = self.top + self.row;
        self.lines.truncate(at + 1);
    }

    fn put(&mut self, c: char) {
        let column = self.column;
        assert!(column < 80, "wider than the terminal");
        let line = self.line();
        if line.len() <= column {
            line.resize(column + 1, ' ');
        }
        line[column] = c;
        self.column += 1;
    }
}

#[test]
fn a_line_shows_below_the_cursor_and_is_gone_at_the_end() {
    // On an empty screen, and at the bottom of a full one.
    for lines_before in [0, 30] {
        let mut terminal = zfolio(&format!(
            "seq {lines_before}; printf 'name? '; sleep 3.6; echo Ada; sleep 1.2; printf '50 %%'; sleep 1.2; exit 3"
        ));
        let (all, status) = terminal.ends();
        assert!(all.matches("zfolio 0:0").count() >= 3, "{all:?}");
        let mut expected: Vec<String> = (1..=lines_before).map(|n: i32| n.to_string()).collect();
        expected.extend(["name? Ada".to_string(), "50 %".to_string()]);
        assert_eq!(Screen::after(&all), expected, "{all:?}");
        assert_eq!(status.code(), Some(3));
        // In between it was seen on a line of its own, below the prompt.
        let (before, _) = all.split_once("Ada").unwrap();
        let seen = Screen::after(before);
        let [prompt, line] = &seen[seen.len() - 2..] else { unreachable!() };
        assert!(prompt == "name?" && line.starts_with("zfolio 0:0") && line.contains("faults/s"), "{seen:?}");
    }
}

#[test]
fn nothing_is_written_into_a_pipe_or_on_a_terminal_that_can_do_nothing() {
    let arguments = ["run", "--quiet", "--progress", "--", "sleep", "3.5"];
    let output = Command::new(ZFOLIO).args(arguments).env("TERM", "xterm").output().unwrap();
    assert_eq!((output.status.code(), output.stdout, output.stderr), (Some(0), vec![], vec![]));
    let (all, _) = zfolio_on("dumb", "sleep 3.5").ends();
    assert_eq!(all, "");
}

#[test]
fn nothing_is_written_while_a_program_reads_keys_or_a_password() {
    for mode in ["-icanon", "-echo"] {
        let (all, _) = zfolio(&format!("stty {mode}; sleep 3.5; echo done")).ends();
        assert_eq!(all, "done\r\n", "{mode}");
    }
}

#[test]
fn without_being_asked_there_is_no_line() {
    let arguments = ["run", "--quiet", "--", "sleep", "3.5"];
    let (all, _) = Terminal::with(Command::new(ZFOLIO).args(arguments).env("TERM", "xterm")).ends();
    assert_eq!(all, "");
}

#[test]
fn the_line_is_as_wide_as_the_terminal() {
    let mut terminal = zfolio("sleep 100");
    terminal.shows("zfolio 0:0");
    terminal.resizes();
    terminal.shows("\x1b8");
    for _ in 0..2 {
        terminal.shows("\r\x1bD");
        terminal.shows("zfolio 0:0");
        // What was shown up to there is forgotten; the line's rest is up to the sequence that ends it.
        terminal.idles(Duration::from_millis(300));
        let (rest, _) = terminal.seen.split_once("\x1b8").unwrap();
        let line = format!("zfolio 0:0{rest}");
        assert!(line.contains("iB, ") && line.len() < 44 && !line.contains("processes"), "{line:?}");
    }
    terminal.types("\x03");
    terminal.ends();
}

#[test]
fn a_job_in_the_background_writes_nothing_and_one_that_stops_erases_its_line() {
    let mut terminal = Terminal::with(
        Command::new("bash")
            .args(["--norc", "--noprofile", "--noediting", "-i"])
            .env("PS1", "$ ")
            .env("TERM", "xterm"),
    );
    terminal.types(&format!("{ZFOLIO} run -q --progress -- sh -c 'echo re\"\"ady; exec sleep 100'\n"));
    terminal.shows("ready\r\n");
    terminal.shows("zfolio 0:0");
    terminal.types("\x1a");
    terminal.shows("\x1b[J");
    terminal.shows("Stopped");
    terminal.types("bg\n");
    terminal.shows("bg");
    let shown = terminal.idles(Duration::from_millis(2500));
    assert!(!shown.contains("zfolio 0:"), "{shown:?}");
    terminal.types("fg\n");
    terminal.shows("fg");
    terminal.shows("zfolio 0:");
    terminal.types("\x03");
    terminal.shows("$ ");
}
