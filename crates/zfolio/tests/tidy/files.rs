//! Files: their length, their names, their lines.

use super::{expect_none, files};
use std::path::Path;

/// Past this many lines a file is two files.
const MOST_LINES: usize = 700;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 7] = ["utils", "util", "helpers", "common", "misc", "types", "manager"];

#[test]
fn no_file_is_too_long() {
    let generated = |path: &str| {
        path.starts_with("LICENSE")
            || [".lock", ".json", "/ublk_cmd.in"].iter().any(|end| path.ends_with(end))
    };
    let mut found = Vec::new();
    for (path, text) in files().iter().filter(|(path, _)| !generated(path)) {
        let lines = text.lines().count();
        if lines > MOST_LINES {
            found.push(format!("{path}: {lines} lines, at most {MOST_LINES}"));
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
