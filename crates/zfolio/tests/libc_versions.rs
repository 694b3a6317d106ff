//! The hooks inside libc in other versions of glibc than this machine's: the packages of Debian's releases are fetched
//! and unpacked, and a program runs under each libc by its own loader. Skipped, with the reason on stderr, where this
//! is no Debian or the packages cannot be had.

mod skip;

use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{LittleEndian, Object, ObjectSegment, ObjectSymbol};
use serde_json::Value;
use skip::{skip, tell};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use uffd::sites::{self, SITE_BYTES, Site};

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// Releases, and whether all sites are known to be recognised there: of one that still changes only the behaviour is
/// known.
const RELEASES: [(&str, bool); 4] =
    [("bullseye", true), ("bookworm", true), ("trixie", true), ("sid", false)];

const SITES: &str = "clone, mmap, mremap, brk";

/// Where this machine has its packages from, and what they are signed with.
struct Mirror {
    uri: String,
    keys: String,
}

impl Mirror {
    fn of_this_machine() -> Option<Mirror> {
        let text = fs::read_to_string("/etc/apt/sources.list.d/debian.sources").ok()?;
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            value.split_whitespace().next().map(String::from)
        };
        Some(Mirror { uri: field("URIs")?, keys: field("Signed-By")? })
    }

    /// Fetches a release's libc6 and unpacks it into `dir`; an error says why not.
    fn fetch(&self, release: &str, dir: &Path) -> Result<(), String> {
        let apt = dir.join("apt");
        fs::create_dir_all(apt.join("lists/partial")).map_err(|e| e.to_string())?;
        fs::create_dir_all(apt.join("archives/partial")).map_err(|e| e.to_string())?;
        let source = format!("deb [signed-by={}] {} {release} main\n", self.keys, self.uri);
        fs::write(apt.join("sources.list"), source).map_err(|e| e.to_string())?;
        let apt_get = |arguments: &[&str]| {
            let place = |option: &str, path: &str| format!("{option}={}", apt.join(path).display());
            let mut command = Command::new("apt-get");
            let places = [
                place("Dir::State", ""),
                place("Dir::State::lists", "lists"),
                place("Dir::Cache", ""),
                place("Dir::Etc::sourcelist", "sources.list"),
                "Dir::State::status=/dev/null".into(),
                "Dir::Etc::sourceparts=/dev/null".into(),
                "Acquire::Languages=none".into(),
                "Acquire::Retries=1".into(),
                "Acquire::http::Timeout=20".into(),
                "Acquire::https::Timeout=20".into(),
                "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
                // Unpacked below a directory that the user apt would change to may not look into.
                "APT::Sandbox::User=root".into(),
                "APT::Update::Error-Mode=any".into(),
            ];
            for option in &places {
                command.args(["-o", option]);
            }
            succeed(command.arg("-q").args(arguments).current_dir(&apt))
        };
        apt_get(&["update"])?;
        apt_get(&["download", "libc6"])?;
        let package = fs::read_dir(&apt)
            .map_err(|e| e.to_string())?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .ok_or("apt-get has left no package")?;
        succeed(Command::new("dpkg-deb").arg("-x").arg(package).arg(dir))?;
        fs::remove_dir_all(apt).map_err(|e| e.to_string())
    }
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// The folder of a release's libc.so.6 and loader.
fn folder(root: &Path) -> Option<PathBuf> {
    ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]
        .map(|dir| root.join(dir))
        .into_iter()
        .find(|dir| dir.join("libc.so.6").exists() && dir.join("ld-linux-x86-64.so.2").exists())
}

/// A folder that goes with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program's output under a libc, as a child of `prefix`.
fn run(prefix: &[&str], libc: &Path, program: &Path, grows: bool) -> Output {
    let mut words: Vec<&str> = prefix.to_vec();
    let loader = libc.join("ld-linux-x86-64.so.2");
    // zfolio takes no loader for a program; env has one of its own.
    words.extend(["timeout", "-k", "5", "120", "env"]);
    words.extend([
        loader.to_str().unwrap(),
        "--library-path",
        libc.to_str().unwrap(),
        program.to_str().unwrap(),
    ]);
    if grows {
        words.push("grows");
    }
    Command::new(words[0]).args(&words[1..]).output().unwrap()
}

/// What doctor says of a libc's hooks.
fn hooks(libc: &Path) -> String {
    let file = libc.join("libc.so.6");
    let doctor = Command::new(ZFOLIO).arg("doctor").arg("--libc").arg(&file).output().unwrap();
    let text = String::from_utf8(doctor.stdout).unwrap();
    text.lines().find(|line| line.contains("hooks in libc")).unwrap().to_string()
}

fn check(release: &str, is_known: bool, libc: &Path, scratch: &Path, program: &Path) {
    let found = hooks(libc);
    let all = found.starts_with("ok") && found.ends_with(SITES);
    tell(&format!("{release}: {found}"));
    assert!(all || !is_known, "{release}: {found}");

    for grows in [false, true] {
        let alone = run(&[], libc, program, grows);
        let json = scratch.join("figures.json");
        // What is small is so by the limit.
        let memory = if grows { "32M" } else { "1G" };
        let prefix = [ZFOLIO, "run", "--quiet", "--memory", memory, "--json", json.to_str().unwrap(), "--"];
        let managed = run(&prefix, libc, program, grows);
        // Where its growth would not be seen, the program that is executed last has an engine of its own.
        let own = if all { "" } else { "left: 1" };
        let text = |output: &Output| match String::from_utf8_lossy(&output.stdout) {
            text if own.is_empty() => text.into_owned(),
            text => text.replace(own, "left: 0"),
        };
        assert_eq!(alone.status.code(), Some(7), "{release}: {}", String::from_utf8_lossy(&alone.stderr));
        assert_eq!(
            (managed.status.code(), text(&managed)),
            (Some(7), text(&alone)),
            "{release}: {}",
            String::from_utf8_lossy(&managed.stderr)
        );
        let json: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
        let engines = json["tree"]["managed"].as_u64().unwrap();
        assert_eq!(json["tree"]["unmanaged"], 0, "{release}");
        // The program once it has grown, and the two children that it forks after that.
        let expected = if grows { 3 } else { 0 };
        assert!(engines == expected || !all, "{release}: {engines} engines, expected {expected}");
        let out = json["counters"]["pgdeactivate"].as_u64().unwrap();
        assert!(!grows || out > 1000, "{release}: {json}");
    }
}

/// Where this machine's libc and its loader are.
fn own_libc() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.split_whitespace().find(|word| word.ends_with("/libc.so.6"))?;
    Some(Path::new(path).parent()?.to_path_buf()).filter(|dir| dir.join("ld-linux-x86-64.so.2").exists())
}

/// Rewrites the system call of a site to what does the same and is not recognised: `xor %eax,%eax; mov $NN,%al; nop;
/// syscall`.
fn disguise(libc: &mut [u8], site: Site) {
    let file = ElfFile::<FileHeader64<LittleEndian>>::parse(&*libc).unwrap();
    let function = site
        .symbols()
        .find_map(|name| {
            file.dynamic_symbols().find(|s| s.is_definition() && s.name_bytes().is_ok_and(|n| n == name))
        })
        .unwrap();
    let (at, size) = (function.address(), function.size() as usize);
    let segment = file.segments().find(|s| (s.address()..s.address() + s.size()).contains(&at)).unwrap();
    let begin = (segment.file_range().0 + at - segment.address()) as usize;
    let found = begin + sites::find(&libc[begin..begin + size], site.number()).expect("it is recognised");
    let number = u8::try_from(site.number()).unwrap();
    libc[found..found + SITE_BYTES].copy_from_slice(&[0x31, 0xc0, 0xb0, number, 0x90, 0x0f, 0x05]);
}

/// Runs `tests/c/hold.c` under a libc, with its memory on its way all the time: forks, daemon, and what else forks
/// inside libc.
fn holds(name: &str, libc: &Path, hold: &Path) {
    let loader = libc.join("ld-linux-x86-64.so.2");
    for way in ["fork", "_Fork", "forkpty", "daemon"] {
        let output = Command::new("timeout")
            .args([
                "-k",
                "5",
                "120",
                ZFOLIO,
                "run",
                "--quiet",
                "--evict-all",
                "--memory",
                "256M",
                "--",
                "env",
            ])
            .args([loader.as_path(), Path::new("--library-path"), libc, hold])
            .args([way, "16"])
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && err.is_empty(), "{name} {way}: {}: {out}{err}", output.status);
        // The daemon's parent does not wait for it.
        assert!(out == "right\n" || way == "daemon" && out.is_empty(), "{name} {way}: {out}");
    }
}

#[test]
fn where_a_call_of_libcs_is_not_recognised_nothing_is_lost() {
    let Some(own) = own_libc() else { return skip("no libc with its loader beside it") };
    let name = format!("disguised-{}", std::process::id());
    let scratch = Scratch(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
    let (calls, hold) = (scratch.0.join("calls"), scratch.0.join("hold"));
    fs::create_dir_all(&scratch.0).unwrap();
    let source = |name: &str| format!("{}/tests/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let gcc = |flags: &[&str], to: &Path, name| {
        succeed(
            Command::new("gcc")
                .args(["-O1", "-Wall", "-pthread"])
                .args(flags)
                .arg("-o")
                .arg(to)
                .arg(source(name)),
        )
    };
    gcc(&["-nostartfiles"], &calls, "calls").unwrap();
    gcc(&[], &hold, "hold").unwrap();
    let all = Site::ALL.map(|site| vec![site]).into_iter().chain([Site::ALL.to_vec()]);
    for sites in all {
        let name = sites.iter().map(|site| site.name()).collect::<Vec<_>>().join(", ");
        let libc = scratch.0.join(name.replace(", ", "-"));
        fs::create_dir_all(&libc).unwrap();
        fs::copy(own.join("ld-linux-x86-64.so.2"), libc.join("ld-linux-x86-64.so.2")).unwrap();
        let mut bytes = fs::read(own.join("libc.so.6")).unwrap();
        sites.iter().for_each(|site| disguise(&mut bytes, *site));
        fs::write(libc.join("libc.so.6"), bytes).unwrap();
        let found = hooks(&libc);
        assert!(found.starts_with("note") && found.contains(&format!(": not {name}: ")), "{found}");
        let brings_home = found.contains("a fork brings all memory home first");
        assert_eq!(brings_home, sites.contains(&Site::Clone), "{found}");
        check(&name, false, &libc, &scratch.0, &calls);
        holds(&name, &libc, &hold);
    }
}

#[test]
fn every_libc_that_can_be_had_is_recognised_and_its_programs_run() {
    let mirror = match Mirror::of_this_machine() {
        Some(mirror) if Path::new("/usr/bin/dpkg-deb").exists() => mirror,
        _ => return skip("this machine has no Debian packages"),
    };
    let name = format!("libc-{}", std::process::id());
    let scratch = Scratch(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
    fs::create_dir_all(&scratch.0).unwrap();
    let program = scratch.0.join("calls");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/calls.c");
    succeed(Command::new("gcc").args(["-O1", "-Wall", "-nostartfiles", "-o"]).arg(&program).arg(source))
        .unwrap();
    for (release, is_known) in RELEASES {
        let root = scratch.0.join(release);
        if let Err(why) = mirror.fetch(release, &root) {
            // No mirror can be reached, say: that is nothing of this machine's.
            tell(&format!("skipped: {release}: {why}"));
            continue;
        }
        let libc = folder(&root).unwrap_or_else(|| panic!("{release}: the package has no libc.so.6"));
        check(release, is_known, &libc, &scratch.0, &program);
    }
}
