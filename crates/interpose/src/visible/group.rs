//! Whose control group a file is in. `mountinfo` says which group a mount shows at its place, and so what the path of a
//! file there stands for:
//!
//! ```text
//!   mountinfo   35 31 0:32 /docker/12 /sys/fs/cgroup/memory ...      a root, and a place
//!   the file    /sys/fs/cgroup/memory/a/memory.limit_in_bytes    ->  the group /docker/12/a
//!   cgroup      4:memory:/docker/12/a/b                          ->  is in it
//! ```

use super::lines::Lines;
use uffd::file::{self, FileSystem};
use uffd::sys::{self, consts::*};

/// The longest path of a group, in bytes: with a longer one a file is taken to be another's.
const GROUP_BYTES: usize = 1024;

/// True where an open file is in the calling thread's memory control group, or in one that this is in. `path` is where
/// it was found.
pub fn is_ours(fd: i32, file_system: FileSystem, path: &[u8]) -> bool {
    let mut room = [0; GROUP_BYTES];
    let Some(group) = group(fd, path, &mut room) else { return false };
    let Ok(own) = sys::open(b"/proc/thread-self/cgroup\0", O_RDONLY) else { return false };
    let mut lines = Lines::of(own.raw());
    while let Some(line) = lines.next_line() {
        if let Some(own) = own_group(line, file_system) {
            return is_in(own, group);
        }
    }
    false
}

/// The path of the group that an open file is in, without a slash at its end.
fn group<'a>(fd: i32, path: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let mount = file::mount(fd).ok()?;
    let mountinfo = sys::open(b"/proc/thread-self/mountinfo\0", O_RDONLY).ok()?;
    let mut lines = Lines::of(mountinfo.raw());
    while let Some(line) = lines.next_line() {
        let mut fields = line.split(|byte| *byte == b' ');
        if number(fields.next()?) == Some(mount) {
            let (root, place) = (fields.nth(2)?, fields.next()?);
            return behind(root, place, path, room);
        }
    }
    None
}

/// What a path below `place` stands for, where the mount shows `root`; the path's last part, the file's name, is left
/// out.
fn behind<'a>(root: &[u8], place: &[u8], path: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut rest = &path[..path.iter().rposition(|byte| *byte == b'/')?];
    // Of a mount at `/` all is below.
    if place != b"/" {
        for byte in plain(place) {
            rest = rest.strip_prefix(&[byte])?;
        }
        if rest.first().is_some_and(|byte| *byte != b'/') {
            return None;
        }
    }
    let root = if root == b"/" { &b""[..] } else { root };
    let mut len = 0;
    for byte in plain(root).chain(rest.iter().copied()) {
        *room.get_mut(len)? = byte;
        len += 1;
    }
    Some(&room[..len])
}

/// Undoes mountinfo's octal escapes: `\040`.
fn plain(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let digits =
            text.get(at + 1..at + 4).filter(|digits| digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        match (text.get(at)?, digits) {
            (b'\\', Some(&[a, b, c])) => {
                at += 4;
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            (byte, _) => {
                at += 1;
                Some(*byte)
            }
        }
    })
}

fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// The group of a line of /proc/PID/cgroup, if the line is about the memory controller of this file system:
/// `id:controllers:path`.
fn own_group(line: &[u8], file_system: FileSystem) -> Option<&[u8]> {
    let mut fields = line.splitn(3, |byte| *byte == b':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let is_it = match file_system {
        FileSystem::Cgroup2 => (id, controllers) == (b"0", b""),
        _ => controllers.split(|byte| *byte == b',').any(|name| name == b"memory"),
    };
    is_it.then_some(path)
}

/// True for a group that is `outer`, or in it.
fn is_in(group: &[u8], outer: &[u8]) -> bool {
    let rest = group.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use FileSystem::*;

    #[test]
    fn a_file_stands_for_the_group_that_its_mount_shows_there() {
        for (root, place, path, expected) in [
            ("/", "/sys/fs/cgroup", "/sys/fs/cgroup/memory.max", Some("")),
            ("/", "/sys/fs/cgroup", "/sys/fs/cgroup/a b/c/memory.max", Some("/a b/c")),
            ("/docker/12", "/cg", "/cg/memory.max", Some("/docker/12")),
            ("/docker/12", "/cg", "/cg/x/memory.max", Some("/docker/12/x")),
            ("/a\\040b", "/mnt/c\\040g", "/mnt/c g/d/memory.max", Some("/a b/d")),
            ("/", "/", "/a/memory.max", Some("/a")),
            ("/", "/", "/memory.max", Some("")),
            ("/", "/sys", "/system/memory.max", None),
            ("/", "/elsewhere", "/sys/fs/cgroup/memory.max", None),
        ] {
            let mut room = [0; GROUP_BYTES];
            let found = behind(root.as_bytes(), place.as_bytes(), path.as_bytes(), &mut room);
            assert_eq!(found, expected.map(str::as_bytes), "{root} {place} {path}");
        }
        assert_eq!(behind(b"/long", b"/", b"/a/b", &mut [0; 4]), None);
    }

    #[test]
    fn the_memory_controllers_line_is_found() {
        for (line, kind, expected) in [
            ("0::/a/b", Cgroup2, Some("/a/b")),
            ("0::/a/b", Cgroup, None),
            ("4:memory:/a:b", Cgroup, Some("/a:b")),
            ("4:cpu,memory:/", Cgroup, Some("/")),
            ("4:memory:/", Cgroup2, None),
            ("9:name=memory:/", Cgroup, None),
            ("", Cgroup, None),
        ] {
            assert_eq!(own_group(line.as_bytes(), kind), expected.map(str::as_bytes), "{line}");
        }
    }

    #[test]
    fn a_group_is_in_itself_and_in_those_above() {
        for (group, outer, expected) in [
            ("/a/b", "/a/b", true),
            ("/a/b", "/a", true),
            ("/a/b", "", true),
            ("/", "", true),
            ("/a/b", "/a/b/c", false),
            ("/a/bc", "/a/b", false),
            ("/", "/a", false),
        ] {
            assert_eq!(is_in(group.as_bytes(), outer.as_bytes()), expected, "{group} {outer}");
        }
    }
}
