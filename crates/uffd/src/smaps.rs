//! The text of /proc/PID/maps and smaps, piece by piece as it comes.
//!
//! maps costs the kernel about a microsecond for each mapping. smaps walks the page tables besides: some 15 ms for each
//! GiB.

use core::ops::Range;

/// A mapping, with the last `NAME` bytes of its name. Sizes and flags are those of smaps, and none where only maps was
/// read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<const NAME: usize> {
    /// Addresses.
    pub range: Range<usize>,
    /// `rw-p` and the like.
    pub permissions: [u8; 4],
    /// Major and minor number of the device that what is mapped is on.
    pub device: (u32, u32),
    /// What is mapped, on that device; 0 where that is nothing.
    pub inode: u64,
    /// Pages that are there, in bytes.
    pub resident_bytes: usize,
    /// The same, each divided by the number of processes that have it.
    pub pss_bytes: usize,
    /// Pages that are there and no file's: also private copies of a file's pages.
    pub anonymous_bytes: usize,
    /// VmFlags.
    pub flags: Flags,
    /// The last bytes of its name.
    tail: Tail<NAME>,
}

impl<const NAME: usize> Mapping<NAME> {
    /// The file's path, or the kernel's own name in brackets; nothing for memory without a name. Its beginning is
    /// missing where it is longer than is kept.
    pub fn name(&self) -> &[u8] {
        self.tail.bytes()
    }

    /// True where the permissions hold this letter.
    pub fn may(&self, letter: u8) -> bool {
        self.permissions.contains(&letter)
    }

    /// MAP_SHARED.
    pub fn is_shared(&self) -> bool {
        self.may(b's')
    }
}

/// Flags of a mapping: two letters each, as in proc(5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags([u32; LETTERS]);

const LETTERS: usize = 26;

impl Flags {
    /// What stands behind `VmFlags:`.
    fn of(text: &[u8]) -> Flags {
        let mut flags = Flags::default();
        for word in text.split(|&b| b == b' ') {
            if let Some((row, bit)) = Flags::place(word) {
                flags.0[row] |= bit;
            }
        }
        flags
    }

    fn place(flag: &[u8]) -> Option<(usize, u32)> {
        let [first, second] = *flag else { return None };
        let are_letters = first.is_ascii_lowercase() && second.is_ascii_lowercase();
        are_letters.then(|| ((first - b'a') as usize, 1 << (second - b'a')))
    }

    /// True where this flag is among them.
    pub fn has(&self, flag: &[u8; 2]) -> bool {
        Flags::place(flag).is_some_and(|(row, bit)| self.0[row] & bit != 0)
    }

    /// MADV_DONTFORK: no child has it.
    pub fn is_kept_out(&self) -> bool {
        self.has(b"dc")
    }

    /// MADV_WIPEONFORK, and what the kernel may drop at any time (MAP_DROPPABLE): a child finds it empty.
    pub fn is_wiped(&self) -> bool {
        self.has(b"wf") || self.has(b"dr")
    }

    /// Locked, and filled as it is touched (MLOCK_ONFAULT).
    pub fn is_locked_on_fault(&self) -> bool {
        self.has(b"lf")
    }

    /// MADV_RANDOM.
    pub fn is_random(&self) -> bool {
        self.has(b"rr")
    }
}

/// The last bytes of a text that comes byte by byte.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tail<const N: usize> {
    kept: [u8; N],
    len: usize,
}

impl<const N: usize> Tail<N> {
    const EMPTY: Tail<N> = Tail { kept: [0; N], len: 0 };

    fn push(&mut self, byte: u8) {
        if self.len == N {
            self.kept.rotate_left(1);
            self.len -= 1;
        }
        self.kept[self.len] = byte;
        self.len += 1;
    }

    fn bytes(&self) -> &[u8] {
        &self.kept[..self.len]
    }
}

/// Reads the text, and calls with each mapping that it completes.
pub struct Parser<const NAME: usize> {
    /// The beginning of the line that is being read.
    line: [u8; LINE_BYTES],
    len: usize,
    /// What comes behind that.
    tail: Tail<NAME>,
    mapping: Option<Mapping<NAME>>,
}

/// Lines are shorter, but for those with a name.
const LINE_BYTES: usize = 160;

impl<const NAME: usize> Default for Parser<NAME> {
    fn default() -> Self {
        Parser { line: [0; LINE_BYTES], len: 0, tail: Tail::EMPTY, mapping: None }
    }
}

impl<const NAME: usize> Parser<NAME> {
    /// Takes the next piece of the text.
    pub fn feed(&mut self, piece: &[u8], mut each: impl FnMut(&Mapping<NAME>)) {
        for &byte in piece {
            if byte == b'\n' {
                self.take_line(&mut each);
                (self.len, self.tail.len) = (0, 0);
                continue;
            }
            match self.line.get_mut(self.len) {
                Some(cell) => {
                    *cell = byte;
                    self.len += 1;
                }
                None => self.tail.push(byte),
            }
        }
    }

    /// The text is over. Where it was that of maps, this completes the last mapping.
    pub fn end(&mut self, each: impl FnOnce(&Mapping<NAME>)) {
        self.mapping.take().as_ref().map(each);
    }

    fn take_line(&mut self, each: &mut impl FnMut(&Mapping<NAME>)) {
        let line = &self.line[..self.len];
        if let Some(next) = head(line, &self.tail) {
            self.mapping.replace(next).as_ref().map(each);
            return;
        }
        let Some(mapping) = &mut self.mapping else { return };
        if let Some(kib) = value(line, b"Rss:") {
            mapping.resident_bytes = kib << 10;
        } else if let Some(kib) = value(line, b"Pss:") {
            mapping.pss_bytes = kib << 10;
        } else if let Some(kib) = value(line, b"Anonymous:") {
            mapping.anonymous_bytes = kib << 10;
        } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            // The last line of a mapping.
            mapping.flags = Flags::of(flags);
            self.mapping.take().as_ref().map(each);
        }
    }
}

/// `7f0000000000-7f0000001000 rw-p 00000000 08:01 4711 /tmp/f.bin`, and what of the name did not fit into the line.
fn head<const NAME: usize>(line: &[u8], rest: &Tail<NAME>) -> Option<Mapping<NAME>> {
    let (range, line) = word(line)?;
    let (permissions, line) = word(line)?;
    let (_offset, line) = word(line)?;
    let (device, line) = word(line)?;
    let (inode, name) = word(line)?;
    let (start, end) = split(range, b'-')?;
    let (major, minor) = split(device, b':')?;
    let device = |digits| u32::try_from(number(digits, 16)?).ok();
    let mut tail = Tail::EMPTY;
    name.trim_ascii_start().iter().chain(rest.bytes()).for_each(|&byte| tail.push(byte));
    Some(Mapping {
        range: number(start, 16)?..number(end, 16)?,
        permissions: *permissions.first_chunk().filter(|_| permissions.len() == 4)?,
        device: (device(major)?, device(minor)?),
        inode: number(inode, 10)? as u64,
        resident_bytes: 0,
        pss_bytes: 0,
        anonymous_bytes: 0,
        flags: Flags::default(),
        tail,
    })
}

/// `Rss:                1024 kB`
fn value(line: &[u8], name: &[u8]) -> Option<usize> {
    number(word(line.strip_prefix(name)?)?.0, 10)
}

/// The first word, and what follows it.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(|&b| b == b' ').unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = text.iter().position(|&b| b == at)?;
    Some((&text[..place], &text[place + 1..]))
}

fn number(digits: &[u8], base: u32) -> Option<usize> {
    usize::from_str_radix(core::str::from_utf8(digits).ok()?, base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<const NAME: usize>(text: &str, piece: usize) -> Vec<Mapping<NAME>> {
        let (mut parser, mut found) = (Parser::default(), Vec::new());
        for piece in text.as_bytes().chunks(piece) {
            parser.feed(piece, |mapping| found.push(mapping.clone()));
        }
        parser.end(|mapping| found.push(mapping.clone()));
        found
    }

    const HEADS: [&str; 4] = [
        "7f0000000000-7f0000002000 rw-s 00000000 00:01 1234                       /dev/zero (deleted)",
        "7f0000010000-7f0000020000 r-xp 00001000 fe:10 77    /usr/lib/a file.so",
        "55d0e0a00000-55d0e0a21000 rw-p 00000000 00:00 0                          [heap]",
        "800000000-900000000 ---p 00000000 00:00 0 ",
    ];

    #[test]
    fn maps_and_smaps_are_read_alike_whatever_pieces_they_come_in() {
        let sizes = "Size:                  8 kB\nRss:                   8 kB\nPss:                   4 kB\nPss_Dirty: 9 kB\n\
                     Anonymous:             2 kB\nAnonHugePages: 0 kB\nVmFlags: rd wr sh dcx lo \n";
        let maps: String = HEADS.iter().map(|head| format!("{head}\n")).collect();
        let smaps: String = HEADS.iter().map(|head| format!("{head}\n{sizes}")).collect();
        for piece in [1, 7, 100, 4096, 1 << 20] {
            let (plain, sized) = (parse::<64>(&maps, piece), parse::<64>(&smaps, piece));
            let names: Vec<&[u8]> = plain.iter().map(Mapping::name).collect();
            assert_eq!(names, [&b"/dev/zero (deleted)"[..], b"/usr/lib/a file.so", b"[heap]", b""]);
            let objects = plain.iter().map(|m| (m.device, m.inode)).collect::<Vec<_>>();
            assert_eq!(objects, [((0, 1), 1234), ((0xfe, 0x10), 77), ((0, 0), 0), ((0, 0), 0)]);
            assert_eq!(
                (&plain[1].permissions, plain[0].is_shared(), plain[1].may(b'x')),
                (b"r-xp", true, true)
            );
            assert_eq!(plain[3].range, 0x8_0000_0000..0x9_0000_0000);
            assert_eq!(sized.len(), plain.len());
            for (mapping, plain) in sized.iter().zip(&plain) {
                let Mapping { resident_bytes, pss_bytes, anonymous_bytes, flags, .. } = *mapping;
                assert_eq!((resident_bytes, pss_bytes, anonymous_bytes), (8192, 4096, 2048));
                assert!(flags.has(b"lo") && flags.has(b"rd") && !flags.has(b"um") && !flags.has(b"ol"));
                assert!(!flags.is_kept_out(), "dcx is another flag");
                let sizes = (0, 0, 0, Flags::default());
                let (resident_bytes, pss_bytes, anonymous_bytes, flags) = sizes;
                let bare = Mapping { resident_bytes, pss_bytes, anonymous_bytes, flags, ..mapping.clone() };
                assert_eq!(&bare, plain);
            }
        }
    }

    #[test]
    fn of_a_long_name_the_end_is_kept() {
        let name = format!("/long/{}/f.bin", "folder ".repeat(1000));
        let text =
            format!("7f0001000000-7f0002000000 rw-p 00000000 08:01 9 {name}\nRss: 12 kB\nVmFlags: rd\n");
        for piece in [1, 100, 1 << 20] {
            let (short, long) = (parse::<48>(&text, piece), parse::<10_000>(&text, piece));
            assert_eq!(short[0].name(), &name.as_bytes()[name.len() - 48..]);
            assert_eq!((long[0].name(), long[0].resident_bytes), (name.as_bytes(), 12 << 10));
        }
    }

    #[test]
    fn what_is_no_mapping_is_none() {
        for line in [
            "",
            "x",
            "Name: 7 kB",
            "7f00-7fff",
            "7f00-7fff rw-p 0 0:0",
            "7f00_7fff rw-p 0 0:0 0",
            "7f00-7fff rw 0 0:0 0",
        ] {
            assert_eq!(parse::<16>(&format!("{line}\n"), 100), [], "{line}");
        }
    }
}
