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
    // Without a loop that starts programs: a shell that is stopped in the middle of vfork() is not seen as stopped, by
    // nobody.
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

/// The same inside: the shell itself is under zfolio, and what it starts is stopped, sent to the background and brought
/// back.
#[test]
fn a_shell_under_zfolio_controls_its_jobs() {
    let mut terminal = Terminal::with(
        Command::new(ZFOLIO)
            .args(["run", "-q", "--memory", "64M", "--", "bash", "--norc", "--noprofile", "-i"])
            .env("PS1", "$ "),
    );
    terminal.shows("$ ");
    let job = "python3 -c 'import sys; a = bytearray(range(256)) * 400000; print(\"rea\" + \"dy\", flush=True); sys.stdin.readline(); print(\"sum\", sum(a[::4099]), flush=True)'";
    terminal.types(&format!("{job}\n"));
    terminal.shows("ready");
    terminal.types("\x1a");
    terminal.shows("Stopped");
    // It wants the terminal, and is stopped again for that.
    terminal.types("bg\n");
    terminal.shows("&");
    terminal.types("sleep 0.3; jobs\n");
    terminal.shows("Stopped");
    terminal.types("fg\n");
    terminal.shows("python3");
    std::thread::sleep(Duration::from_millis(200));
    terminal.types("\n");
    let sum: u64 = (0..25_000u64 * 4096).step_by(4099).map(|at| at % 256).sum();
    terminal.shows(&format!("sum {sum}"));
    // One that runs on in the background, and one that ends by ^C.
    terminal.types("sleep 0.5 &\n");
    terminal.shows("[1]");
    terminal.types("sleep 100\n");
    std::thread::sleep(Duration::from_millis(300));
    terminal.types("\x03");
    terminal.types("echo sta''tus=$?; wait; echo do''ne=$?\n");
    terminal.shows("status=130");
    terminal.shows("done=0");
    terminal.types("exit 5\n");
    let (_, status) = terminal.ends();
    assert_eq!(status.code(), Some(5));
}
