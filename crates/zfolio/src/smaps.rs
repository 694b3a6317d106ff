//! The mappings of another process, from /proc/PID/maps and smaps.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use uffd::smaps::{self, Parser};

/// The longest path, and what the kernel writes behind it.
const NAME_BYTES: usize = 4096 + 16;

/// A mapping with all of its name.
pub type Mapping = smaps::Mapping<NAME_BYTES>;

/// What is mapped: device (major, minor) and inode.
pub type Object = ((u64, u64), u64);

/// What is mapped; zeros where that is nothing.
pub fn object(mapping: &Mapping) -> Object {
    let (major, minor) = mapping.device;
    ((major.into(), minor.into()), mapping.inode)
}

/// Calls `each` with all mappings of a process, without sizes and flags.
pub fn maps(pid: u32, each: impl FnMut(&Mapping)) -> io::Result<()> {
    read(File::open(format!("/proc/{pid}/maps"))?, each)
}

/// The same with sizes and flags: walks the process's page tables.
pub fn smaps(pid: u32, each: impl FnMut(&Mapping)) -> io::Result<()> {
    read(File::open(format!("/proc/{pid}/smaps"))?, each)
}

fn read(mut text: impl Read, mut each: impl FnMut(&Mapping)) -> io::Result<()> {
    // The kernel gives a page or two at a time, whatever is asked for.
    let (mut buffer, mut parser) = ([0; 16 << 10], Parser::default());
    loop {
        match text.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => parser.feed(&buffer[..len], &mut each),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    parser.end(each);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_the_same_mappings_in_both() {
        let (pid, mut plain, mut sized) = (std::process::id(), Vec::new(), Vec::new());
        maps(pid, |mapping| plain.push(mapping.range.clone())).unwrap();
        let mut anonymous = 0;
        smaps(pid, |mapping| {
            sized.push(mapping.range.clone());
            anonymous += mapping.anonymous_bytes;
        })
        .unwrap();
        assert!(plain.len() > 5 && plain.len().abs_diff(sized.len()) < 10 && anonymous > 0);
        assert_eq!(plain[0], sized[0], "the program's own");
        assert!(maps(0, |_| ()).is_err());
    }
}
