//! The C libraries ask for nothing that the in-process library cannot give them.

use std::collections::BTreeSet;
use std::process::Command;

/// What the final link supplies. The first four work; the other three are never reached (`no_malloc.rs`).
const SUPPLIED: [&str; 7] = ["memcpy", "memmove", "memset", "memcmp", "malloc", "calloc", "free"];

/// Names that the linker itself resolves, and zstd's weak hooks for a tracer, which stay at zero where nobody
/// defines them (`-DZSTD_TRACE=0` in CFLAGS leaves them out).
fn is_harmless(name: &str) -> bool {
    name == "_GLOBAL_OFFSET_TABLE_" || name.starts_with("ZSTD_trace_")
}

/// The names that an archive uses and does not define.
fn undefined(archive: &str) -> BTreeSet<String> {
    let output = Command::new("nm").arg(archive).output().expect("nm, of binutils, as the linker is");
    assert!(output.status.success(), "nm {archive}: {}", String::from_utf8_lossy(&output.stderr));
    let (mut used, mut defined) = (BTreeSet::new(), BTreeSet::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["U" | "w" | "v", name] => used.insert(name.to_owned()),
            [_address, kind, name] => {
                assert!(!matches!(kind, "i"), "{archive}: {name} is resolved by code at load time");
                defined.insert(name.to_owned())
            }
            _ => continue,
        };
    }
    assert!(defined.len() > 50, "{archive}: only {} names are defined", defined.len());
    used.difference(&defined).cloned().collect()
}

#[test]
fn c_libraries_need_no_libc() {
    for archive in [env!("ACOMP_ZSTD_ROOT"), env!("ACOMP_LZ4_ROOT"), env!("ACOMP_LIBDEFLATE_ROOT")] {
        let undefined = undefined(archive);
        println!("{archive}: {undefined:?}");
        assert!(undefined.contains("memcpy"), "{archive}: {undefined:?}");
        for name in undefined {
            assert!(SUPPLIED.contains(&name.as_str()) || is_harmless(&name), "{archive} needs {name}");
        }
    }
}
