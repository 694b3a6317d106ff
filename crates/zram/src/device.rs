//! A device: what front ends and users ask of it.

use crate::accelerator::Accelerator;
use crate::backing::BackingDevice;
use crate::disk::{Cursor, Disk, read_header};
use crate::error::Error;
use crate::extent::Extent;
use crate::log::Log;
use crate::request::expect_within;
use crate::scratch::Scratch;
use crate::settings::Settings;
use crate::stats::Stats;
use crate::tunables::Tunables;
use crate::worker::Worker;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use swap::Area;
use zsmalloc::{Anonymous, Backing};

mod attributes;
mod commands;

pub use attributes::{ATTRIBUTES, Access, Attribute};

/// A compressed block device. Any number of threads use it at once, each with a [`Worker`] of its own.
///
/// A new device has no disksize: it refuses requests with [`Error::NotInitialised`] until `disksize` is set. What can
/// only be chosen before that is refused with [`Error::Busy`] afterwards, until `reset`.
pub struct Device<B: Backing = Anonymous> {
    memory: Box<dyn Fn() -> B + Send + Sync>,
    tunables: Arc<Tunables>,
    log: Log,
    accelerator: Arc<Accelerator>,
    /// The number of the disk that workers serve, or one that no disk has. It changes under `control`.
    number: AtomicU64,
    control: Mutex<Control<B>>,
    keeper: Mutex<Keeper>,
}

/// What is chosen for the next disk, and the disk.
struct Control<B: Backing> {
    settings: Settings,
    backing: Option<BackingDevice>,
    disk: Option<Arc<Disk<B>>>,
}

/// What recompression, writeback and ticks work with, one at a time.
#[derive(Default)]
struct Keeper {
    /// For the disk of this number.
    scratch: Option<(u64, Scratch)>,
    cursor: Cursor,
}

/// Numbers of disks: no two of the process have the same.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Zeros for parts of two blocks.
static ZEROS: [u8; 2 * crate::BLOCK] = [0; 2 * crate::BLOCK];

impl Device {
    /// A device whose pool is private anonymous memory.
    pub fn new() -> Device {
        Device::with_backing(|| Anonymous)
    }
}

impl Default for Device {
    fn default() -> Device {
        Device::new()
    }
}

/// # Requests
///
/// `offset` and lengths are in bytes and need no alignment; whole blocks cost least. An empty request succeeds. Each
/// request is refused with [`Error::Outside`] as a whole if part of it is outside the device, and with
/// [`Error::NotInitialised`] before `disksize` is set.
impl<B: Backing> Device<B> {
    /// A device whose pools take their memory from what `backing` makes, one for each time that `disksize` is set.
    pub fn with_backing(backing: impl Fn() -> B + Send + Sync + 'static) -> Device<B> {
        let log: Log = Arc::new(|line| eprintln!("zram: {line}"));
        let own = Accelerator::new(Arc::new(|config| acomp::open_device("", config)), log.clone());
        Device {
            memory: Box::new(backing),
            tunables: Arc::default(),
            log,
            accelerator: Arc::new(own),
            number: AtomicU64::new(NUMBERS.fetch_add(1, Relaxed)),
            control: Mutex::new(Control { settings: Settings::default(), backing: None, disk: None }),
            keeper: Mutex::default(),
        }
    }

    /// Has what happens once for a damaged block, or for a backing device that fails, told to `log`, one line each.
    /// Otherwise the lines go to the standard error output.
    pub fn log_to(self, log: impl Fn(&str) + Send + Sync + 'static) -> Device<B> {
        let log: Log = Arc::new(log);
        let accelerator = Arc::new(Accelerator::new(self.accelerator.open(), log.clone()));
        Device { log, accelerator, ..self }
    }

    /// Has algorithms that are made for an accelerator use what `open` comes by, instead of this machine's own devices.
    pub fn accelerate_by(
        self,
        open: impl Fn(iaa::Config) -> Option<Arc<iaa::Driver>> + Send + Sync + 'static,
    ) -> Device<B> {
        let accelerator = Arc::new(Accelerator::new(Arc::new(open), self.log.clone()));
        Device { accelerator, ..self }
    }

    /// What one thread serves the device with. A worker goes on over a `reset`.
    pub fn worker(&self) -> Worker<B> {
        Worker::new()
    }

    /// Size of the device in bytes; 0 before `disksize` is set.
    pub fn disksize_bytes(&self) -> u64 {
        self.control().disk.as_ref().map_or(0, |disk| disk.disksize_bytes())
    }

    /// Reads `to.len()` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] names the first block that cannot be read; all other blocks of the range are read all the
    /// same.
    pub fn read(&self, worker: &mut Worker<B>, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        self.serve(worker, |disk, scratch| disk.read(scratch, offset, to))
    }

    /// Writes all of `from`. When it returns, every later read by any worker sees it.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`]: each block holds what it held, or what was to be written. [`Error::Damaged`]: part of a
    /// block was to be written of which the rest cannot be read.
    pub fn write(&self, worker: &mut Worker<B>, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.serve(worker, |disk, scratch| disk.write(scratch, offset, from))
    }

    /// Forgets the blocks that are within the range as a whole: they are holes then, and read as zeros.
    ///
    /// # Errors
    ///
    /// Those of all requests.
    pub fn discard(&self, worker: &mut Worker<B>, offset: u64, len_bytes: u64) -> Result<(), Error> {
        self.serve(worker, |disk, scratch| disk.discard(scratch, offset, len_bytes))
    }

    /// Makes the range zeros. Blocks that are within it as a whole become holes.
    ///
    /// # Errors
    ///
    /// As for [`Device::write`], of parts of blocks at the ends.
    pub fn write_zeroes(&self, worker: &mut Worker<B>, offset: u64, len_bytes: u64) -> Result<(), Error> {
        self.serve(worker, |disk, scratch| {
            expect_within(offset, len_bytes, disk.disksize_bytes())?;
            let block = crate::BLOCK as u64;
            let (first, end) = (offset.next_multiple_of(block), (offset + len_bytes) / block * block);
            let ends = if first < end {
                disk.discard(scratch, first, end - first)?;
                [offset..first, end..offset + len_bytes]
            } else {
                [offset..offset + len_bytes, 0..0]
            };
            ends.into_iter().try_for_each(|range| {
                let len = (range.end - range.start) as usize;
                disk.write(scratch, range.start, &ZEROS[..len])
            })
        })
    }

    /// Succeeds at once: what was acknowledged is where it is to be, in RAM.
    ///
    /// # Errors
    ///
    /// [`Error::NotInitialised`].
    pub fn flush(&self, worker: &mut Worker<B>) -> Result<(), Error> {
        self.serve(worker, |_, _| Ok(()))
    }

    /// What the range holds, from its beginning on: at most `extents_max` extents, each of another content than the one
    /// before it. They end within the range, and before its end only if there are more. Blocks are told as a whole.
    ///
    /// # Errors
    ///
    /// Those of all requests.
    pub fn status(
        &self,
        worker: &mut Worker<B>,
        offset: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, Error> {
        self.serve(worker, |disk, _| disk.extents(offset, len_bytes, extents_max))
    }
}

/// # Control
impl<B: Backing> Device<B> {
    /// Has what leaves RAM go to an area that somebody has opened, as `backing_dev` has for a path. `name` is what
    /// `backing_dev` shows.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if the device has a disksize; [`Error::Path`] if the area is too small.
    pub fn set_backing(&self, name: &str, area: Box<dyn Area + Send + Sync>) -> Result<(), Error> {
        self.replace_backing(|| BackingDevice::new(name, area).map(Some))
    }

    /// Sets an attribute of [`ATTRIBUTES`], as writing to a file of `/sys/block/zram0` does. Blanks around the value do
    /// not count.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] says what is accepted, [`Error::Busy`] why it cannot be set now.
    pub fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        self.set_attribute(name, value.trim())
    }

    /// An attribute as text, in the kernel's form, without a line end at the end.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: there is no such attribute, or it cannot be shown.
    pub fn show(&self, name: &str) -> Result<String, Error> {
        self.show_attribute(name)
    }

    /// True if both have the same algorithms, levels and dictionaries, of each priority.
    pub fn compresses_as(&self, other: &Device<B>) -> bool {
        let others = other.control().settings.clone();
        self.control().settings == others
    }

    /// The figures of mm_stat, io_stat and bd_stat; all 0 before `disksize` is set.
    pub fn stats(&self) -> Stats {
        self.control().disk.as_ref().map(|disk| disk.stats()).unwrap_or_default()
    }

    /// Says what time it is, from any beginning on. A front end calls this once a second: by it the age of blocks is
    /// known, and the work is done that `auto_recompress` and `auto_writeback` ask for, `auto_max_pages` at most.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] for a compressor. What the backing device refuses is told to the log alone.
    pub fn tick(&self, now: Duration) -> Result<(), Error> {
        self.tunables.now_s.store(now.as_secs().try_into().unwrap_or(u32::MAX), Relaxed);
        let keeper = match self.keeper.try_lock() {
            Ok(keeper) => keeper,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // A command works on the device already: the next tick will do.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        match self.keep_with(keeper, |disk, scratch, cursor| disk.tick(scratch, cursor)) {
            Err(Error::NotInitialised) => Ok(()),
            done => done,
        }
    }

    /// Writes all that the device holds, so that [`Device::load`] makes the same device of it. What others write
    /// meanwhile is saved or not, each group of 16 blocks as of one moment.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of `to`. A block that cannot be read is told to the log, and cannot be read of the other device
    /// either.
    pub fn save(&self, to: &mut impl Write) -> Result<(), Error> {
        let disk = self.control().disk.clone().ok_or(Error::NotInitialised)?;
        disk.save(&mut disk.scratch(), to)
    }

    /// Fills a device that has no disksize with what [`Device::save`] wrote. What `mem_limit` leaves no room for goes
    /// to the backing device, if there is one. After an error it has no disksize, as before.
    ///
    /// # Errors
    ///
    /// [`Error::NotSaved`] if anything is damaged or missing; [`Error::NoSpace`], [`Error::NoMemory`];
    /// [`Error::Busy`] if the device has a disksize, or `writeback_limit` is used up; [`Error::BackingFull`], and
    /// [`Error::Path`] if the backing device refuses.
    pub fn load(&self, from: &mut impl Read) -> Result<(), Error> {
        let header = read_header(from)?;
        let mut control = self.control();
        if control.disk.is_some() {
            return Err(INITIALISED);
        }
        let disk =
            self.make_disk(&mut control, (header.disksize_bytes, header.seed), header.settings.clone())?;
        match disk.load_groups(&mut disk.scratch(), from) {
            Ok(()) => {
                control.settings = header.settings;
                self.start(&mut control, disk);
                Ok(())
            }
            Err(error) => {
                control.backing = disk.into_backing();
                Err(error)
            }
        }
    }

    /// Closes the backing device for good, at the end of a device that is not used any more: blocks that were written
    /// back cannot be read from then on. What `backing_dev` opened is empty as far as it was written. Commands under
    /// way end with [`Error::NotInitialised`] before this returns.
    pub fn close_backing(&self) {
        let disk = {
            let mut control = self.control();
            control.backing = None;
            control.disk.clone()
        };
        if let Some(disk) = disk {
            disk.stop();
            let _keeper = self.keeper();
            disk.close_backing();
        }
    }

    /// Recomputes every counter and reference. Only while no other thread uses the device; for tests.
    ///
    /// # Errors
    ///
    /// Says what does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let disk = self.control().disk.clone();
        disk.map_or(Ok(()), |disk| disk.check())
    }
}

/// Why something can only be chosen earlier.
const INITIALISED: Error = Error::Busy("the device has a disksize: reset it first");

impl<B: Backing> Device<B> {
    fn control(&self) -> MutexGuard<'_, Control<B>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a request. The fast path reads one number that seldom changes, and takes no lock.
    fn serve<T>(
        &self,
        worker: &mut Worker<B>,
        request: impl FnOnce(&Disk<B>, &mut Scratch) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let serves = worker.serves(self.number.load(Acquire), || {
            let control = self.control();
            control.disk.clone().map(|disk| (self.number.load(Acquire), disk))
        });
        let serves = serves.ok_or(Error::NotInitialised)?;
        request(&serves.disk, &mut serves.scratch)
    }

    fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a command that one thread at a time does: it waits for others.
    fn keep<T>(
        &self,
        work: impl FnOnce(&Disk<B>, &mut Scratch, &mut Cursor) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.keep_with(self.keeper(), work)
    }

    /// Does what one thread at a time does: commands and ticks.
    fn keep_with<T>(
        &self,
        mut keeper: MutexGuard<'_, Keeper>,
        work: impl FnOnce(&Disk<B>, &mut Scratch, &mut Cursor) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (number, disk) = {
            let control = self.control();
            (self.number.load(Acquire), control.disk.clone().ok_or(Error::NotInitialised)?)
        };
        if keeper.scratch.as_ref().is_none_or(|(of, _)| *of != number) {
            *keeper = Keeper { scratch: Some((number, disk.scratch())), cursor: Cursor::default() };
        }
        let Keeper { scratch, cursor } = &mut *keeper;
        let (_, scratch) = scratch.as_mut().expect("it was made");
        work(&disk, scratch, cursor)
    }

    /// Makes a disk of what has been chosen; its backing device is the one that was chosen.
    fn make_disk(
        &self,
        control: &mut Control<B>,
        of: (u64, u64),
        settings: Settings,
    ) -> Result<Disk<B>, Error> {
        let (memory, tunables, log) = ((self.memory)(), self.tunables.clone(), self.log.clone());
        let disk = Disk::new(of, settings, tunables, memory, log, self.accelerator.clone())?;
        Ok(disk.with_backing(control.backing.take()))
    }

    /// Has workers serve a disk from now on.
    fn start(&self, control: &mut Control<B>, disk: Disk<B>) {
        control.disk = Some(Arc::new(disk));
        self.number.store(NUMBERS.fetch_add(1, Relaxed), Release);
    }

    /// Gives the device its size.
    fn initialise(&self, disksize_bytes: u64) -> Result<(), Error> {
        let mut control = self.control();
        if control.disk.is_some() {
            return Err(INITIALISED);
        }
        let mut seed = [0; 8];
        base::sys::getrandom(&mut seed, 0).map_err(|_| Error::NoMemory)?;
        let settings = control.settings.clone();
        let disk = self.make_disk(&mut control, (disksize_bytes, u64::from_le_bytes(seed)), settings)?;
        self.start(&mut control, disk);
        Ok(())
    }

    /// Makes it the device that it was when it was new. What workers do meanwhile is lost, as all else. Commands under
    /// way end with [`Error::NotInitialised`] before this returns.
    fn reset(&self) {
        let disk = {
            let mut control = self.control();
            control.settings = Settings::default();
            control.backing = None;
            self.tunables.reset();
            self.number.store(NUMBERS.fetch_add(1, Relaxed), Release);
            control.disk.take()
        };
        if let Some(disk) = disk {
            disk.stop();
            let mut keeper = self.keeper();
            *keeper = Keeper::default();
            disk.clear();
        }
    }

    /// Chooses the backing device, as long as there is no disk.
    fn replace_backing(
        &self,
        make: impl FnOnce() -> Result<Option<BackingDevice>, Error>,
    ) -> Result<(), Error> {
        let mut control = self.control();
        if control.disk.is_some() {
            return Err(INITIALISED);
        }
        control.backing = make()?;
        Ok(())
    }
}

#[cfg(test)]
impl<B: Backing> Device<B> {
    /// As [`Disk::damage`].
    pub(crate) fn damage(&self, block: u64, at: usize) -> bool {
        self.control().disk.as_ref().is_some_and(|disk| disk.damage(block, at))
    }
}
