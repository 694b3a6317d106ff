//! What a child of fork begins anew, in its only thread, before it does anything else: one list.
//!
//! There are three kinds of children ([`ChildKind`]). In each, every static of the library is a copy of its parent's.
//! What is begun anew is done here, by [`reset`]; what an engine has to itself it begins anew when it starts
//! (`engine::process::begin_anew`); the rest a child keeps, since it is about the program or the library, which are the
//! same in both. A test compares this list with the statics that there are.
//!
//! ```text
//!   begun anew here:
//!     arena OWN, reservation RESERVED, ENTRIES     not small: what of the engine's memory is there (or taken over)
//!     aside IS_TAKEN                               whoever had the stack is not here
//!     bell BELL                                    unless taken over: the thread that forks holds it, and gives it back
//!     state CONTROL                                but for what is about the program: see Control::reset
//!     page_tables IS_AWAKE                         anew alone: nothing is out until there is an engine
//!     own GATE, OWNER                              last, by own::child_begin: others may wait for it
//!   begun anew by the engine, as it starts:
//!     engine heap HEAP                             unless taken over
//!     engine dontfork TABLE                        what was kept out is not here
//!     control log OWN, WRITABLE, WRITER, WRITING, CLOSED, and LOG where the child has no part in it
//!     arena ADOPTED                                the same again
//!     handover REFUSED                             at the next hand-over
//!   written before each use:
//!     fork OWN_STACK, aside ASIDE_STACK, clone TOLD, page_tables ANSWER, attach zfolio_attachment, log SEALED
//!   kept:
//!     run RUN, MEMCG, IN_RUN                       the run
//!     hooked BACK, patch STUBS, start ENGINE       libc as it is patched, and where engines begin
//!     libc REAL, pagemap_reads REAL, NAMES, visible REAL, zfolio_visible_bytes, relocate IS_DONE
//!     grow GROWN, HOOKED_ALL, HAS_BEGUN, WATCHING, HAS_NO_PAGE, MAPPED, RESERVED, HEAP_END, PATH
//!     page_tables IS_BOUND                         filters are inherited
//!     engine unhooked CANARY                         written and never read
//! ```

use crate::aside;
use crate::bell;
use crate::start::start_engine;
use control::CONTROL;
use control::arena;
use control::page_tables;
use control::run;
use core::iter::once;
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use uffd::sys;

/// What a child is.
pub enum ChildKind {
    /// Its parent had no engine: what another thread of the parent's was doing is not under way here. It is too small
    /// to be told apart: what an engine finds later is its own.
    Small,
    /// The engine, its memory and its locks have stayed behind, and brought everything home before.
    Anew,
    /// It takes over what its parent's engine had, and this mapping besides.
    TakesOver(Range<usize>),
}

/// Begins anew; see the head of the file.
///
/// # Safety
/// The caller is the only thread, and nothing of the engine's is in use.
// A small child touches little of the library, and each part of it is a fault: what the other kinds take is not there.
#[inline(always)]
pub unsafe fn reset(kind: &ChildKind) {
    // SAFETY: the caller's contract.
    unsafe {
        match kind {
            ChildKind::Small => {}
            ChildKind::Anew => arena::begin_anew(run::inherited()),
            ChildKind::TakesOver(mapping) => arena::take_over(run::inherited().chain(once(mapping.clone()))),
        }
        if !matches!(kind, ChildKind::TakesOver(_)) {
            bell::reset();
        }
    }
    aside::free_aside_stack();
    CONTROL.reset(!matches!(kind, ChildKind::Small));
    if matches!(kind, ChildKind::Anew) {
        page_tables::reset();
    }
}

/// After a fork in a process with an engine, which brought everything home: begins anew, with an engine. `word` is the
/// address of its exit word if the kernel knows that already, or 0.
pub fn begin(word: usize) {
    let parent = CONTROL.slot.load(Acquire);
    // SAFETY: a child of fork has one thread, and nothing of the engine's is left that could be in use.
    unsafe { reset(&ChildKind::Anew) };
    // SAFETY: null, or of static life.
    let parent = unsafe { parent.as_ref() };
    start_engine(parent, (word != 0).then(|| (word, sys::gettid().unwrap_or(0) as u32)));
}

/// After a fork in a process without an engine.
pub fn begin_small() {
    // SAFETY: a child of fork has one thread.
    unsafe { reset(&ChildKind::Small) };
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    fn files(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    /// The statics of a file, of its product code.
    fn statics(text: &str) -> Vec<&str> {
        let product = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let names = product.lines().filter_map(|line| {
            let line = line.trim_start();
            let line = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("static ")?;
            let (name, rest) = line.split_once(':')?;
            // The linker's have no value here.
            rest.contains('=').then_some(name)
        });
        names.collect()
    }

    #[test]
    fn every_static_is_in_the_list_of_what_a_child_begins_anew_or_keeps() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = Vec::new();
        for name in ["control", "interpose", "engine"] {
            files(&crates.join(name).join("src"), &mut found);
        }
        let list = include_str!("child.rs").split("```").nth(1).unwrap();
        let words: Vec<&str> = list.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let mut count = 0;
        for file in found.iter().filter(|file| !file.ends_with("tests.rs")) {
            let module = file.file_stem().unwrap().to_str().unwrap();
            for name in statics(&fs::read_to_string(file).unwrap()) {
                count += 1;
                assert!(words.contains(&name) && words.contains(&module), "{module} {name}");
            }
        }
        assert!(count > 35, "only {count} statics were found");
    }
}
