//! Walks everything the pager holds and recomputes what its counters and lists say: in the simulator after each
//! turn, in the real engine's test mode from time to time.
//!
//! Each part checks what it knows alone. Here is what holds between them: an entry of the swap map and the slot or
//! the object that it names know each other, and what is out is registered.

use crate::inactive::Use;
use crate::kernel::{Kernel, Store};
use crate::pager::Pager;
use crate::swap_map::{ASIDE, Kind};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use vmscan::PAGE;

/// Makes the first failed check the result.
macro_rules! ensure {
    ($holds:expr, $($words:tt)*) => {
        if !$holds {
            return Err(format!($($words)*));
        }
    };
}

/// What the entries say of one object: how many name it, and how many depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    refs: u16,
    stored: u16,
}

/// By the object's id.
type Counts = Vec<Count>;

fn name(counts: &mut Counts, id: u32, stored: bool) {
    if counts.len() <= id as usize {
        counts.resize(id as usize + 1, Count::default());
    }
    let count = &mut counts[id as usize];
    count.refs += 1;
    count.stored += stored as u16;
}

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Recomputes everything between two turns; the error says what does not hold, in words. Takes time in
    /// proportion to all memory that is out.
    pub fn check(&self) -> Result<(), String> {
        self.limit.check()?;
        self.map.check()?;
        self.objects.check()?;
        self.inactive.check()?;
        self.regions.check()?;
        self.faults.check()?;
        self.reclaim.check()?;
        self.fresh.check()?;
        self.ahead.check()?;
        self.recompression.check()?;
        self.pool_limit.check()?;
        self.cow.check()?;
        self.huge.check()?;
        self.advised.check()?;
        self.shared.check()?;
        let mut counts = Counts::new();
        self.check_counts()?;
        self.check_index(&mut counts)?;
        self.check_inactive(&mut counts)?;
        for fetch in self.ahead.under_way() {
            name(&mut counts, fetch.object, true);
        }
        for id in self.objects.swapped().named() {
            name(&mut counts, id, false);
        }
        let (_, reads) = self.objects.swapped().under_way();
        ensure!(reads > 0 || !self.faults.has_reading(), "a thread waits for a read, and none is under way");
        ensure!(
            self.shortage.is_on() || !self.faults.is_starving(),
            "a thread waits for memory that the pool has"
        );
        self.check_objects(&counts)
    }

    fn check_index(&self, counts: &mut Counts) -> Result<(), String> {
        let (mut at, mut inactive) = (0, 0);
        while let Some((page, entry)) = self.map.next_used(at, 2 * ASIDE) {
            at = page + PAGE;
            match entry.kind() {
                Kind::None | Kind::Zero => {}
                Kind::Clean => name(counts, entry.id(), false),
                Kind::Stored => name(counts, entry.id(), true),
                Kind::Inactive => {
                    inactive += 1;
                    let (slot, index) = entry.inactive_page();
                    ensure!(self.inactive.has(slot), "{page:#x} is {entry:?}, beyond the inactive list");
                    let s = self.inactive.slot(slot);
                    ensure!(
                        s.owned.contains(index) && s.owner[index] == page,
                        "the swap map says that {page:#x} is {entry:?}, and slot {slot} does not: {s:x?}"
                    );
                }
            }
            let registered = self.regions.registered().contains(page)
                || self.regions.is_displaced(page.wrapping_sub(ASIDE));
            ensure!(!entry.kind().is_out() || registered, "{page:#x} is out ({entry:?}) and in no region");
        }
        let slots: usize = self.inactive.slots().map(|s| self.inactive.slot(s).owned.count()).sum();
        ensure!(
            inactive == slots,
            "the swap map has {inactive} pages on the inactive list, the slots have {slots}"
        );
        Ok(())
    }

    fn check_inactive(&self, counts: &mut Counts) -> Result<(), String> {
        for slot in self.inactive.slots() {
            let s = self.inactive.slot(slot);
            let fetches = self.ahead.under_way().iter().filter(|f| f.slot == slot).count();
            ensure!(
                fetches == (s.used == Use::Fetching) as usize,
                "slot {slot} is loaded by {fetches} fetches: {s:x?}"
            );
            for &id in &s.lent[..s.lent_len] {
                name(counts, id, true);
            }
            for prior in s.prior.iter().filter(|prior| prior.kind() == Kind::Clean) {
                name(counts, prior.id(), false);
            }
        }
        Ok(())
    }

    fn check_objects(&self, counts: &Counts) -> Result<(), String> {
        for (id, object) in self.objects.iter() {
            let found = counts.get(id as usize).copied().unwrap_or_default();
            ensure!(
                found == Count { refs: object.refs, stored: object.stored },
                "object {id} has {} refs and {} stored; {} and {} were found",
                object.refs,
                object.stored,
                found.refs,
                found.stored
            );
        }
        let dangling =
            (0..).zip(counts).find(|(id, count)| count.refs > 0 && self.objects.get(*id).refs == 0);
        ensure!(dangling.is_none(), "object {dangling:?} is named and free");
        Ok(())
    }
}
