//! What programs tell and ask by include/zfolio.h (docs/man/zfolio.3). The tests need the right to userfaultfd, as
//! `zfolio doctor` does.

mod compile;

use compile::compile_with;
use std::path::PathBuf;
use std::process::{Command, Output};

const HEADER: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");

/// The test program.
fn api() -> PathBuf {
    compile_with("api", &["-Wextra", HEADER])
}

fn is_right(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), &*out), (Some(0), "right\n"), "{err}");
}

#[test]
fn without_zfolio_advice_goes_to_the_kernel_and_the_rest_is_refused() {
    is_right(&Command::new(api()).arg("alone").output().unwrap());
}

/// `timeout`, with a run of a program that is not named yet.
fn zfolio() -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "120", env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet", "--memory", "96M", "--"]);
    command
}

#[test]
fn what_is_pinned_stays_and_a_program_sees_where_its_memory_is() {
    is_right(&zfolio().arg(api()).arg("pins").output().expect("timeout is needed"));
}

/// This test runs itself under zfolio.
#[test]
fn a_program_in_rust_pins_what_it_needs() {
    const INSIDE: &str = "ZFOLIO_TESTS_API_INSIDE";
    if std::env::var_os(INSIDE).is_none() {
        let own = std::env::current_exe().unwrap();
        let same = ["--exact", "a_program_in_rust_pins_what_it_needs", "--nocapture"];
        let output = zfolio().arg(own).args(same).env(INSIDE, "1").output().expect("timeout is needed");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    assert!(zfolio_api::is_there());
    let index: Vec<u64> = (0..1 << 20).collect();
    let bytes = size_of_val(&index[..]) as u64;
    let pin = zfolio_api::pin(&index).unwrap();
    let rest: Vec<u64> = (0..16 << 20).collect();
    let told = zfolio_api::range(&index).unwrap();
    assert!(told.resident_bytes >= bytes && told.pinned_bytes >= bytes, "{told:?}");
    let out = zfolio_api::range(&rest).unwrap();
    assert!(out.stored_bytes > bytes && out.pool_bytes < out.stored_bytes / 2, "{out:?}");
    drop(pin);
    assert_eq!(zfolio_api::range(&index).unwrap().pinned_bytes, 0);
    zfolio_api::cold(&index).unwrap();
    zfolio_api::pageout(&index).unwrap();
    assert!(zfolio_api::pin(&rest).is_err(), "more than half of the limit");
    assert!((0..).zip(&index).all(|(i, &word)| i == word) && (0..).zip(&rest).all(|(i, &word)| i == word));
}
