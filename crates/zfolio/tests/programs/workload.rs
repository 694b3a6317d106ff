//! What is run, at which size, under which limit.
//!
//! The numbers after `Size::pick` are sizes of the input; the footprints that they give are measured, not assumed.

use crate::comparison::SLACK;
use crate::{c_source, redis, text::Text};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How large the workloads are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// 200 to 450 MiB of footprint, seconds each: for every change.
    Small,
    /// 0.8 to 1.8 GiB, minutes in all.
    Full,
}

impl Size {
    /// From `ZFOLIO_SIZE`.
    pub fn from_env() -> Size {
        match std::env::var("ZFOLIO_SIZE").as_deref() {
            Err(_) | Ok("small") => Size::Small,
            Ok("full") => Size::Full,
            Ok(other) => panic!("ZFOLIO_SIZE={other}: it is small or full"),
        }
    }

    /// The number for this size.
    pub fn pick(self, small: u64, full: u64) -> u64 {
        if self == Size::Full { full } else { small }
    }
}

/// One program with its input, ready to run any number of times.
pub struct Workload {
    /// Short name for tables.
    pub name: &'static str,
    /// The program (a path, never a shim) and its arguments.
    pub command: Vec<String>,
    /// What else `zfolio run` is told.
    pub options: Vec<&'static str>,
    /// The limit as a share of the footprint that the program has alone.
    pub share: f64,
    /// How far the summary's peak may go past the limit: more where forks leave memory to several, which is counted
    /// with too many for some milliseconds. (What the kernel counts may not.)
    pub told_slack: f64,
    /// A file that the program writes and that is part of its answer.
    pub result: Option<PathBuf>,
    /// What talks to it while it runs.
    pub client: Option<Box<dyn Fn() -> Result<String, String> + Sync>>,
    /// Where it runs; removed with the workload.
    pub directory: Directory,
}

/// Why there is nothing to run: a program and the Debian package that has it.
pub struct Missing(pub &'static str, pub &'static str);

/// Makes a workload of a size.
pub type Make = fn(Size) -> Result<Workload, Missing>;

/// A directory of one test's own.
pub struct Directory(PathBuf);

impl Directory {
    /// Under `TMPDIR`, with a short name, because it holds a socket.
    pub fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("zfolio-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Directory(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("TMPDIR is text").to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Workload {
    /// One of `share` of its footprint, with nothing to it but a command.
    pub fn new(name: &'static str, share: f64, command: &[&str]) -> Workload {
        let command = command.iter().map(|word| word.to_string()).collect();
        let (told_slack, directory) = (SLACK, Directory::new(name));
        let options = Vec::new();
        Workload { name, command, options, share, told_slack, result: None, client: None, directory }
    }
}

/// The interpreter of python3.
pub fn python() -> Result<String, Missing> {
    let python = installed("python3", "python3")?;
    // Version managers put a shell script there; the interpreter itself knows where it is.
    Ok(output(Command::new(python).args(["-c", "import sys; print(sys.executable)"])))
}

/// A dict of records, sorted and hashed. 2 million at full size.
pub fn python3(size: Size) -> Result<Workload, Missing> {
    let records = size.pick(400_000, 2_000_000).to_string();
    Ok(Workload::new("python3", 0.25, &[&python()?, &source("records.py"), &records]))
}

/// A database in memory: 1 GiB at full size.
pub fn sqlite3(size: Size) -> Result<Workload, Missing> {
    let sqlite = installed("sqlite3", "sqlite3")?;
    let orders = size.pick(700_000, 3_000_000);
    let parameters = [("@customers", orders / 20), ("@orders", orders)];
    let [customers, orders] = parameters.map(|(name, value)| format!(".parameter set {name} {value}"));
    let script = format!(".read {}", source("database.sql"));
    Ok(Workload::new(
        "sqlite3",
        0.5,
        &[&sqlite, "-init", "/dev/null", ":memory:", &customers, &orders, &script],
    ))
}

/// A server with 1 GiB of records at full size, with a loader, redis-benchmark and a digest at the end.
pub fn redis(size: Size) -> Result<Workload, Missing> {
    let mut workload = Workload::new("redis-server", 0.5, &[]);
    // Debian's redis-tools has the same binary under another name, and installs no service: the name it is called by
    // decides what it is.
    let server = workload.directory.file("redis-server");
    let binary = installed("redis-server", "").or_else(|_| installed("redis-check-rdb", "redis-tools"))?;
    installed("redis-benchmark", "redis-tools")?;
    symlink(fs::canonicalize(binary).unwrap(), &server).unwrap_or_else(|error| panic!("{server}: {error}"));
    let records = size.pick(400_000, 1_600_000);
    let (socket, log) = (workload.directory.file("socket"), workload.directory.file("log"));
    let options = [
        ["--port", "0"],
        ["--daemonize", "no"],
        ["--unixsocket", &socket],
        ["--logfile", &log],
        ["--save", ""],
        ["--appendonly", "no"],
        ["--enable-debug-command", "local"],
    ];
    workload.command.push(server);
    workload.command.extend(options.as_flattened().iter().map(|word| word.to_string()));
    workload.client = Some(Box::new(move || redis::converse(Path::new(&socket), records)));
    Ok(workload)
}

/// Lines of text, sorted in one buffer by two threads: a file of 600 MB at full size.
pub fn sort(size: Size) -> Result<Workload, Missing> {
    let sort = installed("sort", "coreutils")?;
    let mut workload = Workload::new("sort", 0.5, &[&sort, "--parallel=2"]);
    let input = workload.directory.file("lines");
    write(&input, |out| {
        let mut text = Text::new(7);
        (0..size.pick(400_000, 3_600_000)).try_for_each(|_| {
            let count = 10 + text.below(30) as usize;
            let (words, number) = (text.sentence(count), text.below(100_000_000));
            writeln!(out, "{words} {number:08}")
        })
    });
    let buffer = format!("--buffer-size={}M", size.pick(150, 1500));
    let temporary = format!("--temporary-directory={}", workload.directory.path().display());
    workload.command.extend([buffer, temporary, input]);
    Ok(workload)
}

/// Maps, lists and strings under the G1 collector: a heap of at most 1,200 MiB at full size.
pub fn java(size: Size) -> Result<Workload, Missing> {
    let java = installed("java", "default-jdk-headless")?;
    let javac = installed("javac", "default-jdk-headless")?;
    let heap = format!("-Xmx{}m", size.pick(300, 1200));
    let orders = size.pick(450_000, 2_200_000).to_string();
    let mut workload = Workload::new("java", 0.5, &[&java, "-XX:+UseG1GC", &heap, "-cp"]);
    let classes = workload.directory.file("classes");
    output(Command::new(javac).args(["-d", &classes, &source("Heap.java")]));
    workload.command.extend([classes, "Heap".into(), orders]);
    Ok(workload)
}

/// Buffers outside the collector's heap and a Map inside it.
pub fn node(size: Size) -> Result<Workload, Missing> {
    let node = installed("node", "nodejs")?;
    let (entries, buffers) = (size.pick(500_000, 2_200_000).to_string(), size.pick(400, 1200).to_string());
    Ok(Workload::new(
        "node",
        0.5,
        &[&node, "--max-old-space-size=1500", &source("heap.js"), &entries, &buffers],
    ))
}

/// Structures, strings and lists in SBCL's heap, which is executable.
pub fn sbcl(size: Size) -> Result<Workload, Missing> {
    let sbcl = installed("sbcl", "sbcl")?;
    let entries = size.pick(400_000, 2_500_000).to_string();
    let command = [&sbcl, "--dynamic-space-size", "4096", "--script", &source("heap.lisp"), &entries];
    Ok(Workload::new("sbcl", 0.5, &command))
}

/// GCC's compiler proper on one large file.
pub fn cc1(size: Size) -> Result<Workload, Missing> {
    let gcc = installed("gcc", "gcc")?;
    let cc1 = output(Command::new(gcc).arg("-print-prog-name=cc1"));
    let mut workload = Workload::new("cc1", 0.5, &[&cc1, "-quiet", "-O0"]);
    let (input, assembly) = (workload.directory.file("large.c"), workload.directory.file("large.s"));
    write(&input, |out| c_source::write(out, size.pick(3_000, 10_000)));
    workload.command.extend([input, "-o".into(), assembly.clone()]);
    workload.result = Some(assembly.into());
    Ok(workload)
}

/// A Go program linked with cgo: its collector's heap beside malloc's.
pub fn go(size: Size) -> Result<Workload, Missing> {
    let go = installed("go", "golang-go").or_else(|missing| {
        let usual = "/usr/local/go/bin/go";
        if Path::new(usual).exists() { Ok(usual.to_string()) } else { Err(missing) }
    })?;
    installed("gcc", "gcc")?;
    let mut workload = Workload::new("go", 0.5, &[]);
    let (program, path) = (workload.directory.file("heap"), workload.directory.file("path"));
    let mut build = Command::new(go);
    build.args(["build", "-o", &program, &source("heap.go")]).current_dir(workload.directory.path());
    // The cache stays: it holds the standard library, which takes half a minute to compile.
    build.env("CGO_ENABLED", "1").env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache"));
    output(
        build.env("GOPATH", path).env("GO111MODULE", "off").env("GOFLAGS", "").env("GOTOOLCHAIN", "local"),
    );
    workload.command.extend([program, size.pick(300_000, 3_500_000).to_string()]);
    Ok(workload)
}

/// Thirty processes that start at once, fill 24 MiB each as fast as they can, and go through it for half a second; none
/// of them waits until others are done.
pub fn crowd(_: Size) -> Result<Workload, Missing> {
    let gcc = installed("gcc", "gcc")?;
    let script = "for i in $(seq 30); do \"$0\" 24 fill read 500 verify & done; wait";
    let mut workload = Workload::new("crowd", 0.35, &["/bin/sh", "-c", script]);
    workload.options.push("--no-turns");
    let program = workload.directory.file("neighbour");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/neighbour.c");
    output(Command::new(gcc).args(["-O1", "-o", &program, source]));
    workload.command.push(program);
    Ok(workload)
}

/// A mapped file of 38 MiB and 140 MiB of memory that are read again and again.
pub fn files(_: Size) -> Result<Workload, Missing> {
    Ok(Workload::new("files", 0.5, &[&python()?, &source("files.py"), "140", "38"]))
}

/// The path of a program, or which package to install.
pub fn installed(program: &'static str, package: &'static str) -> Result<String, Missing> {
    let path = std::env::var("PATH").unwrap_or_default();
    let found =
        path.split(':').map(|directory| Path::new(directory).join(program)).find(|path| path.is_file());
    found.map(|path| path.to_str().unwrap().to_string()).ok_or(Missing(program, package))
}

/// The path of a workload's source.
pub fn source(name: &str) -> String {
    format!("{}/../../tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// What a command that must succeed prints, without the line's end.
pub fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {errors}", output.status);
    String::from_utf8(output.stdout).expect("a path or nothing").trim_end().to_string()
}

/// Writes a file.
pub fn write(path: &str, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
    let written = File::create(path).and_then(|file| {
        let mut out = BufWriter::new(file);
        content(&mut out)?;
        out.flush()
    });
    written.unwrap_or_else(|error| panic!("{path}: {error}"));
}
