//! Which devices and queues there are: what accel-config has set up, read from sysfs.
//! Documentation/ABI/stable/sysfs-driver-dma-idxd.
//!
//! ```text
//!   ROOT/sys/bus/dsa/devices/iax1/              state numa_node max_transfer_size version ..
//!   ROOT/sys/bus/dsa/devices/iax1/wq1.0/        state mode type size threshold name driver_name max_transfer_size block_on_fault ..
//!   ROOT/sys/bus/dsa/devices/iax1/engine1.0/    group_id
//!   ROOT/dev/iax/wq1.0                          the queue's file
//! ```

use crate::order;
use alloc::string::String;
use alloc::vec::Vec;
use base::sys::{self, Errno, consts};
use core::fmt;

/// A device of this kind: an IAA. (Its name says iax: what it was called before.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The X of iaxX.
    pub id: u32,
    /// Set up and running.
    pub enabled: bool,
    /// The memory node that it is at; `None` where the firmware does not say.
    pub node: Option<u32>,
    /// The largest input that the device takes, in bytes.
    pub transfer_max_bytes: u64,
    /// Entries for all its queues together.
    pub size: u32,
    /// Engines that are in a group.
    pub engines: u32,
    /// It can work in a process's address space.
    pub pasid_enabled: bool,
    /// Its queues, by number.
    pub queues: Vec<WorkQueue>,
}

/// A work queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkQueue {
    /// The X of wqX.Y: the device.
    pub device: u32,
    /// The Y.
    pub id: u32,
    /// Set up and running.
    pub enabled: bool,
    /// One process's alone, who writes with MOVDIR64B; otherwise shared, with ENQCMD.
    pub dedicated: bool,
    /// `user` for a queue that processes may open; `kernel`, `mdev` or `none`.
    pub kind: String,
    /// What accel-config named it.
    pub name: String,
    /// The driver that it is bound to; empty on kernels before 6.7.
    pub driver: String,
    /// Entries.
    pub size: u32,
    /// How many of them a process without privilege may fill, if shared.
    pub threshold: u32,
    /// The largest input, in bytes.
    pub transfer_max_bytes: u64,
    /// Operations in a batch descriptor; IAA has none, and this is 0.
    pub batch_max: u32,
    /// The device may wait for missing pages.
    pub block_on_fault: bool,
}

/// Why a queue cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Its device is not enabled.
    DeviceDisabled,
    /// It is not enabled.
    Disabled,
    /// It is the kernel's, or a virtual machine's.
    NotForUsers,
    /// It has no entries.
    Empty,
    /// The device cannot work in a process's address space.
    NoSharedAddresses,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unusable::DeviceDisabled => "its device is disabled",
            Unusable::Disabled => "it is disabled",
            Unusable::NotForUsers => "it is not of type user",
            Unusable::Empty => "it has no entries",
            Unusable::NoSharedAddresses => {
                "the device is not given processes' address spaces (intel_iommu=on,sm_on)"
            }
        })
    }
}

impl WorkQueue {
    /// The queue's file, from `root` on, with a NUL.
    pub fn path(&self, root: &str) -> Vec<u8> {
        queue_path(root, self.device, self.id)
    }

    /// Says why the queue cannot be used, as far as sysfs tells.
    pub fn check_usable(&self, device: &Device) -> Result<(), Unusable> {
        if !device.enabled {
            Err(Unusable::DeviceDisabled)
        } else if !self.enabled {
            Err(Unusable::Disabled)
        } else if self.kind != "user" {
            Err(Unusable::NotForUsers)
        } else if self.size == 0 {
            Err(Unusable::Empty)
        } else if !device.pasid_enabled {
            Err(Unusable::NoSharedAddresses)
        } else {
            Ok(())
        }
    }
}

/// Its name: wqX.Y.
impl fmt::Display for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wq{}.{}", self.device, self.id)
    }
}

use alloc::string::ToString;

/// All IAA devices, by number; none where the driver (idxd) is not loaded.
///
/// # Errors
/// What open(2) or getdents(2) says of the list of devices, other than that it does not exist.
pub fn discover(root: &str) -> Result<Vec<Device>, Errno> {
    let list = [root, "/sys/bus/dsa/devices"].concat();
    let names = match names_in(&list) {
        Err(Errno::ENOENT) => return Ok(Vec::new()),
        other => other?,
    };
    let mut devices: Vec<Device> = names
        .iter()
        .filter_map(|name| name.strip_prefix("iax").and_then(|id| id.parse().ok()))
        .map(|id| read_device(&list, id))
        .collect();
    order::sort_by_key(&mut devices, |device| device.id);
    Ok(devices)
}

/// What changes when a device or a queue comes, goes, is enabled or disabled, in a number: much quicker to have than
/// all that [`discover`] reads.
pub fn states(root: &str) -> u64 {
    let list = [root, "/sys/bus/dsa/devices"].concat();
    let mut states = Sum::default();
    for device in names_in(&list).unwrap_or_default().iter().filter(|name| name.starts_with("iax")) {
        let at = [&list, "/", device.as_str()].concat();
        states.add(device);
        states.add(&read(&at, "state"));
        for queue in names_in(&at).unwrap_or_default().iter().filter(|name| name.starts_with("wq")) {
            states.add(queue);
            states.add(&read(&[&at, "/", queue.as_str()].concat(), "state"));
        }
    }
    states.0
}

/// A sum of words in their order: FNV-1a.
pub(crate) struct Sum(pub u64);

impl Default for Sum {
    fn default() -> Self {
        Sum(0xcbf2_9ce4_8422_2325)
    }
}

impl Sum {
    pub fn add(&mut self, word: &str) {
        for byte in word.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

fn read_device(list: &str, id: u32) -> Device {
    let at = [list, "/iax", &id.to_string()].concat();
    let mut queues = Vec::new();
    let mut engines = 0;
    // A device that vanishes meanwhile has no queues.
    for name in names_in(&at).unwrap_or_default() {
        let number = |kind: &str| -> Option<u32> {
            let (device, number) = name.strip_prefix(kind)?.split_once('.')?;
            number.parse().ok().filter(|_| device.parse() == Ok(id))
        };
        if let Some(number) = number("wq") {
            queues.push(read_queue(&[&at, "/", &name].concat(), id, number));
        } else if number("engine").is_some() && read_number(&[&at, "/", &name].concat(), "group_id", -1) >= 0
        {
            engines += 1;
        }
    }
    order::sort_by_key(&mut queues, |queue: &WorkQueue| queue.id);
    Device {
        id,
        enabled: read(&at, "state") == "enabled",
        node: u32::try_from(read_number(&at, "numa_node", -1)).ok(),
        transfer_max_bytes: read_number(&at, "max_transfer_size", 0).unsigned_abs(),
        size: read_number(&at, "max_work_queues_size", 0) as u32,
        engines,
        pasid_enabled: read_number(&at, "pasid_enabled", 0) != 0,
        queues,
    }
}

fn read_queue(at: &str, device: u32, id: u32) -> WorkQueue {
    WorkQueue {
        device,
        id,
        enabled: read(at, "state") == "enabled",
        dedicated: read(at, "mode") == "dedicated",
        kind: read(at, "type"),
        name: read(at, "name"),
        driver: read(at, "driver_name"),
        size: read_number(at, "size", 0) as u32,
        threshold: read_number(at, "threshold", 0) as u32,
        transfer_max_bytes: read_number(at, "max_transfer_size", 0).unsigned_abs(),
        batch_max: read_number(at, "max_batch_size", 0) as u32,
        block_on_fault: read_number(at, "block_on_fault", 0) != 0,
    }
}

/// The file of a queue, from `root` on, with a NUL.
pub(crate) fn queue_path(root: &str, device: u32, id: u32) -> Vec<u8> {
    path(&[root, "/dev/iax/wq", &device.to_string(), ".", &id.to_string()])
}

/// A path for the kernel: its parts, and NUL.
pub(crate) fn path(parts: &[&str]) -> Vec<u8> {
    let mut path = parts.concat().into_bytes();
    path.push(0);
    path
}

/// What is in a directory.
pub(crate) fn names_in(directory: &str) -> Result<Vec<String>, Errno> {
    let directory = sys::open(&path(&[directory]), consts::O_RDONLY | consts::O_DIRECTORY)?;
    let mut names = Vec::new();
    sys::read_dir(&directory, |name| names.extend(core::str::from_utf8(name).map(String::from)))?;
    Ok(names)
}

/// An attribute without its line end; empty where there is none.
pub(crate) fn read(directory: &str, attribute: &str) -> String {
    let mut bytes = [0; 4096];
    let got = sys::open(&path(&[directory, "/", attribute]), consts::O_RDONLY)
        .and_then(|file| sys::read(&file, &mut bytes))
        .unwrap_or(0);
    core::str::from_utf8(&bytes[..got]).unwrap_or("").trim().into()
}

/// An attribute that is a number, decimal or `0x..`; `without` where there is none.
pub(crate) fn read_number(directory: &str, attribute: &str, without: i64) -> i64 {
    let text = read(directory, attribute);
    match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .unwrap_or(without)
}
