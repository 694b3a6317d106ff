//! An area that misbehaves as disks do, by a seed: an ordinary [`Area`] around another.

use crate::area::Area;
use crate::fate::{Dice, End, Fate, Faults, Happened};
use base::{Errno, Mutex};

/// What a slow call does before it goes on, given its length in bytes: sleeps, or moves a clock of the test's.
pub type Slow<'a> = &'a (dyn Fn(usize) + Sync);

/// An area around another.
pub struct FaultyArea<'a, A> {
    area: A,
    dice: Mutex<Dice>,
    slow: Slow<'a>,
}

impl<'a, A: Area> FaultyArea<'a, A> {
    /// An area that does as `faults` say, in an order that comes from the seed.
    pub fn new(area: A, seed: u64, faults: Faults, slow: Slow<'a>) -> FaultyArea<'a, A> {
        FaultyArea { area, dice: Mutex::new(Dice::new(seed, faults)), slow }
    }

    /// The area around which it is.
    pub fn inner(&self) -> &A {
        &self.area
    }

    /// Has other faults from now on.
    pub fn set(&self, faults: Faults) {
        self.dice.lock().set(faults);
    }

    /// What has happened so far.
    pub fn happened(&self) -> Happened {
        self.dice.lock().happened()
    }

    /// How a call is to end, after it was as slow as it is to be.
    fn end(&self, bytes: usize, fate: impl FnOnce(&mut Dice) -> Fate) -> End {
        let Fate { late_ns, end } = fate(&mut self.dice.lock());
        if late_ns > 0 {
            (self.slow)(bytes);
        }
        end
    }

    /// Flips a bit of what has been written, on the area itself: what is written is not ours to change.
    fn spoil(&self, at: u64, from: &[u8], bit: usize) -> Result<(), Errno> {
        let align = self.area.align();
        if align > BLOCK_BYTES {
            return Err(Errno::EINVAL);
        }
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
        match self.end(to.len(), |dice| dice.read(to.len(), self.area.align())) {
            End::Error(errno) => return Err(errno),
            End::Part(bytes) => return self.area.read(at, &mut to[..bytes]).and(Err(Errno::EIO)),
            End::Whole | End::Lost => self.area.read(at, to)?,
            End::Wrong(bit) => {
                self.area.read(at, to)?;
                to[bit / 8] ^= 1 << (bit % 8);
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Errno> {
        match self.end(from.len(), |dice| dice.write(from.len(), self.area.align())) {
            End::Whole => self.area.write(at, from),
            End::Lost => Ok(()),
            End::Error(errno) => Err(errno),
            End::Part(bytes) => self.area.write(at, &from[..bytes]).and(Err(Errno::EIO)),
            End::Wrong(bit) => self.area.write(at, from).and_then(|()| self.spoil(at, from, bit)),
        }
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        self.area.discard(at, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::tests::area;
    use base::Random;
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
