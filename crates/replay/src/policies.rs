//! What is compared: policies that decide about a [`Memory`].
//!
//! Most of them see each touch, as no operating system does. The pager and the price see faults alone.

mod belady;
mod clock;
mod lru;
mod ordered;
mod pager;
mod pool;
mod price;

use crate::hazard::Us;
use crate::memory::{Figures, Memory};
use crate::price::{Costs, Tier};
use crate::trace::{Event, PageId, Trace};
use anyhow::{Result, bail};
use pool::Pool;
use vmscan::PAGE;

/// Decides which page goes where.
pub trait Policy {
    /// In an event of the trace the program touched a page, which was at `was`, if it was there. Others may come beside
    /// it.
    fn touched(&mut self, memory: &mut Memory<'_>, page: PageId, was: Option<Tier>, event: usize);

    /// Until the memory is no longer over its limit, pages go, but not the one that was touched last. Where that is not
    /// enough, the memory stays over its limit.
    fn make_room(&mut self, memory: &mut Memory<'_>);

    /// A page is discarded, which is at `was` until then.
    fn discarded(&mut self, memory: &Memory<'_>, page: PageId, was: Tier);

    /// Time went on.
    fn tick(&mut self, _now: Us) {}
}

/// The policies by name, with what each is.
pub const NAMES: [(&str, &str); 18] = [
    ("swap", "LRU, all to the area: a plain swap file"),
    ("zram", "LRU, all compressed page by page"),
    ("clock", "CLOCK, all compressed page by page"),
    ("zswap:20", "LRU, page by page into so many percent of the limit, from there to the area"),
    ("zswap:40", "the same, with twice as much"),
    ("dense", "LRU, all compressed densely"),
    ("swap+windows", "as swap, and what is out of a window comes with each page of it"),
    ("zram+windows", "as zram, with that"),
    ("belady", "what is used last of all goes, compressed page by page: the fewest misses"),
    ("pager", "the pager's clock hand with heat and inactive list, compressed page by page"),
    ("pager+touches", "the same, where the kernel tells which pages are touched"),
    ("pager+writes", "the same, where it tells which are written"),
    ("pager+area:20", "as pager, so many percent of the limit, and from there to the area"),
    ("pager+area:60", "the same, with three times as much"),
    ("pager+area", "the same, with as much as is weighed against resident pages"),
    ("price", "one price, compressed alone and densely"),
    ("price+area", "one price, with an area"),
    ("price+area+beside", "with an area, and what is beside a page comes with it where that pays"),
];

/// What each policy is, for a help text.
pub fn help() -> String {
    let lines = NAMES.map(|(name, what)| format!("  {name:18} {what}\n"));
    format!("Policies:\n{}", lines.concat())
}

/// The policies that can be run and have their tiers fixed.
pub fn fixed() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().map(|(name, _)| name).filter(|name| is_fixed(name))
}

/// True for a policy that sees no future, and whose tiers are fixed.
pub fn is_fixed(name: &str) -> bool {
    name != "belady"
        && !["pager", "price"].iter().any(|own| name.starts_with(own))
        && !name.ends_with("+windows")
}

/// The policy of a name.
fn named<'t>(name: &str, trace: &'t Trace) -> Result<Box<dyn Policy + 't>> {
    let percent_after = |prefix| name.strip_prefix(prefix).and_then(|percent| percent.parse().ok());
    let (pool_percent, area_percent) = (percent_after("zswap:"), percent_after("pager+area:"));
    Ok(match name {
        "swap" => Box::new(lru::Lru::new(Tier::Area, None)),
        "swap+windows" => Box::new(lru::Lru::new(Tier::Area, None).with_windows()),
        "zram+windows" => Box::new(lru::Lru::new(Tier::Fast, None).with_windows()),
        "zram" => Box::new(lru::Lru::new(Tier::Fast, None)),
        "dense" => Box::new(lru::Lru::new(Tier::Dense, None)),
        "clock" => Box::new(clock::Clock::default()),
        "belady" => Box::new(belady::Belady::new(trace)),
        "pager" => Box::new(pager::Pager::new(trace, None)),
        "pager+touches" => Box::new(pager::Pager::new(trace, None).with_touches()),
        "pager+writes" => Box::new(pager::Pager::new(trace, None).with_writes(trace)),
        "pager+area" => Box::new(pager::Pager::new(trace, Some(Pool::new(trace, None)))),
        "price" => Box::new(price::Price::new(trace, false, false)),
        "price+area" => Box::new(price::Price::new(trace, true, false)),
        "price+area+beside" => Box::new(price::Price::new(trace, true, true)),
        _ if area_percent.is_some() => {
            Box::new(pager::Pager::new(trace, Some(Pool::new(trace, area_percent))))
        }
        _ if pool_percent.is_some() => Box::new(lru::Lru::new(Tier::Fast, pool_percent)),
        _ => bail!("no policy is named {name}: {}", NAMES.map(|(name, _)| name).join(", ")),
    })
}

/// Plays a trace through a policy in a limit of so many percent of its footprint; None where even compressed it is
/// larger than that.
pub fn play(trace: &Trace, name: &str, costs: Costs, percent: usize) -> Result<Option<Figures>> {
    let mut policy = named(name, trace)?;
    let mut memory = Memory::new(trace, costs, trace.footprint_pages() * PAGE * percent / 100);
    let mut us = 0;
    for (event, of) in trace.events.iter().enumerate() {
        match *of {
            Event::Touch { page, .. } => {
                let was = memory.touch(page);
                policy.touched(&mut memory, page, was, event);
                if memory.is_over() {
                    policy.make_room(&mut memory);
                }
                if memory.is_over() {
                    return Ok(None);
                }
            }
            Event::Ran { us: passed } => {
                us += Us::from(passed);
                policy.tick(us);
            }
            Event::Discard { first, count } => {
                for page in first..first + count {
                    if let Some(was) = memory.place(page) {
                        policy.discarded(&memory, page, was);
                        memory.discard(page);
                    }
                }
            }
        }
    }
    Ok(Some(memory.figures().clone()))
}

#[cfg(test)]
mod tests;
