//! What a machine has of it, what is missing, and what to run: the facts for `zfolio doctor`.

use crate::cpu::Features;
use crate::portal;
use crate::sysfs::{self, Device, Unusable, WorkQueue};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use base::Errno;
use core::fmt;

/// What was found.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The devices; an error where sysfs could not be read.
    pub devices: Result<Vec<Device>, Errno>,
    /// Each queue's name, and whether it can be used.
    pub queues: Vec<(String, Result<(), Why>)>,
    /// What the CPU can do.
    pub features: Features,
    /// The commands that make it usable, as root; none where it is, or where there is no device.
    pub commands: Vec<String>,
}

/// Why a queue cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Sysfs says so.
    Unusable(Unusable),
    /// Opening its file, or trying whether it takes descriptors, failed.
    Open(Errno),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Unusable(why) => why.fmt(f),
            Why::Open(Errno::EACCES) => f.write_str("its file may not be opened by this user"),
            Why::Open(Errno::ENOENT) => f.write_str("it has no file in /dev/iax"),
            Why::Open(Errno::EBUSY) => f.write_str("it is dedicated, and somebody has it"),
            Why::Open(Errno::EINVAL) => f.write_str(
                "this kernel takes no write(2), and mapping needs CAP_SYS_RAWIO and the CPU's instruction",
            ),
            Why::Open(errno) => write!(f, "its file cannot be used: {errno}"),
        }
    }
}

impl Setup {
    /// Looks. Each usable queue is opened for a moment; nothing is submitted.
    pub fn look(root: &str) -> Setup {
        let features = Features::of_this_cpu();
        let devices = sysfs::discover(root);
        let mut queues = Vec::new();
        for device in devices.iter().flatten() {
            for queue in &device.queues {
                let try_open = || portal::open(&queue.path(root), queue.dedicated, features).map(drop);
                let state = queue
                    .check_usable(device)
                    .map_err(Why::Unusable)
                    .and_then(|()| try_open().map_err(Why::Open));
                queues.push((queue.to_string(), state));
            }
        }
        let mut setup = Setup { devices, queues, features, commands: Vec::new() };
        setup.commands = setup.remedies();
        setup
    }

    /// How many queues can be used.
    pub fn usable_count(&self) -> usize {
        self.queues.iter().filter(|(_, state)| state.is_ok()).count()
    }

    /// One line that says it all.
    pub fn summary(&self) -> String {
        match &self.devices {
            Err(errno) => format!("/sys/bus/dsa/devices cannot be read: {errno}"),
            Ok(devices) if devices.is_empty() => "no IAA device: deflate-iaa runs in software".into(),
            Ok(devices) => format!(
                "{} IAA device{}, {} of {} work queue{} usable",
                devices.len(),
                if devices.len() == 1 { "" } else { "s" },
                self.usable_count(),
                self.queues.len(),
                if self.queues.len() == 1 { "" } else { "s" },
            ),
        }
    }

    /// What to run so that every device has a shared queue for processes. Nothing where there is a usable queue: that
    /// may be as its owner wants it.
    fn remedies(&self) -> Vec<String> {
        let Ok(devices) = &self.devices else { return Vec::new() };
        if self.usable_count() > 0 {
            return Vec::new();
        }
        let mut commands = Vec::new();
        for device in devices {
            let id = device.id;
            let refused = |queue: &WorkQueue| {
                let name = queue.to_string();
                self.queues.iter().find(|(other, _)| *other == name).and_then(|(_, state)| state.err())
            };
            let opened_badly = device.queues.iter().find(|q| matches!(refused(q), Some(Why::Open(_))));
            if let Some(queue) = opened_badly {
                match refused(queue) {
                    Some(Why::Open(Errno::EACCES | Errno::EPERM)) => {
                        commands.push(format!("chmod a+rw /dev/iax/{queue}"));
                    }
                    Some(Why::Open(Errno::EINVAL)) => {
                        commands.push(
                            "a kernel of version 6.9 or later, or CAP_SYS_RAWIO for the program".into(),
                        );
                    }
                    _ => {}
                }
                continue;
            }
            if !device.pasid_enabled {
                commands
                    .push("kernel command line: intel_iommu=on,sm_on, and VT-d on in the firmware".into());
                break;
            }
            // A kernel's queue (iaa_crypto has all by default) must go first.
            for queue in device.queues.iter().filter(|queue| queue.enabled) {
                commands.push(format!("accel-config disable-wq iax{id}/{queue}"));
            }
            if device.enabled {
                commands.push(format!("accel-config disable-device iax{id}"));
            }
            let size = if device.size == 0 { 128 } else { device.size };
            // One entry must remain for the privileged: older versions of accel-config ask for it.
            let threshold = size - 1;
            commands.push(format!(
                "accel-config config-wq iax{id}/wq{id}.0 --group-id=0 --mode=shared --wq-size={size} --threshold={threshold} \
                 --priority=10 --type=user --driver-name=user --name=zfolio --max-transfer-size=2097152 \
                 --block-on-fault=1",
            ));
            let engines = if device.engines == 0 { 8 } else { device.engines };
            for engine in 0..engines {
                commands.push(format!("accel-config config-engine iax{id}/engine{id}.{engine} --group-id=0"));
            }
            commands.push(format!("accel-config enable-device iax{id}"));
            commands.push(format!("accel-config enable-wq iax{id}/wq{id}.0"));
            commands.push(format!("chmod a+rw /dev/iax/wq{id}.0"));
        }
        commands.dedup();
        commands
    }
}
