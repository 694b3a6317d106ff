//! Programs in C that do something in one of several ways, and say at the end that all was right.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, id};

/// Runs one under zfolio: the counters of the run.
pub fn counters(program: &Path, way: &str, memory: &str) -> Value {
    let name = program.file_name().unwrap().to_string_lossy();
    let json = std::env::temp_dir().join(format!("zfolio-{name}-{way}-{}.json", id()));
    let output = Command::new("timeout")
        .args(["-k", "5", "60", env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet", "--memory", memory, "--json"])
        .args([json.as_os_str(), "--".as_ref(), program.as_os_str(), way.as_ref()])
        .output()
        .expect("timeout is needed");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), &*out), (Some(0), "right\n"), "{way}: {err}");
    let told = serde_json::from_slice::<Value>(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    told["counters"].clone()
}

/// One of them.
pub fn count(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or_else(|| panic!("{name}: {counters:#}"))
}
