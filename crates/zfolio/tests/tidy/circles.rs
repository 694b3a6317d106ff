//! Modules of a crate do not use each other in a circle.
//!
//! A module here is a file beside lib.rs or main.rs with the directory of its name: what is below it is its own affair.
//! It uses another where its code names it behind `crate::`, or names what lib.rs shows of it. Tests may use what they
//! like.

use super::product::{Source, crates, sources};
use super::ratchet::{self, Found};
use super::rust;
use std::collections::{BTreeMap, BTreeSet};

/// Which modules each module uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// The paths in a `use` or in the code that begin with `crate::`, each by its first two names: `crate::{a::b, c}` is a
/// and c.
fn used(code: &str) -> BTreeSet<(String, Option<String>)> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let is_path =
            at == 0 || !code[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '$'));
        if is_path {
            first_names(&code[at + "crate::".len()..], &mut found);
        }
    }
    found
}

/// The first names of what follows: one, or those of a group in braces.
fn first_names(rest: &str, found: &mut BTreeSet<(String, Option<String>)>) {
    let Some(group) = rest.strip_prefix('{') else {
        let mut names = rust::words(rest);
        let Some((0, first)) = names.next() else { return };
        let second = rest[first.len()..].strip_prefix("::").and_then(|rest| rust::words(rest).next());
        found
            .insert((first.to_string(), second.filter(|(at, _)| *at == 0).map(|(_, name)| name.to_string())));
        return;
    };
    let (mut depth, mut start) = (0, 0);
    for (at, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth > 0 => depth -= 1,
            b',' | b'}' if depth == 0 => {
                first_names(group[start..at].trim_start(), found);
                start = at + 1;
                if byte == b'}' {
                    return;
                }
            }
            _ => {}
        }
    }
}

/// What lib.rs shows of its modules under its own name: `pub use object::{A, B};`.
fn shown(root: &str, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut shown = BTreeMap::new();
    for (at, _) in root.match_indices("use ") {
        let statement = &root[at + "use ".len()..rust::item_end(root, at)];
        let Some((module, names)) = statement.split_once("::") else { continue };
        if modules.contains(module) {
            shown.extend(rust::words(names).map(|(_, name)| (name.to_string(), module.to_string())));
        }
    }
    shown
}

fn uses(sources: &[Source]) -> Uses {
    let modules: BTreeSet<String> = sources.iter().filter_map(|source| source.module.clone()).collect();
    let root = sources.iter().find(|source| source.module.is_none()).expect("a crate has a root");
    let shown = shown(&root.code, &modules);
    let mut uses: Uses = modules.iter().map(|module| (module.clone(), BTreeSet::new())).collect();
    for source in sources {
        let Some(own) = &source.module else { continue };
        let of = uses.get_mut(own).expect("each module is there");
        for (first, _) in used(&source.code) {
            let module = if modules.contains(&first) { Some(&first) } else { shown.get(&first) };
            of.extend(module.filter(|module| *module != own).cloned());
        }
    }
    uses
}

/// Groups of modules of which each reaches each, of two and more.
fn circles(uses: &Uses) -> BTreeSet<Vec<String>> {
    let reached = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            next.extend(uses[module].iter().filter(|other| seen.insert(other.to_string())));
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<String>> =
        uses.keys().map(|module| (module, reached(module))).collect();
    let in_circle = reach.iter().filter(|(module, reached)| reached.contains(**module));
    in_circle
        .map(|(module, reached)| {
            reached.iter().filter(|other| reach[other].contains(*module)).cloned().collect()
        })
        .collect()
}

#[test]
fn modules_use_each_other_in_no_circle() {
    let mut found = Found::new();
    for name in crates() {
        let all = sources(&name);
        for circle in circles(&uses(&all)) {
            found.insert(format!("{name}: {}", circle.join(" ")), circle.len());
        }
    }
    ratchet::expect("circles", "modules in a circle", &found);
}

#[test]
fn a_circle_is_found_whatever_it_is_made_by() {
    let source = |module: Option<&str>, code: &str| Source {
        path: String::new(),
        module: module.map(str::to_string),
        code: rust::without_tests(&rust::parts(code).code),
        lines: 0,
    };
    let found = |parts: &[(&str, &str)]| -> Vec<Vec<String>> {
        let root = source(None, "mod a; mod b; mod c; pub use c::{Shown, other};");
        let modules = parts.iter().map(|(name, code)| source(Some(name), code));
        circles(&uses(&[root].into_iter().chain(modules).collect::<Vec<_>>())).into_iter().collect()
    };
    let (none, ab): (Vec<Vec<String>>, _) = (vec![], vec![vec!["a".to_string(), "b".to_string()]]);
    assert_eq!(found(&[("a", "use crate::b::X;"), ("b", ""), ("c", "use crate::{a, b};")]), none);
    assert_eq!(found(&[("a", "use crate::b::X;"), ("b", "fn f() { crate::a::g() }"), ("c", "")]), ab);
    assert_eq!(found(&[("a", "use crate::{c, b::{X, Y}};"), ("b", "use crate::{c::Z, a};"), ("c", "")]), ab);
    assert_eq!(found(&[("a", "use crate::b;"), ("b", "// crate::a\n\"crate::a\""), ("c", "")]), none);
    assert_eq!(
        found(&[("a", "use crate::b;"), ("b", "#[cfg(test)] mod tests { use crate::a; }"), ("c", "")]),
        none
    );
    let by_root = found(&[("a", "use crate::Shown;"), ("b", ""), ("c", "use crate::a::X;")]);
    assert_eq!(by_root, vec![vec!["a".to_string(), "c".to_string()]]);
    let three = found(&[("a", "use crate::b;"), ("b", "use crate::c;"), ("c", "use crate::a;")]);
    assert_eq!(three[0].len(), 3);
}
