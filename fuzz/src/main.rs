//! Gives libFuzzer's inputs to the algorithm that `FUZZ_TARGET` names, or to `objects` (zswap). `tools/fuzz` builds and
//! runs it.
//!
//! With `FUZZ_FIRST=FOLDER` it writes inputs to begin with instead.

#![no_main]

#[path = "../../crates/zswap/tests/trials/mod.rs"]
mod objects;
#[path = "../../crates/acomp/tests/samples/mod.rs"]
mod samples;

use std::sync::{LazyLock, Mutex};
use std::{env, fs, process};

use libfuzzer_sys::fuzz_target;
use samples::Random;

enum Target {
    Algorithm(samples::trials::Trials),
    Objects(objects::Trials),
}

static TARGET: LazyLock<Mutex<Target>> = LazyLock::new(|| {
    let _ = samples::fence::HIDE.set(hide);
    let name = env::var("FUZZ_TARGET").expect("FUZZ_TARGET names an algorithm, or is: objects");
    Mutex::new(match &*name {
        "objects" => Target::Objects(objects::Trials::new()),
        name => Target::Algorithm(samples::trials::Trials::new(name)),
    })
});

unsafe extern "C" {
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
    }
);
