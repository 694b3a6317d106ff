//! Test programs in C.

use std::path::PathBuf;
use std::process::Command;

/// Compiles `tests/c/NAME.c`; where the program is.
pub fn compile(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let source = format!("{}/tests/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("gcc").args(["-O1", "-Wall", "-pthread", "-o"]).arg(&path).arg(source).status();
    assert!(built.expect("gcc is needed").success());
    path
}
