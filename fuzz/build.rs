//! Builds what counts the ways through the C libraries.

fn main() {
    println!("cargo::rerun-if-changed=src/ways.c");
    cc::Build::new().file("src/ways.c").compile("ways");
    // libFuzzer has a function of the name that gcc calls, which ends the program.
    println!("cargo::rustc-link-arg=-Wl,--wrap=__sanitizer_cov_trace_pc");
}
