//! What is unsafe says why it may be done, each time.
//!
//! Clippy asks each `unsafe` block for a comment (`undocumented_unsafe_blocks`). What it cannot see is one comment in a
//! macro, which stands for every place where that is used, and a safe function that writes to wherever a caller points.

use super::expect_none;
use super::product::{crates, sources};
use super::ratchet::{self, Found};
use super::rust;

#[test]
fn no_macro_makes_what_is_unsafe_safe() {
    let mut found = Found::new();
    for source in crates().into_iter().flat_map(|name| sources(&name)) {
        for (at, _) in source.code.match_indices("macro_rules!") {
            let body = &source.code[at..rust::item_end(&source.code, at)];
            let blocks = rust::words(body).filter(|(at, word)| {
                *word == "unsafe" && body[at + word.len()..].trim_start().starts_with('{')
            });
            let name = rust::words(body).nth(1).map_or("", |(_, name)| name);
            match blocks.count() {
                0 => {}
                count => drop(found.insert(format!("{}: {name}", source.path), count)),
            }
        }
    }
    ratchet::expect("macros", "macros with unsafe blocks, of which one comment stands for many", &found);
}

#[test]
fn no_safe_system_call_writes_where_a_caller_points() {
    let mut found = Vec::new();
    for source in sources("base").iter().filter(|source| source.path.contains("/sys")) {
        for function in rust::functions(&source.code) {
            let is_safe = !function.head.contains("unsafe fn");
            if is_safe && function.head.contains("*mut") {
                found.push(format!("{}:{}: {}", source.path, function.line, function.name));
            }
        }
    }
    expect_none("safe functions that take a pointer to write to", found);
}

#[test]
fn every_crate_has_the_lints_of_all() {
    let manifest = |name: &String| {
        let path = super::root().join("crates").join(name).join("Cargo.toml");
        std::fs::read_to_string(path).expect("a crate has a manifest")
    };
    let without = crates().into_iter().filter(|name| !manifest(name).contains("[lints]\nworkspace = true"));
    expect_none("crates without the lints of the workspace", without.collect());
}
