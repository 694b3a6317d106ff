//! How long the pager sleeps where nothing wakes it. Of memory that is registered each miss wakes it, and of mappings
//! larger than what is left of the room it is told (grow.rs); what else comes it has to look for.

/// How long it sleeps at least, in nanoseconds; and at most where all is still, unless there is much room.
pub const LEAST_NS: u64 = 500_000;
const STILL_NS: u64 = 4_000_000;

/// The most at all: where there is much room, or the process does not run.
const MOST_NS: u64 = 20_000_000;

/// A process fills no more than so many bytes in a nanosecond.
const PACE: u64 = 4;

/// One sleep after the other.
#[derive(Default)]
pub struct IdleSleep {
    ns: u64,
    own: usize,
    faults: u64,
    ran_ns: Option<u64>,
}

impl IdleSleep {
    /// How long it may sleep now, in nanoseconds: so long that the process, which holds `own` bytes, has missed
    /// `faults` times and used a CPU for `ran_ns`, could not have filled the `room` that it has left; and twice as long
    /// each time as long as it neither grows nor misses. To look 2,000 times a second costs several percent of a CPU,
    /// for each process, and 250 times one: ten of a browser's wait for something most of the time.
    pub fn next(&mut self, room: u64, own: usize, faults: u64, ran_ns: Option<u64>) -> u64 {
        let least = (room / PACE).clamp(LEAST_NS, MOST_NS);
        let is_still = own <= self.own && faults == self.faults;
        let has_run = ran_ns.is_none() || ran_ns != self.ran_ns;
        let most = if has_run { least.max(STILL_NS) } else { MOST_NS };
        let ns = if is_still { (2 * self.ns).clamp(least, most) } else { least };
        *self = IdleSleep { ns, own, faults, ran_ns };
        ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_are_longer_while_all_is_still_and_short_where_there_is_little_room() {
        let mut idle = IdleSleep::default();
        let mut ran_ns = 0;
        let mut sleeps = |room, own, faults| {
            [(); 5].map(|_| {
                ran_ns += 1;
                idle.next(room, own, faults, Some(ran_ns)) / 1000
            })
        };
        assert_eq!(sleeps(1 << 20, 100, 7), [500, 1000, 2000, 4000, 4000]);
        assert_eq!(sleeps(1 << 20, 100, 8)[..2], [500, 1000], "it has missed");
        assert_eq!(sleeps(1 << 20, 101, 8)[..2], [500, 1000], "it has grown");
        assert_eq!(sleeps(40_000_000, 101, 8), [10_000; 5], "there is room for as long");
        assert_eq!(sleeps(1 << 30, 0, 8), [20_000; 5]);
    }

    #[test]
    fn a_process_that_does_not_run_is_left_alone_for_longer() {
        let mut idle = IdleSleep::default();
        let mut sleeps = |ran_ns| [(); 7].map(|_| idle.next(1 << 20, 100, 7, ran_ns) / 1000);
        assert_eq!(sleeps(Some(9)), [500, 1000, 2000, 4000, 8000, 16_000, 20_000]);
        assert_eq!(sleeps(Some(10))[..2], [4000, 8000], "it has run once more");
        assert_eq!(sleeps(None), [4000; 7], "nobody knows");
    }
}
