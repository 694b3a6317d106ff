//! The pool's want of memory for objects that were read from a swap area: they are read again when something of the
//! pool was freed, or after a rest, which doubles with each that was in vain.

use vmscan::rest::Rest;

/// Whether the pool lacks memory for what is read.
#[derive(Debug, Default)]
pub struct Shortage {
    rest: Rest,
    /// The last object that was read found no memory.
    is_on: bool,
}

impl Shortage {
    /// There was no memory for an object. Several reads may be under way, and find that out together: one rest is for
    /// all of them.
    pub fn refused(&mut self, now_ns: u64) {
        self.is_on = true;
        if !self.rest.is_on(now_ns) {
            self.rest.round(now_ns);
        }
    }

    /// There was some. True where it was lacking before.
    pub fn has_ended(&mut self) -> bool {
        let was_on = core::mem::take(&mut self.is_on);
        if was_on {
            self.rest = Rest::default();
        }
        was_on
    }

    /// Some of the pool was freed: the next try may be made.
    pub fn freed(&mut self) {
        self.rest.end();
    }

    /// True from a refusal on until an object finds memory.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// True while nothing is to be read.
    pub fn rests(&self, now_ns: u64) -> bool {
        self.is_on && self.rest.is_on(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn several_that_find_no_memory_together_make_one_rest() {
        let mut shortage = Shortage::default();
        (0..8).for_each(|_| shortage.refused(0));
        assert!(shortage.rests(MS - 1) && !shortage.rests(MS));
        shortage.refused(MS);
        assert!(shortage.rests(3 * MS - 1) && !shortage.rests(3 * MS));
    }

    #[test]
    fn what_is_freed_ends_a_rest_and_memory_ends_the_shortage() {
        let mut shortage = Shortage::default();
        (0..4).for_each(|n| shortage.refused(n * 100 * MS));
        shortage.freed();
        assert!(shortage.is_on() && !shortage.rests(300 * MS));
        assert!(shortage.has_ended() && !shortage.has_ended() && !shortage.is_on());
        shortage.refused(0);
        assert!(!shortage.rests(MS), "the next shortage begins with the shortest rest");
    }
}
