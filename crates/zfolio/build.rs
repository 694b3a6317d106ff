//! Builds libzfolio.so from the crate `libzfolio`, for `library.rs` to embed, and nbdkit's plugin from the crate
//! `zram-nbdkit`, for `zram/nbdkit.rs`.
//!
//! The library goes into foreign processes: it is built by a profile of its own (no unwinding), and linked without
//! libc, so that loading it loads nothing else.

use object::elf::{DT_RELA, DT_RELACOUNT, DT_RELASZ, Dyn64, R_X86_64_RELATIVE, Rela64, SHN_UNDEF, Sym64};
use object::pod::{slice_from_all_bytes, slice_from_all_bytes_mut};
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol};
use std::env;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, exit};

/// The crates whose code is in the library.
const CRATES: [&str; 15] = include!("../libzfolio/crates.in");

/// The crates that only the plugin has.
const PLUGIN_CRATES: [&str; 4] = ["ask", "zram", "zram-server", "zram-nbdkit"];

/// The functions that the library exports, by name.
macro_rules! functions {
    (
        frequent { $($frequent:ident => $call:ident;)* }
        visible { $($visible:ident;)* }
        answers { $($answer:ident;)* }
        hooks { $($module:ident { $($hook:ident $(=> $hook_call:ident)?;)* })* }
        unhooked { $($other:tt)* }
    ) => {
        const EXPORTS: &[&str] = &[
            $(stringify!($frequent),)*
            $(stringify!($visible),)*
            $(stringify!($answer),)*
            $($(stringify!($hook),)*)*
        ];
    };
}

include!("../interpose/src/functions.in");

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let crates = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("..");
    for name in CRATES.into_iter().chain(PLUGIN_CRATES) {
        for part in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", crates.join(name).join(part).display());
        }
    }
    println!("cargo::rerun-if-changed={}", crates.join("libzfolio/crates.in").display());
    let order = crates.join("libzfolio/zfolio.ld");
    println!("cargo::rerun-if-changed={}", order.display());
    let map = out.join("zfolio.map");
    fs::write(&map, format!("{{ global: {}; local: *; }};\n", EXPORTS.join("; "))).expect("OUT_DIR is ours");
    for file in ["../Cargo.toml", "../Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", crates.join(file).display());
    }
    println!("cargo::rerun-if-changed=build.rs");

    let archive = compile(&out.join("libzfolio"));
    let library = out.join("libzfolio.so");
    link(&archive, &map, &order, &library);
    expect_exports(&library);
    defer(&library);
    hide(&library);
    inspect(&library);
    println!("cargo::rustc-env=ZFOLIO_LIBRARY={}", library.display());
    println!("cargo::rustc-env=ZFOLIO_ZRAM_PLUGIN={}", compile_plugin(&out).display());
}

/// Compiles the crate `zram-nbdkit`. Its target folder lies beside those of profiles, so that a debug build, a release
/// build and a check compile it once.
fn compile_plugin(out: &Path) -> PathBuf {
    // OUT_DIR is PROFILE/build/PACKAGE/out.
    let target =
        out.ancestors().nth(4).expect("cargo puts OUT_DIR into the target folder").join("zram-nbdkit");
    let mut cargo = inner_cargo();
    cargo
        .args(["rustc", "--quiet", "--locked", "--package", "zram-nbdkit", "--release", "--target-dir"])
        .arg(&target)
        // Nothing of it is for debuggers, and all of it is in the command.
        .args(["--", "-C", "strip=symbols"]);
    succeed(&mut cargo);
    target.join("release/libzram_nbdkit.so")
}

/// Compiles the crate `libzfolio` to an archive, with a cargo and a target folder of its own: the outer cargo holds the
/// lock of its own.
fn compile(target: &Path) -> PathBuf {
    let mut cargo = inner_cargo();
    cargo
        .args([
            "rustc",
            "--quiet",
            "--locked",
            "--package",
            "libzfolio",
            "--lib",
            // Alone: where a library for Rust is made as well nothing is optimised across crates, whatever the profile
            // says.
            "--crate-type",
            "staticlib",
            "--profile",
            "libzfolio",
            "--target-dir",
        ])
        .arg(target);
    // A debug build of the command is for tests, and so is its library: what must hold is asserted there too.
    if env::var("PROFILE").as_deref() == Ok("debug") {
        cargo.args(["--config", "profile.libzfolio.debug-assertions=true"]);
    }
    cargo.env("ZFOLIO_BARE", "1");
    // Nothing of the library's is another's to replace, and so nothing of its own is called by the table of addresses,
    // of which the loader would fill every entry at every start.
    cargo.env("RUSTFLAGS", "-C relocation-model=pie");
    // C code in the library must not call what only libc has: no canary (it lives in thread-local storage), no checked
    // copies, no malloc (lz4hc's densest levels then work in 64 KiB of the stack). Nor does zstd look for a tracer: the
    // loader would, at every start, in all that is loaded.
    cargo.env(
        "CFLAGS",
        "-fno-stack-protector -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=0 -fPIC -O3 -ffunction-sections -fdata-sections -DLZ4HC_HEAPMODE=0 -DZSTD_TRACE=0",
    );
    succeed(&mut cargo);
    target.join("libzfolio/liblibzfolio.a")
}

/// A cargo without what the outer one was told, which is about the command: another target's flags, clippy in the
/// compiler's place, a profile.
fn inner_cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"));
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
    cargo
}

fn link(archive: &Path, map: &Path, order: &Path, library: &Path) {
    let mut cc = Command::new(env::var_os("CC").unwrap_or("cc".into()));
    cc.args(["-shared", "-nostdlib", "-nostartfiles"]);
    // Nothing of ours may be bound to a symbol of the program's, nothing may be left to bind at run time, and nothing
    // undefined.
    for option in [
        "-Bsymbolic",
        "-znow",
        // What the loader writes shares its page with what we write.
        "-znorelro",
        // One mapping for headers, code and constants instead of three: each costs every process that starts some 5 µs.
        "-znoseparate-code",
        "-znoexecstack",
        "-zdefs",
        "-znodelete",
        "--gc-sections",
        "-soname,libzfolio.so",
        // Found by name in the table of symbols alone, by `zfolio run`.
        "--undefined=zfolio_attach",
        "--undefined=zfolio_attachment",
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

/// What the library exports is what the table says, and nothing else.
fn expect_exports(library: &Path) {
    let file = fs::read(library).expect("it was just linked");
    let elf = ElfFile64::<LittleEndian>::parse(&*file).expect("the linker writes ELF");
    let defined = elf.dynamic_symbols().filter(|symbol| symbol.is_definition());
    let mut exported: Vec<&str> = defined.map(|symbol| symbol.name().expect("names are text")).collect();
    let mut expected = EXPORTS.to_vec();
    exported.sort_unstable();
    expected.sort_unstable();
    assert_eq!(exported, expected, "not what interpose/src/functions.in says");
}

/// The constants that hold addresses (zfolio.ld), of which the first two words are a header, the table of relocations,
/// and the loader's table of tables.
const LATER: &str = ".data.rel.ro";
const RELOCATIONS: &str = ".rela.dyn";
const DYNAMIC: &str = ".dynamic";

/// The last section of the page that every process writes to.
const DATA: &str = ".data";

/// Bytes of a page, and what one fault on a file maps of it.
const PAGE: usize = 4096;
const FAULT_BYTES: usize = 64 << 10;

/// Takes the relocations of constants out of the loader's sight, and says in their header where they are: the library
/// does them itself when they are needed (interpose/src/relocate.rs).
fn defer(library: &Path) {
    let mut file = fs::read(library).expect("it was just linked");
    let [later, relocations, dynamic] = [LATER, RELOCATIONS, DYNAMIC].map(|name| Section::find(&file, name));

    let table = slice_from_all_bytes_mut::<Rela64<LittleEndian>>(&mut file[relocations.in_file.clone()])
        .expect("whole entries");
    let is_later = |entry: &Rela64<LittleEndian>| later.at.contains(&entry.r_offset.get(LittleEndian));
    let is_relative = |entry: &Rela64<LittleEndian>| entry.r_type(LittleEndian, false) == R_X86_64_RELATIVE;
    assert!(
        table.iter().all(|entry| is_relative(entry) || !is_later(entry)),
        "a constant with a foreign address"
    );
    // The loader's last, beside the other tables that it reads, and of these the relative ones first, as it expects
    // them.
    table.sort_by_key(|entry| (!is_later(entry), !is_relative(entry)));
    let later_count = table.iter().filter(|entry| is_later(entry)).count();
    let loaders = &table[later_count..];
    let relative_count = loaders.iter().filter(|entry| is_relative(entry)).count();
    let loaders_at = relocations.at.start + size_of_val(&table[..later_count]) as u64;
    let loaders_bytes = size_of_val(loaders) as u64;

    let header = [relocations.at.start as usize, later_count];
    for (word, value) in file[later.in_file.clone()].chunks_exact_mut(8).zip(header) {
        assert!(word.iter().all(|byte| *byte == 0), "no room for the header");
        word.copy_from_slice(&value.to_le_bytes());
    }
    let entries =
        slice_from_all_bytes_mut::<Dyn64<LittleEndian>>(&mut file[dynamic.in_file]).expect("whole entries");
    for entry in entries {
        match entry.d_tag.get(LittleEndian) {
            DT_RELA => entry.d_val.set(LittleEndian, loaders_at),
            DT_RELASZ => entry.d_val.set(LittleEndian, loaders_bytes),
            DT_RELACOUNT => entry.d_val.set(LittleEndian, relative_count as u64),
            _ => {}
        }
    }
    fs::write(library, file).expect("it was just linked");
}

/// The functions that the loader sees only where the user asks for it, and its table of symbols.
const VISIBLE: &str = ".visible";
const SYMBOLS: &str = ".dynsym";

/// Takes these functions out of the loader's table of symbols, as if the library had asked for them and nobody had
/// them: programs are bound to libc's. crates/zfolio/src/visible.rs puts them in again.
fn hide(library: &Path) {
    let mut file = fs::read(library).expect("it was just linked");
    let [visible, symbols] = [VISIBLE, SYMBOLS].map(|name| Section::find(&file, name));
    let table =
        slice_from_all_bytes_mut::<Sym64<LittleEndian>>(&mut file[symbols.in_file]).expect("whole entries");
    let mut count = 0;
    for symbol in table.iter_mut().filter(|symbol| visible.at.contains(&symbol.st_value.get(LittleEndian))) {
        symbol.st_value.set(LittleEndian, 0);
        symbol.st_size.set(LittleEndian, 0);
        symbol.st_shndx.set(LittleEndian, SHN_UNDEF);
        count += 1;
    }
    assert!(count > 0, "no function is there to be hidden");
    fs::write(library, file).expect("it was just linked");
}

/// Where a section lies, as an address and in the file.
struct Section {
    at: Range<u64>,
    in_file: Range<usize>,
}

impl Section {
    fn find(file: &[u8], name: &str) -> Section {
        let elf = ElfFile64::<LittleEndian>::parse(file).expect("the linker writes ELF");
        let section = elf.section_by_name(name).unwrap_or_else(|| panic!("libzfolio.so has no {name}"));
        let (from, bytes) = section.file_range().expect("it has contents");
        let in_file = from as usize..(from + bytes) as usize;
        Section { at: section.address()..section.address() + section.size(), in_file }
    }
}

/// The library must need no other, and start by itself, before its constants have their addresses.
fn inspect(library: &Path) {
    let dynamic = succeed(Command::new("readelf").args(["--dynamic", "--wide"]).arg(library));
    let dynamic = String::from_utf8_lossy(&dynamic.stdout).into_owned();
    assert!(!dynamic.contains("(NEEDED)"), "libzfolio.so needs another library:\n{dynamic}");
    assert!(dynamic.contains("(INIT_ARRAY)"), "libzfolio.so has no constructor:\n{dynamic}");

    let file = fs::read(library).expect("it was just linked");
    let behind_data = Section::find(&file, DATA).in_file.end.next_multiple_of(PAGE);
    let is_apart = file[behind_data..][..FAULT_BYTES - PAGE].iter().all(|byte| *byte == 0);
    assert!(
        is_apart,
        "what every process writes to is not followed by zeros, and each start maps what is there"
    );

    let later = Section::find(&file, LATER);
    let code = succeed(Command::new("objdump").args(["--disassemble", "--section=.startup"]).arg(library));
    let mut count = 0;
    for line in String::from_utf8_lossy(&code.stdout).lines() {
        // What an instruction refers to stands behind it.
        let Some((_, target)) = line.split_once("# ") else { continue };
        let target = target.split(' ').next().map(|address| u64::from_str_radix(address, 16));
        let Some(Ok(target)) = target else { continue };
        count += 1;
        // Their header is written by us.
        let is_fine = target == later.at.start || !later.at.contains(&target) || is_place(&file, target);
        assert!(is_fine, "what runs at each start needs an address that is filled in later:\n{line}");
    }
    assert!(count > 0, "objdump does not say to what instructions refer");
}

/// True for the place of a panic, which is only looked at after all addresses were filled in: the path of a source
/// file, its length, line and column.
fn is_place(file: &[u8], at: u64) -> bool {
    let relocations = Section::find(file, RELOCATIONS);
    let later = Section::find(file, LATER);
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes"));
    let table =
        slice_from_all_bytes::<Rela64<LittleEndian>>(&file[relocations.in_file]).expect("whole entries");
    // Code and constants lie at the beginning of the file, at the same place as in memory.
    let path = table
        .iter()
        .find(|entry| entry.r_offset.get(LittleEndian) == at)
        .map(|entry| entry.r_addend.get(LittleEndian) as usize);
    let bytes = word(later.in_file.start + (at - later.at.start) as usize + 8) as usize;
    path.and_then(|path| file.get(path..path + bytes)).is_some_and(|path| path.ends_with(b".rs"))
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
    eprintln!("libzfolio.so, or nbdkit's plugin, could not be built");
    exit(1)
}
