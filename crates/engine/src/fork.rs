//! The engine's side of a fork (fork.rs): in the parent it stands still for the clone, and tells the child what was
//! late; in the child it hears that, and lets the thread run on.

use crate::areas::SwapAreas;
use crate::live;
use crate::pager::Engine;
use crate::shared_store;
use crate::watch::Watch;
use alloc::vec::Vec;
use control::arena;
use control::fork_channel::{ForkChannel, PAYLOAD_BYTES, channel};
use control::messages;
use control::{CONTROL, Takeover};
use core::fmt;
use core::sync::atomic::Ordering::*;
use memcg::Slot;
use mm::fork::Late;
use uffd::sys;
use vmscan::watermark::UNKNOWN;
use zswap::objects::Contents;

/// How many late events a child can be told of. More mean that it cannot take over.
const LATE_MAX: usize = 100;

const _: () =
    assert!(LATE_MAX * size_of::<Late>() <= PAYLOAD_BYTES && align_of::<Late>() <= align_of::<usize>());

/// A thread is about to fork: stands still for the clone, and tells the child what was late.
pub fn stand_still(watch: &Watch, pager: &mut Engine) {
    let Some(channel) = ForkChannel::map() else {
        answered(pager);
        return;
    };
    CONTROL.channel.store(channel.at(), Release);
    answered(pager);
    // Another thread's bell may have been answered, and this one be about to ring.
    let serve = || {
        pager.settle();
        if pager.has_rung() {
            pager.answer();
        }
    };
    if !channel.await_thread(|| watch.gone(), serve) {
        return;
    }
    shared_store::renew(watch.order.memcg);
    make_room(watch, pager);
    pager.quiesce();
    let has_all = pager.kernel().let_in(pager.regions()) && arena::let_in(true);
    live::forbid_huge_pages();
    // A child that misses some of its memory must not come to be.
    // Nor one of which nobody knows that it may read what lies in swap areas.
    let row = pager.store_mut().swap_areas().and_then(SwapAreas::row_for_child);
    let is_still = has_all && pager.prepare_child(row) && pager.drain_events();
    let is_child = is_still && channel.await_clone(|| watch.gone());
    live::allow_huge_pages();
    // Refused, it is in other children too, which unmap it.
    let _ = arena::let_in(false);
    let late = pager.after_clone(is_child);
    if let Some(areas) = pager.store_mut().swap_areas() {
        areas.look_at_children(sys::now_ns(), is_child);
    }
    if is_still {
        tell(channel, &late);
    } else {
        channel.refuse();
    }
    pager.kernel().keep_out(pager.regions());
}

/// How much is to be free at a fork: one part in so many of what the process holds.
const FREE_PART: usize = 4;

/// How long a fork waits for that, at most.
const FREE_NS: u64 = 200_000_000;

/// Before a fork: what the pot does not have is made free here. What is out is one copy for both; of what goes out
/// afterwards each has its own, so that next to nothing is free by it.
fn make_room(watch: &Watch, pager: &mut Engine) {
    let (memcg, share) = (watch.order.memcg, &watch.order.slot.share);
    let (own, pool) = (pager.usage().footprint, pager.store().pool_bytes());
    let missing = (own / FREE_PART).saturating_sub(memcg.division.pot_bytes() as usize);
    // What is in the pool stays, but for what may go to an area.
    let goes = missing.min(pager.may_go_bytes(pager.area_room()) as usize);
    let kept = pool - goes;
    let target = (own - missing).max(kept + kept / 2);
    if target >= own || memcg.settings.evict_all != 0 || !memcg.lets_out() {
        return;
    }
    let given = (own - target) as u64;
    let less = |bytes: u64| Some(bytes.saturating_sub(given));
    let _ = share.bytes.fetch_update(SeqCst, SeqCst, less);
    pager.set_limit(target, 1, UNKNOWN);
    if goes > 0 {
        pager.set_pool_limit(kept, 100);
    }
    let until = sys::now_ns() + FREE_NS;
    while pager.usage().footprint > pager.marks().high && sys::now_ns() < until && !watch.gone() {
        if !pager.turn(pager.usage().footprint) {
            sys::sleep_ns(50_000);
        }
    }
}

/// What a thread asked for is done.
fn answered(pager: &mut Engine) {
    CONTROL.request.store(0, Release);
    pager.answer();
}

/// Tells the child what was late, if that is not too much.
fn tell(channel: &'static ForkChannel, late: &[Late]) {
    let fits = late.len() <= LATE_MAX;
    if fits {
        // SAFETY: there is room for so many, and nobody reads them yet.
        unsafe { channel.payload().cast::<Late>().copy_from_nonoverlapping(late.as_ptr(), late.len()) };
    }
    channel.tell(fits.then_some(late.len()));
}

/// In a child: what was late. `None` when it will never know.
pub fn told() -> Option<Vec<Late>> {
    let channel = channel()?;
    // SAFETY: the parent's engine has written so many of them.
    channel.told(|len| unsafe { core::slice::from_raw_parts(channel.payload().cast::<Late>(), len) }.to_vec())
}

/// For the child's engine: says why the child must not run, and has its thread end it.
pub fn fail(slot: &Slot, why: fmt::Arguments<'_>) {
    messages::child_stopped(slot, why);
    end_takeover(Takeover::Failed);
}

/// For the child's engine: the thread may run on, or not.
pub fn end_takeover(takeover: Takeover) {
    CONTROL.takeover.store(takeover as u32, Release);
    sys::futex_wake(CONTROL.takeover.as_ptr(), 1, false);
}
