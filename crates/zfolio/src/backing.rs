//! Where memory goes that leaves RAM: `PATH[,size=SIZE][,prio=N][,encrypt=yes][,force]`.
//!
//! | PATH | what is used | size, where none is given |
//! | --- | --- | --- |
//! | a directory | a file in it without a name: gone with the run, however that ends | see [`default_bytes`] |
//! | a file | the file, which is left as a hole | its own; of an empty file, as in a directory |
//! | a block device | the device | its own |
//!
//! What holds anything but zeros is refused, unless `force` is given, and so is what lies in memory (tmpfs). What is
//! mounted, swapped to, or another run's is refused in any case. O_DIRECT is used where the file system has it.

use crate::size::{Bytes, FORMS, LEAST_BYTES, Size};
use anyhow::{Context, Result, bail};
use base::Fd;
use base::sys::DataFile;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use swap::{Area, FileArea};

/// The form, for messages.
const FORM: &str = "expected PATH[,size=SIZE][,prio=N][,encrypt=yes][,force]";

/// The highest priority, as swapon has it.
const PRIORITY_MAX: i32 = 32767;

/// An area as the user gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Backing {
    path: PathBuf,
    size: Option<Size>,
    priority: i32,
    force: bool,
}

/// An area that is open.
#[derive(Debug)]
pub struct Opened {
    /// As the user names it.
    pub path: PathBuf,
    /// The storage.
    pub area: FileArea,
    /// Areas of higher priorities are used first.
    pub priority: i32,
    /// True for a file of the user's, which is left without contents.
    is_emptied: bool,
}

impl Opened {
    /// Leaves the contents as they are. True for a file of the user's, which the caller then empties.
    pub fn leave(&mut self) -> bool {
        std::mem::take(&mut self.is_emptied)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.is_emptied {
            // A file system without holes keeps the blocks: there is nobody to tell.
            let _ = self.area.discard(0, self.area.bytes());
        }
    }
}

impl Backing {
    /// Reads an area. The error is one line that says what is right. A path with a comma cannot be given.
    pub fn parse(text: &str) -> Result<Backing, String> {
        let mut parts = text.split(',');
        let path = PathBuf::from(parts.next().unwrap_or_default());
        if path.as_os_str().is_empty() {
            return Err(format!("no path; {FORM}"));
        }
        let mut backing = Backing { path, size: None, priority: 0, force: false };
        let mut names = Vec::new();
        for part in parts {
            let (name, value) =
                part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value)));
            if names.contains(&name) {
                return Err(format!("{name} is given twice"));
            }
            names.push(name);
            match (name, value) {
                ("size", Some(value)) => {
                    backing.size =
                        Some(Size::parse(value).map_err(|_| format!("size={value}: expected {FORMS}"))?)
                }
                ("prio", Some(value)) => {
                    let number = value.parse().ok().filter(|number| (0..=PRIORITY_MAX).contains(number));
                    backing.priority =
                        number.ok_or_else(|| format!("prio={value}: expected 0 to {PRIORITY_MAX}"))?;
                }
                ("encrypt", Some("yes")) => {}
                ("encrypt", _) => {
                    return Err(format!("{part}: expected encrypt=yes, as all that leaves RAM is encrypted"));
                }
                ("force", None) => backing.force = true,
                _ => return Err(format!("{part:?} is no option of an area; {FORM}")),
            }
        }
        Ok(backing)
    }

    /// Opens the area. Errors say what has been found, and what can be done.
    pub fn open(&self) -> Result<Opened> {
        let path = self.path.display();
        let found = fs::metadata(&self.path).with_context(|| format!("{path}: cannot be used as an area"))?;
        let (file, bytes, is_emptied) = if found.is_dir() {
            self.expect_disk()?;
            let file = open_direct(|direct| unnamed(&self.path, direct))
                .with_context(|| format!("{path}: no file can be made in it"))?;
            let free = free_bytes(&self.path)?;
            let bytes = self.bytes(default_bytes(free), free)?;
            file.set_len(bytes).with_context(|| format!("{path}: no file of {}", Bytes(bytes)))?;
            (file, bytes, false)
        } else if found.is_file() {
            let file = self.open_file()?;
            self.expect_disk()?;
            let (length, free) = (found.len(), free_bytes(&self.path)?);
            let bytes = match length {
                0 => self.bytes(default_bytes(free), free)?,
                _ => self.bytes(length, length + free)?,
            };
            if bytes > length {
                file.set_len(bytes).with_context(|| format!("{path}: no file of {}", Bytes(bytes)))?;
            }
            (file, bytes, true)
        } else if found.file_type().is_block_device() {
            let file = self.open_device(&found)?;
            let length = DataFile::new(fd(file.try_clone()?)).and_then(|file| file.size());
            let length = length.map_err(|errno| anyhow::anyhow!("{path}: {errno}"))?;
            (file, self.bytes(length, length)?, false)
        } else {
            bail!("{path}: expected a directory, a file or a block device");
        };
        let file =
            DataFile::new(fd(file)).map_err(|errno| anyhow::anyhow!("{path}: holds no data: {errno}"))?;
        let area = FileArea::new(file, bytes);
        Ok(Opened { path: self.path.clone(), area, priority: self.priority, is_emptied })
    }

    /// The size in bytes, whole clusters: what is asked for, or else what is usual here. A share is of `most`.
    fn bytes(&self, usual: u64, most: u64) -> Result<u64> {
        let bytes = match self.size {
            None => usual,
            Some(Size::Bytes(bytes)) => bytes,
            Some(Size::Percent(percent)) => (most as f64 * percent / 100.0) as u64,
        };
        if !(LEAST_BYTES..=most).contains(&bytes) {
            let (path, least) = (self.path.display(), Bytes(LEAST_BYTES));
            bail!(
                "{path}: a size of {}, expected {least} to {}, which is what fits there",
                Bytes(bytes),
                Bytes(most)
            );
        }
        Ok(bytes / swap::CLUSTER_BYTES * swap::CLUSTER_BYTES)
    }

    /// A file of the user's, locked for as long as it is open.
    fn open_file(&self) -> Result<File> {
        let path = self.path.display();
        self.expect_no_swap()?;
        self.expect_empty()?;
        let file = open_direct(|direct| options(direct).open(&self.path))
            .with_context(|| format!("{path}: cannot be opened for writing"))?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("{path}: another run or program has a lock on the file");
        }
        Ok(file)
    }

    /// A device that nothing else has.
    fn open_device(&self, _found: &Metadata) -> Result<File> {
        let path = self.path.display();
        self.expect_no_swap()?;
        let exclusive = |direct: OFlags| options(direct | OFlags::EXCL).open(&self.path);
        let file = match open_direct(exclusive) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                bail!("{path}: mounted, or in use by another program")
            }
            opened => opened.with_context(|| format!("{path}: cannot be opened for writing"))?,
        };
        self.expect_empty()?;
        Ok(file)
    }

    /// Refuses what lies in memory, unless that has been forced.
    fn expect_disk(&self) -> Result<()> {
        if !self.force && is_in_memory(&self.path)? {
            let path = self.path.display();
            bail!(
                "{path}: its files are memory (tmpfs); a directory on a disk such as /var/tmp helps, or ,force"
            );
        }
        Ok(())
    }

    /// Refuses what the machine swaps to.
    fn expect_no_swap(&self) -> Result<()> {
        let own = fs::canonicalize(&self.path)?;
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        if swaps
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next())
            .any(|path| Path::new(path) == own)
        {
            bail!("{}: the machine swaps to it; swapoff first", self.path.display());
        }
        Ok(())
    }

    /// Refuses what holds anything, unless that has been forced.
    fn expect_empty(&self) -> Result<()> {
        let found = File::open(&self.path).and_then(|mut file| contents(&mut file));
        match found.with_context(|| format!("{}: cannot be read", self.path.display()))? {
            Some(what) if !self.force => {
                bail!("{}: holds {what}, which would be lost; with ,force it is used", self.path.display())
            }
            _ => Ok(()),
        }
    }
}

/// The size of a file that is made, given the bytes that are free on its file system: half of them, because others
/// write there too, and no more than four times RAM: with more of its memory out, a program does nothing but wait. The
/// file takes only what is written.
fn default_bytes(free: u64) -> u64 {
    let system = rustix::system::sysinfo();
    let ram = system.totalram * system.mem_unit as u64;
    (free / 2).min(ram.saturating_mul(4))
}

fn free_bytes(path: &Path) -> Result<u64> {
    let of = rustix::fs::statvfs(path).with_context(|| format!("{}", path.display()))?;
    Ok(of.f_bavail * of.f_frsize)
}

/// True where files are memory that is not the program's: what goes there stays in RAM.
fn is_in_memory(path: &Path) -> Result<bool> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let of = rustix::fs::statfs(path).with_context(|| format!("{}", path.display()))?;
    Ok([TMPFS, RAMFS].contains(&(of.f_type as u64)))
}

/// Opens with O_DIRECT, or without it where the file system has none.
fn open_direct(open: impl Fn(OFlags) -> io::Result<File>) -> io::Result<File> {
    match open(OFlags::DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(OFlags::empty()),
        opened => opened,
    }
}

fn options(flags: OFlags) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags.bits() as i32);
    options
}

/// A file in a directory that has no name, or loses it at once.
fn unnamed(directory: &Path, direct: OFlags) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | direct;
    match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => return Ok(File::from(fd)),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {}
        Err(errno) => return Err(errno.into()),
    }
    named_once(directory, direct)
}

/// Where a file system makes no file without a name.
fn named_once(directory: &Path, direct: OFlags) -> io::Result<File> {
    for n in 0.. {
        let path = directory.join(format!(".zfolio-{}-{n}", std::process::id()));
        match options(direct).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => {
                // The file may have been made before O_DIRECT was refused.
                let _ = fs::remove_file(&path);
                return Err(error);
            }
            Ok(file) => return fs::remove_file(&path).map(|()| file),
        }
    }
    unreachable!("there are more numbers than files")
}

fn fd(file: File) -> Fd {
    Fd::own(file.into_raw_fd() as usize)
}

/// What a file or device holds; `None` where it is zeros at the beginning and at the end.
fn contents(file: &mut File) -> io::Result<Option<&'static str>> {
    let bytes = file.seek(SeekFrom::End(0))?;
    swap::contents::contents(bytes, |at, to| file.read_exact_at(to, at))
}

#[cfg(test)]
mod tests;
