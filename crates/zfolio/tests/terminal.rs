//! What a terminal does to its foreground job reaches the program once, and a shell's job control works.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// A pseudo-terminal with a session on it.
struct Terminal {
    keyboard: File,
    output: Receiver<String>,
    seen: String,
    child: Child,
}

impl Terminal {
    fn with(command: &mut Command) -> Terminal {
        let (mut master, mut slave) = (0, 0);
        let name = std::ptr::null_mut();
        // SAFETY: both numbers are written on success, and owned from then on.
        let (master, slave) = unsafe {
            assert_eq!(libc::openpty(&mut master, &mut slave, name, std::ptr::null(), std::ptr::null()), 0);
            libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
            (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
        };
        let stream = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(stream()).stdout(stream()).stderr(stream());
        // SAFETY: both calls are safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            })
        };
        let child = command.spawn().unwrap();
        let (sender, output) = channel();
        let mut screen = master.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(len @ 1..) = screen.read(&mut part) {
                let _ = sender.send(String::from_utf8_lossy(&part[..len]).into_owned());
            }
        });
        Terminal { keyboard: master, output, seen: String::new(), child }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn resizes(&self) {
        let size = libc::winsize { ws_row: 33, ws_col: 44, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the kernel reads the structure only.
        assert_eq!(unsafe { libc::ioctl(self.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
    }

    /// Waits until the text shows, and forgets what was shown up to there.
    fn shows(&mut self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(text) => self.seen.push_str(&text),
                Err(_) => panic!("{text:?} does not show: {:?}", self.seen),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
