//! What a reader may expect of every file of the repository.

mod circles;
mod counters;
mod documents;
mod files;
mod names;
mod product;
mod ratchet;
mod rust;
mod sizes;
mod unsafety;
mod walls;

use std::fs;
use std::path::{Path, PathBuf};

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
