//! Programs that CMD starts: by whatever call and with whatever environment they are managed, and where they cannot be
//! they run as without zfolio. Nothing but zfolio's own lines may be on stderr: the loader has much to say about a
//! library that it cannot load.
//!
//! Each test starts `tests/c/descend.c`, which tells by its own memory whether it is managed, once alone and once under
//! zfolio. They need the right to userfaultfd, as `zfolio doctor` does.

mod descend;
mod skip;

use descend::{Scratch, ZFOLIO, alone, is_the_same, not_zfolios, text, under_zfolio, ways, without_ours};
use serde_json::Value;
use skip::skip;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// The user whom everybody takes for nobody.
const NOBODY: &str = "65534";

/// Runs a command that ends in `descend grow`: it must come to its end, without a foreign word. True when it was
/// managed; if it was not, that is said.
fn is_managed(command: &[&str]) -> bool {
    let output = under_zfolio(command);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{command:?}: {out} {err}");
    assert_eq!(not_zfolios(&output.stderr), "", "{command:?}");
    match out.trim() {
        "kept small" => true,
        "whole" => {
            assert!(err.contains("unmanaged"), "{command:?}: nobody says that it was not managed: {err}");
            false
        }
        other => panic!("{command:?}: {other:?} {err}"),
    }
}

/// Runs a command whose one descendant lives long enough to be seen, and cannot be managed: it is counted and named,
/// with a reason that has these words, in the JSON too.
fn is_counted(scratch: &Scratch, command: &[&str], name: &str, why: &str) {
    let json = scratch.path("figures.json");
    // The shell stays, and the loader of the library in it.
    let script = "\"$@\"; true";
    let output = Command::new(ZFOLIO)
        .args(["run", "--memory", "64M", "--json", &json, "--", "sh", "-c", script, "sh"])
        .args(command)
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), not_zfolios(&output.stderr).as_str()), (Some(0), ""), "{command:?}");
    let figures: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let groups = figures["unmanaged"].as_array().unwrap();
    let found: Vec<_> = groups.iter().filter(|group| group["name"] == name).collect();
    assert_eq!(found.len(), 1, "{command:?}: {} in {groups:?}; {said}", name);
    assert_eq!(found[0]["count"], 1, "{groups:?}");
    assert!(found[0]["reason"].as_str().unwrap().contains(why), "{why:?} in {groups:?}");
    assert_eq!(figures["tree"]["unmanaged"], 1, "{figures}");
    assert!(said.contains(name) && said.contains("unmanaged"), "{said}");
}

#[test]
fn who_cannot_be_managed_is_counted_and_named_with_the_reason() {
    let scratch = Scratch::new("counted");
    let fixed = scratch.compile("descend.c", "fixed", &["-O1", "-pthread", "-static"]);
    is_counted(&scratch, &[&fixed, "grow"], "fixed", "static");
    for (name, loader, flags, why) in [
        ("bits32", "/lib/ld-linux.so.2", &["-m32"][..], "32-bit"),
        ("musl", "/lib/ld-musl-x86_64.so.1", &[], "musl"),
    ] {
        if Path::new(loader).exists() {
            let bare = scratch.bare(name, loader, flags);
            is_counted(&scratch, &[&bare, "rests"], name, why);
        } else {
            skip(&format!("{loader} is not there"));
        }
    }
    if is_root() {
        let root = new_root(&scratch);
        is_counted(&scratch, &["chroot", &root, "/descend", "grow"], "descend", "is hidden from it");
    }
}

fn is_root() -> bool {
    let root = fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0");
    if !root {
        skip("needs root");
    }
    root
}

fn works(command: &[&str]) -> bool {
    let works = Command::new(command[0]).args(&command[1..]).output().is_ok_and(|o| o.status.success());
    if !works {
        skip(&format!("{command:?} does not work here"));
    }
    works
}

#[test]
fn a_program_gets_its_arguments_and_its_environment_by_every_call() {
    let scratch = Scratch::new("environment");
    let descend = scratch.path("descend");
    for way in ways(&descend) {
        // As many as the registers hold, one more, and many more.
        for more in [
            &[][..],
            &["a", "b"],
            &["a", "b", "c"],
            &["a", "b", "c", "d"],
            &["a", "", "c", "d", "e", "f", "g"],
        ] {
            let output = is_the_same(&[&[&descend, "by", &way, &descend, "show"], more].concat());
            let environment = text(&output.stdout);
            assert_eq!(output.status.code(), Some(7), "{way}");
            for variable in ["LD_PRELOAD=/", "ZFOLIO_MEMCG=/"] {
                let found = environment.lines().filter(|line| line.starts_with(variable)).count();
                assert_eq!(found, 1, "{way}: {variable} in {environment}");
            }
        }
        // What cannot be executed fails as it does in libc, and leaves the program's own environment as it was.
        is_the_same(&[&descend, "by", &way, "/no/such/program", "a"]);
    }
}

#[test]
fn a_program_is_managed_whatever_environment_it_is_given() {
    let scratch = Scratch::new("managed");
    let descend = scratch.path("descend");
    for way in ways(&descend) {
        assert!(is_managed(&[&descend, "by", &way, &descend, "grow"]), "{way}");
    }
    for wrapper in
        [&["env", "-i"][..], &["env", "-u", "LD_PRELOAD"], &["env", "-u", "LD_PRELOAD", "-u", "ZFOLIO_MEMCG"]]
    {
        assert!(is_managed(&[wrapper, &[&descend, "grow"]].concat()), "{wrapper:?}");
    }
    let script = format!("unset LD_PRELOAD ZFOLIO_MEMCG; {descend} grow");
    assert!(is_managed(&["sh", "-c", &script]));
    // Down a chain of them.
    assert!(is_managed(&["env", "-i", "/usr/bin/env", "-i", &descend, "by", "execle", &descend, "grow"]));
}

#[test]
fn a_run_inside_a_run_is_left_to_itself() {
    let scratch = Scratch::new("inner");
    let descend = scratch.path("descend");
    let inner = [ZFOLIO, "run", "--quiet", "--memory", "40M", "--", "env", "-i", &descend, "grow"];
    assert!(is_managed(&inner));
    let show =
        under_zfolio(&["sh", "-c", &format!("echo $ZFOLIO_MEMCG; {ZFOLIO} run -q -- env -i {descend} show")]);
    let out = text(&show.stdout);
    let (outer, rest) = out.split_once('\n').unwrap();
    let page = rest.lines().find_map(|line| line.strip_prefix("ZFOLIO_MEMCG=")).expect(rest);
    assert!(page != outer && !rest.contains(Path::new(outer).parent().unwrap().to_str().unwrap()), "{out}");
}

/// Copies a program, in a process of its own: what this one writes cannot be executed while another test's child has
/// inherited the descriptor.
fn copy(from: &str, to: &str) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success(), "cp {from} {to}");
}

/// A root directory with the test program in it, and what it needs.
fn new_root(scratch: &Scratch) -> String {
    let root = scratch.path("root");
    let libraries = text(&alone(&["ldd", &scratch.path("descend")]).stdout);
    let files = libraries.split_whitespace().filter(|word| word.starts_with('/'));
    for file in files {
        let to = format!("{root}{file}");
        fs::create_dir_all(Path::new(&to).parent().unwrap()).unwrap();
        copy(file, &to);
    }
    copy(&scratch.path("descend"), &format!("{root}/descend"));
    root
}

#[test]
fn where_the_library_cannot_be_reached_nothing_of_zfolio_is_left() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("root");
    let root = new_root(&scratch);
    let left = |output: Output| {
        assert_eq!(text(&output.stdout), without_ours(&output.stdout));
    };
    left(is_the_same(&["chroot", &root, "/descend", "show", "a"]));
    // What the program itself preloads stays.
    let own = "LD_PRELOAD=/no/such.so";
    is_the_same(&["env", own, "chroot", &root, "/descend", "show", "a"]);
    for way in ["execve", "execve_null", "execvp", "execle", "posix_spawn", "vfork", "fexecve"] {
        left(is_the_same(&["chroot", &root, "/descend", "by", way, "/descend", "show", "a"]));
    }
    let grown = under_zfolio(&["chroot", &root, "/descend", "grow"]);
    assert_eq!((text(&grown.stdout).as_str(), not_zfolios(&grown.stderr).as_str()), ("whole\n", ""));

    if works(&["unshare", "-m", "true"]) {
        let hidden = format!("mount -t tmpfs none /dev/shm && exec {} show", scratch.path("descend"));
        left(is_the_same(&["unshare", "-m", "sh", "-c", &hidden]));
    }
}

/// A container's /dev/shm is small, and programs fill it.
#[test]
fn a_full_dev_shm_ends_nobody() {
    if !works(&["unshare", "-m", "true"]) {
        return;
    }
    let scratch = Scratch::new("full");
    let script = scratch.file(
        "full",
        "test -e /dev/shm/zfolio-*/memcg || echo the run is elsewhere
         dd if=/dev/zero of=/dev/shm/fill bs=4k 2> /dev/null
         for i in $(seq 40); do \"$1\" grow || echo died & done; wait",
    );
    let run = format!(
        "mount -t tmpfs -o size=8M none /dev/shm && exec {ZFOLIO} run --memory 640M -- sh {script} {}",
        scratch.path("descend")
    );
    let output = alone(&["unshare", "-m", "sh", "-c", &run]);
    assert_eq!(not_zfolios(&output.stderr), "");
    let said = text(&output.stdout);
    assert_eq!((said.lines().count(), said.contains("died")), (40, false), "{said}");
}

#[test]
fn another_user_is_managed() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("user");
    let descend = scratch.path("descend");
    is_the_same(&[&descend, "as", NOBODY, &descend, "show", "a"]);
    assert!(is_managed(&[&descend, "as", NOBODY, &descend, "grow"]));
    let (user, group) = (format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"));
    assert!(is_managed(&["setpriv", &user, &group, "--clear-groups", &descend, "grow"]));
    if works(&["runuser", "-u", "nobody", "--", "true"]) {
        assert!(is_managed(&["runuser", "-u", "nobody", "--", &descend, "grow"]));
    }
    if works(&["su", "nobody", "-s", "/bin/sh", "-c", "true"]) {
        let script = format!("su nobody -s /bin/sh -c '{descend} grow'; true");
        assert!(is_managed(&["sh", "-c", &script]));
    }
}

#[test]
fn in_a_user_namespace_the_program_runs() {
    if !works(&["unshare", "-U", "true"]) {
        return;
    }
    let scratch = Scratch::new("namespace");
    let descend = scratch.path("descend");
    is_the_same(&["unshare", "-U", &descend, "show", "a"]);
    is_managed(&["unshare", "-U", &descend, "grow"]);
    is_managed(&["unshare", "-rU", &descend, "grow"]);
}

#[test]
fn under_a_filter_the_program_runs() {
    let scratch = Scratch::new("filter");
    let descend = scratch.path("descend");
    for call in ["userfaultfd", "userfaultfd_kill", "ioctl", "ioctl_kill", "clone", "process_vm"] {
        is_the_same(&[&descend, "filter", call, &descend, "show", "a"]);
        is_managed(&[&descend, "filter", call, &descend, "grow"]);
    }
    if is_root() {
        // It may open neither the page nor a userfaultfd, and is not ended by being asked for.
        let script = format!("{descend} as {NOBODY} {descend} filter socket_kill {descend} grow; true");
        let output = under_zfolio(&["sh", "-c", &script]);
        assert_eq!((text(&output.stdout), not_zfolios(&output.stderr)), ("whole\n".into(), String::new()));
    }
}

#[test]
fn within_a_limit_of_addresses_the_program_runs() {
    let scratch = Scratch::new("addresses");
    let descend = scratch.path("descend");
    // The least is what the program needs alone.
    for kib in [1 << 20, 120 << 10, 104 << 10] {
        let script = format!("ulimit -v {kib}; exec {descend} grow");
        let needs = alone(&["sh", "-c", &script]);
        assert_eq!(text(&needs.stdout), "whole\n", "{kib}");
        is_managed(&["sh", "-c", &script]);
    }
}

/// It would have to be told on the run's page.
#[test]
fn who_has_no_addresses_for_the_runs_page_is_counted_and_named() {
    let scratch = Scratch::new("addresses-left");
    let program = scratch.compile("addresses.c", "addresses", &["-O1", "-Wall"]);
    assert_eq!(text(&alone(&[&program]).stdout), "whole\n");
    is_counted(&scratch, &[&program], "addresses", "limit of addresses");
}

/// The kernel's accounting of what may be committed, put back when the test ends.
struct Overcommit([(&'static str, String); 3]);

impl Overcommit {
    /// None where it may not be changed. Strict, and so many bytes more than all processes have now.
    fn strict(room_kib: u64) -> Option<Overcommit> {
        let file = |name| format!("/proc/sys/vm/overcommit_{name}");
        let old = ["memory", "ratio", "kbytes"].map(|name| (name, fs::read_to_string(file(name)).unwrap()));
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
        let kib = |name: &str| -> u64 {
            let line = meminfo.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        // Swap counts by itself.
        let limit = (kib("Committed_AS:") + room_kib).saturating_sub(kib("SwapTotal:"));
        let restore = Overcommit(old);
        fs::write(file("kbytes"), limit.to_string()).ok()?;
        fs::write(file("memory"), "2").ok()?;
        Some(restore)
    }
}

impl Drop for Overcommit {
    fn drop(&mut self) {
        // To set one of the last two clears the other; the one that was 0 comes first.
        let [memory, ratio, kbytes] = &self.0;
        let last = if kbytes.1.trim() == "0" { ratio } else { kbytes };
        for (name, value) in [memory, last] {
            let _ = fs::write(format!("/proc/sys/vm/overcommit_{name}"), value);
        }
    }
}

#[test]
fn where_nothing_is_overcommitted_the_program_is_managed() {
    let scratch = Scratch::new("overcommit");
    let descend = scratch.path("descend");
    // Far more than is needed here, for what else runs on this machine.
    let Some(_strict) = Overcommit::strict(6 << 20) else {
        return skip("vm.overcommit_memory may not be set here");
    };
    assert!(is_managed(&[&descend, "grow"]));
    is_the_same(&[&descend, "by", "execle", &descend, "show", "a"]);
}

#[test]
fn static_programs_and_those_that_change_their_rights_run_as_alone() {
    let scratch = Scratch::new("other");
    let descend = scratch.path("descend");
    let fixed = scratch.compile("descend.c", "fixed", &["-O1", "-pthread", "-static"]);
    is_the_same(&["sh", "-c", &format!("{fixed} show a b; {descend} by execle {fixed} show a")]);
    is_the_same(&["env", "-i", &fixed, "show", "a"]);
    if !is_root() {
        return;
    }
    let setuid = scratch.path("setuid");
    copy(&descend, &setuid);
    std::os::unix::fs::chown(&setuid, Some(65534), None).unwrap();
    fs::set_permissions(&setuid, Permissions::from_mode(0o4755)).unwrap();
    is_the_same(&["sh", "-c", &format!("{setuid} show a b")]);
    is_the_same(&["env", "-i", &setuid, "by", "execvpe", &descend, "show", "a"]);
}
