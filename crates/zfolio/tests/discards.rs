//! What was discarded (MADV_DONTNEED) is zero and stays so, whoever has done it: between the event and the discard itself nothing there is saved. Runs `tests/c/discards.c`; it
//! needs the right to userfaultfd, as `zfolio doctor` does.

mod compile;

use compile::compile;
use std::process::Command;

#[test]
fn what_a_thread_or_a_child_that_shares_the_memory_has_discarded_does_not_come_back() {
    let program = compile("discards");
    for how in ["thread", "vfork", "clone"] {
        let mut run = Command::new("timeout");
        run.args(["-k", "5", "100", env!("CARGO_BIN_EXE_zfolio")]);
        run.args(["run", "--quiet", "--evict-all", "--memory=128M", "--"]).arg(&program);
        let output = run.args([how, "60"]).output().expect("timeout is needed");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!((output.status.code(), &*out), (Some(0), "right\n"), "{how}: {err}");
    }
}
