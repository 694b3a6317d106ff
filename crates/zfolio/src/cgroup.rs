//! How much memory there is to share out: the limit of the memory control group that this process is in (version 1 or
//! 2), or the machine's RAM.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The machine's RAM, in bytes.
    pub ram_bytes: u64,
    /// The lowest limit of the control group and its ancestors, if it is below `ram_bytes`.
    pub cgroup: Option<Limit>,
    /// False where the control group, of version 2, is to have nothing in the machine's swap.
    pub may_swap: bool,
}

/// A control group's limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// `memory.max` or `memory.limit_in_bytes`.
    pub bytes: u64,
    /// The file that says so.
    pub file: PathBuf,
}

impl Memory {
    /// Looks at this machine.
    pub fn of_this_process() -> Memory {
        let read = |path: &Path| fs::read_to_string(path).ok();
        let text = |path: &str| read(Path::new(path)).unwrap_or_default();
        let ram_bytes = ram_bytes(&text("/proc/meminfo")).unwrap_or(u64::MAX);
        let lowest = |file: fn(Version) -> Option<&'static str>| {
            lowest(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"), file, read)
        };
        let cgroup = lowest(|version| Some(version.limit())).filter(|limit| limit.bytes < ram_bytes);
        let may_swap = lowest(Version::swap_limit).is_none_or(|limit| limit.bytes > 0);
        Memory { ram_bytes, cgroup, may_swap }
    }

    /// What a share in per cent is a share of: the control group's limit, else the RAM. In bytes.
    pub fn base_bytes(&self) -> u64 {
        self.cgroup.as_ref().map_or(self.ram_bytes, |limit| limit.bytes)
    }

    /// The limit of a run that names none: 90 % of the control group's limit, so that the kernel's killer stays asleep,
    /// else half of the RAM. In bytes.
    pub fn default_bytes(&self) -> u64 {
        self.cgroup.as_ref().map_or(self.ram_bytes / 2, |limit| limit.bytes / 10 * 9)
    }
}

fn ram_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The lowest limit of a kind, which each version has in a `file`, on the way from this process's group to the root;
/// from the texts of /proc/self/cgroup and /proc/self/mountinfo.
fn lowest(
    cgroup: &str,
    mountinfo: &str,
    file: impl Fn(Version) -> Option<&'static str>,
    read: impl Fn(&Path) -> Option<String>,
) -> Option<Limit> {
    // A line is `id:controllers:path`; version 2 is the one with the id 0 and no controllers. Where both are mounted
    // the memory controller is in one of them, and in the other there is no file to read.
    let groups = cgroup.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        match (id, controllers) {
            ("0", "") => Some((Version::V2, path)),
            (_, list) if list.split(',').any(|c| c == "memory") => Some((Version::V1, path)),
            _ => None,
        }
    });
    groups
        .filter_map(|(version, group)| Some((version, file(version)?, group)))
        .flat_map(|(version, file, group)| {
            mountinfo.lines().filter_map(move |line| mount(line, version)).flat_map(move |(root, point)| {
                // The mount shows the hierarchy from `root` on: in a container with a namespace of its own that is "/",
                // and in one without it is the container's own group.
                let group = Path::new(group);
                let below = group.strip_prefix(&root).unwrap_or(Path::new("")).to_path_buf();
                let dirs: Vec<PathBuf> = below.ancestors().map(|dir| point.join(dir)).collect();
                dirs.into_iter().map(move |dir| dir.join(file))
            })
        })
        .filter_map(|file| {
            let bytes = read(&file)?.trim().parse().ok()?;
            Some(Limit { bytes, file })
        })
        .min_by_key(|limit| limit.bytes)
}

/// Of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller. What is in zswap's pool is charged to nobody.
    V1,
    /// One for all of them.
    V2,
}

impl Version {
    /// The file of the limit of memory. Version 2 says "max" and version 1 a number beyond any RAM where there is none.
    pub fn limit(self) -> &'static str {
        match self {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        }
    }

    /// That of the limit of swap; in version 1 it is one of memory and swap together.
    fn swap_limit(self) -> Option<&'static str> {
        match self {
            Version::V1 => None,
            Version::V2 => Some("memory.swap.max"),
        }
    }
}

/// Where groups with the memory controller are made, and of which version they are; or why there are none, in words.
pub fn hierarchy() -> Result<(PathBuf, Version), String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    let point = |version| mounts.lines().find_map(|line| mount(line, version)).map(|(_, point)| point);
    if let Some(point) = point(Version::V1) {
        return Ok((point, Version::V1));
    }
    let point = point(Version::V2).ok_or("no file system of control groups is mounted")?;
    let enabled = read(&point.join("cgroup.subtree_control"))?;
    if enabled.split_whitespace().any(|controller| controller == "memory") {
        return Ok((point, Version::V2));
    }
    Err(format!("{}/cgroup.subtree_control does not have the memory controller", point.display()))
}

/// The root and the mount point of a line of mountinfo that mounts the memory controller of `version`.
fn mount(line: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut filesystem = filesystem.split(' ');
    let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
    let wanted = match version {
        Version::V1 => kind == "cgroup" && options.split(',').any(|o| o == "memory"),
        Version::V2 => kind == "cgroup2",
    };
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    wanted.then(|| (unescape(root), unescape(point)))
}

/// Undoes mountinfo's octal escapes of blanks: `\040`.
fn unescape(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or("").to_string();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => plain.extend([byte as char].into_iter().chain(part[3..].chars())),
            None => plain.extend(['\\'].into_iter().chain(part.chars())),
        }
    }
    plain.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(cgroup: &str, mountinfo: &str, files: &[(&str, &str)]) -> Option<(u64, String)> {
        lowest(
            cgroup,
            mountinfo,
            |version| Some(version.limit()),
            |path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| text.to_string()),
        )
        .map(|limit| (limit.bytes, limit.file.to_str().unwrap().to_string()))
    }

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_lowest_limit_of_the_ancestors_counts_in_version_2() {
        let files = [
            ("/sys/fs/cgroup/user.slice/a b/memory.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n"),
        ];
        let expected = Some((1 << 30, "/sys/fs/cgroup/user.slice/memory.max".to_string()));
        assert_eq!(found("0::/user.slice/a b\n", V2, &files), expected);
        assert_eq!(found("0::/\n", V2, &files), None);
    }

    #[test]
    fn version_1_beside_a_version_2_without_the_controller() {
        let cgroup = "9:name=systemd:/\n4:cpu,memory:/docker/12\n0::/docker/12\n";
        let files = [
            ("/sys/fs/cgroup/memory/docker/12/memory.limit_in_bytes", "536870912\n"),
            ("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let expected = (512 << 20, "/sys/fs/cgroup/memory/docker/12/memory.limit_in_bytes".to_string());
        assert_eq!(found(cgroup, V1, &files), Some(expected));
    }

    #[test]
    fn a_container_without_a_namespace_sees_its_own_group_as_the_mount_root() {
        let mountinfo = "35 31 0:32 /docker/12 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let files = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n")];
        let expected = (256 << 20, "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_string());
        assert_eq!(found("4:memory:/docker/12\n", mountinfo, &files), Some(expected));
    }

    #[test]
    fn a_mount_point_with_a_blank() {
        let mountinfo = "30 23 0:26 / /mnt/c\\040g rw - cgroup2 none rw\n";
        let files = [("/mnt/c g/memory.max", "1000")];
        assert_eq!(found("0::/", mountinfo, &files), Some((1000, "/mnt/c g/memory.max".to_string())));
    }

    #[test]
    fn a_group_that_is_to_have_no_swap() {
        let swap = |text: &str| {
            let read = |path: &Path| path.ends_with("a/memory.swap.max").then(|| text.to_string());
            lowest("0::/a/b\n", V2, Version::swap_limit, read).map(|limit| limit.bytes)
        };
        assert_eq!([swap("0\n"), swap("max\n")], [Some(0), None]);
        assert!(lowest("4:memory:/a\n", V1, Version::swap_limit, |_| Some("0".into())).is_none());
    }

    #[test]
    fn without_a_limit_it_is_half_of_the_ram() {
        assert_eq!(ram_bytes("MemTotal:       1024 kB\nMemFree: 3 kB\n"), Some(1 << 20));
        let mut memory = Memory { ram_bytes: 8 << 30, cgroup: None, may_swap: true };
        assert_eq!((memory.base_bytes(), memory.default_bytes()), (8 << 30, 4 << 30));
        memory.cgroup = Some(Limit { bytes: 1000, file: PathBuf::new() });
        assert_eq!((memory.base_bytes(), memory.default_bytes()), (1000, 900));
    }
}
