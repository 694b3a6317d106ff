//! The limit of the process, and what it holds of it.
//!
//! The footprint is measured from time to time; in between the pager charges what it makes and what comes in, and
//! gives back what it discards.

use alloc::string::String;
use vmscan::watermark::{Actions, UNKNOWN, Usage, Watermarks};

/// A limit and a footprint.
#[derive(Debug)]
pub struct Limit {
    marks: Watermarks,
    /// In bytes.
    footprint: usize,
    /// Test mode: everything goes out all the time.
    evict_all: bool,
    /// What the footprint is to come down to beside, where somebody asks for it; in bytes.
    target: Option<usize>,
}

impl Limit {
    /// A limit in bytes, of which nothing is used.
    pub fn new(limit: usize, evict_all: bool) -> Limit {
        Limit { marks: Watermarks::new(limit, 1, UNKNOWN), footprint: 0, evict_all, target: None }
    }

    /// Another limit in bytes, of one of so many processes for each CPU; and how many bytes came unheard between
    /// two looks of late.
    pub fn set(&mut self, limit: usize, processes_per_cpu: usize, unheard: usize) {
        self.marks = match self.evict_all {
            true => Watermarks::evict_all(),
            false => Watermarks::new(limit, processes_per_cpu, unheard),
        };
    }

    /// The watermarks.
    pub fn marks(&self) -> &Watermarks {
        &self.marks
    }

    /// From now on the footprint is also to come down to so many bytes; or to what the marks say alone.
    pub fn ask(&mut self, target: Option<usize>) {
        self.target = target;
    }

    /// True while the footprint is above what somebody asks for.
    pub fn is_above_asked(&self) -> bool {
        self.target.is_some_and(|target| self.footprint > target)
    }

    /// True where so much is free that what is out may come before it is asked for, and nobody wants memory out.
    pub fn is_roomy(&self) -> bool {
        self.target.is_none() && self.marks.is_roomy(self.footprint)
    }

    /// What to do where the process stands like that.
    pub fn decide(&self, usage: &Usage) -> Actions {
        match self.target {
            Some(target) => self.marks.decide_down_to(target, usage),
            None => self.marks.decide(usage),
        }
    }

    /// True in the test mode.
    pub fn evicts_all(&self) -> bool {
        self.evict_all
    }

    /// Bytes that the process holds.
    pub fn footprint(&self) -> usize {
        self.footprint
    }

    /// They were measured.
    pub fn measured(&mut self, footprint: usize) {
        self.footprint = footprint;
    }

    /// So many bytes more.
    pub fn charge(&mut self, bytes: usize) {
        self.footprint += bytes;
    }

    /// So many less.
    pub fn uncharge(&mut self, bytes: usize) {
        self.footprint = self.footprint.saturating_sub(bytes);
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let Watermarks { limit, low, high, clean, dense, .. } = self.marks;
        if !self.evict_all && [low, high, clean, dense].iter().any(|mark| *mark > limit) {
            return Err(alloc::format!("a mark lies above the limit: {:?}", self.marks));
        }
        Ok(())
    }

    /// Other marks.
    #[cfg(test)]
    pub fn marks_mut(&mut self) -> &mut Watermarks {
        &mut self.marks
    }

    /// Watermarks decide from now on.
    #[cfg(test)]
    pub fn evict_by_marks(&mut self) {
        self.evict_all = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_and_given_back_counts_until_it_is_measured() {
        let mut limit = Limit::new(64 << 20, false);
        limit.measured(100);
        limit.charge(50);
        limit.uncharge(30);
        assert_eq!(limit.footprint(), 120);
        limit.uncharge(1000);
        assert_eq!(limit.footprint(), 0, "it was measured before something went");
        limit.set(32 << 20, 1, UNKNOWN);
        assert_eq!((limit.marks().limit, limit.check()), (32 << 20, Ok(())));
    }

    #[test]
    fn there_is_room_where_an_eighth_is_free_and_nobody_wants_it() {
        let mut limit = Limit::new(64 << 20, false);
        let low = limit.marks().low;
        let mut is_roomy_at = |footprint, target| {
            limit.measured(footprint);
            limit.ask(target);
            limit.is_roomy()
        };
        assert_eq!([low / 8 * 7, low].map(|footprint| is_roomy_at(footprint, None)), [true, false]);
        assert!(!is_roomy_at(low / 2, Some(low / 4)));
    }

    #[test]
    fn in_the_test_mode_no_limit_matters() {
        let mut limit = Limit::new(64 << 20, true);
        limit.set(32 << 20, 1, UNKNOWN);
        assert_eq!(*limit.marks(), Watermarks::evict_all());
    }
}
