//! Links libdeflate, and hands the paths of the C libraries' archives to `tests/symbols.rs`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let archive = |variable: &str, file: &str| {
        let folder = std::env::var(variable).unwrap_or_default();
        println!("cargo::rustc-env={}={folder}/{file}", variable.replace("DEP_", "ACOMP_"));
        folder
    };
    archive("DEP_ZSTD_ROOT", "libzstd.a");
    archive("DEP_LZ4_ROOT", "liblz4.a");
    // The crate libdeflate-sys would bring std into a library that has none. Only the archive that it builds is wanted,
    // and is linked from here: no Rust code names the crate.
    let libdeflate = archive("DEP_LIBDEFLATE_ROOT", "lib/libdeflate.a");
    println!("cargo::rustc-link-search=native={libdeflate}/lib");
    println!("cargo::rustc-link-lib=static=deflate");
}
