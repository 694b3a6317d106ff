//! Test programs in C.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// What has been compiled: another test may run it.
static COMPILED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Compiles the program of this name in `tests/c`; where it is then.
#[allow(dead_code, reason = "some tests have flags of their own")]
pub fn compile(name: &str) -> PathBuf {
    compile_with(name, &[])
}

/// The same with more flags of gcc's; each choice of them is a program of its own.
pub fn compile_with(name: &str, flags: &[&str]) -> PathBuf {
    let file = format!("{name}{}-{}", flags.concat().replace(['=', '/'], "-"), std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(file);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if compiled.contains(&path) {
        return path;
    }
    let source = format!("{}/tests/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-pthread"]).args(flags).arg("-o").arg(&path).arg(source);
    assert!(gcc.status().expect("gcc is needed").success());
    compiled.insert(path.clone());
    path
}
