//! Gives libFuzzer's inputs to the algorithm that `FUZZ_TARGET` names, to `objects` (zswap), or to `zram-saved` and
//! `zram-asked` (a device's file, and its control socket). `tools/fuzz` builds and runs it.
//!
//! With `FUZZ_FIRST=FOLDER` it writes inputs to begin with instead.

#![no_main]

#[path = "../../crates/zswap/tests/trials/mod.rs"]
mod objects;
#[path = "../../crates/acomp/tests/samples/mod.rs"]
mod samples;
#[path = "../../crates/zram-server/tests/trials/mod.rs"]
mod zram_asked;
#[path = "../../crates/zram/tests/trials/mod.rs"]
mod zram_saved;

use std::sync::{LazyLock, Mutex};
use std::{env, fs, process};

use libfuzzer_sys::fuzz_target;
use samples::Random;

enum Target {
    Algorithm(samples::trials::Trials),
    Objects(objects::Trials),
    ZramAsked(zram_asked::Trials),
    ZramSaved,
}

static TARGET: LazyLock<Mutex<Target>> = LazyLock::new(|| {
    let _ = samples::fence::HIDE.set(hide);
    let name = env::var("FUZZ_TARGET").expect("FUZZ_TARGET names what is tried");
    Mutex::new(match &*name {
        "objects" => Target::Objects(objects::Trials::new()),
        "zram-asked" => {
            // SAFETY: the function takes nothing, and is there for as long as the process.
            unsafe { atexit(end) };
            Target::ZramAsked(zram_asked::Trials::new())
        }
        "zram-saved" => Target::ZramSaved,
        name => Target::Algorithm(samples::trials::Trials::new(name)),
    })
});

/// The server's directory goes with the process.
extern "C" fn end() {
    if let Ok(target) = TARGET.try_lock()
        && let Target::ZramAsked(trials) = &*target
    {
        trials.end();
    }
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> i32;
    fn __asan_poison_memory_region(at: *const u8, bytes: usize);
    fn __asan_unpoison_memory_region(at: *const u8, bytes: usize);
}

fn hide(memory: &[u8], hidden: bool) {
    let change = if hidden { __asan_poison_memory_region } else { __asan_unpoison_memory_region };
    // SAFETY: memory that is there; whoever touches what is hidden is told, and that is what it is for.
    unsafe { change(memory.as_ptr(), memory.len()) }
}

fn write_first(folder: &str) -> ! {
    let mut random = Random(1);
    let inputs = match &mut *TARGET.lock().unwrap() {
        Target::Algorithm(trials) => trials.first_inputs(&mut random),
        Target::Objects(trials) => trials.first_inputs(&mut random),
        Target::ZramAsked(trials) => trials.first_inputs(),
        Target::ZramSaved => zram_saved::first_inputs(),
    };
    for (number, input) in inputs.iter().enumerate() {
        fs::write(format!("{folder}/first-{number}"), input).expect("the folder can be written to");
    }
    process::exit(0);
}

fuzz_target!(
    init: if let Ok(folder) = env::var("FUZZ_FIRST") { write_first(&folder) },
    |input: &[u8]| match &mut *TARGET.lock().unwrap() {
        Target::Algorithm(trials) => trials.run(input),
        Target::Objects(trials) => trials.run(input),
        Target::ZramAsked(trials) => trials.run(input),
        Target::ZramSaved => drop(zram_saved::run(input)),
    }
);
