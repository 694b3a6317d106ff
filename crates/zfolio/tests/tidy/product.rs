//! The Rust code of the product: what is in the crates, without their tests.

use super::{files, root, rust};
use std::fs;

/// A file of a crate.
pub struct Source {
    /// From the root of the repository.
    pub path: String,
    /// The module beside lib.rs or main.rs that it is a part of; `None` for these two.
    pub module: Option<String>,
    /// Its code, without tests.
    pub code: String,
    /// All of its lines.
    pub lines: usize,
}

/// The crates of the repository.
pub fn crates() -> Vec<String> {
    let directories = fs::read_dir(root().join("crates")).expect("there are crates");
    let mut names: Vec<String> =
        directories.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The files of a crate, without those that its root or a module says are tests.
pub fn sources(name: &str) -> Vec<Source> {
    let directory = format!("crates/{name}/src/");
    let all: Vec<(String, String)> = files()
        .into_iter()
        .filter(|(path, _)| path.starts_with(&directory) && path.ends_with(".rs"))
        .map(|(path, text)| (path[directory.len()..].to_string(), text))
        .collect();
    let tests: Vec<String> = all.iter().flat_map(|(path, text)| tests_of(path, text)).collect();
    let is_test = |path: &str| {
        tests.iter().any(|test| path == format!("{test}.rs") || path.starts_with(&format!("{test}/")))
    };
    all.iter()
        .filter(|(path, _)| !is_test(path))
        .map(|(path, text)| {
            let first = path.split('/').next().expect("a path has a part").trim_end_matches(".rs");
            Source {
                path: format!("{directory}{path}"),
                module: (!matches!(first, "lib" | "main")).then(|| first.to_string()),
                code: rust::without_tests(&rust::parts(text).code),
                lines: text.lines().count(),
            }
        })
        .collect()
}

/// The modules in files of their own that are there for tests alone, as paths without `.rs`.
fn tests_of(path: &str, text: &str) -> Vec<String> {
    let code = rust::parts(text).code;
    let stem = path.trim_end_matches(".rs");
    let below = match stem.rsplit('/').next() {
        Some("lib" | "main" | "mod") => {
            stem.rsplit_once('/').map_or(String::new(), |(above, _)| format!("{above}/"))
        }
        _ => format!("{stem}/"),
    };
    let modules = code.match_indices("#[cfg(test)]").filter_map(|(at, _)| {
        let item = &code[at + "#[cfg(test)]".len()..rust::item_end(&code, at)];
        let mut words =
            rust::words(item.strip_suffix(';')?).map(|(_, word)| word).skip_while(|word| *word != "mod");
        words.nth(1).map(|name| format!("{below}{name}"))
    });
    modules.collect()
}
