//! Exceptions that stand today, in tables beside the tests: a line for each, with how much it is.
//!
//! A table may only shrink: what is new or has grown fails, and so does a line that says more than there is.
//! `ZFOLIO_TIDY=write` has the tables written as things are, for who has made them shorter or moved files.

use super::{expect_none, root};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// What is found, each with how much it is.
pub type Found = BTreeMap<String, usize>;

fn table(name: &str) -> PathBuf {
    root().join("crates/zfolio/tests/tidy/exceptions").join(name).with_extension("txt")
}

/// The lines of a table.
pub fn lines(name: &str) -> Vec<String> {
    let path = table(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(str::to_string).collect()
}

fn read(name: &str) -> Found {
    let entry = |line: String| {
        let (count, what) = line.trim_start().split_once(' ').expect("a number and a name");
        (what.to_string(), count.parse().expect("a number"))
    };
    lines(name).into_iter().map(entry).collect()
}

/// Fails where what is found is not what the table says.
pub fn expect(name: &str, what: &str, found: &Found) {
    if std::env::var_os("ZFOLIO_TIDY").is_some_and(|how| how == "write") {
        let text: String = found.iter().map(|(what, count)| format!("{count:5} {what}\n")).collect();
        fs::write(table(name), text).expect("the table can be written");
        return;
    }
    let allowed = read(name);
    let mut wrong = Vec::new();
    for (entry, count) in found {
        match allowed.get(entry) {
            None => wrong.push(format!("{entry}: {count}, and nothing was known of it")),
            Some(most) if count > most => wrong.push(format!("{entry}: {count}, and {most} before")),
            Some(most) if count < most => {
                wrong.push(format!("{entry}: {count} are left: {name}.txt says {most}"))
            }
            Some(_) => {}
        }
    }
    let is_gone = |entry: &&String| !found.contains_key(*entry);
    wrong.extend(allowed.keys().filter(is_gone).map(|entry| format!("{entry}: no exception any more")));
    expect_none(&format!("{what} (exceptions/{name}.txt, which may only shrink; ZFOLIO_TIDY=write)"), wrong);
}
