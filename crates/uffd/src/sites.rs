//! Where libc makes its system calls: the seven bytes `mov $NN,%eax; syscall` in the machine code of glibc's functions.
//! libc calls its own functions without the symbols that a preloaded library can take, and all of these calls pass such
//! a site.
//!
//! This says where a site is and changes nothing: libzfolio.so patches what it finds (interpose/src/patch.rs), `zfolio
//! doctor` looks into the file. Versions of glibc differ in what stands around the seven bytes, and so do compilers;
//! what is not found for certain is not a site.

use core::ops::Range;
use linux_raw_sys::general as g;

/// A system call inside libc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Site {
    /// clone in fork and _Fork: also under daemon, forkpty and whatever else forks inside libc; not under posix_spawn,
    /// system and popen.
    Clone,
    /// mmap, also under malloc and pthread_create.
    Mmap,
    /// mremap, also under realloc.
    Mremap,
    /// brk, also under sbrk and malloc.
    Brk,
}

/// How many bytes a site has.
pub const SITE_BYTES: usize = 7;

/// See [`Site::symbols`], by number: padded with zeros, and without addresses, which libzfolio.so has not got yet where
/// it needs them.
static SYMBOLS: [[[u8; 6]; 2]; Site::ALL.len()] = [
    // fork calls _Fork since 2.34, and makes the system call itself before.
    [*b"_Fork\0", *b"fork\0\0"],
    [*b"mmap\0\0", [0; 6]],
    [*b"mremap", [0; 6]],
    [*b"brk\0\0\0", [0; 6]],
];

impl Site {
    /// All of them, in the order of their numbers as `usize`.
    pub const ALL: [Site; 4] = [Site::Clone, Site::Mmap, Site::Mremap, Site::Brk];

    /// The name of the system call.
    pub fn name(self) -> &'static str {
        match self {
            Site::Clone => "clone",
            Site::Mmap => "mmap",
            Site::Mremap => "mremap",
            Site::Brk => "brk",
        }
    }

    /// The number of the system call.
    pub fn number(self) -> u32 {
        match self {
            Site::Clone => g::__NR_clone,
            Site::Mmap => g::__NR_mmap,
            Site::Mremap => g::__NR_mremap,
            Site::Brk => g::__NR_brk,
        }
    }

    /// The functions of libc that it may be in; the first that libc has is the one.
    pub fn symbols(self) -> impl Iterator<Item = &'static [u8]> {
        SYMBOLS[self as usize]
            .iter()
            .map_while(|name| name.split(|byte| *byte == 0).find(|name| !name.is_empty()))
    }
}

/// Where in `code`, the code of one function, its only system call of this number begins. `None` where there is none,
/// or more than one, or where something in the function might jump between the two instructions.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn find(code: &[u8], number: u32) -> Option<usize> {
    let [a, b, c, d] = number.to_le_bytes();
    let pattern = [0xb8, a, b, c, d, 0x0f, 0x05];
    let mut places = code.windows(SITE_BYTES).enumerate().filter(|(_, bytes)| *bytes == pattern);
    let (at, _) = places.next()?;
    let is_only = places.next().is_none();
    (is_only && !may_be_jumped_into(code, &(at + 1..at + SITE_BYTES))).then_some(at)
}

/// True when any bytes of `code` would be a jump or call to `inner`, wherever an instruction begins: none that is one
/// is missed so. No other function jumps there: a compiler that moves part of a function elsewhere (`.cold`) lets it
/// come back where the number is loaded, since the system call overwrites the register.
#[unsafe(link_section = ".text.startup.zfolio")]
fn may_be_jumped_into(code: &[u8], inner: &Range<usize>) -> bool {
    let hits = |next: usize, distance: i64| {
        usize::try_from(next as i64 + distance).is_ok_and(|target| inner.contains(&target))
    };
    (0..code.len()).any(|at| {
        let short = match code[at] {
            // jcc, loop and jrcxz, jmp, with a distance of one byte.
            0x70..=0x7f | 0xe0..=0xe3 | 0xeb => code.get(at + 1).map(|&d| hits(at + 2, d as i8 as i64)),
            _ => None,
        };
        let opcode = match (code[at], code.get(at + 1)) {
            // call, jmp; jcc, with one of four.
            (0xe8 | 0xe9, _) => Some(1),
            (0x0f, Some(0x80..=0x8f)) => Some(2),
            _ => None,
        };
        let long = opcode.and_then(|len| {
            let distance = code.get(at + len..at + len + 4)?;
            let distance = i32::from_le_bytes(distance.try_into().ok()?);
            Some(hits(at + len + 4, distance as i64))
        });
        short == Some(true) || long == Some(true)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// glibc 2.36's mmap.
    const MMAP: &[u8] = &[
        0x41, 0x89, 0xca, 0x41, 0xf7, 0xc1, 0xff, 0x0f, 0x00, 0x00, 0x75, 0x14, 0xb8, 0x09, 0x00, 0x00, 0x00,
        0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, 0x25, 0xc3,
    ];

    #[test]
    fn the_only_call_of_its_number_is_found() {
        assert_eq!(find(MMAP, 9), Some(12));
        assert_eq!(find(MMAP, 10), None);
        assert_eq!(find(&MMAP[..18], 9), None, "cut off");
        assert_eq!(find(&[MMAP, MMAP].concat(), 9), None, "two");
        let loaded_otherwise = [0x31, 0xc0, 0xb0, 0x09, 0x0f, 0x05, 0xc3];
        assert_eq!(find(&loaded_otherwise, 9), None);
    }

    /// A function with the site at 8, and before or behind it a jump to each place around.
    #[test]
    fn a_jump_between_the_two_instructions_makes_it_none() {
        let site = [0xb8, 9, 0, 0, 0, 0x0f, 0x05];
        type Jump = fn(i64) -> Vec<u8>;
        let jumps: [Jump; 4] = [
            |to| vec![0xeb, (to - 2) as u8],
            |to| vec![0x75, (to - 2) as u8],
            |to| [&[0xe9][..], &(to as i32 - 5).to_le_bytes()].concat(),
            |to| [&[0x0f, 0x84][..], &(to as i32 - 6).to_le_bytes()].concat(),
        ];
        for (kind, jump) in jumps.iter().enumerate() {
            for target in 0..24i64 {
                let mut before = jump(target);
                before.resize(8, 0x90);
                let before = [&before[..], &site, &[0x90; 9]].concat();
                let behind = [&[0x90; 8], &site[..], &[0x90], &jump(target - 16)].concat();
                let expected = (!(9..15).contains(&target)).then_some(8);
                assert_eq!(find(&before, 9), expected, "jump {kind} from before to {target}");
                assert_eq!(find(&behind, 9), expected, "jump {kind} from behind to {target}");
            }
        }
    }

    #[test]
    fn sites_are_numbered_in_order() {
        assert!(Site::ALL.iter().enumerate().all(|(index, site)| *site as usize == index));
        assert_eq!(Site::ALL.map(Site::number), [56, 9, 25, 12]);
    }
}
