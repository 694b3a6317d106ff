//! Trees of processes: they fork, share what they have, and start others. Alone and under `zfolio run`, both in a
//! memory cgroup, since what the tree holds together is what counts.

use crate::cgroup::Cgroup;
use crate::comparison::{assert_went_out, compare, one_at_a_time, skip, tell};
use crate::redis;
use crate::workload::{self, Make, Missing, Size, Workload, installed, output, python, source};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;

/// See [`Workload::told_slack`].
const FAMILY_SLACK: f64 = 1.25;

/// The smallest limit that is tried.
const LEAST_BYTES: u64 = 32 * MIB;

/// As `comparison::check`, with the group's memory instead of the largest process's. Returns the summary, unless the
/// test is skipped.
pub fn check(make: Make) -> Option<Value> {
    let _alone = one_at_a_time();
    let size = Size::from_env();
    let workload = match make(size) {
        Ok(workload) => workload,
        Err(missing) => {
            skip(missing);
            return None;
        }
    };
    let group = match Cgroup::new() {
        Ok(group) => group,
        Err(why) => {
            tell(&format!("skipped: no memory cgroup can be made here ({why})"));
            return None;
        }
    };
    // It must come through within the limit and 10 %, with all that the kernel counts: files, the kernel's own and
    // zfolio itself too, which wants no less than this.
    let (summary, limit_bytes) = compare(
        &workload,
        size,
        LEAST_BYTES,
        &group.launcher(),
        |_| group.bytes(),
        |limit| group.end_at(limit),
        |got, summary| group.assert_enough(workload.name, got, summary),
    );
    if workload.share < 1.0 {
        assert_went_out(workload.name, &summary, limit_bytes);
    }
    Some(summary)
}

/// Generations of a process, each a child of the one before, that have and write as much as their parents, and all live
/// at once.
pub fn chain(size: Size) -> Result<Workload, Missing> {
    let gcc = installed("gcc", "gcc")?;
    let mut workload = Workload { told_slack: FAMILY_SLACK, ..Workload::new("chain", 0.8, &[]) };
    let program = workload.directory.file("chain");
    output(Command::new(gcc).args(["-O1", "-Wall", "-o", &program, &source("chain.c")]));
    workload.command.extend([program, "8".into(), size.pick(24, 128).to_string()]);
    Ok(workload)
}

/// multiprocessing by fork and by a fork server.
pub fn pool(size: Size) -> Result<Workload, Missing> {
    let records = size.pick(300_000, 1_500_000).to_string();
    Ok(Workload {
        told_slack: FAMILY_SLACK,
        ..Workload::new("pool", 0.6, &[&python()?, &source("pool.py"), &records])
    })
}

/// A server that forks its workers before it serves, under load.
pub fn prefork(size: Size) -> Result<Workload, Missing> {
    let (rows, requests) = (size.pick(200_000, 1_500_000).to_string(), size.pick(2_000, 20_000).to_string());
    let command = [&python()?, &source("prefork.py"), &rows, &requests];
    Ok(Workload { told_slack: FAMILY_SLACK, ..Workload::new("prefork", 0.75, &command.map(String::as_str)) })
}

/// redis-server that saves itself, and rewrites its log, by a child of a fork while clients write.
pub fn persistence(size: Size) -> Result<Workload, Missing> {
    let mut workload = workload::redis(size)?;
    workload.name = "redis-save";
    // The half and a twentieth: with two pools in the half, and the run's own files, each second page that a process
    // touches is out.
    workload.share = 0.55;
    workload.told_slack = FAMILY_SLACK;
    let directory = workload.directory.path().to_path_buf();
    workload.command.extend(["--dir".into(), directory.display().to_string()]);
    let (server, socket) = (workload.command[0].clone(), workload.directory.file("socket"));
    let records = size.pick(150_000, 800_000);
    workload.client =
        Some(Box::new(move || redis::persist(Path::new(&socket), Path::new(&server), &directory, records)));
    Ok(workload)
}

/// Whom a server becomes that gives up root, and the beginning of a command line that does so.
const NOBODY: u32 = 65534;
const AS_NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// A server that gives up root before it starts, as in the images of databases, and thirty connections that hold at the
/// same time what each has sorted.
pub fn postgres(size: Size) -> Result<Workload, Missing> {
    let bin = postgres_programs().ok_or(Missing("postgres", "postgresql"))?;
    installed("setpriv", "util-linux")?;
    // SAFETY: geteuid has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    let user: &[&str] = if is_root { &AS_NOBODY } else { &[] };
    let mut workload = Workload { told_slack: FAMILY_SLACK, ..Workload::new("postgres", 0.5, user) };
    if is_root {
        chown(workload.directory.path(), Some(NOBODY), Some(NOBODY)).expect("root may give it away");
    }
    // The other user may not read the repository, wherever that is.
    let (script, data) = (workload.directory.file("postgres.sh"), workload.directory.file("data"));
    fs::copy(source("postgres.sh"), &script).expect("the script is copied");
    let initdb = format!("{bin}/initdb");
    let init =
        [initdb.as_str(), "--pgdata", &data, "--no-sync", "--auth=trust", "--username=test", "--locale=C"];
    let words = [user, &init[..]].concat();
    output(Command::new(words[0]).args(&words[1..]).current_dir(workload.directory.path()));
    let settings = format!(
        "listen_addresses = ''\nunix_socket_directories = '{data}'\nfsync = off\nautovacuum = off\njit = off\n\
         shared_buffers = 16MB\nmax_connections = 50\nmax_parallel_workers_per_gather = 0\n"
    );
    fs::write(format!("{data}/postgresql.conf"), settings).expect("the cluster was made");
    let rows = size.pick(25_000, 100_000).to_string();
    workload.command.extend(["/bin/sh".into(), script, bin, data, "30".into(), rows]);
    Ok(workload)
}

/// Where Debian keeps the newest version's programs.
fn postgres_programs() -> Option<String> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path().join("bin"));
    let newest = versions.filter(|bin| bin.join("initdb").is_file()).max()?;
    newest.to_str().map(str::to_string)
}

/// sort between other commands.
pub fn pipeline(size: Size) -> Result<Workload, Missing> {
    let (sh, _) = (installed("sh", "dash")?, installed("awk", "mawk")?);
    let script = format!(
        "awk 'BEGIN {{ srand(5); for (i = 0; i < {}; i++) print int(rand() * 1e7), \"the line of number\", i % 1000 }}' \
         | sort -S 200M | uniq -c | sort -S 200M -k1,1rn -k2 | awk '{{ sum += $1 * $2 % 1000; if (NR % 50000 == 0) print }} \
         END {{ printf \"%d\\n\", sum }}'",
        size.pick(1_500_000, 8_000_000)
    );
    Ok(Workload::new("pipeline", 0.5, &[&sh, "-c", &script]))
}

/// Two thousand processes that are gone as soon as they are there.
pub fn short(_: Size) -> Result<Workload, Missing> {
    let sh = installed("sh", "dash")?;
    let script = "i=0; while [ $i -lt 2000 ]; do /bin/echo $i; i=$((i + 1)); done | md5sum";
    Ok(Workload::new("short", 1.0, &[&sh, "-c", script]))
}

/// Small processes, all at once, that hold what they have made for a while. In less than they need they take turns.
pub fn small(size: Size) -> Result<Workload, Missing> {
    let (sh, python) = (installed("sh", "dash")?, python()?);
    let program = "import hashlib, sys, time; t = [str(i * int(sys.argv[1])) for i in range(60000)]; time.sleep(1); \
                   sys.stdout.write(sys.argv[1] + \" \" + hashlib.md5(\"\".join(t).encode()).hexdigest() + chr(10))";
    let script = format!(
        "for i in $(seq {}); do {python} -c '{program}' $i & done | sort -n; wait",
        size.pick(40, 150)
    );
    Ok(Workload::new("small", 0.65, &[&sh, "-c", &script]))
}

/// gcc's driver, the compiler, the assembler and the linker.
pub fn gcc(size: Size) -> Result<Workload, Missing> {
    let gcc = installed("gcc", "gcc")?;
    let mut workload = Workload::new("gcc", 0.6, &[&gcc, "-O1", "-shared", "-fPIC", "-Wl,--build-id=none"]);
    let (input, object) = (workload.directory.file("large.c"), workload.directory.file("large.so"));
    workload::write(&input, |out| crate::c_source::write(out, size.pick(800, 5_000)));
    workload.command.extend([input, "-o".into(), object.clone()]);
    workload.result = Some(object.into());
    Ok(workload)
}

/// bash's job control: stopped, continued, waited for.
pub fn jobs(_: Size) -> Result<Workload, Missing> {
    let bash = installed("bash", "bash")?;
    let python = python()?;
    // The first job waits for `go`, so that it is there to be stopped.
    let script = format!(
        // What it says of its jobs depends on who ends first.
        "set -m; exec 2> /dev/null\n\
         work() {{ {python} -c 'import sys, hashlib; t = [str(i) * 9 for i in range(700000)]; print(hashlib.md5(\"\".join(t).encode()).hexdigest())' > out.$1; }}\n\
         rm -f go; {{ work 1; until [ -e go ]; do sleep 0.05; done; }} & work 2 &\n\
         sleep 0.3; kill -STOP %1; until jobs %1 | grep -q Stopped; do sleep 0.05; done; echo stopped\n\
         kill -CONT %1; touch go; wait %1; echo status $?; wait; echo status $?\n\
         (work 3); work 4 & fg %+ > /dev/null; cat out.1 out.2 out.3 out.4; sleep 100 & kill %+; wait %+; echo status $?"
    );
    Ok(Workload::new("jobs", 0.6, &[&bash, "--norc", "-c", &script]))
}

/// make -j4 of a C library: zstd's sources, as its crate has them.
pub fn make(_: Size) -> Result<Workload, Missing> {
    let (make, sh, _) = (installed("make", "make")?, installed("sh", "dash")?, installed("gcc", "gcc")?);
    let sources = zstd_sources().ok_or(Missing("the source of zstd-sys", "cargo fetch"))?;
    let script = "rm -f *.o *.a; exec \"$0\" -s -j4 -f \"$1\"";
    let mut workload = Workload::new("make", 0.6, &[&sh, "-c", script, &make]);
    let makefile = workload.directory.file("Makefile");
    let text = format!(
        "LIB = {}\nSOURCES = $(wildcard $(LIB)/common/*.c $(LIB)/compress/*.c $(LIB)/decompress/*.c)\n\
         OBJECTS = $(notdir $(SOURCES:.c=.o))\nvpath %.c $(LIB)/common $(LIB)/compress $(LIB)/decompress\n\
         libzstd.a: $(OBJECTS)\n\tar rcD $@ $^\n\
         %.o: %.c\n\tgcc -O3 -DZSTD_DISABLE_ASM -c -o $@ $<\n",
        sources.display()
    );
    fs::write(&makefile, text).unwrap();
    let library = workload.directory.file("libzstd.a");
    workload.command.push(makefile);
    workload.result = Some(library.into());
    Ok(workload)
}

/// Where cargo keeps them.
fn zstd_sources() -> Option<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let text = output(Command::new(cargo).args([
        "metadata",
        "--format-version=1",
        "--offline",
        "--filter-platform=x86_64-unknown-linux-gnu",
        "--manifest-path",
        manifest,
    ]));
    let metadata: serde_json::Value = serde_json::from_str(&text).ok()?;
    let package = metadata["packages"].as_array()?.iter().find(|package| package["name"] == "zstd-sys")?;
    let library = Path::new(package["manifest_path"].as_str()?).parent()?.join("zstd/lib");
    library.is_dir().then_some(library)
}
