//! Hunger: for how long a process has got nowhere because it waits for room, and nothing can go out.
//!
//! A thread that waits and waits shows that the limit is full. But of many processes that fill it together each may get a page now and then, when another one has
//! waited as long: none waits for ever, and none gets on. So the waits are added up, and each time that there was room makes up for a little of it.

/// So much waiting is made up for each time that there is room, in nanoseconds.
const FED_NS: u64 = 1_000_000_000;

/// See the head of the file. Times are of any clock that does not go back, in nanoseconds.
#[derive(Debug, Default)]
pub struct Hunger {
    ns: u64,
    since_ns: Option<u64>,
}

impl Hunger {
    /// A thread waits for room.
    pub fn begin(&mut self, now_ns: u64) {
        self.since_ns.get_or_insert(now_ns);
    }

    /// Nobody does any more: there was some.
    pub fn feed(&mut self, now_ns: u64) {
        self.pause(now_ns);
        self.ns = self.ns.saturating_sub(FED_NS);
    }

    /// Nobody does for now: the process waits for its turn, which is no hunger.
    pub fn pause(&mut self, now_ns: u64) {
        self.ns = self.so_far(now_ns);
        self.since_ns = None;
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

    /// How long the hunger is when each of ten waits takes so long.
    fn after_ten(wait_ns: u64) -> u64 {
        let (mut hunger, mut now) = (Hunger::default(), 7);
        for _ in 0..10 {
            hunger.begin(now);
            // Once more, as at every turn.
            hunger.begin(now + wait_ns / 2);
            now += wait_ns;
            hunger.feed(now);
            now += SECOND;
        }
        hunger.so_far(now)
    }

    #[test]
    fn who_waits_for_less_than_a_second_each_time_is_never_hungry() {
        assert_eq!(after_ten(SECOND), 0);
        assert_eq!(after_ten(SECOND / 100), 0);
    }

    #[test]
    fn who_gets_a_page_now_and_then_is_hungry_all_the_same() {
        assert_eq!(after_ten(3 * SECOND), 20 * SECOND);
    }

    #[test]
    fn a_single_wait_counts_while_it_lasts_and_a_pause_does_not() {
        let mut hunger = Hunger::default();
        hunger.begin(SECOND);
        assert_eq!(hunger.so_far(5 * SECOND), 4 * SECOND);
        hunger.pause(5 * SECOND);
        assert_eq!(hunger.so_far(50 * SECOND), 4 * SECOND);
        hunger.begin(50 * SECOND);
        assert_eq!(hunger.so_far(51 * SECOND), 5 * SECOND);
        hunger.feed(51 * SECOND);
        assert_eq!(hunger.so_far(60 * SECOND), 4 * SECOND);
    }
}
