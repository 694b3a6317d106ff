//! The walker: recomputes every counter and reference of a disk.

use super::Disk;
use crate::group::{Entry, Group, Tally};
use crate::table::shared;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use zsmalloc::{Backing, Handle};
use zswap::layout::View;

/// What the walk has found so far.
#[derive(Default)]
struct Found {
    tally: Tally,
    /// The group that refers to an object.
    stored: BTreeMap<Handle, u64>,
    written: BTreeMap<u32, u64>,
}

impl<B: Backing> Disk<B> {
    /// Recomputes everything while no other thread uses the disk.
    ///
    /// # Errors
    ///
    /// Says what does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()?;
        let mut found = Found::default();
        for (number, group) in self.table.iter_from(0) {
            self.check_group(number, &shared(group), &mut found)
                .map_err(|wrong| format!("group {number}: {wrong}"))?;
        }
        let objects: usize = self.pool.class_stats().map(|class| class.objects).sum();
        if objects != found.stored.len() {
            return Err(format!(
                "the pool has {objects} objects, and blocks refer to {}",
                found.stored.len()
            ));
        }
        if let Some(backing) = &self.backing {
            backing.check(found.written.into_keys())?;
        } else if !found.written.is_empty() {
            return Err("blocks are written back, and there is no backing device".to_string());
        }
        let counters = [
            ("stored pages", &self.counters.stored_pages, found.tally.stored),
            ("same pages", &self.counters.same_pages, found.tally.same),
            ("huge pages", &self.counters.huge_pages, found.tally.huge),
        ];
        for (name, counter, counted) in counters {
            if counter.load(Relaxed) != counted as u64 {
                return Err(format!("{counted} {name}, and {} counted", counter.load(Relaxed)));
            }
        }
        Ok(())
    }

    fn check_group(&self, number: u64, group: &Group, found: &mut Found) -> Result<(), String> {
        let mut pages = BTreeSet::new();
        for (block, entry) in group.entries().iter().enumerate() {
            found.tally.count(entry, 1);
            if *entry != Entry::Hole && block >= self.blocks_of(number) {
                return Err(format!("block {block} is behind the end"));
            }
            let in_other = |other: Option<u64>| other.is_some_and(|other| other != number);
            let (is_shared, name) = match *entry {
                Entry::Hole | Entry::Same(_) => continue,
                Entry::Stored { handle, page, .. } => {
                    let object = self.pool.read(handle);
                    // A damaged object has no header; it is freed as any other.
                    if View::read(&object).is_some_and(|view| page as usize >= view.pages) {
                        return Err(format!("block {block} is page {page} of {} pages", object[0]));
                    }
                    let name = (handle.into_raw(), page, true);
                    (in_other(found.stored.insert(handle, number)), name)
                }
                Entry::Written { id, page, .. } => {
                    (in_other(found.written.insert(id, number)), (id, page, false))
                }
            };
            if is_shared {
                return Err(format!("block {block} refers to another group's object: {entry:?}"));
            }
            if !pages.insert(name) {
                return Err(format!("block {block} has a page that another has: {entry:?}"));
            }
            if entry.made().is_some_and(|made| self.settings.algorithm(made.priority.into()).is_none()) {
                return Err(format!("block {block} has no algorithm: {entry:?}"));
            }
        }
        Ok(())
    }
}
