//! Fresh memory: what the program has mapped and nobody has registered yet. Only of what is registered a fault
//! comes to the pager, so that fresh memory can be made to wait.
//!
//! No event tells of a new mapping. It is looked for as the address space grows; of most the program tells before
//! it may fill them. This is when to look, and how far a look has come.

use alloc::string::String;

/// How long it is from one look for mappings that are not registered yet to the next: while the address space grows
/// fast, slowly, and not at all. Fast is more than this part of the limit since the last look. And a program can
/// have ten thousand mappings: how many times as long as the last look took it is besides.
const LOOK_NS: [u64; 3] = [1_000_000, 4_000_000, 200_000_000];
const LOOK_REST: [u64; 3] = [1, 4, 16];
const FAST: usize = 64;

/// How the address space has grown since all of it was registered last, as far as nobody has told.
#[derive(Debug)]
struct Growth {
    /// Its size at the last look, in bytes, and how much was told of by then, ever.
    size: usize,
    told: usize,
    /// It has grown, and by how many bytes; or some of it had to wait for an event.
    is_unheard: bool,
    bytes: usize,
}

/// A look at all mappings, step by step.
#[derive(Debug, Default)]
struct Walk {
    /// Where the next step begins; 0 before the first.
    at: usize,
    /// So far each could be registered, or refused for good.
    is_all: bool,
    /// The pace at which it began.
    pace: usize,
    /// How much was told of when it began, ever; and the same of the last one that came to the end.
    told: usize,
    told_at_last: usize,
    /// When the last step ended, and how long it took.
    stepped_ns: u64,
    took_ns: u64,
}

/// What is known of fresh memory, and what it is made from.
#[derive(Debug)]
pub struct Fresh {
    /// Engine memory that is not registered, for fresh memory on its way to the program: an address and bytes,
    /// zeros or no page.
    zeros: (usize, usize),
    growth: Growth,
    walk: Walk,
    /// When all mappings were registered last.
    registered_ns: u64,
}

impl Fresh {
    /// Nothing was looked at yet.
    pub fn new(zeros: (usize, usize)) -> Fresh {
        let growth = Growth { size: 0, told: 0, is_unheard: true, bytes: 0 };
        Fresh { zeros, growth, walk: Walk::default(), registered_ns: 0 }
    }

    /// Engine memory that nothing is ever written to: an address and bytes.
    pub fn zeros(&self) -> (usize, usize) {
        self.zeros
    }

    /// The address space has this size now, in bytes, and of so much was told, ever.
    pub fn mapped(&mut self, size: usize, told: usize) {
        let growth = &mut self.growth;
        let heard = told.wrapping_sub(growth.told);
        let unheard = size.saturating_sub(growth.size).saturating_sub(heard);
        (growth.size, growth.told) = (size, told);
        growth.is_unheard |= unheard > 0;
        growth.bytes += unheard;
    }

    /// Some of what was told of could not be registered: it is to be looked for.
    pub fn missed(&mut self) {
        self.growth.is_unheard = true;
    }

    /// All there is has been registered.
    pub fn registered(&mut self, now_ns: u64) {
        self.registered_ns = now_ns;
    }

    /// When that was last, in nanoseconds.
    pub fn registered_ns(&self) -> u64 {
        self.registered_ns
    }

    /// How much was told of, ever, when the last look began that came to the end: what has come since may have been
    /// missed.
    pub fn registered_bytes(&self) -> usize {
        self.walk.told_at_last
    }

    /// Where the next step of a look at all mappings begins; `None` before it is time for it.
    pub fn next_step(&mut self, now_ns: u64, limit: usize) -> Option<usize> {
        let is_new = self.walk.at == 0;
        if is_new {
            let is_slow = self.growth.bytes <= limit / FAST;
            self.walk.pace = if self.growth.is_unheard { is_slow as usize } else { 2 };
        }
        let pace = self.walk.pace;
        let pause = if is_new { LOOK_NS[pace] } else { 0 };
        if now_ns < self.walk.stepped_ns + pause + self.walk.took_ns * LOOK_REST[pace] {
            return None;
        }
        if is_new {
            (self.growth.bytes, self.growth.is_unheard) = (0, false);
            (self.walk.told, self.walk.is_all) = (self.growth.told, true);
        }
        Some(self.walk.at)
    }

    /// The step is over: where the next one begins, if any is left, and whether each mapping could be registered,
    /// or refused for good.
    pub fn stepped(&mut self, next: Option<usize>, is_all: bool, began_ns: u64, end_ns: u64) {
        let walk = &mut self.walk;
        walk.is_all &= is_all;
        (walk.stepped_ns, walk.took_ns) = (end_ns, end_ns - began_ns);
        walk.at = next.unwrap_or(0);
        if next.is_none() {
            // What must wait for an event now comes round again soon, what is refused with the next look.
            self.growth.is_unheard |= !walk.is_all;
            (self.registered_ns, walk.told_at_last) = (end_ns, walk.told);
        }
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let Walk { pace, told, told_at_last, .. } = self.walk;
        if told_at_last > told || pace >= LOOK_NS.len() {
            return Err(alloc::format!(
                "a look has come to more than was told of when it began: {:?}",
                self.walk
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_of_is_no_reason_to_look() {
        let mut fresh = Fresh::new((0, 0));
        let mut look = |size, told| {
            (fresh.growth.is_unheard, fresh.growth.bytes) = (false, 0);
            fresh.mapped(size, told);
            (fresh.growth.is_unheard, fresh.growth.bytes)
        };
        assert_eq!(look(100, 7), (true, 93));
        assert_eq!(look(120, 27), (false, 0), "all of it");
        assert_eq!(look(150, 32), (true, 25), "more than that");
        assert_eq!(look(90, 32), (false, 0), "smaller");
        assert_eq!(look(90, 42), (false, 0), "as much went");
        assert_eq!(look(91, 42), (true, 1));
    }

    #[test]
    fn a_look_goes_on_at_once_and_the_next_begins_sooner_where_more_grows() {
        const LIMIT: usize = 64 << 20;
        let mut fresh = Fresh::new((0, 0));
        let mut now = 1_000_000_000;
        fresh.mapped(1 << 20, 0);
        assert_eq!(fresh.next_step(now, LIMIT), Some(0));
        fresh.stepped(Some(7), true, now, now);
        assert_eq!(fresh.next_step(now, LIMIT), Some(7));
        fresh.stepped(None, true, now, now);
        assert_eq!(fresh.registered_ns(), now);
        for (grown, pause) in [(0, 200_000_000), (1 << 20, 4_000_000), (2 << 20, 1_000_000)] {
            fresh.mapped(fresh.growth.size + grown, 0);
            assert_eq!(fresh.next_step(now + pause - 1, LIMIT), None, "{grown}");
            now += pause;
            assert_eq!(fresh.next_step(now, LIMIT), Some(0), "{grown}");
            fresh.stepped(None, true, now, now);
        }
        assert_eq!(fresh.check(), Ok(()));
    }

    #[test]
    fn what_must_wait_for_an_event_is_looked_for_again_soon() {
        let mut fresh = Fresh::new((0, 0));
        let now = 1_000_000_000;
        fresh.mapped(1, 9);
        fresh.next_step(now, 1 << 30);
        fresh.stepped(Some(5), false, now, now);
        fresh.next_step(now, 1 << 30);
        fresh.mapped(1, 12);
        fresh.stepped(None, true, now, now);
        assert_eq!(fresh.registered_bytes(), 9, "as it began");
        assert_eq!(fresh.next_step(now + 4_000_000, 1 << 30), Some(0));
    }
}
