//! What a reader may expect of every file of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// Past this many lines a file is two files.
const MOST_LINES: usize = 700;

/// Files that are longer all the same, and their length: it may only go down.
const LONGER: [(&str, usize); 1] = [("bench/micro/engine_kind.c", 768)];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 7] = ["utils", "util", "helpers", "common", "misc", "types", "manager"];

/// Crates that have no need of `unsafe`, and keep it that way.
const SAFE: [&str; 3] = ["mm", "vmscan", "zswap"];

/// Crates that run inside other programs, where there is no std.
const IN_PROCESS: [&str; 13] = [
    "acomp",
    "base",
    "control",
    "engine",
    "iaa",
    "interpose",
    "libzfolio",
    "memcg",
    "mm",
    "uffd",
    "vmscan",
    "zsmalloc",
    "zswap",
];

/// Crates that the program's threads run, where nothing may be allocated; and all that these use.
const WITHOUT_ALLOC: [&str; 5] = ["base", "control", "interpose", "memcg", "uffd"];

/// Directories that are not ours to read.
const SKIPPED: [&str; 4] = ["target", ".git", "build", "__pycache__"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every text file of the repository: its path from the root, and its content.
fn files() -> Vec<(String, String)> {
    let root = root();
    let mut directories = vec![root.clone()];
    let mut files = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().expect("names are text");
            if path.is_symlink() || SKIPPED.contains(&name) {
                continue;
            } else if path.is_dir() {
                directories.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                files.push((path.strip_prefix(&root).unwrap().to_str().unwrap().to_string(), text));
            }
        }
    }
    assert!(files.len() > 40, "only {} files found under {}", files.len(), root.display());
    files.sort();
    files
}

/// Fails with the whole list, not with its first line.
fn expect_none(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn no_file_is_too_long() {
    let generated =
        |path: &str| path.ends_with(".lock") || path.starts_with("LICENSE") || path.ends_with(".json");
    let mut found = Vec::new();
    for (path, text) in files().iter().filter(|(path, _)| !generated(path)) {
        let lines = text.lines().count();
        match LONGER.iter().find(|(name, _)| name == path) {
            Some((_, most)) if lines > *most => found.push(format!("{path}: {lines} lines, and was {most}")),
            Some(_) if lines <= MOST_LINES => {
                found.push(format!("{path}: {lines} lines: no longer an exception"))
            }
            None if lines > MOST_LINES => found.push(format!("{path}: {lines} lines, at most {MOST_LINES}")),
            _ => {}
        }
    }
    expect_none("files that are too long", found);
}

#[test]
fn every_file_is_named_after_something() {
    let empty = |path: &str| {
        let name = Path::new(path).file_stem().unwrap().to_str().unwrap();
        EMPTY_NAMES.contains(&name)
    };
    expect_none(
        "names that say nothing",
        files().into_iter().map(|(path, _)| path).filter(|path| empty(path)).collect(),
    );
}

#[test]
fn no_line_ends_in_a_blank_and_no_work_is_left_open() {
    // Written in two parts, so that this file may hold them.
    let open = ["TO", "FIX", "XX"].iter().zip(["DO", "ME", "X"]).map(|(a, b)| format!("{a}{b}"));
    let open: Vec<String> = open.chain(["todo", "unimplemented"].map(|name| format!("{name}!("))).collect();
    let word = |line: &str, word: &str| {
        let letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        line.match_indices(word).any(|(at, _)| {
            !letter(line[..at].chars().next_back()) && !letter(line[at + word.len()..].chars().next())
        })
    };
    let mut found = Vec::new();
    for (path, text) in files() {
        for (number, line) in text.lines().enumerate() {
            if line.ends_with([' ', '\t']) {
                found.push(format!("{path}:{}: a blank at the end", number + 1));
            }
            if let Some(mark) =
                open.iter().find(|mark| line.contains(*mark) && (mark.ends_with('(') || word(line, mark)))
            {
                found.push(format!("{path}:{}: {mark}", number + 1));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            found.push(format!("{path}: no line end at the end"));
        }
    }
    expect_none("untidy lines", found);
}

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

#[test]
fn links_between_documents_lead_somewhere() {
    let mut found = Vec::new();
    for (path, text) in files().iter().filter(|(path, _)| path.ends_with(".md")) {
        let directory = root().join(path).parent().unwrap().to_path_buf();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            if !target.is_empty() && !target.contains("://") && !directory.join(target).exists() {
                found.push(format!("{path}: {target}"));
            }
        }
    }
    expect_none("links to nothing", found);
}

/// The table of counters has no line that nothing counts.
#[test]
fn every_counter_is_counted() {
    let table = fs::read_to_string(root().join("crates/memcg/src/stat.rs")).unwrap();
    let is_product =
        |path: &str| path.starts_with("crates/") && path.contains("/src/") && !path.contains("test");
    let text: String =
        files().into_iter().filter(|(path, _)| is_product(path)).map(|(_, text)| text).collect();
    // A method's call may begin on the next line.
    let text: String = text.split_whitespace().collect();
    let counted = |name: &str| {
        let by = ["fetch_add(", "add("].map(|how| format!(".{name}.{how}"));
        by.iter().any(|call| text.contains(call))
            || text.contains(&format!("&stat.{name},"))
            || text.contains(&format!("&stat.{name})"))
    };
    let names: Vec<&str> = memcg::COUNTERS.iter().map(|counter| counter.name).collect();
    assert!(names.len() > 20 && names.iter().all(|name| table.contains(name)));
    expect_none(
        "counters that are never counted",
        names.into_iter().filter(|name| !counted(name)).map(str::to_string).collect(),
    );
}
