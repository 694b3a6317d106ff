//! What threads of the program ask the engine for, by the doorbell: above all to stand still while one of them forks.

use crate::arena;
use crate::control::{CONTROL, Wish};
use crate::follow::Follower;
use crate::fork::Cradle;
use crate::heritage;
use crate::hull::Hull;
use crate::live::{self, Live};
use crate::looks;
use crate::store::PageStore;
use crate::watch::Watch;
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use mm::Pager;
use mm::kernel::Store;
use uffd::sys::{self, consts::*};
use vmscan::watermark::UNKNOWN;

/// The pager as it is in an engine.
pub type Engine = Pager<'static, Live, PageStore>;

/// Does what a thread of the program asked for by the doorbell.
pub fn answer(watch: &Watch, pager: &mut Engine) {
    let wish = CONTROL.wish.load(Acquire);
    let range = CONTROL.range.0.load(Relaxed)..CONTROL.range.1.load(Relaxed);
    if wish == Wish::Fork as u32 {
        return stand_still(watch, pager);
    } else if wish == Wish::Forget as u32 {
        pager.disown(range);
    } else if wish == Wish::LetGo as u32 {
        pager.let_go(range);
    } else if wish == Wish::Enroll as u32 {
        enroll(pager);
    } else if wish == Wish::KeepOut as u32 {
        advise_children(pager, range, MADV_DONTFORK);
    } else if wish == Wish::LetIn as u32 {
        advise_children(pager, range, MADV_DOFORK);
    } else if wish == Wish::Move as u32 || wish == Wish::Grow as u32 {
        pager.await_quiet();
        pager.kernel.follow_mremap(range, wish == Wish::Grow as u32, pager.regions());
    } else if wish == Wish::Hold as u32 {
        CONTROL.range.1.store(pager.hold(range, HELD_BYTES), Relaxed);
    } else if wish == Wish::Look as u32 {
        looks::answer(pager, range);
    }
    CONTROL.wish.store(0, Release);
    if CONTROL.forks.load(SeqCst) > 0 {
        pager.retire();
        CONTROL.home.store(1, SeqCst);
    }
    pager.answer();
}

/// Does what the program has advised, with all that is registered known, and says what came of it.
fn advise_children(pager: &mut Engine, range: Range<usize>, advice: u32) {
    pager.await_quiet();
    let done = pager.kernel.advise_children(range, advice, pager.regions());
    CONTROL.outcome.store(done.err().map_or(0, |errno| errno.0), Release);
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
    if pager.enroll_now(&ranges) {
        CONTROL.enrolled_bytes.store(mapped, Relaxed);
    } else {
        CONTROL.fresh.iter().zip(&ranges).for_each(|(hull, range)| hull.add(range));
    }
}

/// How often it is looked whether there is no need to stand by any more.
const STAND_BY_NS: u64 = 1_000_000;

/// Nothing goes out, and the doorbell is answered, until `done`; false when the program has ended before.
pub fn stand_by(watch: &mut Watch, pager: &mut Engine, done: impl Fn() -> bool) -> bool {
    pager.paused = true;
    while !done() {
        if watch.gone() {
            return false;
        }
        pager.turn(0);
        watch.follow(sys::now_ns(), Follower::follow);
        if pager.has_rung() {
            answer(watch, pager);
        }
        let _ = sys::poll([pager.kernel.fd(), &watch.program], STAND_BY_NS);
    }
    true
}

/// A thread is about to fork: stands still for the clone, and tells the child what was late.
fn stand_still(watch: &Watch, pager: &mut Engine) {
    let Some(cradle) = Cradle::map() else {
        answered(pager);
        return;
    };
    CONTROL.cradle.store(cradle.at(), Release);
    answered(pager);
    // Another thread's bell may have been answered, and this one be about to ring.
    let serve = || {
        pager.settle();
        if pager.has_rung() {
            pager.answer();
        }
    };
    if !cradle.await_thread(|| watch.gone(), serve) {
        return;
    }
    heritage::renew(watch.order.memcg);
    make_room(watch, pager);
    pager.calm();
    pager.kernel.let_in(pager.regions());
    arena::let_in(true);
    live::forbid_huge_pages();
    let is_still = pager.hush();
    let is_child = is_still && cradle.await_clone(|| watch.gone());
    live::allow_huge_pages();
    arena::let_in(false);
    let late = pager.late(is_child);
    if is_still {
        cradle.tell(&late);
    } else {
        cradle.refuse();
    }
    pager.kernel.keep_out(pager.regions());
}

/// How much is to be free at a fork: one part in so many of what the process holds.
const BIRTH_PART: usize = 4;

/// How long a fork waits for that, at most.
const BIRTH_NS: u64 = 200_000_000;

/// Before a fork: what the pot does not have is made free here. What is out is one copy for both; of what goes out afterwards each has its own, so that next to
/// nothing is free by it.
fn make_room(watch: &Watch, pager: &mut Engine) {
    let (memcg, share) = (watch.order.memcg, &watch.order.slot.share);
    let (own, pool) = (pager.usage().footprint, pager.store.pool_bytes());
    let missing = (own / BIRTH_PART).saturating_sub(memcg.division.pot_bytes() as usize);
    // What is in the pool stays.
    let target = (own - missing).max(pool + pool / 2);
    if target >= own || memcg.settings.evict_all != 0 {
        return;
    }
    let given = (own - target) as u64;
    let less = |bytes: u64| Some(bytes.saturating_sub(given));
    let _ = share.bytes.fetch_update(SeqCst, SeqCst, less);
    pager.set_limit(target, 1, UNKNOWN);
    let until = sys::now_ns() + BIRTH_NS;
    while pager.usage().footprint > pager.marks().high && sys::now_ns() < until && !watch.gone() {
        if !pager.turn(pager.usage().footprint) {
            sys::sleep_ns(50_000);
        }
    }
}

/// What a thread asked for is done.
fn answered(pager: &mut Engine) {
    CONTROL.wish.store(0, Release);
    pager.answer();
}
