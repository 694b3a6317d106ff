//! Walks all of a pool and recomputes what its counters, hints and lists say. For tests and examples.
//!
//! What is checked is written where the state is: pool.rs, fullness.rs, zspage.rs and arena.rs.

use crate::PAGE;
use crate::arena::{ARENA, SPARE_MAX_BYTES, Span, UNIT, mask};
use crate::backing::Backing;
use crate::class::{CLASS_MAX_BYTES, Class, class_of};
use crate::fullness::{GROUPS, Zspages, group_of};
use crate::handle::Handle;
use crate::pool::Pool;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

/// Makes the first failed check the result.
macro_rules! ensure {
    ($holds:expr, $($words:tt)*) => {
        if !$holds {
            return Err(format!($($words)*));
        }
    };
}

/// What the walk has found so far.
#[derive(Default)]
struct Found {
    spans: Vec<Span>,
    objects: BTreeSet<Handle>,
    held: usize,
    stored: usize,
}

impl<B: Backing> Pool<B> {
    /// Recomputes everything while no other thread uses the pool; the error says what does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let mut found = Found { held: size_of_val(&self.classes[..]), ..Found::default() };
        for class in &self.classes {
            let zspages = class.zspages.lock();
            let failed = |e: String| format!("class of {}: {e}", class.size);
            check_lists(&zspages, class).map_err(failed)?;
            self.check_zspages(&zspages, class, &mut found).map_err(failed)?;
        }
        self.check_handles(&mut found)?;
        self.check_arenas(&mut found)?;
        let (held, stored) = (self.held.load(Relaxed), self.stored_bytes());
        ensure!(held == found.held, "held is {held}, and {} was found", found.held);
        ensure!(stored == found.stored, "stored is {stored}, and {} was found", found.stored);
        Ok(())
    }

    fn check_zspages(&self, zspages: &Zspages, class: &Class, found: &mut Found) -> Result<(), String> {
        let (mut objects, mut stored, mut live) = (0, 0, 0);
        for (id, zspage) in zspages.iter() {
            zspage.check(class.size).map_err(|e| format!("zspage {id}: {e}"))?;
            let slots = zspage.owners.len();
            ensure!(slots == class.slots, "zspage {id} has {slots} slots");
            ensure!(zspage.inuse > 0, "zspage {id} is empty and still there");
            for (slot, &owner) in zspage.owners.iter().enumerate().filter(|(_, owner)| **owner != 0) {
                let Some(handle) = Handle::from_raw(owner) else { continue };
                let Some((at, len, its)) = self.handles.entry(handle).object() else {
                    return Err(format!("slot {slot} of zspage {id} is owned by {handle:?}, which is free"));
                };
                let here = (zspage.span.at + slot * class.size, id);
                ensure!((at, its) == here, "{handle:?} owns {here:x?} and points to {:x?}", (at, its));
                ensure!(
                    len <= class.size && class_of(len) == class_of(class.size),
                    "{handle:?}: {len} bytes"
                );
                ensure!(found.objects.insert(handle), "{handle:?} owns two slots");
                stored += len;
            }
            objects += zspage.inuse as usize;
            live += 1;
            found.held += zspage.span.committed;
            found.spans.push(zspage.span);
        }
        ensure!(objects == zspages.objects, "{} objects, and {objects} were found", zspages.objects);
        ensure!(stored == zspages.stored, "{} bytes stored, and {stored} were found", zspages.stored);
        let meta = live * class.slots * size_of::<u32>() + size_of_val(&zspages.table[..]);
        ensure!(zspages.meta_bytes() >= meta, "{} bytes of metadata, at least {meta}", zspages.meta_bytes());
        found.held += zspages.meta_bytes();
        found.stored += stored;
        Ok(())
    }

    fn check_handles(&self, found: &mut Found) -> Result<(), String> {
        let (mut huge, mut huge_stored, mut huge_bytes) = (0, 0, 0);
        let mut free = BTreeSet::new();
        for handle in self.handles.iter_free() {
            ensure!(free.insert(handle), "{handle:?} is free twice");
        }
        for handle in self.handles.iter() {
            let object = self.handles.entry(handle).object();
            ensure!(
                object.is_none() == free.contains(&handle),
                "{handle:?} is lost, or free and {object:x?}"
            );
            ensure!(!self.handles.entry(handle).is_pinned(), "{handle:?} is pinned, and nobody reads");
            match object {
                Some((_, len, _)) if len > CLASS_MAX_BYTES => {
                    huge += 1;
                    huge_stored += len;
                    huge_bytes += len.next_multiple_of(PAGE);
                }
                Some(_) => ensure!(
                    found.objects.contains(&handle),
                    "{handle:?} points to a slot that it does not own"
                ),
                None => ensure!(!found.objects.contains(&handle), "{handle:?} is free and owns a slot"),
            }
        }
        let says = [&self.huge.objects, &self.huge.stored, &self.huge.bytes].map(|n| n.load(Relaxed));
        let is = [huge, huge_stored, huge_bytes];
        ensure!(says == is, "huge objects: {says:?}, and {is:?} were found");
        found.held += huge_bytes;
        found.stored += huge_stored;
        Ok(())
    }

    fn check_arenas(&self, found: &mut Found) -> Result<(), String> {
        let arenas = self.arenas.lock();
        let spare: usize = arenas.spares().map(|span| span.committed).sum();
        ensure!(spare == arenas.spare_bytes() && spare <= SPARE_MAX_BYTES, "{spare} spare bytes were found");
        ensure!(arenas.finds_all_room(), "an arena has room that is not found");
        found.held += spare;
        found.spans.extend(arenas.spares());
        let mut units: BTreeMap<u32, u32> = BTreeMap::new();
        let at: BTreeMap<u32, usize> = arenas.mapped().map(|(number, at, _)| (number, at)).collect();
        for span in &found.spans {
            let Some(at) = at.get(&span.arena) else {
                return Err(format!("the arena of {span:x?} is not mapped"));
            };
            let inside = (*at..at + ARENA).contains(&span.at) && span.at.is_multiple_of(UNIT);
            ensure!(inside, "{span:x?} is not in the arena at {at:#x}");
            ensure!(span.committed <= span.units as usize * UNIT, "{span:x?} is committed past its end");
            let bits = mask((span.at - at) / UNIT, span.units as usize);
            let used = units.entry(span.arena).or_default();
            ensure!(*used & bits == 0, "{span:x?} has units of another span");
            *used |= bits;
        }
        for (number, _, used) in arenas.mapped() {
            let is = units.get(&number).copied().unwrap_or(0);
            ensure!(
                used != 0 && used == is,
                "arena {number} has units {used:#x} used, and {is:#x} were found"
            );
        }
        Ok(())
    }
}

fn check_lists(zspages: &Zspages, class: &Class) -> Result<(), String> {
    let mut listed = BTreeMap::new();
    for group in 0..GROUPS {
        for id in zspages.list(group) {
            let id = id.map_err(|e| format!("group {group}: {e}"))?;
            ensure!(listed.insert(id, group).is_none(), "zspage {id} is in two lists");
        }
    }
    for (id, zspage) in zspages.iter() {
        let group = group_of(zspage.inuse as usize, class.slots);
        let expected = (group != GROUPS - 1 && !zspage.frozen).then_some(group);
        let list = listed.remove(&id);
        ensure!(list == expected, "zspage {id} is in the list of {list:?} and belongs to {expected:?}");
    }
    ensure!(listed.is_empty(), "{listed:?} are listed and do not exist");
    Ok(())
}
