//! A pseudo-terminal, for tests that need one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A pseudo-terminal with a session on it.
pub struct Terminal {
    keyboard: File,
    output: Receiver<String>,
    /// What was shown, and not waited for.
    pub seen: String,
    /// The session's first process.
    pub child: Child,
}

impl Terminal {
    /// Starts a command in a session of its own, on this terminal.
    pub fn with(command: &mut Command) -> Terminal {
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
        // SAFETY: all calls are safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                // In the background of a shell the tests run with both ignored.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                libc::signal(libc::SIGQUIT, libc::SIG_DFL);
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

    /// Types keys.
    #[allow(dead_code, reason = "not every test that uses terminals types")]
    pub fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Becomes a terminal of 44 columns.
    #[allow(dead_code, reason = "not every test that uses terminals resizes them")]
    pub fn resizes(&self) {
        let size = libc::winsize { ws_row: 33, ws_col: 44, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the kernel reads the structure only.
        assert_eq!(unsafe { libc::ioctl(self.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
    }

    /// Waits until the text shows, and forgets what was shown up to there.
    #[allow(dead_code, reason = "not every test that uses terminals waits so")]
    pub fn shows(&mut self, text: &str) {
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

impl Terminal {
    /// Everything that is shown until the session has ended, and its status.
    #[allow(dead_code, reason = "not every test that uses terminals waits so")]
    pub fn ends(&mut self) -> (String, ExitStatus) {
        let status = self.child.wait().unwrap();
        // The reader ends where nobody has the terminal open any more.
        while let Ok(text) = self.output.recv_timeout(Duration::from_secs(5)) {
            self.seen.push_str(&text);
        }
        (std::mem::take(&mut self.seen), status)
    }

    /// Waits for a while, and returns what was shown.
    #[allow(dead_code, reason = "not every test that uses terminals waits so")]
    pub fn idles(&mut self, time: Duration) -> &str {
        let deadline = Instant::now() + time;
        while let Ok(text) = self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.seen.push_str(&text);
        }
        &self.seen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
