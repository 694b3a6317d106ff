//! That a program cannot tell: each check of `torture/cloak`, in a process that sees its memory go out all the time,
//! with room for all that it starts.

mod skip;

use skip::skip;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// What each process of a check fills, in MiB; of a chain of forks that all write six live at a time.
const MIB: &str = "24";
const LIMIT: &str = "400M";

fn cloak() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cloak-{}", std::process::id()));
    let made = Command::new("make")
        .args(["-s", "-C", &format!("{ROOT}/torture")])
        .arg(format!("OUT={}", folder.display()))
        .arg(folder.join("cloak"))
        .status();
    assert!(made.expect("make is needed").success(), "torture/cloak was not built");
    folder.join("cloak")
}

/// What is wrong with a check, if anything.
fn run(cloak: &Path, name: &str) -> Result<(), String> {
    let output = Command::new("timeout")
        .args(["-k", "5", "100", env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet", "--evict-all"])
        .args(["--memory", LIMIT, "--"])
        .arg(cloak)
        .args(["--memory", MIB, name])
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let said = out.lines().next().unwrap_or_default();
    if let Some(why) = said.strip_prefix("skip ") {
        skip(&format!("cloak: {why}"));
        return Ok(());
    }
    let is_right = output.status.success() && said == format!("ok {name}");
    if is_right { Ok(()) } else { Err(format!("{name}: {}: {out}{err}", output.status)) }
}

#[test]
fn every_check_passes() {
    let cloak = cloak();
    let list = Command::new(&cloak).arg("--list").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let names: Vec<_> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 60, "{list}");
    let wrong: Vec<_> = names.iter().filter_map(|name| run(&cloak, name).err()).collect();
    let _ = std::fs::remove_dir_all(cloak.parent().unwrap());
    assert!(wrong.is_empty(), "{} of {} checks fail:\n{}", wrong.len(), names.len(), wrong.join("\n"));
}
