//! The pool beside swap areas: how large it may be, what was written and read, and what of it the user is to know.

use crate::areas::{REFUSALS, Refusing};
use crate::pager::Engine;
use control::line::Line;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memcg::tunables::NO_MAX;
use memcg::{Memcg, Slot, State};
use zswap::objects::Contents;

/// How often clusters of swap areas of which nothing is needed are given back. Each is a system call, which a program
/// that is about to write there again would wait for in vain.
const DISCARD_NS: u64 = 1_000_000_000;

/// How often what the areas have room for is counted, which looks at all of their table.
const COUNT_NS: u64 = 100_000_000;

/// What is kept from one look to the next.
#[derive(Default)]
pub struct Tending {
    /// When slots were given back last.
    discarded_ns: u64,
    /// What the areas have room for, in bytes, and when that was counted.
    room: u64,
    counted_ns: u64,
    /// While nothing new may go into the pool: the least that it has come to since, in bytes.
    least: Option<u64>,
}

impl Tending {
    /// Sees to the areas, if there are some.
    pub fn tend(&mut self, now: u64, memcg: &Memcg, slot: &Slot, pager: &mut Engine) {
        let pool = pager.store().pool_bytes() as u64;
        // In the test mode there is no limit but the run's.
        let limit = pager.marks().limit.min(memcg.max_bytes.load(Relaxed) as usize) as u64;
        let Some(areas) = pager.store_mut().swap_areas() else { return };
        areas.look_at_children(now, true);
        let (counts, refusing) = (areas.take_counts(), areas.refusing());
        let stat = &slot.stat;
        stat.pswpout.fetch_add(counts.out, Relaxed);
        stat.pswpin.fetch_add(counts.back, Relaxed);
        stat.area_refused.fetch_add(counts.refused, Relaxed);
        stat.area_lost.fetch_add(counts.lost, Relaxed);
        if let Some(refusing) = refusing {
            pager.close_area(refusing.first_cluster);
            say_refuses(memcg, refusing);
        }
        if stat.area_full.load(Relaxed) > 0 && memcg.areas_full.is_open() {
            memcg.areas_full.say(
                "no swap area has room any more: what else is stored stays in memory (a larger --backing helps, or one more)",
            );
        }
        pager.set_writeback(memcg.writes_back(slot));
        pager.set_shrinker(memcg.tunables.shrinker_enabled.load(Relaxed) != 0);
        let most = self.most(limit, pool, memcg, slot);
        pager.close_pool(most == 0 || !memcg.is_enabled());
        let accept_threshold_percent = memcg.tunables.accept_threshold_percent.load(Relaxed);
        pager.set_pool_limit(most as usize, accept_threshold_percent.min(100) as u8);
        if now - self.counted_ns > COUNT_NS {
            // As if all wanted it.
            let processes = memcg.used().iter().filter(|slot| slot.state() == State::Awake).count() as u64;
            (self.room, self.counted_ns) = (pager.area_room() / processes.max(1), now);
        }
        slot.share.goes_bytes.store(pager.may_go_bytes(self.room), Relaxed);
        if now - self.discarded_ns > DISCARD_NS {
            self.discarded_ns = now;
            pager.give_back_slots();
        }
    }

    /// How large the pool of a process may be that may hold `limit` bytes, and has `pool` in it. The percentage is the
    /// run's: what the pools of others leave of it this one may take, up to half of its process's limit. Where nothing
    /// new may go in, what does on its way to an area makes as much else go.
    fn most(&mut self, limit: u64, pool: u64, memcg: &Memcg, slot: &Slot) -> u64 {
        let percent = u64::from(memcg.tunables.max_pool_percent.load(Relaxed).min(100));
        let part = |bytes: u64| bytes / 100 * percent + bytes % 100 * percent / 100;
        let own = match memcg.zswap_max_bytes(slot) {
            NO_MAX => usize::MAX as u64,
            bytes => bytes,
        };
        let left = part(memcg.max_bytes.load(Relaxed)).saturating_sub(memcg.current.pool());
        let shared = if left > 0 { (pool + left).min(limit / 2) } else { 0 };
        let most = part(limit).max(shared).min(own);
        if memcg.is_enabled() {
            self.least = None;
            return most;
        }
        let least = self.least.map_or(pool, |least| least.min(pool));
        self.least = Some(least);
        most.min(least)
    }
}

fn say_refuses(memcg: &Memcg, Refusing { number, errno, .. }: Refusing) {
    let Some(notice) = memcg.area_refuses.get(number).filter(|notice| notice.is_open()) else { return };
    let mut line = Line::default();
    let _ = write!(
        line,
        "refused {REFUSALS} writes one after the other, with {errno}: nothing more goes there, and what it has can be read"
    );
    notice.say(line.as_str());
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::Settings;
    use std::boxed::Box;

    #[test]
    fn the_pool_is_bounded_by_the_run_by_the_process_and_by_itself_where_nothing_new_may_go_in() {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(1000, Settings::default());
        let slot = memcg.claim(1).unwrap();
        memcg.publish(slot, 0, 0, 0, 7);
        let mut tending = Tending::default();
        let mut most = |pool| tending.most(1000, pool, &memcg, slot);
        assert_eq!(most(7), 1000, "the pager weighs what pays");
        memcg.tunables.max_pool_percent.store(20, Relaxed);
        assert_eq!(most(7), 200, "a fifth");
        memcg.publish(memcg.claim(2).unwrap(), 0, 0, 0, 143);
        let mut of_a_part = |pool| tending.most(100, pool, &memcg, slot);
        assert_eq!([0, 7].map(&mut of_a_part), [50, 50], "half, of what is left of the run's fifth");
        memcg.publish(memcg.claim(3).unwrap(), 0, 0, 0, 40);
        assert_eq!([0, 7, 30].map(&mut of_a_part), [20, 20, 40], "of which 10 are left");
        memcg.publish(memcg.claim(4).unwrap(), 0, 0, 0, 10);
        assert_eq!([0, 7, 30].map(&mut of_a_part), [20; 3], "nothing is left");
        let mut most = |pool| tending.most(1000, pool, &memcg, slot);
        memcg.tunables.max_pool_percent.store(35, Relaxed);
        assert_eq!(most(7), 350);
        slot.tunables.set_zswap_max(Some(40));
        assert_eq!(most(7), 40);
        slot.tunables.set_zswap_max(Some(NO_MAX));
        memcg.tunables.enabled.store(0, Relaxed);
        assert_eq!([300, 400, 250, 300].map(&mut most), [300, 300, 250, 250]);
        memcg.tunables.enabled.store(1, Relaxed);
        assert_eq!(most(7), 350);
    }
}
