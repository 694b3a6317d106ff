//! Hands the paths of the C libraries' archives to `tests/symbols.rs`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for (library, variable) in [("libzstd.a", "DEP_ZSTD_ROOT"), ("liblz4.a", "DEP_LZ4_ROOT")] {
        let folder = std::env::var(variable).unwrap_or_default();
        println!("cargo::rustc-env={}={folder}/{library}", variable.replace("DEP_", "ACOMP_"));
    }
}
