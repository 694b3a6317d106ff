//! An area that misbehaves as disks do, by a seed: an ordinary [`Area`] around another.

use crate::area::Area;
use base::{Errno, Mutex, Random};
use core::ops::DerefMut;

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
    /// A call is slow: it is handed to [`Slow`].
    pub slow: usize,
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

/// What a slow call does before it goes on, given its length in bytes: sleeps, or moves a clock of the test's.
pub type Slow<'a> = &'a (dyn Fn(usize) + Sync);

struct State {
    faults: Faults,
    happened: Happened,
    random: Random,
}

/// An area around another.
pub struct FaultyArea<'a, A> {
    area: A,
    state: Mutex<State>,
    slow: Slow<'a>,
}

/// What becomes of a write.
enum Write {
    Whole,
    Part(usize),
    Wrong,
    Lost,
    Error(Errno),
}

impl<'a, A: Area> FaultyArea<'a, A> {
    /// An area that does as `faults` say, in an order that comes from the seed.
    pub fn new(area: A, seed: u64, faults: Faults, slow: Slow<'a>) -> FaultyArea<'a, A> {
        let state = State { faults, happened: Happened::default(), random: Random(seed) };
        FaultyArea { area, state: Mutex::new(state), slow }
    }

    /// The area around which it is.
    pub fn inner(&self) -> &A {
        &self.area
    }

    /// Has other faults from now on.
    pub fn set(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// What has happened so far.
    pub fn happened(&self) -> Happened {
        self.state.lock().happened
    }

    fn wait(&self, bytes: usize) {
        let is_slow = {
            let mut held = self.state.lock();
            let state = held.deref_mut();
            let is_slow = one_in(&mut state.random, state.faults.slow);
            state.happened.slow += u64::from(is_slow);
            is_slow
        };
        if is_slow {
            (self.slow)(bytes);
        }
    }

    fn fate(&self, bytes: usize) -> Write {
        let mut held = self.state.lock();
        let State { faults, happened, random } = held.deref_mut();
        if one_in(random, faults.write_errors) {
            happened.write_errors += 1;
            Write::Error(Errno::EIO)
        } else if one_in(random, faults.full) {
            happened.full += 1;
            Write::Error(Errno::ENOSPC)
        } else if one_in(random, faults.short_writes) {
            happened.write_errors += 1;
            Write::Part(self.part(random, bytes))
        } else if one_in(random, faults.lost_writes) {
            happened.lost_writes += 1;
            Write::Lost
        } else if bytes > 0 && one_in(random, faults.wrong_writes) {
            happened.wrong_writes += 1;
            Write::Wrong
        } else {
            Write::Whole
        }
    }

    /// A length below `bytes` that the area can do.
    fn part(&self, random: &mut Random, bytes: usize) -> usize {
        random.below(bytes.max(1)) / self.area.align() * self.area.align()
    }

    /// Flips a bit of what has been written, on the area itself: what is written is not ours to change.
    fn spoil(&self, at: u64, from: &[u8]) -> Result<(), Errno> {
        let align = self.area.align();
        if align > BLOCK_BYTES {
            return Err(Errno::EINVAL);
        }
        let bit = self.state.lock().random.below(from.len() * 8);
        let first = bit / 8 / align * align;
        let mut block = Block([0; BLOCK_BYTES]);
        block.0[..align].copy_from_slice(&from[first..first + align]);
        block.0[bit / 8 - first] ^= 1 << (bit % 8);
        self.area.write(at + first as u64, &block.0[..align])
    }
}

/// The largest alignment that an area can ask for here.
const BLOCK_BYTES: usize = 4096;

/// A buffer that is aligned as any area asks for.
#[repr(align(4096))]
struct Block([u8; BLOCK_BYTES]);

impl<A: Area> Area for FaultyArea<'_, A> {
    fn bytes(&self) -> u64 {
        self.area.bytes()
    }

    fn align(&self) -> usize {
        self.area.align()
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Errno> {
        self.wait(to.len());
        let mut held = self.state.lock();
        let State { faults, happened, random } = held.deref_mut();
        let (is_error, is_short) = (one_in(random, faults.read_errors), one_in(random, faults.short_reads));
        let is_wrong = one_in(random, faults.wrong_reads) && !to.is_empty();
        let (part, bit) = (self.part(random, to.len()), random.below(to.len().max(1) * 8));
        if is_error || is_short {
            happened.read_errors += 1;
            drop(held);
            if is_short {
                self.area.read(at, &mut to[..part])?;
            }
            return Err(Errno::EIO);
        }
        happened.wrong_reads += u64::from(is_wrong);
        drop(held);
        self.area.read(at, to)?;
        if is_wrong {
            to[bit / 8] ^= 1 << (bit % 8);
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Errno> {
        self.wait(from.len());
        match self.fate(from.len()) {
            Write::Whole => self.area.write(at, from),
            Write::Lost => Ok(()),
            Write::Error(errno) => Err(errno),
            Write::Part(bytes) => self.area.write(at, &from[..bytes]).and(Err(Errno::EIO)),
            Write::Wrong => self.area.write(at, from).and_then(|()| self.spoil(at, from)),
        }
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        self.area.discard(at, bytes)
    }
}

/// True once in `n` times; never, where it is 0.
fn one_in(random: &mut Random, n: usize) -> bool {
    n > 0 && random.one_in(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::tests::area;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    const LEN: usize = 1000;

    /// Writes, and reads back, a thousand times. Returns what has happened, how often a write was refused, and how
    /// often what was read was not what was written last without an error.
    fn rounds(faults: Faults, seed: u64) -> (Happened, [u64; 3]) {
        let slept = AtomicUsize::new(0);
        let slow = |bytes: usize| {
            slept.fetch_add(bytes, SeqCst);
        };
        let area = FaultyArea::new(area(1 << 20), seed, faults, &slow);
        let (mut random, mut refused) = (Random(seed), [0; 3]);
        for _ in 0..1000 {
            let (mut object, mut read) = ([0; LEN], [0; LEN]);
            random.fill(&mut object);
            let at = random.below(1000) as u64 * LEN as u64;
            if let Err(errno) = area.write(at, &object) {
                assert!([Errno::EIO, Errno::ENOSPC].contains(&errno));
                refused[0] += 1;
                continue;
            }
            match area.read(at, &mut read) {
                Err(errno) => {
                    assert_eq!(errno, Errno::EIO);
                    refused[1] += 1;
                }
                Ok(()) => refused[2] += u64::from(read != object),
            }
        }
        let happened = area.happened();
        assert_eq!(slept.load(SeqCst), happened.slow as usize * LEN);
        (happened, refused)
    }

    #[test]
    fn without_faults_it_is_the_area() {
        assert_eq!(rounds(Faults::default(), 1), (Happened::default(), [0; 3]));
    }

    #[test]
    fn each_fault_is_seen_as_often_as_it_happens_and_again_by_its_seed() {
        type Case = (Faults, fn(&Happened) -> u64, usize);
        let none = Faults::default();
        let cases: [Case; 9] = [
            (Faults { write_errors: 10, ..none }, |h| h.write_errors, 0),
            (Faults { short_writes: 10, ..none }, |h| h.write_errors, 0),
            (Faults { full: 10, ..none }, |h| h.full, 0),
            (Faults { read_errors: 10, ..none }, |h| h.read_errors, 1),
            (Faults { short_reads: 10, ..none }, |h| h.read_errors, 1),
            (Faults { wrong_reads: 10, ..none }, |h| h.wrong_reads, 2),
            (Faults { wrong_writes: 10, ..none }, |h| h.wrong_writes, 2),
            (Faults { lost_writes: 10, ..none }, |h| h.lost_writes, 2),
            (Faults { slow: 10, ..none }, |h| h.slow, 3),
        ];
        for (faults, count, seen) in cases {
            let (happened, refused) = rounds(faults, 5);
            let count = count(&happened);
            assert!((50..300).contains(&count), "{faults:?}: {happened:?}");
            for (at, refused) in refused.into_iter().enumerate() {
                assert_eq!(refused, if at == seen { count } else { 0 }, "{faults:?}: {happened:?}");
            }
            assert_eq!(rounds(faults, 5).0, happened);
        }
    }

    #[test]
    fn a_lost_write_leaves_the_older_version() {
        let area = FaultyArea::new(area(1 << 20), 1, Faults::default(), &|_| ());
        area.write(100, b"older").unwrap();
        area.set(Faults { lost_writes: 1, ..Faults::default() });
        area.write(100, b"newer").unwrap();
        let mut read = [0; 5];
        area.read(100, &mut read).unwrap();
        assert_eq!(&read, b"older");
        area.set(Faults::default());
        area.write(100, b"newer").unwrap();
        area.inner().read(100, &mut read).unwrap();
        assert_eq!(&read, b"newer");
    }
}
