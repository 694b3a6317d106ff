//! What files say of memory, and what they say where less is to be seen. A figure is never raised: where the machine or
//! a group has less than that, it stays.

use super::Shown;
use super::lines::Lines;
use control::line::Line;
use core::fmt::Write;
use core::ops::Range;
use uffd::file::FileSystem;
use uffd::sys::{self, Fd};

/// Files that say how much memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// /proc/meminfo: all of the machine's.
    Machine,
    /// A limit of a control group: a number, or `max`.
    Limit,
    /// What the processes of a group hold.
    Usage,
    /// The figures of a group of version 1, with the lowest limit on the way to the root among them.
    Stat,
}

/// What the file at this path of a file system is; `None` for others.
pub fn kind(file_system: FileSystem, path: &[u8]) -> Option<FigureKind> {
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    match (file_system, name) {
        (FileSystem::Proc, b"meminfo") => Some(FigureKind::Machine),
        (FileSystem::Fuse, _) if path == b"/proc/meminfo" => Some(FigureKind::Machine),
        (FileSystem::Cgroup2, b"memory.max" | b"memory.high") => Some(FigureKind::Limit),
        (FileSystem::Cgroup2, b"memory.current") => Some(FigureKind::Usage),
        (
            FileSystem::Cgroup,
            b"memory.limit_in_bytes" | b"memory.soft_limit_in_bytes" | b"memory.memsw.limit_in_bytes",
        ) => Some(FigureKind::Limit),
        (FileSystem::Cgroup, b"memory.usage_in_bytes" | b"memory.memsw.usage_in_bytes") => {
            Some(FigureKind::Usage)
        }
        (FileSystem::Cgroup, b"memory.stat") => Some(FigureKind::Stat),
        _ => None,
    }
}

/// Writes to `to` what the file behind `fd` says, with the figures that are to be seen. False where nothing is another,
/// or not all could be written.
pub fn write(kind: FigureKind, fd: i32, shown: &Shown, to: &Fd) -> bool {
    let (mut lines, mut text) = (Lines::of(fd), Text { to, buffer: [0; 1024], filled: 0, is_whole: true });
    let mut is_other = false;
    while let Some(line) = lines.next_line() {
        is_other |= edit(kind, line, shown, |part| text.push(part));
        text.push(b"\n");
    }
    text.flush();
    is_other && text.is_whole
}

/// What is written, in few system calls.
struct Text<'a> {
    to: &'a Fd,
    buffer: [u8; 1024],
    filled: usize,
    is_whole: bool,
}

impl Text<'_> {
    fn push(&mut self, mut part: &[u8]) {
        while !part.is_empty() {
            if self.filled == self.buffer.len() {
                self.flush();
            }
            let take = part.len().min(self.buffer.len() - self.filled);
            self.buffer[self.filled..self.filled + take].copy_from_slice(&part[..take]);
            self.filled += take;
            part = &part[take..];
        }
    }

    fn flush(&mut self) {
        self.is_whole &= sys::write(self.to, &self.buffer[..self.filled]) == Ok(self.filled);
        self.filled = 0;
    }
}

/// Gives a line in parts, with another figure where it needs one: true then.
fn edit(kind: FigureKind, line: &[u8], shown: &Shown, mut give: impl FnMut(&[u8])) -> bool {
    let Some((place, most)) = figure(kind, line, shown) else {
        give(line);
        return false;
    };
    let mut number = Line::default();
    // Where figures stand below each other they still do.
    let width = if kind == FigureKind::Machine { place.len() } else { 0 };
    let _ = write!(number, "{most:width$}");
    give(&line[..place.start]);
    give(number.as_str().as_bytes());
    give(&line[place.end..]);
    true
}

/// Where in a line its figure is, and what it is to be, if that is less.
fn figure(kind: FigureKind, line: &[u8], shown: &Shown) -> Option<(Range<usize>, u64)> {
    let (name, unit, most) = match kind {
        FigureKind::Machine => {
            let name = line.split(|byte| *byte == b':').next()?;
            (name, &b" kB"[..], of_machine(name, shown)? / 1024)
        }
        FigureKind::Limit if line == b"max" => return Some((0..line.len(), shown.total)),
        FigureKind::Limit => (&b""[..], &b""[..], shown.total),
        FigureKind::Usage => (&b""[..], &b""[..], shown.used()),
        FigureKind::Stat => {
            let name = line.split(|byte| *byte == b' ').next()?;
            let is_limit = matches!(name, b"hierarchical_memory_limit" | b"hierarchical_memsw_limit");
            (name, &b""[..], is_limit.then_some(shown.total)?)
        }
    };
    let end = line.strip_suffix(unit)?.len();
    let start = name.len() + line[name.len()..end].iter().position(u8::is_ascii_digit)?;
    let told: u64 = core::str::from_utf8(&line[start..end]).ok()?.parse().ok()?;
    (most < told).then_some((start..end, most))
}

/// The most that a figure of /proc/meminfo may be, in bytes. Pages of files do not count against the limit, and
/// nobody's swap is theirs to use; addresses of the kernel's are no memory.
fn of_machine(name: &[u8], shown: &Shown) -> Option<u64> {
    match name {
        b"MemFree" | b"MemAvailable" => Some(shown.available),
        b"Buffers" | b"Cached" | b"SwapCached" | b"KReclaimable" | b"SReclaimable" => Some(0),
        b"SwapTotal" | b"SwapFree" | b"Zswap" | b"Zswapped" => Some(0),
        b"VmallocTotal" | b"VmallocUsed" | b"VmallocChunk" => None,
        _ => Some(shown.total),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    const SHOWN: Shown = Shown { total: 200 << 20, available: 150 << 20 };

    fn edited(kind: FigureKind, line: &str) -> String {
        let mut text = Vec::new();
        let is_other = edit(kind, line.as_bytes(), &SHOWN, |part| text.extend_from_slice(part));
        let text = String::from_utf8(text).unwrap();
        assert_eq!(is_other, text != line);
        text
    }

    #[test]
    fn the_machine_is_as_large_as_it_is_to_be_seen() {
        for (line, expected) in [
            ("MemTotal:       24684084 kB", "MemTotal:         204800 kB"),
            ("MemFree:        20690624 kB", "MemFree:          153600 kB"),
            ("MemAvailable:   22515960 kB", "MemAvailable:     153600 kB"),
            ("MemAvailable:      12345 kB", "MemAvailable:      12345 kB"),
            ("Cached:          1917524 kB", "Cached:                0 kB"),
            ("SwapTotal:       1000000 kB", "SwapTotal:             0 kB"),
            ("Active(anon):    1917524 kB", "Active(anon):     204800 kB"),
            ("Dirty:               124 kB", "Dirty:               124 kB"),
            ("VmallocTotal:   34359738367 kB", "VmallocTotal:   34359738367 kB"),
            ("HugePages_Total:  300000", "HugePages_Total:  300000"),
            ("Hugepagesize:       2048 kB", "Hugepagesize:       2048 kB"),
            ("", ""),
            ("DirectMap1G: kB", "DirectMap1G: kB"),
        ] {
            assert_eq!(edited(FigureKind::Machine, line), expected);
        }
    }

    #[test]
    fn a_groups_limit_is_lowered_and_never_raised() {
        let limit = (200u64 << 20).to_string();
        for (line, expected) in [
            ("max", &*limit),
            ("9223372036854771712", &limit),
            ("1000000", "1000000"),
            ("", ""),
            ("none", "none"),
        ] {
            assert_eq!(edited(FigureKind::Limit, line), expected);
        }
        assert_eq!(edited(FigureKind::Usage, "5000000000"), (50u64 << 20).to_string());
        assert_eq!(edited(FigureKind::Usage, "4096"), "4096");
        let stat = std::format!("hierarchical_memory_limit {limit}");
        assert_eq!(edited(FigureKind::Stat, "hierarchical_memory_limit 9223372036854771712"), stat);
        assert_eq!(
            edited(FigureKind::Stat, "total_rss 9223372036854771712"),
            "total_rss 9223372036854771712"
        );
    }

    #[test]
    fn files_are_known_by_name_and_file_system() {
        use FileSystem::*;
        for (file_system, path, expected) in [
            (Proc, "/proc/meminfo", Some(FigureKind::Machine)),
            (Proc, "/chroot/proc/meminfo", Some(FigureKind::Machine)),
            (Proc, "/proc/1/maps", None),
            (Fuse, "/proc/meminfo", Some(FigureKind::Machine)),
            (Fuse, "/mnt/meminfo", None),
            (Cgroup2, "/sys/fs/cgroup/a/memory.max", Some(FigureKind::Limit)),
            (Cgroup2, "/sys/fs/cgroup/a/memory.high", Some(FigureKind::Limit)),
            (Cgroup2, "/sys/fs/cgroup/a/memory.stat", None),
            (Cgroup2, "/sys/fs/cgroup/a/memory.current", Some(FigureKind::Usage)),
            (Cgroup, "/m/memory.limit_in_bytes", Some(FigureKind::Limit)),
            (Cgroup, "/m/memory.stat", Some(FigureKind::Stat)),
            (Cgroup, "/m/cgroup.procs", None),
        ] {
            assert_eq!(kind(file_system, path.as_bytes()), expected, "{path}");
        }
    }
}
