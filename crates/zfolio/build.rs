//! Builds libzfolio.so from the crate `preload`, for `rundir.rs` to embed.
//!
//! The library goes into foreign processes: it is built by a profile of its own (no unwinding), and linked without libc, so
//! that loading it loads nothing else.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, exit};

/// The crates whose code is in the library.
const CRATES: [&str; 9] = ["acomp", "iaa", "memcg", "mm", "preload", "uffd", "vmscan", "zsmalloc", "zswap"];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let crates = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("..");
    for name in CRATES {
        for part in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", crates.join(name).join(part).display());
        }
    }
    let script = |name: &str| {
        let path = crates.join("preload").join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        path
    };
    let (map, order) = (script("zfolio.map"), script("zfolio.ld"));
    println!("cargo::rerun-if-changed={}", crates.join("../Cargo.lock").display());
    println!("cargo::rerun-if-changed=build.rs");

    let archive = compile(&out.join("preload"));
    let library = out.join("libzfolio.so");
    link(&archive, &map, &order, &library);
    inspect(&library);
    println!("cargo::rustc-env=ZFOLIO_LIBRARY={}", library.display());
}

/// Compiles the crate `preload` to an archive, with a cargo and a target folder of its own: the outer cargo holds the lock of
/// its own.
fn compile(target: &Path) -> PathBuf {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"));
    cargo
        .args([
            "rustc",
            "--quiet",
            "--locked",
            "--package",
            "preload",
            "--lib",
            // Alone: where a library for Rust is made as well nothing is optimised across crates, whatever the profile says.
            "--crate-type",
            "staticlib",
            "--profile",
            "preload",
            "--target-dir",
        ])
        .arg(target);
    // What the outer build was told is about the command: another target's flags, clippy in the compiler's place, a profile.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        let about_outer = name.starts_with("CARGO_PROFILE_")
            || name.starts_with("CARGO_BUILD_")
            || name.starts_with("CARGO_CFG_")
            || name.starts_with("CARGO_FEATURE_");
        if about_outer {
            cargo.env_remove(&*name);
        }
    }
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "CLIPPY_ARGS",
        "TARGET",
        "HOST",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
        "OUT_DIR",
        "CARGO_TARGET_DIR",
    ] {
        cargo.env_remove(name);
    }
    cargo.env("ZFOLIO_BARE", "1");
    // Nothing of the library's is another's to replace, and so nothing of its own is called by the table of addresses, of which the loader would fill
    // every entry at every start.
    cargo.env("RUSTFLAGS", "-C relocation-model=pie");
    // C code in the library must not call what only libc has: no canary (it lives in thread-local storage), no checked copies, no malloc
    // (lz4hc's densest levels then work in 64 KiB of the stack).
    cargo.env(
        "CFLAGS",
        "-fno-stack-protector -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=0 -fPIC -O3 -ffunction-sections -fdata-sections -DLZ4HC_HEAPMODE=0",
    );
    succeed(&mut cargo);
    target.join("preload/libpreload.a")
}

fn link(archive: &Path, map: &Path, order: &Path, library: &Path) {
    let mut cc = Command::new(env::var_os("CC").unwrap_or("cc".into()));
    cc.args(["-shared", "-nostdlib", "-nostartfiles"]);
    // Nothing of ours may be bound to a symbol of the program's, nothing may be left to bind at run time, and nothing undefined.
    for option in [
        "-Bsymbolic",
        "-znow",
        "-zrelro",
        // One mapping for headers, code and constants instead of three: each costs every process that starts some 5 µs.
        "-znoseparate-code",
        "-znoexecstack",
        "-zdefs",
        "-znodelete",
        "--gc-sections",
        "-soname,libzfolio.so",
    ] {
        cc.arg(format!("-Wl,{option}"));
    }
    cc.arg(format!("-Wl,--version-script={}", map.display()));
    cc.arg(format!("-Wl,--script={}", order.display()));
    // Every run writes the library into memory: without debug information it is a fraction of the size.
    cc.arg("-Wl,--strip-debug");
    // The constructor's table entry and the exports are what --gc-sections starts from.
    cc.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive").arg("-o").arg(library);
    succeed(&mut cc);
}

/// The library must need no other, and start by itself.
fn inspect(library: &Path) {
    let dynamic = succeed(Command::new("readelf").args(["--dynamic", "--wide"]).arg(library));
    let dynamic = String::from_utf8_lossy(&dynamic.stdout).into_owned();
    assert!(!dynamic.contains("(NEEDED)"), "libzfolio.so needs another library:\n{dynamic}");
    assert!(dynamic.contains("(INIT_ARRAY)"), "libzfolio.so has no constructor:\n{dynamic}");
}

fn succeed(command: &mut Command) -> Output {
    let name = command.get_program().to_os_string();
    match command.output() {
        Ok(output) if output.status.success() => return output,
        // What the compiler said is the message; a backtrace of this program would only hide it.
        Ok(output) => {
            eprintln!("{}\n{}: {}", String::from_utf8_lossy(&output.stderr), name.display(), output.status)
        }
        Err(e) => eprintln!("{}: {e}", name.display()),
    }
    eprintln!("libzfolio.so could not be built");
    exit(1)
}
