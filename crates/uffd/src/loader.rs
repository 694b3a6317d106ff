//! Which loader will start a file: glibc's for 64-bit programs, or one that nobody knows. Only that much is asked, by a
//! look at the first bytes of the file, or of the interpreter that a script names; whatever is not seen there for
//! certain is not glibc's.
//!
//! The look can be made in any process at any time: it calls the kernel alone, and only what that loader calls itself
//! when it starts a program (access, openat, pread64, close), so that a filter of system calls which is meant for what
//! comes next lets it through.

use crate::sys::{self, Errno, consts::*};

/// How much of a file is read: programs whose headers, interpreter and notes are not all there are few.
pub const HEAD_BYTES: usize = 1024;

/// The first bytes of a file.
pub type Head = [u8; HEAD_BYTES];

/// glibc's loader for 64-bit programs, as they name it.
const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";

/// 64 bits, little-endian, for x86-64.
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const MACHINE: u16 = 62;

/// How much the kernel reads of a script's first line (BINPRM_BUF_SIZE): what is longer it cuts off.
const LINE_BYTES: usize = 256;

const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

/// Makes the look at the file at `path`, which ends with NUL, or else cannot be opened. An error says why it cannot be
/// executed, as access(2) does; true for a file that glibc's loader starts.
///
/// Whoever does not want its descriptor seen must see to that: it is open for the length of a read, and closed by exec.
pub fn is_glibcs(path: *const u8) -> Result<bool, Errno> {
    let mut head = [0; HEAD_BYTES];
    let bytes = read(path, &mut head)?;
    let Some(name) = interpreter(&head[..bytes]) else { return Ok(starts_here(&head[..bytes])) };
    let mut path = [0; LINE_BYTES];
    path[..name.len()].copy_from_slice(name);
    let bytes = read(path.as_ptr(), &mut head)?;
    Ok(starts_here(&head[..bytes]))
}

/// How many bytes of a file that may be executed were read; none of what cannot be read.
fn read(path: *const u8, head: &mut Head) -> Result<usize, Errno> {
    // Before it is opened: to open a device may have effects, and nobody makes one that can be executed.
    sys::may_execute(path)?;
    let bytes = sys::open_at_address(path, O_RDONLY | O_NONBLOCK | O_NOCTTY)
        .and_then(|file| sys::pread(&file, head, 0))
        .unwrap_or(0);
    Ok(bytes)
}

/// The interpreter that a script names, if it does so by an absolute path.
fn interpreter(head: &[u8]) -> Option<&[u8]> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = head[..head.len().min(LINE_BYTES)].strip_prefix(b"#!")?;
    let name = &line[line.iter().position(|byte| !is_blank(byte))?..];
    let end = name.iter().position(|byte| is_blank(byte) || matches!(byte, b'\n' | 0))?;
    name.starts_with(b"/").then_some(&name[..end])
}

fn starts_here(head: &[u8]) -> bool {
    names_loader(head).unwrap_or(false)
}

/// True for the head of a 64-bit program that names glibc's loader. Not for one written in Go, which starts others by
/// system calls of its own: what it has in its environment must do for whatever they are.
fn names_loader(head: &[u8]) -> Option<bool> {
    let word = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let long = |at: usize| usize::try_from(u64::from_le_bytes(*head.get(at..)?.first_chunk()?)).ok();
    if head.get(..6)? != [0x7f, b'E', b'L', b'F', CLASS_64, LITTLE_ENDIAN]
        || half(18)? != MACHINE
        || half(54)? as usize != SEGMENT_BYTES
    {
        return None;
    }
    let (first, count) = (long(32)?, half(56)? as usize);
    let mut found = false;
    for index in 0..count {
        let segment = first.checked_add(index * SEGMENT_BYTES).filter(|at| *at >= HEADER_BYTES)?;
        let kind = word(segment)?;
        if kind == PT_INTERP || kind == PT_NOTE {
            let from = long(segment + 8)?;
            let part = head.get(from..from.checked_add(long(segment + 32)?)?)?;
            match kind {
                PT_INTERP => found = part == LOADER,
                // Its owner is "Go", in the four bytes that a name so short has.
                _ if part.windows(4).any(|name| name == b"Go\0\0") => return None,
                _ => {}
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs::{self, Permissions};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    /// A program's head with these segments, each a kind and what is in it, which follows the headers.
    fn head(segments: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0x7f, b'E', b'L', b'F', CLASS_64, LITTLE_ENDIAN, 1];
        bytes.resize(HEADER_BYTES, 0);
        bytes[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        bytes[32..40].copy_from_slice(&(HEADER_BYTES as u64).to_le_bytes());
        bytes[54..56].copy_from_slice(&(SEGMENT_BYTES as u16).to_le_bytes());
        bytes[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        let mut at = HEADER_BYTES + segments.len() * SEGMENT_BYTES;
        for (kind, content) in segments {
            let mut segment = [0; SEGMENT_BYTES];
            segment[..4].copy_from_slice(&kind.to_le_bytes());
            segment[8..16].copy_from_slice(&(at as u64).to_le_bytes());
            segment[32..40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend(segment);
            at += content.len();
        }
        segments.iter().for_each(|(_, content)| bytes.extend(*content));
        bytes
    }

    const NOTE: &[u8] = b"\x04\0\0\0\x04\0\0\0\x03\0\0\0GNU\0abcd";
    const NOTE_OF_GO: &[u8] = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd";
    const LOAD: u32 = 1;

    #[test]
    fn a_64_bit_program_that_names_glibcs_loader_is_glibcs() {
        let good = head(&[(LOAD, b""), (PT_INTERP, LOADER), (PT_NOTE, NOTE)]);
        assert!(starts_here(&good));
        for (at, byte) in [(0, 0), (4, 1), (5, 2), (18, 183), (54, 32)] {
            let mut other = good.clone();
            other[at] = byte;
            assert!(!starts_here(&other), "byte {at} is {byte}");
        }
        for loader in [
            &b"/lib/ld-linux.so.2\0"[..],
            b"/lib/ld-musl-x86_64.so.1\0",
            b"/lib64/ld-linux-x86-64.so.2",
            b"/nix/lib64/ld-linux-x86-64.so.2\0",
            b"",
        ] {
            assert!(!starts_here(&head(&[(PT_INTERP, loader)])), "{loader:?}");
        }
        assert!(!starts_here(&head(&[(LOAD, b"")])), "static");
        assert!(!starts_here(&head(&[(PT_INTERP, LOADER), (PT_NOTE, NOTE), (PT_NOTE, NOTE_OF_GO)])));
        // No part of it tells, and nothing outside of it is read.
        for bytes in 0..good.len() {
            assert!(!starts_here(&good[..bytes]), "{bytes}");
        }
    }

    #[test]
    fn offsets_that_are_wrong_are_not_glibcs() {
        let good = head(&[(PT_INTERP, LOADER)]);
        let segment = HEADER_BYTES;
        for at in [32, segment + 8, segment + 32] {
            for value in [0, 1, 1 << 20, u64::MAX - 20, u64::MAX] {
                let mut other = good.clone();
                other[at..at + 8].copy_from_slice(&value.to_le_bytes());
                assert!(!starts_here(&other), "{value} at {at}");
            }
        }
    }

    #[test]
    fn the_interpreter_of_a_script_is_found_as_by_the_kernel() {
        let name = |text: &'static str| {
            core::str::from_utf8(interpreter(text.as_bytes()).unwrap_or_default()).unwrap()
        };
        assert_eq!(name("#!/bin/sh\n"), "/bin/sh");
        assert_eq!(name("#! \t/bin/sh -e\nexit"), "/bin/sh");
        assert_eq!(name("#!/usr/bin/env\tpython3"), "/usr/bin/env");
        for other in ["", "#", "#!", "#! ", "#!sh\n", "#!./sh\n", "#!/bin/sh", "echo", "#!\n/bin/sh\n"] {
            assert_eq!(name(other), "", "{other:?}");
        }
        let long = format!("#!/{}\n", "x".repeat(LINE_BYTES));
        assert_eq!(interpreter(long.as_bytes()), None);
    }

    struct Scratch(PathBuf);

    impl Scratch {
        fn file(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn look(path: &Path) -> Result<bool, Errno> {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        is_glibcs(path.as_ptr().cast())
    }

    #[test]
    fn the_file_that_will_be_started_is_looked_at() {
        let scratch = Scratch(std::env::temp_dir().join(format!("uffd-loader-{}", std::process::id())));
        fs::create_dir_all(&scratch.0).unwrap();
        let good = head(&[(PT_INTERP, LOADER)]);
        let program = scratch.file("program", &good, 0o755);
        let fixed = scratch.file("fixed", &head(&[]), 0o755);
        let script = |name: &str, interpreter: &Path| {
            scratch.file(name, format!("#!{} -e\n", interpreter.display()).as_bytes(), 0o755)
        };
        let one = script("one", &program);
        assert_eq!(look(&program), Ok(true));
        assert_eq!(look(&fixed), Ok(false));
        assert_eq!(look(&one), Ok(true));
        assert_eq!(look(&script("other", &fixed)), Ok(false));
        assert_eq!(look(&script("two", &one)), Ok(false), "one level");
        assert_eq!(look(&script("none", &scratch.0.join("missing"))), Err(Errno::ENOENT));
        assert_eq!(look(&scratch.0.join("missing")), Err(Errno::ENOENT));
        assert_eq!(look(&scratch.file("plain", &good, 0o644)), Err(Errno::EACCES));
        assert_eq!(look(&scratch.0), Ok(false), "a directory");
        assert_eq!(is_glibcs(core::ptr::null()), Err(Errno::EFAULT));
        assert_eq!(look(&std::env::current_exe().unwrap()), Ok(true));
    }
}
