//! Hunger: for how long a process has got nowhere because it waits for room, and nothing can go out.
//!
//! A thread that waits and waits shows that the limit is full. But of many processes that fill it together each may get
//! a page now and then, when another one has waited as long: none waits for ever, and none gets on. So the waits are
//! added up. Each time that there was room makes up for a little of it, and so does the time in which nobody waits.

/// So much waiting is made up for each time that there is room, in nanoseconds.
const FED_NS: u64 = 1_000_000_000;

/// See the head of the file. Times are of any clock that does not go back, in nanoseconds.
#[derive(Debug, Default)]
pub struct Hunger {
    ns: u64,
    /// Since when a thread has been waiting.
    since_ns: Option<u64>,
    /// Up to when it has been counted.
    counted_ns: u64,
}

impl Hunger {
    /// A thread waits for room.
    pub fn begin(&mut self, now_ns: u64) {
        if self.since_ns.is_none() {
            self.ns = self.ns.saturating_sub(now_ns.saturating_sub(self.counted_ns));
            self.since_ns = Some(now_ns);
        }
    }

    /// Nobody does any more, although there was no room: what they waited for has gone.
    pub fn forget(&mut self) {
        self.since_ns = None;
    }

    /// Nobody does any more: there was some.
    pub fn feed(&mut self, now_ns: u64) {
        self.pause(now_ns);
        self.ns = self.ns.saturating_sub(FED_NS);
    }

    /// The process begins or ends to wait for its turn, which makes neither hungry nor up for it.
    pub fn pause(&mut self, now_ns: u64) {
        self.ns = self.so_far(now_ns);
        (self.since_ns, self.counted_ns) = (None, now_ns);
    }

    /// How long it has lasted, in nanoseconds.
    pub fn so_far(&self, now_ns: u64) -> u64 {
        self.ns + self.since_ns.map_or(0, |since| now_ns.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// How long the hunger is when each of ten waits takes so long, with so long between two.
    fn after_ten(wait_ns: u64, gap_ns: u64) -> u64 {
        let (mut hunger, mut now) = (Hunger::default(), 7);
        for _ in 0..10 {
            hunger.begin(now);
            // Once more, as at every turn.
            hunger.begin(now + wait_ns / 2);
            now += wait_ns;
            hunger.feed(now);
            now += gap_ns;
        }
        hunger.so_far(now)
    }

    #[test]
    fn who_waits_for_less_than_a_second_each_time_is_never_hungry() {
        assert_eq!(after_ten(SECOND, 0), 0);
        assert_eq!(after_ten(SECOND / 100, 0), 0);
    }

    #[test]
    fn who_gets_a_page_now_and_then_is_hungry_all_the_same() {
        assert_eq!(after_ten(3 * SECOND, 0), 20 * SECOND);
    }

    #[test]
    fn who_gets_on_for_as_long_between_two_waits_is_not() {
        assert_eq!(after_ten(3 * SECOND, 2 * SECOND), 2 * SECOND, "the last one's");
    }

    #[test]
    fn a_wait_that_came_to_nothing_is_not_counted_later() {
        let mut hunger = Hunger::default();
        hunger.begin(SECOND);
        hunger.forget();
        assert_eq!(hunger.so_far(50 * SECOND), 0);
        hunger.begin(50 * SECOND);
        assert_eq!(hunger.so_far(51 * SECOND), SECOND);
    }

    #[test]
    fn a_single_wait_counts_while_it_lasts_and_a_pause_does_not() {
        let mut hunger = Hunger::default();
        hunger.begin(SECOND);
        assert_eq!(hunger.so_far(5 * SECOND), 4 * SECOND);
        hunger.pause(5 * SECOND);
        assert_eq!(hunger.so_far(50 * SECOND), 4 * SECOND);
        hunger.pause(50 * SECOND);
        hunger.begin(50 * SECOND);
        assert_eq!(hunger.so_far(51 * SECOND), 5 * SECOND);
        hunger.feed(51 * SECOND);
        assert_eq!(hunger.so_far(60 * SECOND), 4 * SECOND);
    }
}
