//! Programs with holes in their memory: what they map there or unmap with it is theirs, and never the engine's.
//!
//! Each test runs `tests/c/holes.c`. They need the right to userfaultfd, as `zfolio doctor` does.

mod compile;
mod slow;

use compile::compile;
use slow::without_slowness;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// The test program.
fn holes() -> PathBuf {
    compile("holes")
}

/// Squeezed, with `mib` MiB of the program's own and as much beside the hole and in it; and with everything going out
/// all the time.
fn is_right(way: &str, limit: &str) {
    for (options, mib, rounds) in
        [(&["--memory", limit][..], "32", "3"), (&["--evict-all", "--memory", "96M"][..], "8", "10")]
    {
        let began = Instant::now();
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120", env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet"]).args(options);
        let output = command.arg("--").arg(holes()).args([way, mib, rounds]).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), without_slowness(&text(output.stderr), began));
        assert_eq!((output.status.code(), &*out, &*err), (Some(0), "right\n", ""), "{way} {options:?}");
    }
}

#[test]
fn a_range_is_unmapped_of_which_the_middle_is_gone() {
    is_right("unmap", "32M");
}

#[test]
fn memory_is_mapped_into_a_hole() {
    is_right("map", "40M");
}

#[test]
fn a_range_is_unmapped_of_which_the_middle_has_moved_away() {
    is_right("move", "40M");
}

#[test]
fn children_map_what_they_like_where_their_parent_keeps_memory_out_of_them() {
    is_right("keep", "56M");
}

#[test]
fn children_do_with_their_parent_s_holes_what_they_like() {
    is_right("child", "56M");
}
