//! What programs tell and ask by include/zfolio.h (docs/man/zfolio.3). The tests need the right to userfaultfd, as
//! `zfolio doctor` does.

mod compile;

use compile::compile_with;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

const HEADER: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");

/// The test program, compiled once.
fn api() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile_with("api", &["-Wextra", HEADER]))
}

fn is_right(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), &*out), (Some(0), "right\n"), "{err}");
}

#[test]
fn without_zfolio_advice_goes_to_the_kernel_and_the_rest_is_refused() {
    is_right(&Command::new(api()).arg("alone").output().unwrap());
}

#[test]
fn what_is_pinned_stays_and_a_program_sees_where_its_memory_is() {
    let zfolio = ["-k", "5", "120", env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet", "--memory", "96M", "--"];
    is_right(
        &Command::new("timeout").args(zfolio).arg(api()).arg("pins").output().expect("timeout is needed"),
    );
}
