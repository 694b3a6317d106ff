//! What was discarded (MADV_DONTNEED) is zero and stays so, whoever has done it: between the event and the discard
//! itself nothing there is saved. Runs `tests/c/discards.c`; it needs the right to userfaultfd, as `zfolio doctor`
//! does.

mod compile;

use compile::compile;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// As many as that compute meanwhile for each processor: who discards is kept waiting between the event and the
/// discard.
const BUSY: usize = 2;

#[test]
fn what_a_thread_or_a_child_that_shares_the_memory_has_discarded_does_not_come_back() {
    let program = compile("discards");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism().unwrap().get();
        for _ in 0..BUSY * processors {
            scope.spawn(|| {
                while !is_done.load(Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        let all = std::panic::catch_unwind(|| all_are_right(&program));
        is_done.store(true, Relaxed);
        all.unwrap();
    });
}

fn all_are_right(program: &Path) {
    for how in ["thread", "vfork", "clone"] {
        let mut run = Command::new("timeout");
        run.args(["-k", "5", "100", env!("CARGO_BIN_EXE_zfolio")]);
        run.args(["run", "--quiet", "--evict-all", "--memory=128M", "--"]).arg(program);
        let output = run.args([how, "60"]).output().expect("timeout is needed");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!((output.status.code(), &*out), (Some(0), "right\n"), "{how}: {err}");
    }
}
