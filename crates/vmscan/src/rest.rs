//! When a hand goes on, after it has gone round and found nothing to take: the clock hand, or the one that packs.
//!
//! What a process holds beyond its limit may be what nobody can take: private copies of file pages, which its
//! relocations make. To look for more costs a walk through all page tables each time, and nothing comes of it until the
//! process brings something in.

/// How long a hand rests after a round in vain, in nanoseconds.
const LEAST_NS: u64 = 1_000_000;

/// A hand's rounds, and the rests between them: for so many milliseconds at most after many in vain.
#[derive(Debug, Default)]
pub struct Rest<const MOST_MS: u64 = 64> {
    /// Something was found in this round: a page that went out, or is colder now.
    found: bool,
    ns: u64,
    until_ns: u64,
}

impl<const MOST_MS: u64> Rest<MOST_MS> {
    /// A page was taken, or is nearer to it: the next round may find it.
    pub fn found(&mut self) {
        self.found = true;
    }

    /// The hand has come to the end of memory. True when it goes on at once.
    pub fn round(&mut self, now_ns: u64) -> bool {
        let found = core::mem::take(&mut self.found);
        self.ns = if found { 0 } else { (2 * self.ns).clamp(LEAST_NS, MOST_MS * 1_000_000) };
        self.until_ns = now_ns + self.ns;
        found
    }

    /// True while the hand rests.
    pub fn is_on(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    /// A page has come into the program, which the hand can find.
    pub fn end(&mut self) {
        self.until_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_rests_longer_after_each_round_in_vain_and_not_after_another() {
        let mut rest = Rest::<250>::default();
        let mut now = 0;
        let mut rests = || {
            assert!(!rest.round(now));
            let began = now;
            while rest.is_on(now) {
                now += LEAST_NS / 2;
            }
            (now - began) / LEAST_NS
        };
        assert_eq!([(); 10].map(|_| rests()), [1, 2, 4, 8, 16, 32, 64, 128, 250, 250]);
        rest.found();
        assert!(rest.round(now) && !rest.is_on(now));
        assert!(!rest.round(now) && rest.is_on(now), "nothing was found since");
        assert!(!rest.is_on(now + LEAST_NS), "it begins with the least");
    }

    #[test]
    fn what_comes_in_ends_a_rest_and_the_next_is_as_long_as_it_would_have_been() {
        let mut rest = Rest::<64>::default();
        for now in [0, LEAST_NS] {
            rest.round(now);
        }
        rest.end();
        assert!(!rest.is_on(LEAST_NS));
        rest.round(LEAST_NS);
        assert!(rest.is_on(LEAST_NS + 4 * LEAST_NS - 1));
    }
}
