//! What a terminal does to its foreground job reaches the program once, and a shell's job control works.

mod pty;

use pty::Terminal;
use std::process::Command;
use std::time::Duration;

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// Counts the signals of a name, and tells the count when it ends by SIGTERM.
fn counter(signal: &str) -> String {
    format!(
        "n=0; trap 'n=$((n+1)); echo got' {signal}; trap 'echo count=$n; exit 6' TERM; echo ready=$$; while :; do sleep 0.05; done"
    )
}

#[test]
fn ctrl_c_and_ctrl_backslash_and_a_resize_come_once() {
    for (signal, act) in [
        ("INT", (|t| t.types("\x03")) as fn(&mut Terminal)),
        ("QUIT", |t| t.types("\x1c")),
        ("WINCH", |t| t.resizes()),
    ] {
        let mut terminal =
            Terminal::with(Command::new(ZFOLIO).args(["run", "-q", "--", "sh", "-c", &counter(signal)]));
        terminal.shows("ready=");
        act(&mut terminal);
        terminal.shows("got");
        std::thread::sleep(Duration::from_millis(150));
        // SAFETY: touches no memory.
        unsafe { libc::kill(terminal.child.id() as i32, libc::SIGTERM) };
        terminal.shows("count=1");
        assert_eq!(terminal.child.wait().unwrap().code(), Some(6), "{signal}");
    }
}

#[test]
fn a_shell_sees_the_job_stopped_and_brings_it_back() {
    let mut terminal =
        Terminal::with(Command::new("bash").args(["--norc", "--noprofile", "-i"]).env("PS1", "$ "));
    // Without a loop that starts programs: a shell that is stopped in the middle of vfork() is not seen as stopped, by nobody.
    terminal.types(&format!(
        "{ZFOLIO} run -q -- sh -c \"trap 'expr 41 + 1; exit 3' INT; echo re''ady; read line\"\n"
    ));
    terminal.shows("ready");
    terminal.types("\x1a");
    terminal.shows("Stopped");
    terminal.types("fg\n");
    terminal.shows("fg");
    std::thread::sleep(Duration::from_millis(200));
    terminal.types("\x03");
    terminal.shows("42");
    terminal.types("echo status=$?\n");
    terminal.shows("status=3");
}
