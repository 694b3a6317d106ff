//! Counters.

use super::{expect_none, files, root};
use std::fs;

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
