//! Why memory cannot go out: the kind of a mapping, from what /proc/PID/smaps says of it. Engines ask it of their own
//! process, and `zfolio run` of others.

use core::ops::Range;

/// Mappings smaller than this, in bytes, are left alone: their last two pages stay in any case, and a registered one is
/// not joined by a neighbour that is not. Python and rustc hold a tenth of a MiB in such mappings, and who holds much
/// has a page or two in each.
pub const SMALLEST: usize = 64 << 10;

/// The same of what cannot be written to: it lies in small pieces between pages that a collector's write barrier has let
/// through, and its last pages need not stay.
pub const SMALLEST_UNWRITABLE: usize = 16 << 10;

/// What a mapping is to whoever would move its pages out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It can go out.
    Managed,
    /// mlock, mlockall.
    Locked,
    /// Shared with other processes: memfd, shm, a file.
    Shared,
    /// Pages of a private mapping of a file that were written to.
    Copies,
    /// It cannot be read.
    NoAccess,
    /// Smaller than [`SMALLEST`], or [`SMALLEST_UNWRITABLE`].
    Small,
    /// The main thread's stack, and what the kernel has mapped.
    Special,
}

impl Kind {
    /// All kinds; each is at the place of its number.
    pub const ALL: [Kind; 7] =
        [Kind::Managed, Kind::Locked, Kind::Shared, Kind::Copies, Kind::NoAccess, Kind::Small, Kind::Special];

    /// What it is called after "so many MiB are".
    pub fn phrase(self) -> &'static str {
        match self {
            Kind::Managed => "memory that can go out",
            Kind::Locked => "locked",
            Kind::Shared => "shared memory",
            Kind::Copies => "private copies of file pages",
            Kind::NoAccess => "memory without access (PROT_NONE)",
            Kind::Small => "mappings below 64 KiB",
            Kind::Special => "the main thread's stack",
        }
    }

    /// What helps.
    pub fn help(self) -> &'static str {
        match self {
            Kind::Copies => "to read the file instead of writing to a mapping of it, or more memory",
            Kind::Small => "fewer and larger mappings, or more memory",
            Kind::Locked => "no mlock, or more memory",
            _ => "more memory",
        }
    }
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Addresses.
    pub range: Range<usize>,
    /// Its rights: readable, writable, executable.
    pub rights: [bool; 3],
    /// MAP_SHARED.
    pub is_shared: bool,
    /// Of a file, or of what is one to the kernel.
    pub is_file: bool,
    /// VmFlags: `lo`.
    pub is_locked: bool,
    /// The last bytes of its name, padded with NUL.
    pub name: [u8; NAME_BYTES],
    /// Pages that are there, in bytes; and those of them that are private to processes: not the file's, nor shared
    /// memory's.
    pub resident_bytes: usize,
    /// See `resident_bytes`.
    pub anonymous_bytes: usize,
}

/// So much of a name is kept.
pub const NAME_BYTES: usize = 48;

impl Entry {
    const NONE: Entry = Entry {
        range: 0..0,
        rights: [false; 3],
        is_shared: false,
        is_file: false,
        is_locked: false,
        name: [0; NAME_BYTES],
        resident_bytes: 0,
        anonymous_bytes: 0,
    };

    /// Its kind.
    pub fn kind(&self) -> Kind {
        let [reads, writes, _] = self.rights;
        let smallest = if writes { SMALLEST } else { SMALLEST_UNWRITABLE };
        let is_named = |prefix: &[u8]| self.name.starts_with(prefix);
        match self {
            _ if self.is_shared => Kind::Shared,
            _ if self.is_locked => Kind::Locked,
            _ if self.is_file => Kind::Copies,
            _ if is_named(b"[stack") || is_named(b"[v") => Kind::Special,
            _ if !reads => Kind::NoAccess,
            _ if self.range.len() < smallest => Kind::Small,
            _ => Kind::Managed,
        }
    }

    /// What it takes of memory that its process is charged with, in bytes.
    pub fn bytes(&self) -> usize {
        if self.is_shared { self.resident_bytes } else { self.anonymous_bytes }
    }

    /// The file's name without folders, or what it is called otherwise.
    pub fn short_name(&self) -> &[u8] {
        let end = self.name.iter().position(|&b| b == 0).unwrap_or(NAME_BYTES);
        let from = self.name[..end].iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        &self.name[from..end]
    }
}

/// Reads the text of smaps, piece by piece.
pub struct Parser {
    line: [u8; LINE_BYTES],
    len: usize,
    /// The last bytes of a line that is longer than that.
    end: [u8; NAME_BYTES],
    entry: Entry,
}

/// A mapping's line without the name is shorter.
const LINE_BYTES: usize = 160;

impl Default for Parser {
    fn default() -> Parser {
        Parser { line: [0; LINE_BYTES], len: 0, end: [0; NAME_BYTES], entry: Entry::NONE }
    }
}

impl Parser {
    /// Takes the next piece of the text, and calls `each` with each mapping that it completes.
    pub fn feed(&mut self, piece: &[u8], mut each: impl FnMut(&Entry)) {
        for &byte in piece {
            if byte == b'\n' {
                self.take_line(&mut each);
                self.len = 0;
                continue;
            }
            if let Some(cell) = self.line.get_mut(self.len) {
                *cell = byte;
            } else {
                if self.len == LINE_BYTES {
                    self.end.copy_from_slice(&self.line[LINE_BYTES - NAME_BYTES..]);
                }
                self.end.rotate_left(1);
                self.end[NAME_BYTES - 1] = byte;
            }
            self.len += 1;
        }
    }

    fn take_line(&mut self, each: &mut impl FnMut(&Entry)) {
        let line = &self.line[..self.len.min(LINE_BYTES)];
        if let Some(entry) = header(line) {
            self.entry = entry;
            if self.len > LINE_BYTES {
                self.entry.name = self.end;
            }
        } else if let Some(kib) = value(line, b"Rss:") {
            self.entry.resident_bytes = kib << 10;
        } else if let Some(kib) = value(line, b"Anonymous:") {
            self.entry.anonymous_bytes = kib << 10;
        } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            self.entry.is_locked = flags.split(|&b| b == b' ').any(|flag| flag == b"lo");
            each(&self.entry);
        }
    }
}

/// `7f0000000000-7f0000001000 rw-p 00000000 08:01 4711      /tmp/f.bin`
fn header(line: &[u8]) -> Option<Entry> {
    let mut words = line.split(|&b| b == b' ').filter(|word| !word.is_empty());
    let mut ends = words.next()?.split(|&b| b == b'-');
    let range = number(ends.next()?, 16)?..number(ends.next()?, 16)?;
    let rights = words.next().filter(|rights| rights.len() == 4)?;
    let inode = number(words.nth(2)?, 10)?;
    let mut entry = Entry {
        range,
        rights: [rights[0] == b'r', rights[1] == b'w', rights[2] == b'x'],
        is_shared: rights[3] == b's',
        is_file: inode != 0,
        ..Entry::NONE
    };
    let fields = line.iter().enumerate().filter(|&(at, &b)| b != b' ' && (at == 0 || line[at - 1] == b' '));
    // The sixth word: a name may have blanks.
    if let Some((at, _)) = fields.clone().nth(5) {
        let name = &line[at..];
        let name = &name[name.len().saturating_sub(NAME_BYTES)..];
        entry.name[..name.len()].copy_from_slice(name);
    }
    Some(entry)
}

/// `Rss:                1024 kB`
fn value(line: &[u8], name: &[u8]) -> Option<usize> {
    let rest = line.strip_prefix(name)?;
    number(rest.split(|&b| b == b' ').find(|word| !word.is_empty())?, 10)
}

fn number(digits: &[u8], base: u32) -> Option<usize> {
    usize::from_str_radix(core::str::from_utf8(digits).ok()?, base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, piece: usize) -> Vec<Entry> {
        let (mut parser, mut found) = (Parser::default(), Vec::new());
        for piece in text.as_bytes().chunks(piece) {
            parser.feed(piece, |entry| found.push(entry.clone()));
        }
        found
    }

    fn mapping(header: &str, anonymous_kib: usize, flags: &str) -> String {
        format!(
            "{header}\nSize: 8 kB\nRss: {} kB\nAnonymous:  {anonymous_kib} kB\nAnonHugePages: 0 kB\nVmFlags: rd {flags} \n",
            anonymous_kib + 4
        )
    }

    #[test]
    fn each_mapping_is_of_its_kind_whatever_pieces_the_text_comes_in() {
        let long = format!("/long/{}/f.bin", "folder ".repeat(100));
        let text = [
            mapping("55d0e0a00000-55d0e0b21000 rw-p 00000000 00:00 0       [heap]", 4, "mr mw me ac"),
            mapping("7f0000000000-7f0000100000 rw-p 00000000 08:01 4711    /tmp/my file.bin", 100, "mr"),
            mapping("7f0000100000-7f0000200000 rw-s 00000000 00:01 5       /memfd:x (deleted)", 0, "sh"),
            mapping("7f0000200000-7f0000300000 rw-p 00000000 00:00 0 ", 7, "mr lo"),
            mapping("7f0000300000-7f0000301000 rw-p 00000000 00:00 0 ", 4, "mr"),
            mapping("7f0000400000-7f0000500000 rwxp 00000000 00:00 0 ", 8, "mr"),
            mapping("7f0000500000-7f0000504000 r--p 00000000 00:00 0 ", 9, "mr"),
            mapping("7f0000600000-7f0000700000 ---p 00000000 00:00 0 ", 9, "mr"),
            mapping("7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0       [stack]", 9, "gd"),
            mapping(&format!("7f0001000000-7f0002000000 rw-p 00000000 08:01 9 {long}"), 1, ""),
        ]
        .concat();
        use Kind::*;
        for piece in [1, 7, 100, 4096, 1 << 20] {
            let found = parse(&text, piece);
            let kinds: Vec<Kind> = found.iter().map(Entry::kind).collect();
            assert_eq!(
                kinds,
                [Managed, Copies, Shared, Locked, Small, Managed, Managed, NoAccess, Special, Copies]
            );
            assert_eq!(found[1].range, 0x7f0000000000..0x7f0000100000);
            assert_eq!((found[1].short_name(), found[1].bytes()), (&b"my file.bin"[..], 100 << 10));
            assert_eq!((found[2].bytes(), found[3].bytes()), (4 << 10, 7 << 10));
            assert_eq!((found[3].short_name(), found[9].short_name()), (&b""[..], &b"f.bin"[..]));
        }
    }

    #[test]
    fn what_the_kernel_says_of_this_process_is_understood() {
        let found = parse(&std::fs::read_to_string("/proc/self/smaps").unwrap(), 4096);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(found.len().abs_diff(maps.lines().count()) < 10);
        assert!(found.iter().any(|entry| entry.kind() == Kind::Managed && entry.bytes() > 0));
        assert!(
            found.iter().any(|entry| entry.kind() == Kind::Special && entry.name.starts_with(b"[stack]"))
        );
        assert!(
            found.iter().any(|entry| entry.kind() == Kind::Copies && entry.short_name().starts_with(b"libc"))
        );
        assert_eq!(Kind::ALL.map(|kind| kind as usize), [0, 1, 2, 3, 4, 5, 6]);
    }
}
