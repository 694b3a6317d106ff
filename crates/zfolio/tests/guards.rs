//! Guards (MADV_GUARD_INSTALL): whoever makes one waits for nobody who waits for him. Runs `tests/c/guards.c`; it needs
//! Linux 6.13, and the right to userfaultfd, as `zfolio doctor` does.

mod compile;
mod skip;

use compile::compile;
use std::process::Command;

#[test]
fn guards_are_made_by_a_thread_whose_stack_is_out_and_locked() {
    let mut run = Command::new("timeout");
    run.args(["-k", "5", "60", env!("CARGO_BIN_EXE_zfolio")]);
    run.args(["run", "--quiet", "--evict-all", "--memory=128M", "--"]).arg(compile("guards")).arg("500");
    let output = run.output().expect("timeout is needed");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if out == "no guards\n" {
        return skip::skip("this kernel has no MADV_GUARD_INSTALL (Linux 6.13 has)");
    }
    assert_eq!((output.status.code(), &*out, &*err), (Some(0), "right\n", ""));
}
