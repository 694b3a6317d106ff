//! Compiles the few C functions that a library without libc needs.

fn main() {
    // Only the library for foreign processes has no libc; tests have. The build of the command says which it is.
    println!("cargo::rerun-if-env-changed=ZFOLIO_BARE");
    if std::env::var_os("ZFOLIO_BARE").is_none() {
        return;
    }
    println!("cargo::rerun-if-changed=src/mem.c");
    cc::Build::new()
        .file("src/mem.c")
        .opt_level(2)
        .flag("-fno-builtin")
        .flag("-fno-tree-loop-distribute-patterns")
        .flag("-fno-stack-protector")
        .flag("-fvisibility=hidden")
        .compile("zfolio_mem");
}
