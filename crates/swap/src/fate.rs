//! What becomes of each read and write of an area that misbehaves as disks do, by a seed. Nothing is read or written
//! here: whoever makes the calls asks first, and does as it is told.
//!
//! ```text
//!   Faults   how often what happens, as text: read_errors=100,slow=20,full=50
//!   Dice     Faults and a seed ──> a Fate for each call, and what has Happened so far
//! ```

use crate::table::{Row, Table};
use base::{Errno, Random};
use core::fmt;
use core::str::FromStr;

/// How often what happens: once in so many calls of its kind; never, where it is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A read is EIO.
    pub read_errors: usize,
    /// A write is EIO, and has written nothing.
    pub write_errors: usize,
    /// A write is EIO, and has written its first part.
    pub short_writes: usize,
    /// A read is EIO, and has read its first part.
    pub short_reads: usize,
    /// One bit of what is read is another; the next read may be right.
    pub wrong_reads: usize,
    /// One bit of what is written is another, and stays so.
    pub wrong_writes: usize,
    /// A write is lost, and said to be done: what lies there is the older version.
    pub lost_writes: usize,
    /// A write is ENOSPC.
    pub full: usize,
    /// A call is slow: that it has ended is told late.
    pub slow: usize,
}

/// What is said of a text that is none of [`Faults`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongFaults;

impl Faults {
    /// The names of the rates, in the order of the structure.
    const NAMES: [&'static str; 9] = [
        "read_errors",
        "write_errors",
        "short_writes",
        "short_reads",
        "wrong_reads",
        "wrong_writes",
        "lost_writes",
        "full",
        "slow",
    ];

    /// The rates, in the order of [`Faults::NAMES`].
    fn rates(&mut self) -> [&mut usize; 9] {
        let Faults {
            read_errors,
            write_errors,
            short_writes,
            short_reads,
            wrong_reads,
            wrong_writes,
            lost_writes,
            full,
            slow,
        } = self;
        [
            read_errors,
            write_errors,
            short_writes,
            short_reads,
            wrong_reads,
            wrong_writes,
            lost_writes,
            full,
            slow,
        ]
    }
}

impl FromStr for Faults {
    type Err = WrongFaults;

    /// Reads `NAME=N,...`; what is not named never happens, and an empty text names nothing.
    fn from_str(text: &str) -> Result<Faults, WrongFaults> {
        let mut faults = Faults::default();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (name, value) = part.split_once('=').ok_or(WrongFaults)?;
            let at = Faults::NAMES.iter().position(|known| *known == name).ok_or(WrongFaults)?;
            *faults.rates()[at] = value.parse().map_err(|_| WrongFaults)?;
        }
        Ok(faults)
    }
}

impl fmt::Display for WrongFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected NAME=N,... with each name one of")?;
        Faults::NAMES.iter().enumerate().try_for_each(|(n, name)| match n {
            0 => write!(f, " {name}"),
            _ => write!(f, ", {name}"),
        })
    }
}

/// How often each has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    /// Reads that were EIO, short ones with them.
    pub read_errors: u64,
    /// Writes that were EIO, short ones with them.
    pub write_errors: u64,
    /// Reads with a wrong bit.
    pub wrong_reads: u64,
    /// Writes with a wrong bit.
    pub wrong_writes: u64,
    /// Writes that were lost.
    pub lost_writes: u64,
    /// Writes that were ENOSPC.
    pub full: u64,
    /// Calls that were slow.
    pub slow: u64,
}

/// How a call is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As it would without faults.
    Whole,
    /// With this error, and nothing is done.
    Error(Errno),
    /// With EIO, after so many of its bytes, which are fewer than were asked for.
    Part(usize),
    /// As if nothing were wrong, but this bit of its bytes is the other one.
    Wrong(usize),
    /// As if it were done, and nothing is.
    Lost,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// How late its end is told, in nanoseconds; 0 for a call that is not slow.
    pub late_ns: u64,
    /// How it ends.
    pub end: End,
}

/// How late the end of a slow call is told, at least and at most, in nanoseconds: what a disk takes that seeks, and one
/// that moves a sector elsewhere.
const LATE_NS: (u64, u64) = (1_000_000, 20_000_000);

/// Says what becomes of calls, in an order that comes from a seed.
#[derive(Clone, Debug)]
pub struct Dice {
    faults: Faults,
    happened: Happened,
    random: Random,
}

impl Dice {
    /// For calls that are to end as `faults` say.
    pub fn new(seed: u64, faults: Faults) -> Dice {
        Dice { faults, happened: Happened::default(), random: Random(seed) }
    }

    /// The same for a process of a run of this seed. A row has many processes one after the other, none of which seals
    /// with a serial of another.
    pub fn of_process(seed: u32, table: &Table, row: Row, faults: Faults) -> Dice {
        let serial = table.serials(row).next().unwrap_or(0);
        let of_row = (seed as u64) << 16 | row.number() as u64;
        Dice::new(Random(of_row).word() ^ Random(serial).word(), faults)
    }

    /// Other faults from now on.
    pub fn set(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// What has happened so far.
    pub fn happened(&self) -> Happened {
        self.happened
    }

    /// What becomes of a read of so many bytes. What is done of it ends at a multiple of `align`.
    pub fn read(&mut self, bytes: usize, align: usize) -> Fate {
        let late_ns = self.late_ns();
        let Dice { faults, happened, random } = self;
        let end = if one_in(random, faults.read_errors) {
            happened.read_errors += 1;
            End::Error(Errno::EIO)
        } else if one_in(random, faults.short_reads) {
            happened.read_errors += 1;
            End::Part(part(random, bytes, align))
        } else if bytes > 0 && one_in(random, faults.wrong_reads) {
            happened.wrong_reads += 1;
            End::Wrong(random.below(bytes * 8))
        } else {
            End::Whole
        };
        Fate { late_ns, end }
    }

    /// The same of a write.
    pub fn write(&mut self, bytes: usize, align: usize) -> Fate {
        let late_ns = self.late_ns();
        let Dice { faults, happened, random } = self;
        let end = if one_in(random, faults.write_errors) {
            happened.write_errors += 1;
            End::Error(Errno::EIO)
        } else if one_in(random, faults.full) {
            happened.full += 1;
            End::Error(Errno::ENOSPC)
        } else if one_in(random, faults.short_writes) {
            happened.write_errors += 1;
            End::Part(part(random, bytes, align))
        } else if one_in(random, faults.lost_writes) {
            happened.lost_writes += 1;
            End::Lost
        } else if bytes > 0 && one_in(random, faults.wrong_writes) {
            happened.wrong_writes += 1;
            End::Wrong(random.below(bytes * 8))
        } else {
            End::Whole
        };
        Fate { late_ns, end }
    }

    fn late_ns(&mut self) -> u64 {
        if !one_in(&mut self.random, self.faults.slow) {
            return 0;
        }
        self.happened.slow += 1;
        self.random.within(LATE_NS.0..LATE_NS.1)
    }
}

/// True once in `n` times; never, where it is 0.
fn one_in(random: &mut Random, n: usize) -> bool {
    n > 0 && random.one_in(n)
}

/// A length below `bytes`, of whole units of `align`.
fn part(random: &mut Random, bytes: usize, align: usize) -> usize {
    random.below(bytes.max(1)) / align * align
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rate_has_its_name() {
        for (at, name) in Faults::NAMES.iter().enumerate() {
            let mut expected = Faults::default();
            *expected.rates()[at] = 7;
            assert_eq!(format!("{name}=7").parse(), Ok(expected));
            assert!(format!("{expected:?}").contains(&format!("{name}: 7")), "{name} is another's");
        }
        let several = Faults { read_errors: 100, slow: 20, full: 50, ..Faults::default() };
        assert_eq!("read_errors=100,slow=20,full=50".parse(), Ok(several));
        assert_eq!("".parse(), Ok(Faults::default()));
    }

    #[test]
    fn what_is_no_rate_is_refused_with_the_names() {
        for text in ["slow", "slow=", "slow=-1", "slow=x", "fast=1", ",", "slow=1,", "slow=1;full=2"] {
            assert_eq!(text.parse::<Faults>(), Err(WrongFaults), "{text}");
        }
        let said = WrongFaults.to_string();
        assert!(Faults::NAMES.iter().all(|name| said.contains(name)), "{said}");
    }

    #[test]
    fn parts_are_short_and_late_ends_are_late_by_a_bounded_time() {
        for seed in 0..200 {
            let all = Faults { short_reads: 1, short_writes: 1, slow: 1, ..Faults::default() };
            let mut dice = Dice::new(seed, all);
            let bytes = 4096 * (1 + seed as usize % 9);
            for fate in [dice.read(bytes, 4096), dice.write(bytes, 4096)] {
                let End::Part(part) = fate.end else { panic!("seed {seed}: {fate:?}") };
                assert!(part < bytes && part.is_multiple_of(4096), "seed {seed}: {part} of {bytes}");
                assert!((LATE_NS.0..LATE_NS.1).contains(&fate.late_ns), "seed {seed}: {fate:?}");
            }
            assert_eq!(
                Dice::new(seed, Faults::default()).write(bytes, 1),
                Fate { late_ns: 0, end: End::Whole }
            );
        }
    }

    #[test]
    fn a_seed_has_the_same_fates_each_time_and_another_seed_has_others() {
        let faults = Faults { read_errors: 3, full: 3, wrong_writes: 2, slow: 4, ..Faults::default() };
        let fates = |seed| {
            let mut dice = Dice::new(seed, faults);
            (0..50).flat_map(|_| [dice.read(8192, 1), dice.write(8192, 1)]).collect::<Vec<Fate>>()
        };
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
    }
}
