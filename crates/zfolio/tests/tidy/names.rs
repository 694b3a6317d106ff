//! Names in documents and comments: of types and what they have, of files, of functions and tests. Each is there.
//!
//! Names of others, such as the kernel's, are in `foreign.txt`.

use super::ratchet::{self, Found};
use super::sizes::outside_of_figures;
use super::{expect_none, files, rust};
use std::collections::{BTreeMap, BTreeSet};

/// Ends of files that are named by them.
const FILES: [&str; 16] =
    ["rs", "c", "h", "md", "py", "sh", "toml", "ld", "map", "txt", "java", "js", "go", "lisp", "sql", "lock"];

/// Where a name was found.
struct Named {
    path: String,
    line: usize,
    name: String,
}

/// What is there.
struct Tree {
    paths: Vec<Vec<String>>,
    /// By file: the words of its code.
    words: BTreeMap<String, BTreeSet<String>>,
    all_words: BTreeSet<String>,
    /// By type: the words of its definition and of what is implemented for it.
    members: BTreeMap<String, BTreeSet<String>>,
}

fn tree(files: &[(String, String)]) -> Tree {
    let mut tree = Tree {
        paths: Vec::new(),
        words: BTreeMap::new(),
        all_words: BTreeSet::new(),
        members: BTreeMap::new(),
    };
    for (path, text) in files {
        tree.paths.push(path.split('/').map(str::to_string).collect());
        if path.ends_with(".md") || path.contains("/tidy/exceptions/") {
            continue;
        }
        let is_rust = path.ends_with(".rs");
        let code = if is_rust { rust::parts(text).code } else { text.clone() };
        // Names in literals are names too: the JSON's, environment variables.
        let words: BTreeSet<String> = rust::words(text).map(|(_, word)| word.to_string()).collect();
        let commented: BTreeSet<&str> = match is_rust {
            true => rust::words(&code).map(|(_, word)| word).collect(),
            false => BTreeSet::new(),
        };
        let in_literals =
            |word: &String| text.contains(&format!("\"{word}\"")) || text.contains(&format!("{word}\\0\""));
        let real =
            words.into_iter().filter(|word| !is_rust || commented.contains(&word[..]) || in_literals(word));
        let real: BTreeSet<String> = real.collect();
        tree.all_words.extend(real.iter().cloned());
        tree.words.insert(path.clone(), real);
        if is_rust {
            members(&code, &mut tree.members);
        }
    }
    tree
}

/// What is defined of each type: `struct A { ... }`, `impl<T> B for A<T> { ... }`, and so on. What a macro makes has
/// the words of the macro's file.
fn members(code: &str, all: &mut BTreeMap<String, BTreeSet<String>>) {
    for (at, keyword) in rust::words(code) {
        let is_item = at == 0 || code[..at].ends_with(|c: char| c.is_whitespace() || c == ')');
        if !is_item
            || !matches!(
                keyword,
                "struct" | "enum" | "trait" | "union" | "impl" | "type" | "static" | "const"
            )
        {
            continue;
        }
        let item = &code[at..rust::item_end(code, at)];
        let head = item.split(['{', ';', '=']).next().unwrap_or_default();
        let head = head.split(" where ").next().unwrap_or_default();
        let of = head.rsplit(" for ").next().unwrap_or_default();
        // The first capital name that is not among the parameters of `impl<...>`.
        let of = of.strip_prefix("impl<").and_then(|rest| rest.split_once("> ")).map_or(of, |(_, rest)| rest);
        let Some((_, name)) = rust::words(of).find(|(_, word)| word.starts_with(char::is_uppercase)) else {
            continue;
        };
        let words: Vec<&str> =
            rust::words(if item.contains('$') { code } else { item }).map(|(_, word)| word).collect();
        let defined = |two: &[&'_ str]| matches!(two[0], "fn" | "const" | "type" | "static");
        let has = all.entry(name.to_string()).or_default();
        match keyword {
            // What its functions only use is not its own.
            "impl" | "trait" => {
                has.extend(words.windows(2).filter(|two| defined(two)).map(|two| two[1].to_string()))
            }
            _ => has.extend(words.iter().map(|word| word.to_string())),
        }
    }
}

/// What was on a day is true of that day.
fn is_dated(path: &str) -> bool {
    path.starts_with("docs/bench/") || path == "CHANGELOG.md"
}

/// Texts between backticks, outside of figures.
fn quoted(path: &str, text: &str) -> Vec<Named> {
    if is_dated(path) {
        return Vec::new();
    }
    let comments = match path.ends_with(".rs") {
        true => rust::parts(text).comments,
        false => text.to_string(),
    };
    let mut found = Vec::new();
    for (number, line) in outside_of_figures(&comments).enumerate() {
        let names = line.split('`').skip(1).step_by(2).map(str::to_string);
        found.extend(names.map(|name| Named { path: path.to_string(), line: number + 1, name }));
    }
    found
}

fn foreign() -> BTreeSet<String> {
    ratchet::lines("foreign").into_iter().collect()
}

/// The last two names of a path in a text between backticks, without arguments.
fn pair(name: &str) -> Option<(&str, &str)> {
    let path = name.split(['(', '<', ' ']).next().unwrap_or_default();
    let is_path = path.contains("::") && path.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | ':'));
    let mut names = path.rsplit("::");
    let (last, before) = (names.next()?, names.next()?);
    (is_path && !last.is_empty() && !before.is_empty()).then_some((before, last))
}

impl Tree {
    fn has(&self, of: &str, name: &str) -> bool {
        if let Some(members) = self.members.get(of) {
            return members.contains(name);
        }
        // A module or a crate.
        let is_of = |path: &&String| {
            let mut parts = path.split('/').map(|part| part.trim_end_matches(".rs"));
            parts.any(|part| part == of)
        };
        self.words.keys().filter(is_of).any(|path| self.words[path].contains(name))
    }

    /// `uffd/kinds.rs` is crates/uffd/src/kinds.rs: the names of a path, in order, and the last one.
    fn has_file(&self, name: &str) -> bool {
        let wanted: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "." | ".." | "")).collect();
        let Some((file, above)) = wanted.split_last() else { return true };
        self.paths.iter().filter(|path| path.last().is_some_and(|last| last == file)).any(|path| {
            let mut rest = path[..path.len() - 1].iter();
            above.iter().all(|part| rest.any(|own| own == part))
        })
    }
}

/// Fails with all that is named and not there, but for what the table of exceptions has.
fn expect_there(table: &str, what: &str, missing: Vec<Named>) {
    let mut found = Found::new();
    for Named { path, name, line } in &missing {
        println!("{path}:{line}: {name}");
        *found.entry(format!("{path}: {name}")).or_default() += 1;
    }
    ratchet::expect(table, what, &found);
}

#[test]
fn what_is_named_of_a_type_or_module_is_there() {
    let files = files();
    let (tree, foreign) = (tree(&files), foreign());
    let readable = files.iter().filter(|(path, _)| path.ends_with(".md") || path.ends_with(".rs"));
    let missing = readable.flat_map(|(path, text)| quoted(path, text)).filter(|named| {
        let is_foreign = named.name.split("::").next().is_some_and(|first| foreign.contains(first));
        !is_foreign && pair(&named.name).is_some_and(|(of, name)| !tree.has(of, name))
    });
    expect_there("members", "members that are not there", missing.collect());
}

#[test]
fn files_that_are_named_are_there() {
    let files = files();
    let (tree, foreign) = (tree(&files), foreign());
    let mut missing = Vec::new();
    for (path, text) in &files {
        let text = match path.rsplit_once('.').map_or("", |(_, end)| end) {
            "rs" => rust::parts(text).comments,
            "md" => outside_of_figures(text).collect::<Vec<_>>().join("\n"),
            _ => continue,
        };
        for (number, line) in text.lines().enumerate() {
            let is_inside = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
            for word in line.split_whitespace().filter(|word| !word.contains("://")) {
                for name in word.split(|c| !is_inside(c)).map(|name| name.trim_end_matches(['.', '/'])) {
                    let is_file = name.rsplit_once('.').is_some_and(|(stem, end)| {
                        FILES.contains(&end) && stem.ends_with(|c: char| c.is_alphanumeric() || c == '_')
                    });
                    let is_absolute = name.starts_with('/');
                    if is_file && !is_absolute && !foreign.contains(name) && !tree.has_file(name) {
                        missing.push(Named { path: path.clone(), line: number + 1, name: name.to_string() });
                    }
                }
            }
        }
    }
    expect_there("files", "files that are not there", missing);
}

/// Tests, above all: what a document says of a promise is the name of the test that fails without it.
#[test]
fn functions_and_tests_that_documents_name_are_there() {
    let files = files();
    let (tree, foreign) = (tree(&files), foreign());
    let documents = files.iter().filter(|(path, _)| path.ends_with(".md"));
    let missing = documents.flat_map(|(path, text)| quoted(path, text)).filter(|Named { name, .. }| {
        let name = name.trim_end_matches("()");
        let is_name = name.contains('_')
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        is_name && !tree.all_words.contains(name) && !foreign.contains(name)
    });
    expect_there("functions_named", "names that are nobody's", missing.collect());
}

#[test]
fn foreign_names_are_used() {
    let files = files();
    let is_used = |name: &String| {
        let mut texts = files.iter().filter(|(path, _)| !path.contains("/tidy/exceptions/"));
        texts.any(|(_, text)| text.contains(&name[..]))
    };
    let unused = ratchet::lines("foreign").into_iter().filter(|name| !is_used(name));
    expect_none("foreign names that nobody writes any more (exceptions/foreign.txt)", unused.collect());
}

#[test]
fn names_are_found_where_they_are() {
    let files = [
        (
            "crates/a/src/lib.rs",
            "pub struct Page { size: u8 }\nimpl<T: X> Way for Page<T> { fn go() {} }\nenum E { Up }",
        ),
        ("crates/a/src/part/deep.rs", "fn lonely() { \"quoted_name\" } // gone_name"),
    ];
    let files = files.map(|(path, text)| (path.to_string(), text.to_string()));
    let tree = tree(&files);
    for (of, name) in [("Page", "size"), ("Page", "go"), ("E", "Up"), ("deep", "lonely"), ("a", "lonely")] {
        assert!(tree.has(of, name), "{of}::{name}");
    }
    for (of, name) in [("Page", "stop"), ("E", "Down"), ("deep", "go"), ("None", "go"), ("Way", "size")] {
        assert!(!tree.has(of, name), "{of}::{name}");
    }
    assert!(tree.has_file("a/lib.rs") && tree.has_file("deep.rs") && tree.has_file("a/part/deep.rs"));
    assert!(!tree.has_file("b/lib.rs") && !tree.has_file("part/lib.rs") && !tree.has_file("gone.rs"));
    assert!(tree.all_words.contains("quoted_name") && !tree.all_words.contains("gone_name"));
    assert_eq!(pair("crate::hook::fork()"), Some(("hook", "fork")));
    assert_eq!(["one", "a b::c", "::x"].map(pair), [None; 3]);
    let quoted = quoted("a.md", "a `b` `C::d`\n```\n`no`\n```\n`e`");
    assert_eq!(
        quoted.iter().map(|n| (n.line, &n.name[..])).collect::<Vec<_>>(),
        [(1, "b"), (1, "C::d"), (5, "e")]
    );
}
