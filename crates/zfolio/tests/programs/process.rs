//! One run of a command, watched: how it ended, what it wrote, how much memory it held.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// How often the memory of a run is looked at.
const SAMPLE: Duration = Duration::from_millis(10);

/// How much of an output is kept to be shown when two differ.
const SHOWN: usize = 4096;

/// Bytes that went by: their number, a hash, and the first of them.
#[derive(PartialEq, Eq, Default)]
pub struct Output {
    pub bytes: u64,
    pub hash: u64,
    pub head: Vec<u8>,
}

impl Output {
    /// Reads `source` to its end. A read error ends it too: the process is gone then, and its status tells.
    pub fn of(mut source: impl Read) -> Output {
        let (mut hasher, mut output) = (DefaultHasher::new(), Output::default());
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = source.read(&mut buffer) {
            output.add(&buffer[..count], &mut hasher);
        }
        output.hash = hasher.finish();
        output
    }

    /// The same without what zfolio says of a program that is slow, as one at half of its memory may be, or of memory
    /// that cannot go out.
    pub fn of_errors(source: impl Read) -> Output {
        let (mut hasher, mut output) = (DefaultHasher::new(), Output::default());
        let (mut source, mut line) = (BufReader::new(source), Vec::new());
        while let Ok(1..) = source.read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line);
            let told =
                ["has waited for memory for", "cannot go out", "nothing more can go out: the program waits"];
            let is_ours =
                text.starts_with("zfolio: warning: ") && told.iter().any(|part| text.contains(part));
            if !is_ours {
                output.add(&line, &mut hasher);
            }
            line.clear();
        }
        output.hash = hasher.finish();
        output
    }

    fn add(&mut self, bytes: &[u8], hasher: &mut DefaultHasher) {
        hasher.write(bytes);
        self.bytes += bytes.len() as u64;
        let shown = SHOWN.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..shown]);
    }
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} bytes, hash {:016x}:\n{}", self.bytes, self.hash, String::from_utf8_lossy(&self.head))
    }
}

/// What can be said of a run after its end.
#[derive(Debug)]
pub struct Outcome {
    /// As a shell says it: 128 and the signal's number for a process that a signal killed.
    pub status: i32,
    pub stdout: Output,
    pub stderr: Output,
    /// What the client of a server has seen; empty for a program without one.
    pub client: String,
    /// Highest value of the sampler, in bytes.
    pub peak_bytes: u64,
    pub elapsed: Duration,
}

/// Talks to a server while it runs and makes it end; returns what it has seen.
pub type Client<'a> = &'a (dyn Fn() -> Result<String, String> + Sync);

/// Runs `command` to its end and samples its memory all the while with `sample`, which is given the process id.
/// After `limit` the whole process group is killed, and that is a failure.
pub fn run(
    command: &mut Command,
    client: Option<Client>,
    limit: Duration,
    sample: impl Fn(u32) -> u64,
) -> Outcome {
    let started = Instant::now();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn();
    let mut group = Group(child.unwrap_or_else(|error| panic!("{command:?}: {error}")));
    let failed = AtomicBool::new(false);
    let (stdout, stderr) = (group.0.stdout.take().unwrap(), group.0.stderr.take().unwrap());
    thread::scope(|scope| {
        let stdout = scope.spawn(|| Output::of(stdout));
        let stderr = scope.spawn(|| Output::of_errors(stderr));
        let client = client.map(|client| {
            let failed = &failed;
            scope.spawn(move || client().inspect_err(|_| failed.store(true, Relaxed)))
        });
        let mut peak_bytes = 0;
        let mut late = false;
        let status = loop {
            if let Some(status) = group.0.try_wait().unwrap() {
                break status;
            }
            peak_bytes = sample(group.0.id()).max(peak_bytes);
            late |= started.elapsed() > limit;
            // A server whose client gave up would run for ever.
            if late || failed.load(Relaxed) {
                group.kill();
            }
            thread::sleep(SAMPLE);
        };
        let elapsed = started.elapsed();
        group.kill();
        let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
        assert!(
            !late,
            "{command:?} was not done after {limit:?} and was killed; stdout {stdout:?}; stderr {stderr:?}"
        );
        let client = client.map(|client| client.join().unwrap()).unwrap_or(Ok(String::new()));
        let client = client.unwrap_or_else(|error| {
            panic!(
                "{command:?} ended with {status}; its client: {error}; stdout {stdout:?}; stderr {stderr:?}"
            )
        });
        let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
        Outcome { status, stdout, stderr, client, peak_bytes, elapsed }
    })
}

/// A child that leads a process group, none of which outlives the test.
struct Group(Child);

impl Group {
    fn kill(&self) {
        // SAFETY: kill takes no pointers. The group is the child's own (`process_group(0)`), and its id is not reused
        // while a member lives; with no member left the call fails with ESRCH.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        let _ = self.0.wait();
    }
}

/// The largest anonymous footprint among `pid` and its descendants, in bytes: private and shared memory without files.
/// The largest and not the sum, because an engine that shares its program's address space shows the same pages.
pub fn anonymous_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let own = field_kib(&status, "RssAnon:") + field_kib(&status, "RssShmem:");
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children =
        tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()).collect::<String>();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    children.map(anonymous_bytes).fold(own * 1024, u64::max)
}

/// The number after `name` in text such as `/proc/PID/status`; 0 where it is missing (a zombie has none).
pub fn field_kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
