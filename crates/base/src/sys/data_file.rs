//! A file or block device that holds data, and nothing else: writing to it changes no memory of a process.

use super::{Errno, Fd, Result};
use linux_raw_sys::general as g;
use linux_raw_sys::ioctl::{BLKDISCARD, BLKGETSIZE64};

/// File systems whose regular files are something else than data, by their numbers in statfs: proc (/proc/PID/mem),
/// sysfs, debugfs, tracefs.
const NO_DATA: [u64; 4] = [0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163];

/// Bytes of which offset, length and address must be multiples, where the kernel does not say.
const ALIGN: u32 = 4096;

/// A regular file or a block device.
#[derive(Debug)]
pub struct DataFile {
    fd: Fd,
    is_device: bool,
    align: u32,
}

impl DataFile {
    /// The file of a descriptor. EINVAL: it is neither a file of data nor a block device.
    pub fn new(fd: Fd) -> Result<DataFile> {
        // SAFETY: plain integers, of any value.
        let mut of: g::statfs = unsafe { core::mem::zeroed() };
        // SAFETY: the kernel writes the structure.
        unsafe { call!(__NR_fstatfs, fd.raw(), &raw mut of) }?;
        let stat = statx(&fd)?;
        let is_device = match stat.stx_mode as u32 & g::S_IFMT {
            g::S_IFREG if !NO_DATA.contains(&(of.f_type as u64)) => false,
            g::S_IFBLK => true,
            _ => return Err(Errno::EINVAL),
        };
        // SAFETY: the flags of an open file are no memory.
        let flags = unsafe { call!(__NR_fcntl, fd.raw(), g::F_GETFL, 0) }?;
        let told = stat.stx_dio_mem_align.max(stat.stx_dio_offset_align);
        let align = match (flags as u32 & g::O_DIRECT != 0, stat.stx_mask & g::STATX_DIOALIGN != 0) {
            (false, _) => 1,
            (true, true) if told > 0 => told,
            (true, _) => ALIGN,
        };
        Ok(DataFile { fd, is_device, align })
    }

    /// True for a block device.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// Bytes of which offsets, lengths and addresses must be multiples: 1 unless the file is open with O_DIRECT.
    pub fn align(&self) -> usize {
        self.align as usize
    }

    /// Its size in bytes.
    pub fn size(&self) -> Result<u64> {
        if !self.is_device {
            return Ok(statx(&self.fd)?.stx_size);
        }
        let mut bytes = 0u64;
        // SAFETY: BLKGETSIZE64 writes a u64, which is there.
        unsafe { call!(__NR_ioctl, self.fd.raw(), BLKGETSIZE64, &raw mut bytes) }?;
        Ok(bytes)
    }

    /// Reads at an offset in bytes; how many it was.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        // SAFETY: the kernel writes to the buffer, whose length it is told.
        unsafe { call!(__NR_pread64, self.fd.raw(), buffer.as_mut_ptr(), buffer.len(), offset) }
    }

    /// Writes at an offset in bytes; how many it was.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        // SAFETY: the kernel reads the bytes, whose number it is told, and what it writes to is data: no memory but a
        // shared mapping of the file, which is not Rust's own.
        unsafe { call!(__NR_pwrite64, self.fd.raw(), bytes.as_ptr(), bytes.len(), offset) }
    }

    /// Has the storage forget a range of bytes: a hole in a file, a discard of a device's sectors. EOPNOTSUPP where
    /// there is no such thing.
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        if self.is_device {
            let mut range = [offset, bytes];
            // SAFETY: BLKDISCARD reads two u64, which are there; what it loses is data.
            return unsafe { call!(__NR_ioctl, self.fd.raw(), BLKDISCARD, range.as_mut_ptr()) }.map(drop);
        }
        let mode = g::FALLOC_FL_PUNCH_HOLE | g::FALLOC_FL_KEEP_SIZE;
        // SAFETY: as for a write: what is lost is data.
        unsafe { call!(__NR_fallocate, self.fd.raw(), mode, offset, bytes) }.map(drop)
    }

    /// The descriptor, for calls that change no data.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }
}

fn statx(fd: &Fd) -> Result<g::statx> {
    // SAFETY: plain integers, of any value.
    let mut stat: g::statx = unsafe { core::mem::zeroed() };
    let wanted = g::STATX_TYPE | g::STATX_SIZE | g::STATX_DIOALIGN;
    // SAFETY: the kernel reads an empty path, and writes the structure.
    unsafe { call!(__NR_statx, fd.raw(), c"".as_ptr(), g::AT_EMPTY_PATH, wanted, &raw mut stat) }?;
    Ok(stat)
}

#[cfg(test)]
mod tests {
    use super::super::{consts, eventfd, ftruncate, memfd, open};
    use super::*;

    #[test]
    fn a_file_is_written_read_and_has_holes() {
        let fd = memfd(c"data").unwrap();
        ftruncate(&fd, 1 << 20).unwrap();
        let file = DataFile::new(fd).unwrap();
        assert_eq!((file.is_device(), file.align(), file.size()), (false, 1, Ok(1 << 20)));
        assert_eq!(file.write_at(&[7; 8192], 4096), Ok(8192));
        file.discard(8192, 4096).unwrap();
        let mut read = [1; 12288];
        assert_eq!(file.read_at(&mut read, 4096), Ok(12288));
        assert!(read[..4096].iter().all(|byte| *byte == 7) && read[4096..].iter().all(|byte| *byte == 0));
        assert_eq!(file.read_at(&mut read, 1 << 20), Ok(0));
        assert_eq!(file.size(), Ok(1 << 20));
    }

    #[test]
    fn what_holds_no_data_is_refused() {
        for path in [&b"/proc/self/mem\0"[..], b"/proc/self/clear_refs\0", b"/dev/null\0", b"/\0"] {
            let Ok(fd) = open(path, consts::O_RDONLY).or_else(|_| open(path, consts::O_WRONLY)) else {
                continue;
            };
            assert_eq!(DataFile::new(fd).err(), Some(Errno::EINVAL), "{}", path.escape_ascii());
        }
        assert_eq!(DataFile::new(eventfd().unwrap()).err(), Some(Errno::EINVAL));
    }
}
