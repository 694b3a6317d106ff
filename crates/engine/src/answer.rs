//! What threads of the program ask the engine for, by the doorbell.

use crate::follow::Follower;
use crate::fork;
use crate::pager::Engine;
use crate::watch::Watch;
use control::hull::Hull;
use control::page_tables::{self, LOOK_PAGES};
use control::{CONTROL, Request};
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use uffd::PAGE;
use uffd::sys::{self, consts::*};

/// Does what a thread of the program asked for by the doorbell.
pub fn answer(watch: &Watch, pager: &mut Engine) {
    let request = CONTROL.request.load(Acquire);
    let range = CONTROL.range.0.load(Relaxed)..CONTROL.range.1.load(Relaxed);
    if request == Request::Fork as u32 {
        return fork::stand_still(watch, pager);
    } else if request == Request::Guard as u32 {
        install_guards(pager, range);
    } else if request == Request::LetGo as u32 {
        pager.let_go(range);
    } else if request == Request::Enroll as u32 {
        enroll(pager);
    } else if request == Request::KeepOut as u32 {
        advise_children(pager, range, MADV_DONTFORK);
    } else if request == Request::LetIn as u32 {
        advise_children(pager, range, MADV_DOFORK);
    } else if request == Request::Move as u32 {
        pager.await_quiet();
        pager.kernel().follow_mremap(range, pager.regions());
    } else if request == Request::Grow as u32 {
        pager.await_quiet();
        pager.kernel().follow_growth(range, pager.regions());
    } else if request == Request::Hold as u32 {
        CONTROL.range.1.store(pager.hold(range, HELD_BYTES), Relaxed);
    } else if request == Request::Look as u32 {
        look(pager, range);
    } else if request == Request::Tell as u32 {
        tell(pager, range);
    }
    CONTROL.request.store(0, Release);
    if CONTROL.forks.load(SeqCst) > 0 {
        pager.retire();
        CONTROL.home.store(1, SeqCst);
    }
    pager.answer();
}

/// Hands on what threads have advised.
pub fn take_advice(pager: &mut Engine) {
    CONTROL.advice.take().for_each(|(advice, range)| pager.advise(advice, range));
}

/// Does what the program has advised, with all that is registered known, and says what came of it.
fn advise_children(pager: &mut Engine, range: Range<usize>, advice: u32) {
    pager.await_quiet();
    let done = pager.kernel().advise_children(range, advice, pager.regions());
    CONTROL.outcome.store(done.err().map_or(0, |errno| errno.0.into()), Release);
}

/// Makes guards, and forgets what was in their places: they discard it without an event.
fn install_guards(pager: &mut Engine, range: Range<usize>) {
    CONTROL.guards.store(1, SeqCst);
    pager.await_quiet();
    let (done, guarded) = pager.kernel().install_guards(range, pager.regions());
    guarded.into_iter().for_each(|part| pager.disown(part));
    CONTROL.outcome.store(done.err().map_or(0, |errno| errno.0.into()), Release);
}

/// How much comes home at a time for the kernel to look at it or take it: little beside any limit.
const HELD_BYTES: usize = 2 << 20;

/// Registers what has been mapped, unless a fork is under way.
pub fn enroll(pager: &mut Engine) {
    // In this order: what is counted lies in one of the hulls.
    let mapped = CONTROL.mapped_bytes.load(Acquire);
    if !CONTROL.is_forkless() {
        return;
    }
    let ranges = CONTROL.fresh.each_ref().map(Hull::take);
    if pager.register_now(&ranges) {
        CONTROL.enrolled_bytes.store(mapped, Relaxed);
    } else {
        CONTROL.fresh.iter().zip(&ranges).for_each(|(hull, range)| hull.add(range));
    }
}

/// How often it is looked whether there is no need to stand by any more.
const STAND_BY_NS: u64 = 1_000_000;

/// Nothing goes out, and the doorbell is answered, until `done`; false when the program has ended before.
pub fn stand_by(watch: &mut Watch, pager: &mut Engine, done: impl Fn() -> bool) -> bool {
    pager.pause(true);
    while !done() {
        if watch.gone() {
            return false;
        }
        pager.turn(0);
        watch.follow(sys::now_ns(), Follower::follow);
        if pager.has_rung() {
            answer(watch, pager);
        }
        let _ = sys::poll([pager.kernel().fd(), &watch.program], STAND_BY_NS);
    }
    true
}

/// Says how the pages of a range stand, [`LOOK_PAGES`] at most.
fn look(pager: &mut Engine, range: Range<usize>) {
    // SAFETY: a thread waits for it, which has the bell.
    let entries = unsafe { &mut *page_tables::answer() };
    let pages = (range.len() / PAGE).min(LOOK_PAGES);
    pager.look(range.start, &mut entries[..pages]);
}

/// Says where the pages of a range are.
fn tell(pager: &mut Engine, range: Range<usize>) {
    for (told, bytes) in CONTROL.told.iter().zip(pager.tell(range).values()) {
        told.store(bytes, Relaxed);
    }
}
