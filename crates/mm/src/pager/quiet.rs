//! Waiting for events: until none is under way, or until one is read that stops everything else.

use crate::kernel::{Errno, Filled, Kernel, Store};
use crate::pager::Pager;
use crate::swap_map::Kind;
use alloc::vec::Vec;
use core::ops::Range;
use vmscan::PAGE;

/// After this many fruitless pauses for one fault, some ms, the pager looks whether it can be served at all: what
/// is done then is harmless where somebody was only slow.
pub(super) const STUCK: usize = 50;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// True when no event is under way: even one that is not to be read yet stops every fill with EAGAIN, before
    /// the kernel sees that the window that loads go through is not registered.
    pub(super) fn is_quiet(&mut self) -> bool {
        let is_quiet = self.kernel.zero(self.swapin.bounce(), PAGE).stop != Some(Errno::EAGAIN);
        if is_quiet {
            self.nothing_is_due();
        }
        is_quiet
    }

    /// True when something of a former owner's is aside, whose event is due. What was in doubt alone is settled where
    /// no event is under way.
    pub(super) fn has_displaced(&mut self) -> bool {
        if self.regions.has_displaced() {
            self.is_quiet();
        }
        self.regions.has_displaced()
    }

    /// Returns when no event is under way, and all that is registered is known.
    pub fn await_quiet(&mut self) {
        let mut pauses = 0;
        loop {
            self.learn_growth();
            if self.is_quiet() && self.regions.grown().is_none() {
                return;
            }
            self.wait_for_events(&mut pauses);
        }
    }

    /// Reads events, and lets those who cause them run. After a while somebody may be stuck, and in the queue.
    pub(super) fn wait_for_events(&mut self, pauses: &mut usize) {
        self.settle();
        self.let_run(pauses);
    }

    /// Lets those run who cause events, without reading any.
    pub(super) fn let_run(&mut self, pauses: &mut usize) {
        self.kernel.pause();
        *pauses += 1;
        if pauses.is_multiple_of(STUCK) {
            let queued: Vec<usize> = self.faults.pages().collect();
            for at in queued {
                self.fill_grown(at);
            }
        }
    }

    /// mremap that grows a locked mapping fills the new part before it sends its event, and nothing can be
    /// installed before the event is read: who waits there would wait for ever. So mremap is let fill it as memory
    /// that is not registered. This is safe because
    /// 1. nothing is known of that part, so that it is zeros: what may come there by an event that is not read yet
    ///    is in the old part, and that is there, since the mapping is locked;
    /// 2. while it is not registered mremap has not returned, so that nobody can ask for the mapping as a whole, of
    ///    which it is a part again before its event is read (`Filled::Whole`). Left unregistered it would stay a
    ///    mapping of its own, and the next mremap would say EFAULT.
    pub(super) fn fill_grown(&mut self, at: usize) -> bool {
        if self.map.get(at).kind() != Kind::None {
            return false;
        }
        let end = at + (1 << 30);
        let end = self.map.next_used(at, end).map_or(end, |(used, _)| used).max(at + PAGE);
        match self.kernel.fill_locked(at..end) {
            Filled::No => return false,
            Filled::Whole => {}
            Filled::Left(range) => self.regions.unregister(&range),
        }
        self.kernel.wake(at..end);
        true
    }

    /// What mremap has added to a mapping is registered with it, and no event tells how much it is; but while its
    /// thread is busy still the new mapping is as mremap made it. What no event has been about since then is still
    /// there with none under way, perhaps in parts of several kinds. It is registered once more, so that it is
    /// certain.
    pub(super) fn learn_growth(&mut self) {
        let mut refused = None;
        while let Some(Range { start, end }) = self.regions.grown() {
            let mapping = self.kernel.mapping(start);
            let part = start..mapping.map_or(end, |m| m.end.min(end));
            match self.register(&part, start) {
                Err(Errno::EAGAIN) => return,
                // It was quiet then: registered with the rest, before that was locked.
                Err(_) if self.kernel.is_locked(start) => self.regions.register(part.clone()),
                // The mapping may have been split or unlocked meanwhile: it is asked anew.
                Err(_) if refused.as_ref() != Some(&part) => {
                    refused = Some(part);
                    continue;
                }
                // What is refused twice is left to the hand, which comes to it if it can be managed.
                _ => {}
            }
            self.regions.growth_is_known(&part);
        }
    }
}
