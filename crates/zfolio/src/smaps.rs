//! The mappings of a process, from /proc/PID/maps and smaps.
//!
//! maps costs about a microsecond for each mapping. smaps besides walks the page tables: some 15 ms for each GiB.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// A mapping. The sizes and flags are those of smaps, and empty where only maps was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Where it begins and ends.
    pub range: (u64, u64),
    /// `rw-p` and the like.
    pub permissions: String,
    /// Device, major and minor, and inode of what is mapped; zeros where that is nothing.
    pub object: Object,
    /// The file's path, or the kernel's own name in brackets.
    pub name: String,
    /// Pages that are there, each divided by the number of processes that have it, in bytes.
    pub pss_bytes: u64,
    /// Anonymous pages that are there, private copies of file pages included, in bytes.
    pub anonymous_bytes: u64,
    /// VmFlags: two letters each.
    pub flags: String,
}

/// What is mapped: device (major, minor) and inode.
pub type Object = ((u64, u64), u64);

impl Mapping {
    /// True where this flag is among VmFlags.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.split(' ').any(|word| word == flag)
    }

    /// True where the permissions hold this letter.
    pub fn may(&self, letter: char) -> bool {
        self.permissions.contains(letter)
    }
}

/// Calls `each` with all mappings of a process, without sizes. False where they may not be read.
pub fn maps(pid: u32, each: impl FnMut(&Mapping)) -> bool {
    read(&format!("/proc/{pid}/maps"), each)
}

/// The same with sizes: walks the process's page tables.
pub fn smaps(pid: u32, each: impl FnMut(&Mapping)) -> bool {
    read(&format!("/proc/{pid}/smaps"), each)
}

fn read(path: &str, each: impl FnMut(&Mapping)) -> bool {
    // The kernel gives a page or two at a time, whatever is asked for.
    File::open(path).is_ok_and(|file| parse(BufReader::with_capacity(16 << 10, file), each))
}

fn parse(mut text: impl BufRead, mut each: impl FnMut(&Mapping)) -> bool {
    let (mut mapping, mut line) = (None, Vec::new());
    loop {
        line.clear();
        match text.read_until(b'\n', &mut line) {
            Err(_) => return false,
            Ok(0) => break,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
        if let Some(next) = head(&line) {
            if let Some(whole) = mapping.replace(next) {
                each(&whole);
            }
        } else if let (Some(mapping), Some((name, value))) = (&mut mapping, line.split_once(':')) {
            let bytes = || {
                value.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
            };
            match name {
                "Pss" => mapping.pss_bytes = bytes(),
                "Anonymous" => mapping.anonymous_bytes = bytes(),
                "VmFlags" => mapping.flags = value.trim().to_string(),
                _ => {}
            }
        }
    }
    mapping.iter().for_each(each);
    true
}

/// The line that begins a mapping: `7f00-7f01 rw-s 00000000 00:01 1234    /dev/zero (deleted)`.
fn head(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after.trim_start();
        word
    };
    let (start, end) = word().split_once('-')?;
    let hexadecimal = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let range = (hexadecimal(start)?, hexadecimal(end)?);
    let permissions = word().to_string();
    let _offset = word();
    let (major, minor) = word().split_once(':')?;
    let object = ((hexadecimal(major)?, hexadecimal(minor)?), word().parse().ok()?);
    Some(Mapping { range, permissions, object, name: rest.to_string(), ..Mapping::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_and_smaps_are_read_alike() {
        let heads = "7f00-7f02 rw-s 00000000 00:01 1234                       /dev/zero (deleted)\n\
                     7f10-7f20 r-xp 00001000 fe:10 77    /usr/lib/a file.so\n\
                     8000-9000 ---p 00000000 00:00 0 \n";
        let sizes = "Size:                  8 kB\nPss:                   4 kB\nAnonymous:             2 kB\nVmFlags: rd wr sh lo \n";
        let mut found = Vec::new();
        assert!(parse(heads.as_bytes(), |mapping| found.push(mapping.clone())));
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].range, found[0].object), ((0x7f00, 0x7f02), ((0, 1), 1234)));
        assert_eq!((found[1].name.as_str(), found[1].object), ("/usr/lib/a file.so", ((0xfe, 0x10), 77)));
        assert_eq!((found[2].name.as_str(), found[2].permissions.as_str()), ("", "---p"));
        let text: String = heads.lines().map(|line| format!("{line}\n{sizes}")).collect();
        let mut sized = Vec::new();
        assert!(parse(text.as_bytes(), |mapping| sized.push(mapping.clone())));
        for (plain, sized) in found.iter().zip(&sized) {
            assert_eq!((sized.pss_bytes, sized.anonymous_bytes), (4096, 2048));
            assert!(sized.has("lo") && !sized.has("um"));
            assert_eq!((plain.range, &plain.name), (sized.range, &sized.name));
        }
    }
}
