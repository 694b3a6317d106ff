//! What a child of fork begins anew, in its only thread, before it does anything else.

use crate::aside;
use crate::bell;
use crate::start::start_engine;
use control::CONTROL;
use control::arena;
use control::page_tables;
use control::run;
use core::sync::atomic::Ordering::*;
use uffd::sys;

/// After a fork in a process with an engine, which brought everything home: the engine, its memory and its locks have
/// stayed behind. `word` is the address of its exit word if the kernel knows that already, or 0.
pub fn begin(word: usize) {
    let parent = CONTROL.slot.load(Acquire);
    // SAFETY: a child of fork has one thread, and nothing of the engine's is left that could be in use.
    unsafe { forget_engine() };
    // SAFETY: null, or of static life.
    let parent = unsafe { parent.as_ref() };
    start_engine(parent, (word != 0).then(|| (word, sys::gettid().unwrap_or(0) as u32)));
}

/// In a process that the engine has not come to with the memory: begins anew.
///
/// # Safety
/// Nothing of the engine's may be in use.
pub unsafe fn forget_engine() {
    // SAFETY: the caller's contract.
    unsafe {
        arena::begin_anew(run::childrens());
        aside::free_aside_stack();
        bell::reset();
        CONTROL.reset(true);
        page_tables::reset();
    }
}

/// After a fork in a process without an engine, in the child: what another thread of the parent's was doing is not
/// under way here. It is too small to be told apart: what an engine finds later is its own.
pub fn begin_small() {
    // SAFETY: a child of fork has one thread.
    unsafe { bell::reset() };
    aside::free_aside_stack();
    CONTROL.reset(false);
}
