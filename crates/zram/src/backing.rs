//! The backing device: where objects go that leave RAM.
//!
//! ```text
//!   object ──> seal ──> slots, contiguous ──> write ──> id      what an id stands for stays in memory: place, tag, form
//!   id ──> read ──> open ──> object
//! ```
//!
//! A slot is 4 KiB. Each object begins on one, and is sealed with a key that is made with the backing device and never
//! leaves memory. A device has its area alone, and so a bitmap says which slots are free; swap's clusters are for areas
//! that processes share.

use crate::error::Error;
use base::sys::DataFile;
use base::{Damaged, Errno, Fd};
use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{self, File};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use swap::contents::{contents, empty};
use swap::seal::{self, KEY, TAG};
use swap::{Area, FileArea, Place, SLOT};
use zeroize::Zeroizing;

/// A read that fails is made so many times.
const TRIES: usize = 3;

/// What lies in the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A page as it is.
    Page,
    /// An object as it was in the pool.
    Object,
}

/// An object in the area, and what it takes to open it.
#[derive(Clone, Copy, Debug)]
pub struct Parked {
    place: Place,
    tag: [u8; TAG],
    form: Form,
}

impl Parked {
    /// What it is.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.place.bytes as usize
    }

    /// The slots that it has.
    pub fn slots(&self) -> usize {
        self.place.slots().len()
    }
}

/// Which slots are free, and what lies in the others.
#[derive(Debug, Default)]
struct Slots {
    /// A bit for each slot in use.
    used: Vec<u64>,
    used_count: usize,
    /// Where to look for free slots first.
    next: usize,
    parked: Vec<Option<Parked>>,
    free_ids: Vec<u32>,
}

/// An area, and the objects in it.
pub struct BackingDevice {
    path: String,
    /// True if its storage was opened by the path: what was written is given back at the end.
    is_owned: bool,
    /// Up to where it was written, in bytes.
    written_bytes: AtomicU64,
    /// Until the device is reset.
    area: RwLock<Option<Box<dyn Area + Send + Sync>>>,
    key: Box<Zeroizing<[u8; KEY]>>,
    /// Objects that were sealed so far: no two have the same number.
    serial: AtomicU64,
    slots: Mutex<Slots>,
    slots_count: usize,
    /// Slots that were read.
    pub reads: AtomicU64,
    /// Slots that were written.
    pub writes: AtomicU64,
}

/// Opens what nobody else uses: a file by a lock, a block device because O_EXCL refuses what is mounted or in use.
fn open_alone(path: &str) -> io::Result<File> {
    let is_device = fs::metadata(path)?.file_type().is_block_device();
    let flags = if is_device { OFlags::EXCL } else { OFlags::empty() };
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(flags.bits() as i32).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another device or program uses it"))
        }
        Err(error) => Err(error.into()),
        Ok(()) => Ok(file),
    }
}

/// Why a path is refused that holds something.
fn held(path: &str, what: &str) -> String {
    format!(
        "holds {what}, which would be lost; backing_dev={path},force (--backing-dev {path},force) takes it all the same"
    )
}

/// One object that is about to be written: its length in bytes, and what it is.
pub type Outgoing = (usize, Form);

impl BackingDevice {
    /// Opens a file or a block device, which nobody else has then. A file has the size that it has. One that holds
    /// anything at its beginning or end is refused, unless `is_forced`. What is written there is given back when it is
    /// closed.
    ///
    /// # Errors
    ///
    /// [`Error::Path`].
    pub fn open(path: &str, is_forced: bool) -> Result<BackingDevice, Error> {
        let named = |error| Error::Path { path: path.to_string(), error };
        let plain = |errno: Errno| named(io::Error::from_raw_os_error(errno.0.into()));
        let file = open_alone(path).map_err(named)?;
        let file = DataFile::new(Fd::own(file.into_raw_fd() as usize)).map_err(plain)?;
        let bytes = file.size().map_err(plain)?;
        let area = FileArea::new(file, bytes);
        let found =
            if is_forced { None } else { contents(bytes, |at, to| area.read(at, to)).map_err(plain)? };
        if let Some(what) = found {
            return Err(named(io::Error::other(held(path, what))));
        }
        let mut device = BackingDevice::new(path, Box::new(area))?;
        device.is_owned = true;
        Ok(device)
    }

    /// An area that somebody has opened.
    ///
    /// # Errors
    ///
    /// [`Error::Path`]: the area has no slot, or aligns otherwise than by a slot at most.
    pub fn new(path: &str, area: Box<dyn Area + Send + Sync>) -> Result<BackingDevice, Error> {
        let named = |error| Error::Path { path: path.to_string(), error };
        let count = (area.bytes() / SLOT as u64).min(u32::MAX as u64) as usize;
        if count == 0 || area.align() > SLOT {
            return Err(named(io::Error::new(io::ErrorKind::InvalidInput, "it has not a block of 4 KiB")));
        }
        let mut key = Box::new(Zeroizing::new([0; KEY]));
        let random = base::sys::getrandom(&mut **key, 0);
        random.map_err(|errno| named(io::Error::from_raw_os_error(errno.0.into())))?;
        let mut slots = Slots { used: vec![0; count.div_ceil(64)], ..Slots::default() };
        // The bits behind the last slot stand for slots that are never free.
        if !count.is_multiple_of(64) {
            slots.used[count / 64] = !0 << (count % 64);
        }
        Ok(BackingDevice {
            path: path.to_string(),
            is_owned: false,
            written_bytes: AtomicU64::new(0),
            area: RwLock::new(Some(area)),
            key,
            serial: AtomicU64::new(0),
            slots: Mutex::new(slots),
            slots_count: count,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        })
    }

    /// As the user named it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Slots in use.
    pub fn used_slots(&self) -> usize {
        self.lock().used_count
    }

    /// What an object is known by here.
    pub fn parked(&self, id: u32) -> Option<Parked> {
        self.lock().parked.get(id as usize).copied().flatten()
    }

    /// Writes objects that lie in `buffer` one after the other, each from a multiple of 4 KiB on, and calls `each` with
    /// the number of each. They lie in contiguous slots. What is left of each last slot is made zeros.
    ///
    /// # Errors
    ///
    /// [`Error::BackingFull`] if there are not as many slots in a row; [`Error::Path`] if the area refuses. Then the
    /// area has none of them.
    pub fn write(&self, buffer: &mut [u8], all: &[Outgoing], mut each: impl FnMut(u32)) -> Result<(), Error> {
        let count: usize = all.iter().map(|(bytes, _)| bytes.div_ceil(SLOT)).sum();
        let first = self.lock().take(count).ok_or_else(|| Error::BackingFull(self.path.clone()))?;
        let (mut at, mut parked) = (0, Vec::with_capacity(all.len()));
        for (bytes, form) in all {
            let slots = bytes.div_ceil(SLOT);
            let (object, rest) = buffer[at * SLOT..(at + slots) * SLOT].split_at_mut(*bytes);
            rest.fill(0);
            let serial = self.serial.fetch_add(1, Relaxed);
            let slot = (first + at) as u32;
            let place = Place { slot, offset: 0, key: 0, bytes: *bytes as u32, serial };
            parked.push(Parked { place, tag: seal::seal(&self.key, &place, object), form: *form });
            at += slots;
        }
        self.written_bytes.fetch_max(((first + count) * SLOT) as u64, Relaxed);
        if let Err(errno) = self.with_area(|area| area.write((first * SLOT) as u64, &buffer[..count * SLOT]))
        {
            self.lock().give(first, count);
            let error = io::Error::from_raw_os_error(errno.0.into());
            return Err(Error::Path { path: self.path.clone(), error });
        }
        self.writes.fetch_add(count as u64, Relaxed);
        let mut slots = self.lock();
        parked.into_iter().for_each(|parked| each(slots.name(parked)));
        Ok(())
    }

    /// Reads an object into the beginning of `buffer`, which has room for all of its slots: what lies there then.
    ///
    /// # Errors
    ///
    /// The area does not give it, or gives something else, also when it is asked again.
    pub fn read(&self, id: u32, buffer: &mut [u8]) -> Result<Parked, Damaged> {
        let parked = self.parked(id).ok_or(Damaged::Object)?;
        let whole = &mut buffer[..parked.slots() * SLOT];
        let mut last = Damaged::Seal;
        for _ in 0..TRIES {
            self.reads.fetch_add(parked.slots() as u64, Relaxed);
            last = match self.with_area(|area| area.read(parked.place.at(), whole)) {
                Err(errno) => Damaged::Unread(errno),
                Ok(()) => {
                    let object = &mut whole[..parked.bytes()];
                    match seal::open(&self.key, &parked.place, &parked.tag, object) {
                        Ok(()) => return Ok(parked),
                        Err(seal::Broken) => Damaged::Seal,
                    }
                }
            };
        }
        Err(last)
    }

    /// Forgets an object. Its slots are free.
    pub fn release(&self, id: u32) {
        let mut slots = self.lock();
        if let Some(parked) = slots.parked[id as usize].take() {
            slots.give(parked.place.slot as usize, parked.slots());
            slots.free_ids.push(id);
        }
    }

    /// Recomputes the counts of slots, given the numbers of all objects that blocks refer to.
    ///
    /// # Errors
    ///
    /// Says what does not hold.
    pub fn check(&self, ids: impl Iterator<Item = u32>) -> Result<(), String> {
        let slots = self.lock();
        let mut used = vec![false; self.slots_count];
        let mut count = 0;
        for id in ids {
            let parked = slots.parked.get(id as usize).copied().flatten();
            let parked =
                parked.ok_or_else(|| format!("object {id} of the backing device is referred to and free"))?;
            for slot in parked.place.slots() {
                if std::mem::replace(&mut used[slot as usize], true) {
                    return Err(format!("slot {slot} has two objects"));
                }
                count += 1;
            }
        }
        let is_used = |slot: usize| slots.used[slot / 64] >> (slot % 64) & 1 != 0;
        if let Some(slot) = (0..self.slots_count).find(|slot| is_used(*slot) != used[*slot]) {
            return Err(format!("slot {slot} is used: {}, and referred to: {}", is_used(slot), used[slot]));
        }
        if count != slots.used_count {
            return Err(format!("{count} slots are used, and {} counted", slots.used_count));
        }
        Ok(())
    }

    /// Closes the area, so that others may have it. What lies in it cannot be read any more: a file or block device
    /// that was opened by its path is empty as far as it was written, and beyond has what it had.
    pub fn close(&self) {
        let area = self.area.write().unwrap_or_else(PoisonError::into_inner).take();
        let written = self.written_bytes.load(Relaxed);
        if let Some(area) = area.filter(|_| self.is_owned && written > 0) {
            // Storage that refuses keeps what it has: the next device is told that it holds data.
            let _ = empty(&*area, written);
        }
    }

    fn with_area(&self, ask: impl FnOnce(&dyn Area) -> Result<(), Errno>) -> Result<(), Errno> {
        let area = self.area.read().unwrap_or_else(PoisonError::into_inner);
        area.as_deref().map_or(Err(Errno::ENXIO), |area| ask(area))
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BackingDevice {
    fn drop(&mut self) {
        self.close();
    }
}

impl Slots {
    /// Takes so many free slots in a row: the first.
    fn take(&mut self, count: usize) -> Option<usize> {
        let all = self.used.len() * 64;
        let first = self.find(self.next..all, count).or_else(|| self.find(0..all, count))?;
        (first..first + count).for_each(|slot| self.used[slot / 64] |= 1 << (slot % 64));
        self.used_count += count;
        self.next = first + count;
        Some(first)
    }

    /// So many free slots in a row within a range.
    fn find(&self, within: std::ops::Range<usize>, count: usize) -> Option<usize> {
        let (mut slot, mut run) = (within.start, 0);
        while slot < within.end {
            if slot.is_multiple_of(64) && self.used[slot / 64] == !0 {
                (slot, run) = (slot + 64, 0);
                continue;
            }
            run = if self.used[slot / 64] >> (slot % 64) & 1 == 0 { run + 1 } else { 0 };
            slot += 1;
            if run == count {
                return Some(slot - count);
            }
        }
        None
    }

    fn give(&mut self, first: usize, count: usize) {
        (first..first + count).for_each(|slot| self.used[slot / 64] &= !(1 << (slot % 64)));
        self.used_count -= count;
    }

    /// A number for an object.
    fn name(&mut self, parked: Parked) -> u32 {
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.parked.push(None);
            (self.parked.len() - 1) as u32
        });
        self.parked[id as usize] = Some(parked);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(slots: usize) -> BackingDevice {
        let fd = base::sys::memfd(c"zram").unwrap();
        base::sys::ftruncate(&fd, slots * SLOT).unwrap();
        let area = FileArea::new(DataFile::new(fd).unwrap(), (slots * SLOT) as u64);
        BackingDevice::new("memfd", Box::new(area)).unwrap()
    }

    #[test]
    fn objects_come_back_and_slots_are_used_again() {
        let device = device(70);
        let mut ids = Vec::new();
        for round in 0..3u8 {
            let all = [(SLOT, Form::Page), (5000, Form::Object), (1, Form::Object)];
            let mut buffer = vec![round; 4 * SLOT];
            device.write(&mut buffer, &all, |id| ids.push(id)).unwrap();
        }
        assert_eq!((device.used_slots(), ids.len()), (12, 9));
        device.check(ids.iter().copied()).unwrap();
        let mut buffer = vec![0; 2 * SLOT];
        let parked = device.read(ids[4], &mut buffer).unwrap();
        assert_eq!((parked.bytes(), parked.form(), parked.slots()), (5000, Form::Object, 2));
        assert!(buffer[..5000].iter().all(|byte| *byte == 1));
        ids.drain(3..6).for_each(|id| device.release(id));
        device.check(ids.iter().copied()).unwrap();
        assert_eq!(device.used_slots(), 8);
        assert!(device.read(4, &mut buffer).is_err(), "it was released");
        let mut buffer = vec![9; 62 * SLOT];
        let full = device.write(&mut buffer, &[(62 * SLOT, Form::Object)], |_| ());
        assert!(matches!(full, Err(Error::BackingFull(_))));
        device.write(&mut buffer, &[(58 * SLOT, Form::Object)], |id| ids.push(id)).unwrap();
        device.write(&mut buffer, &[(4 * SLOT, Form::Object)], |id| ids.push(id)).unwrap();
        device.check(ids.iter().copied()).unwrap();
        assert_eq!(device.used_slots(), 70);
        assert!(matches!(device.write(&mut buffer, &[(1, Form::Page)], |_| ()), Err(Error::BackingFull(_))));
    }
}
