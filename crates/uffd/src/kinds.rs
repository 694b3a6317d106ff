//! Why memory cannot go out: the kind of a mapping, from what /proc/PID/smaps says of it. Engines ask it of their own
//! process, and `zfolio run` of others.

use crate::smaps;

/// Mappings smaller than this, in bytes, are left alone: their last two pages stay in any case, and a registered one is
/// not joined by a neighbour that is not. Python and rustc hold a tenth of a MiB in such mappings, and who holds much
/// has a page or two in each.
pub const SMALLEST: usize = 64 << 10;

/// The same of what cannot be written to: it lies in small pieces between pages that a collector's write barrier has
/// let through, and its last pages need not stay.
pub const SMALLEST_UNWRITABLE: usize = 16 << 10;

/// What a mapping is to whoever would move its pages out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It can go out.
    Managed,
    /// mlock, mlockall.
    Locked,
    /// Shared with other processes: memfd, shm, a file, a tmpfs.
    Shared,
    /// Pages of a private mapping of a file that were written to.
    Copies,
    /// It cannot be read.
    NoAccess,
    /// Smaller than [`SMALLEST`], or [`SMALLEST_UNWRITABLE`].
    Small,
    /// The main thread's stack, and what the kernel has mapped.
    Special,
    /// Executable, and not registered.
    Executable,
    /// Anonymous, not to be written to, and not registered.
    ReadOnly,
    /// What the engine has not got hold of, for whatever reason.
    Unregistered,
}

/// What is said of a kind.
struct Row {
    /// Its name in the JSON.
    key: &'static str,
    /// What it is called after "so many MiB are".
    what: &'static str,
    /// What helps.
    help: &'static str,
}

impl Kind {
    /// All kinds; each is at the place of its number.
    pub const ALL: [Kind; 10] = [
        Kind::Managed,
        Kind::Locked,
        Kind::Shared,
        Kind::Copies,
        Kind::NoAccess,
        Kind::Small,
        Kind::Special,
        Kind::Executable,
        Kind::ReadOnly,
        Kind::Unregistered,
    ];

    fn row(self) -> Row {
        let row = |key, what, help| Row { key, what, help };
        let more = "a higher limit";
        match self {
            Kind::Managed => row("managed", "memory that can go out", more),
            Kind::Locked => row("locked", "locked memory", "the program without mlock, or a higher limit"),
            Kind::Shared => row("shared", "shared memory", "less of it, or a higher limit"),
            Kind::Copies => row(
                "file_copies",
                "private copies of file pages",
                "to read the file instead of writing to a mapping of it, or a higher limit",
            ),
            Kind::NoAccess => row("no_access", "memory without access (PROT_NONE)", more),
            Kind::Small => row(
                "small_mappings",
                "mappings below 64 KiB",
                "the same memory in larger mappings, or a higher limit",
            ),
            Kind::Special => row("stack", "the main thread's stack", more),
            Kind::Executable => row("executable", "executable memory", more),
            Kind::ReadOnly => row("read_only", "memory that cannot be written to", more),
            Kind::Unregistered => row("unregistered", "mappings that the engine has not got hold of", more),
        }
    }

    /// Its name in the JSON.
    pub fn key(self) -> &'static str {
        self.row().key
    }

    /// What it is called after "so many MiB are".
    pub fn what(self) -> &'static str {
        self.row().what
    }

    /// What helps: a part of a sentence.
    pub fn help(self) -> &'static str {
        self.row().help
    }
}

/// So much of a name an engine keeps.
pub const NAME_BYTES: usize = 48;

/// A mapping as engines read it.
pub type Entry = smaps::Mapping<NAME_BYTES>;

/// What reads these.
pub type Parser = smaps::Parser<NAME_BYTES>;

impl<const NAME: usize> smaps::Mapping<NAME> {
    /// Its kind, as far as smaps tells: whether the engine has registered it is another question.
    pub fn kind(&self) -> Kind {
        let smallest = if self.may(b'w') { SMALLEST } else { SMALLEST_UNWRITABLE };
        match self {
            _ if self.is_shared() => Kind::Shared,
            _ if self.flags.has(b"lo") => Kind::Locked,
            _ if self.inode != 0 => Kind::Copies,
            _ if self.name().starts_with(b"[stack") || self.name().starts_with(b"[v") => Kind::Special,
            _ if !self.may(b'r') => Kind::NoAccess,
            _ if self.range.len() < smallest => Kind::Small,
            _ => Kind::Managed,
        }
    }

    /// What it takes of memory that its process is charged with, in bytes.
    pub fn bytes(&self) -> usize {
        if self.is_shared() { self.resident_bytes } else { self.anonymous_bytes }
    }

    /// The file's name without folders, or what it is called otherwise.
    pub fn short_name(&self) -> &[u8] {
        self.name().rsplit(|&b| b == b'/').next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<Entry> {
        let (mut parser, mut found) = (Parser::default(), Vec::new());
        parser.feed(text.as_bytes(), |entry| found.push(entry.clone()));
        found
    }

    fn mapping(header: &str, anonymous_kib: usize, flags: &str) -> String {
        format!(
            "{header}\nSize: 8 kB\nRss: {} kB\nAnonymous:  {anonymous_kib} kB\nAnonHugePages: 0 kB\nVmFlags: rd {flags} \n",
            anonymous_kib + 4
        )
    }

    #[test]
    fn each_mapping_is_of_its_kind() {
        let long = format!("/long/{}/f.bin", "folder ".repeat(100));
        let found = parse(
            &[
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
            .concat(),
        );
        use Kind::*;
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

    #[test]
    fn what_the_kernel_says_of_this_process_is_understood() {
        let found = parse(&std::fs::read_to_string("/proc/self/smaps").unwrap());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(found.len().abs_diff(maps.lines().count()) < 10);
        assert!(found.iter().any(|entry| entry.kind() == Kind::Managed && entry.bytes() > 0));
        assert!(
            found.iter().any(|entry| entry.kind() == Kind::Special && entry.name().starts_with(b"[stack]"))
        );
        assert!(
            found.iter().any(|entry| entry.kind() == Kind::Copies && entry.short_name().starts_with(b"libc"))
        );
    }

    #[test]
    fn each_kind_has_its_place_and_a_name_of_its_own() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            assert!(Kind::ALL[..number].iter().all(|other| other.key() != kind.key()), "{}", kind.key());
        }
    }
}
