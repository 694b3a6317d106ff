//! How long things are.

use super::product::{crates, sources};
use super::ratchet::{self, Found};
use super::{files, rust};

/// Past this many lines a file of the product is two files.
const MOST_LINES: usize = 500;

/// Past this many a function is two functions.
const MOST_LINES_OF_FUNCTION: usize = 60;

/// Columns of a line of a comment or of a document.
const MOST_COLUMNS: usize = 120;

#[test]
fn no_file_of_the_product_is_long() {
    let all = crates().into_iter().flat_map(|name| sources(&name));
    let long = all.filter(|source| source.lines > MOST_LINES);
    let found: Found = long.map(|source| (source.path, source.lines)).collect();
    ratchet::expect("lines", "files of more than 500 lines", &found);
}

#[test]
fn no_function_of_the_product_is_long() {
    let mut found = Found::new();
    for source in crates().into_iter().flat_map(|name| sources(&name)) {
        for function in rust::functions(&source.code) {
            if function.lines > MOST_LINES_OF_FUNCTION {
                found.insert(format!("{}: {}", source.path, function.name), function.lines);
            }
        }
    }
    ratchet::expect("functions", "functions of more than 60 lines", &found);
}

/// The lines of a file that people read as sentences: comments, and all of a document but tables, figures and links.
fn sentences(path: &str, text: &str) -> Vec<String> {
    let marks: &[&str] = match path.rsplit_once('.').map_or("", |(_, end)| end) {
        "rs" => return outside_of_figures(&rust::parts(text).comments).map(str::to_string).collect(),
        "md" => {
            return outside_of_figures(text)
                .filter(|line| !line.starts_with('|'))
                .map(str::to_string)
                .collect();
        }
        "c" | "h" | "ld" | "map" => &["//", "/*", "*"],
        "py" | "sh" | "toml" | "" => &["#"],
        _ => &[],
    };
    let is_comment = |line: &&str| marks.iter().any(|mark| line.trim_start().starts_with(mark));
    text.lines().filter(is_comment).map(str::to_string).collect()
}

/// A document without what stands between two lines of three backticks.
pub fn outside_of_figures(text: &str) -> impl Iterator<Item = &str> {
    let mut is_figure = false;
    text.lines().map(move |line| {
        let is_edge = line.trim_start_matches(['/', '!', ' ']).starts_with("```");
        is_figure ^= is_edge;
        if is_figure || is_edge { "" } else { line }
    })
}

#[test]
fn comments_and_documents_are_not_wide() {
    let mut found = Found::new();
    for (path, text) in files() {
        let is_wide =
            |line: &String| line.trim_end().chars().count() > MOST_COLUMNS && line.trim().contains(' ');
        let wide = sentences(&path, &text).iter().filter(|line| is_wide(line)).count();
        if wide > 0 {
            found.insert(path, wide);
        }
    }
    ratchet::expect("columns", "files with comments of more than 120 columns", &found);
}
