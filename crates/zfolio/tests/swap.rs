//! The machine's own swap beneath: what the kernel has swapped of a run counts against its limit, and is as it was.
//!
//! The program has the kernel swap all that there is in its address space, to a file of the test's own. That needs root, and a
//! file system that can be swapped to.

mod skip;

use skip::tell;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");
const MIB: u64 = 1 << 20;

/// A file that the machine swaps to until the test ends.
struct SwapFile(PathBuf);

impl SwapFile {
    fn new(mib: u64) -> Result<SwapFile, String> {
        let file = SwapFile(std::env::temp_dir().join(format!("zfolio-test-{}.swap", std::process::id())));
        let path = file.0.to_str().unwrap();
        call("fallocate", &["-l", &format!("{mib}M"), path])?;
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        call("mkswap", &[path])?;
        call("swapon", &[path])?;
        Ok(file)
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).output();
        let _ = fs::remove_file(&self.0);
    }
}

fn call(program: &str, arguments: &[&str]) -> Result<(), String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(arguments).env("PATH", path).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    let words = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {words}")) }
}

#[test]
fn what_the_kernel_swaps_counts_against_the_limit_and_is_as_it_was() {
    let _file = match SwapFile::new(300) {
        Ok(file) => file,
        Err(why) => return tell(&format!("skipped: nothing can be swapped here: {why}")),
    };
    let program = std::env::temp_dir().join(format!("zfolio-swapped-{}", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/swapped.c");
    let built = Command::new("gcc").args(["-O2", "-Wall", "-o"]).arg(&program).arg(source).status();
    assert!(built.expect("gcc is needed").success());
    let limit = 64 * MIB;
    let output =
        Command::new(ZFOLIO).args(["run", "--memory", "64M", "--"]).arg(&program).arg("96").output().unwrap();
    let _ = fs::remove_file(&program);
    let [said, told] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{said}{told}");
    let figures: Vec<u64> = said.split_whitespace().map(|kib| kib.parse().unwrap()).collect();
    let [held, swapped] = [figures[0] * 1024, figures[1] * 1024];
    assert!(swapped > 16 * MIB, "the kernel has swapped {} MiB: nothing is tried", swapped / MIB);
    assert!(held <= limit / 10 * 11, "{} MiB, {} of them swapped: {told}", held / MIB, swapped / MIB);
}
