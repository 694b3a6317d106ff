//! By which name the library is given to programs that CMD starts, and what loaders that cannot load it say: nothing.
//! glibc's 64-bit loader gets the library's own path, where it is known that it will read it, and else the path has a
//! `$PLATFORM`, by which each loader finds one that it can load.

mod descend;
mod skip;

use descend::{Scratch, is_the_same, text, ways};
use skip::skip;
use std::path::Path;
use std::process::Output;

/// The loader of whose programs it is known that they can be given the library's own path.
const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";

/// The library's names, without the directory of the run.
const FILE: &str = "libzfolio.so";
const PLATFORM: &str = "$PLATFORM/libzfolio.so";

/// By which name the program that said this was given the library.
fn library(output: &Output) -> &'static str {
    let out = text(&output.stdout);
    let preload = out.lines().find_map(|line| line.strip_prefix("LD_PRELOAD=")).expect(&out);
    let ours: Vec<_> = preload.split([':', ' ']).filter(|entry| entry.ends_with(FILE)).collect();
    assert_eq!(ours.len(), 1, "{out}");
    if ours[0].ends_with(PLATFORM) { PLATFORM } else { FILE }
}

/// A script that executes its arguments, if this is a shell.
fn script(scratch: &Scratch, name: &str, interpreter: &str) -> String {
    scratch.file(name, &format!("#!{interpreter}\nexec \"$@\"\n"))
}

#[test]
fn other_loaders_say_nothing() {
    let scratch = Scratch::new("loaders");
    for (name, variable, path, flags) in [
        ("32-bit", "ZFOLIO_LOADER_32", "/lib/ld-linux.so.2", &["-m32"][..]),
        ("musl", "ZFOLIO_LOADER_MUSL", "/lib/ld-musl-x86_64.so.1", &[]),
        ("glibc", "ZFOLIO_LOADER_64", "/lib64/ld-linux-x86-64.so.2", &[]),
    ] {
        let loader = std::env::var(variable).unwrap_or(path.into());
        if !Path::new(&loader).exists() {
            skip(&format!("no {name} loader, neither {path} nor one named by {variable}"));
            continue;
        }
        let bare = scratch.bare(name, &loader, flags);
        let output = is_the_same(&["sh", "-c", &bare]);
        assert_eq!(output.status.code(), Some(7), "{name}");
        assert!(text(&output.stdout).ends_with("started\n"), "{name}");
        is_the_same(&["env", "-i", &bare]);
        is_the_same(&["env", "LD_PRELOAD=/no/such.so", &bare]);

        let expected = if loader == GLIBC { FILE } else { PLATFORM };
        let script = script(&scratch, &format!("{name}.script"), &bare);
        let descend = scratch.path("descend");
        for program in [&bare, &script] {
            for way in ["execve", "execvp", "posix_spawn", "vfork"] {
                let output = is_the_same(&[&descend, "by", way, program]);
                assert_eq!(library(&output), expected, "{name} {way} {program}");
            }
        }
    }
}

#[test]
fn a_program_of_glibcs_gets_the_shorter_name_where_it_is_known() {
    let scratch = Scratch::new("names");
    let descend = scratch.path("descend");
    for way in ways(&descend) {
        // Which file a descriptor is cannot be told, and while another thread may look no file is opened.
        let is_known = !["fexecve", "execveat", "posix_spawn_thread"].contains(&&*way);
        let output = is_the_same(&[&descend, "by", &way, &descend, "show"]);
        assert_eq!(library(&output), if is_known { FILE } else { PLATFORM }, "{way}");
    }
    let show = |command: &[&str]| library(&is_the_same(command));
    assert_eq!(show(&[&descend, "show"]), FILE, "CMD");
    assert_eq!(show(&["env", "-i", &descend, "show"]), FILE);
    // A script is what its interpreter is.
    let script = script(&scratch, "script", "/bin/sh");
    for command in [&[&*script][..], &["sh", &script], &[&descend, "by", "execvp", &script]] {
        assert_eq!(show(&[command, &[&descend, "show"]].concat()), FILE, "{command:?}");
    }
    // By a name, and by a path that is relative to where the call is made, or to where posix_spawn goes first.
    let folder = scratch.0.to_str().unwrap();
    let path = format!("PATH=/no/such:{folder}:{}", std::env::var("PATH").unwrap());
    assert_eq!(show(&["env", &path, "descend", "show"]), FILE);
    assert_eq!(show(&["env", "-C", folder, "./descend", "show"]), FILE);
    let relative = descend.strip_prefix('/').unwrap();
    assert_eq!(show(&[&descend, "by", "posix_spawn_elsewhere", relative, "show"]), PLATFORM);
}

#[test]
fn a_static_program_gets_the_longer_name_and_passes_it_on() {
    let scratch = Scratch::new("static");
    let descend = scratch.path("descend");
    let fixed = scratch.compile("descend.c", "fixed", &["-O1", "-pthread", "-static"]);
    for way in ways(&descend) {
        assert_eq!(library(&is_the_same(&[&descend, "by", &way, &fixed, "show"])), PLATFORM, "{way}");
    }
    // Nothing of zfolio is in it, and so its environment must do for whatever it starts.
    let passed_on = is_the_same(&["sh", "-c", &format!("{fixed} by execve {descend} show")]);
    assert_eq!(library(&passed_on), PLATFORM);
}

#[test]
fn no_descriptor_is_needed_or_left_to_see_what_a_program_is() {
    let scratch = Scratch::new("descriptors");
    let descend = scratch.path("descend");
    for way in ["execve", "execvp", "posix_spawn", "vfork"] {
        let output = is_the_same(&[&descend, "full", way, &descend, "show"]);
        assert_eq!(library(&output), PLATFORM, "{way}: what cannot be opened is not known");
    }
    for way in ["exec", "spawn"] {
        let output = is_the_same(&[&descend, "leaves", way, &descend]);
        assert_eq!(output.status.code(), Some(0), "{way}");
    }
}
