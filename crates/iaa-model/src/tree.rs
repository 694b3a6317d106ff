//! Sysfs and /dev as accel-config leaves them, in a directory of its own: what discovery is tested with.

use std::fs;
use std::path::{Path, PathBuf};

/// A directory, removed when dropped.
pub struct Tree(PathBuf);

impl Tree {
    /// An empty tree. `name` tells tests of a process apart.
    pub fn new(name: &str) -> Tree {
        Tree::at(std::env::temp_dir().join(format!("iaa-{name}-{}", std::process::id())))
    }

    /// The same at a path; what is there is removed.
    pub fn at(path: impl Into<PathBuf>) -> Tree {
        let path = path.into();
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory for temporary files");
        Tree(path)
    }

    /// Its path, for functions that take a root.
    pub fn root(&self) -> &str {
        self.0.to_str().expect("text")
    }

    /// Writes a file, with a line end, as sysfs does.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("within the tree")).expect("directories");
        fs::write(path, format!("{text}\n")).expect("a file");
    }

    /// A package's CPUs, and nodes that they are in, evenly.
    pub fn package(&self, id: usize, cpus: std::ops::Range<usize>, nodes: &[usize]) {
        for cpu in cpus.clone() {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
            self.write(&path, &id.to_string());
        }
        for (at, node) in nodes.iter().enumerate() {
            let each = cpus.len() / nodes.len();
            let first = cpus.start + at * each;
            let list = format!("{first}-{}", first + each - 1);
            self.write(&format!("sys/devices/system/node/node{node}/cpulist"), &list);
        }
    }

    /// A device as `accel-config enable-device` leaves it, with eight engines in one group.
    pub fn device(&self, id: u32, node: i32) {
        let at = format!("sys/bus/dsa/devices/iax{id}");
        let attributes = [
            ("state", "enabled"),
            ("numa_node", &node.to_string()),
            ("max_transfer_size", "2147483648"),
            ("max_work_queues", "8"),
            ("max_work_queues_size", "128"),
            ("max_engines", "8"),
            ("pasid_enabled", "1"),
            ("version", "0x100"),
        ];
        for (name, value) in attributes {
            self.write(&format!("{at}/{name}"), value);
        }
        for engine in 0..8 {
            self.write(&format!("{at}/engine{id}.{engine}/group_id"), "0");
        }
        // What else is there, and is to be passed over.
        self.write(&format!("{at}/group{id}.0/engines"), "engine");
        self.write("sys/bus/dsa/devices/dsa0/state", "enabled");
    }

    /// A queue as `accel-config config-wq` and `enable-wq` leave it, with a file in /dev.
    pub fn queue(&self, device: u32, id: u32, mode: &str, size: u32) {
        let at = format!("sys/bus/dsa/devices/iax{device}/wq{device}.{id}");
        let attributes = [
            ("state", "enabled"),
            ("mode", mode),
            ("type", "user"),
            ("name", "zfolio"),
            ("driver_name", "user"),
            ("size", &size.to_string()),
            ("threshold", &size.to_string()),
            ("priority", "10"),
            ("group_id", "0"),
            ("block_on_fault", "1"),
            ("max_transfer_size", "2097152"),
        ];
        for (name, value) in attributes {
            self.write(&format!("{at}/{name}"), value);
        }
        self.write(&format!("dev/iax/wq{device}.{id}"), "");
    }

    /// Changes an attribute.
    pub fn set(&self, device: u32, attribute: &str, value: &str) {
        self.write(&format!("sys/bus/dsa/devices/iax{device}/{attribute}"), value);
    }

    /// Takes something away.
    pub fn remove(&self, path: &str) {
        let path = self.0.join(Path::new(path));
        let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
