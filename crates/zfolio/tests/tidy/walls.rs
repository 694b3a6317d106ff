//! Walls between crates.

use super::{expect_none, files, root};
use std::fs;

/// Crates that have no need of `unsafe`, and keep it that way.
const SAFE: [&str; 5] = ["mm", "swap", "vmscan", "zram", "zswap"];

/// Crates that run inside other programs, where there is no std.
const IN_PROCESS: [&str; 15] = include!("../../../libzfolio/crates.in");

/// Crates that the program's threads run, where nothing may be allocated; and all that these use.
const WITHOUT_ALLOC: [&str; 5] = ["base", "control", "interpose", "memcg", "uffd"];

#[test]
fn crates_keep_their_walls() {
    let mut found = Vec::new();
    for (crates, attribute) in [(&SAFE[..], "#![forbid(unsafe_code)]"), (&IN_PROCESS[..], "no_std)]")] {
        for name in crates {
            let path = root().join("crates").join(name).join("src/lib.rs");
            let text =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let inner = text.lines().filter(|line| line.starts_with("#!["));
            if !inner.into_iter().any(|line| line.ends_with(attribute)) {
                found.push(format!("crates/{name}/src/lib.rs: no line that ends in {attribute}"));
            }
        }
    }
    expect_none("walls with a hole", found);
}

/// The compiler refuses an allocation in a crate that does not name `alloc`, nor uses one that allocates.
#[test]
fn the_programs_threads_cannot_allocate() {
    let mut found = Vec::new();
    for name in WITHOUT_ALLOC {
        let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap();
        for line in dependencies.lines().filter(|line| line.contains("workspace = true")) {
            let used = line.split('.').next().unwrap();
            if !WITHOUT_ALLOC.contains(&used) {
                found.push(format!("crates/{name} uses {used}"));
            }
        }
    }
    let is_theirs =
        |path: &str| WITHOUT_ALLOC.iter().any(|name| path.starts_with(&format!("crates/{name}/src/")));
    for (path, text) in files().iter().filter(|(path, _)| is_theirs(path)) {
        if text.contains("extern crate alloc") {
            found.push(format!("{path} names alloc"));
        }
    }
    expect_none("allocations on the program's threads", found);
}
