//! Programs that ask how much memory there is and size their heaps or caches by the answer, known by the files that
//! they have mapped.
//!
//! | file | what it sizes by that |
//! | --- | --- |
//! | libjvm.so | the heap: a quarter (sysconf, the control group's limit) |
//! | node, libnode.so | V8's old space: a quarter to a half (sysinfo or /proc/meminfo, the group's limit) |
//! | duckdb | `memory_limit`: 80 % (sysconf, the group's limit) |
//! | libcoreclr.so | the collector's limit: all, or 75 % of the group's |
//! | sort | its buffer: an eighth, or what is available (sysconf) |

/// What the program is called, by a file that one of its processes has mapped; `None` for others.
pub fn of_file(path: &str) -> Option<&'static str> {
    let name = path.rsplit('/').next()?;
    match name.trim_end_matches(" (deleted)") {
        "libjvm.so" => Some("java"),
        "node" => Some("node"),
        "libcoreclr.so" => Some(".NET"),
        "sort" => Some("sort"),
        name if name.starts_with("libnode.so") => Some("node"),
        // A module of python's is called duckdb.cpython-311-x86_64-linux-gnu.so, or _duckdb...
        name if name.contains("duckdb") => Some("duckdb"),
        _ => None,
    }
}

/// What is said of them, for the summary; nothing of none.
pub fn advice(names: &[&str]) -> Option<String> {
    let (first, others) = names.split_first()?;
    let who = match others {
        [] => format!("{first} goes"),
        [second] => format!("{first} and {second} go"),
        _ => format!("{first} and others go"),
    };
    Some(format!("{who} by the machine's memory: see --visible limit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_what_they_have_mapped() {
        for (path, expected) in [
            ("/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so", Some("java")),
            ("/usr/bin/node", Some("node")),
            ("/usr/bin/node (deleted)", Some("node")),
            ("/usr/lib/x86_64-linux-gnu/libnode.so.108", Some("node")),
            ("/venv/lib/python3.11/site-packages/_duckdb.cpython-311-x86_64-linux-gnu.so", Some("duckdb")),
            ("/opt/libduckdb.so", Some("duckdb")),
            ("/usr/bin/sort", Some("sort")),
            ("/usr/bin/tsort", None),
            ("/home/node/lib.so", None),
            ("[heap]", None),
            ("", None),
        ] {
            assert_eq!(of_file(path), expected, "{path}");
        }
    }

    #[test]
    fn the_advice_fits_into_the_summary() {
        assert_eq!(advice(&[]), None);
        assert_eq!(advice(&["java"]).unwrap(), "java goes by the machine's memory: see --visible limit");
        for names in [&["duckdb", "java"][..], &["duckdb", "java", "node"]] {
            let text = advice(names).unwrap();
            assert!(text.starts_with("duckdb and ") && text.len() + crate::lines::INDENT <= 80, "{text}");
        }
    }
}
