//! What the dynamic loader has loaded: the list that it keeps for debuggers (`_r_debug`), and the symbols of an object
//! in it. Nothing here calls the loader or libc, nor takes a lock: it can be asked inside malloc and in a signal
//! handler. What dlopen and dlclose do meanwhile is not waited for; the objects that a program begins with stay as they
//! are.

use core::ffi::CStr;
use core::ops::Range;
use core::ptr::null;
use uffd::{PAGE, sys};

/// `struct link_map`, the part that everybody may know.
#[repr(C)]
struct LinkMap {
    /// What is added to the addresses in the file.
    base: usize,
    name: *const i8,
    dynamic: *const Dynamic,
    next: *const LinkMap,
}

/// `struct r_debug`, as far as it is needed.
#[repr(C)]
struct Debug {
    _version: i32,
    first: *const LinkMap,
}

/// `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: usize,
    value: usize,
}

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    _other: u8,
    section: u16,
    value: usize,
    bytes: usize,
}

const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;

/// In the table of versions: a symbol that only whoever asks for its version gets.
const HIDDEN: u16 = 0x8000;

#[unsafe(link_section = ".text.startup.zfolio")]
fn first() -> *const LinkMap {
    let debug: *const Debug;
    // SAFETY: reads the address of a weak symbol from the table of addresses: 0 where no loader has it.
    unsafe {
        core::arch::asm!(".weak _r_debug", "mov {}, qword ptr [rip + _r_debug@GOTPCREL]", out(reg) debug)
    };
    // SAFETY: null, or the loader's own, which stays.
    unsafe { debug.as_ref() }.map_or(null(), |debug| debug.first)
}

/// A shared object with its table of symbols.
#[derive(Clone, Copy)]
pub struct SharedObject {
    base: usize,
    names: *const u8,
    symbols: *const Symbol,
    hash: *const u32,
    versions: *const u16,
}

/// The loader's list.
fn list() -> impl Iterator<Item = &'static LinkMap> {
    // SAFETY: null, or the loader's; entries of objects that stay, stay.
    core::iter::successors(unsafe { first().as_ref() }, |map| unsafe { map.next.as_ref() })
}

/// The address of the first symbol of this name in an object that was loaded after the one at `base`: what that object
/// stands before.
pub fn symbol_after(base: usize, name: &[u8]) -> Option<usize> {
    let later = list().skip_while(|map| map.base != base).skip(1);
    // SAFETY: objects that are loaded.
    later
        .filter_map(|map| unsafe { SharedObject::read(map) })
        .find_map(|object| object.symbol(name))
        .map(|(at, _)| at)
}

/// The address of the first symbol of this name, which is padded with zeros, in an object that was loaded after this
/// library. It needs no address that is filled in later (relocate.rs).
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn symbol_behind_us(name: &[u8]) -> Option<usize> {
    unsafe extern "C" {
        /// The linker's: where the library begins.
        static __ehdr_start: u8;
    }
    let base = &raw const __ehdr_start as usize;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let (mut map, mut is_behind) = (first(), false);
    // SAFETY: the loader's list.
    while let Some(object) = unsafe { map.as_ref() } {
        if is_behind {
            // SAFETY: an object that is loaded.
            let found = unsafe { SharedObject::read(object) }.and_then(|object| object.symbol(&name[..end]));
            if let Some((at, _)) = found {
                return Some(at);
            }
        }
        is_behind |= object.base == base;
        map = object.next;
    }
    None
}

impl SharedObject {
    /// libc. `None` where none is loaded, or one without a hash table of the usual kind.
    #[unsafe(link_section = ".text.startup.zfolio")]
    pub fn libc() -> Option<SharedObject> {
        // SAFETY: the loader's names end with NUL; libc is never unloaded.
        unsafe {
            let map = list().find(|map| CStr::from_ptr(map.name).to_bytes().ends_with(b"/libc.so.6"))?;
            SharedObject::read(map)
        }
    }

    /// # Safety
    /// The object must be loaded, and stay.
    #[unsafe(link_section = ".text.startup.zfolio")]
    unsafe fn read(map: &LinkMap) -> Option<SharedObject> {
        let (mut names, mut symbols, mut hash, mut versions) = (0, 0, 0, 0);
        // The loader adds the base where it can write.
        let address = |value: usize| if value < map.base { value + map.base } else { value };
        let mut entry = map.dynamic;
        // SAFETY: the caller's contract; the table ends with tag 0.
        while let Some(Dynamic { tag: tag @ 1.., value }) = unsafe { entry.as_ref() } {
            match *tag {
                DT_STRTAB => names = address(*value),
                DT_SYMTAB => symbols = address(*value),
                DT_GNU_HASH => hash = address(*value),
                DT_VERSYM => versions = address(*value),
                _ => {}
            }
            // SAFETY: this was not the last.
            entry = unsafe { entry.add(1) };
        }
        let (names, symbols, hash) = (names as *const u8, symbols as *const Symbol, hash as *const u32);
        let complete = !names.is_null() && !symbols.is_null() && !hash.is_null();
        complete.then_some(SharedObject {
            base: map.base,
            names,
            symbols,
            hash,
            versions: versions as *const u16,
        })
    }

    /// Address and length in bytes of a symbol that the object defines.
    #[unsafe(link_section = ".text.startup.zfolio")]
    pub fn symbol(&self, name: &[u8]) -> Option<(usize, usize)> {
        let hash = name.iter().fold(5381u32, |h, c| h.wrapping_mul(33).wrapping_add(*c as u32));
        // SAFETY: the table that the linker made: four words, a filter of 8-byte words, a word for each bucket, and a
        // word for each symbol from `skipped` on, of which the last of a bucket is odd.
        unsafe {
            let (buckets, skipped, filter_words) =
                (*self.hash as usize, *self.hash.add(1) as usize, *self.hash.add(2) as usize);
            let bucket = self.hash.add(4 + filter_words * 2);
            let chain = bucket.add(buckets);
            let mut index = *bucket.add(hash as usize % buckets) as usize;
            if index < skipped {
                return None;
            }
            loop {
                let word = *chain.add(index - skipped);
                let symbol = &*self.symbols.add(index);
                if word | 1 == hash | 1
                    && symbol.section != 0
                    && (self.versions.is_null() || *self.versions.add(index) & HIDDEN == 0)
                    && CStr::from_ptr(self.names.add(symbol.name as usize).cast()).to_bytes() == name
                {
                    return Some((self.base + symbol.value, symbol.bytes));
                }
                if word & 1 == 1 {
                    return None;
                }
                index += 1;
            }
        }
    }
}

/// `Elf64_Phdr`.
#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    _offset: usize,
    at: usize,
    _physical: usize,
    _in_file: usize,
    bytes: usize,
    _align: usize,
}

const AT_PHDR: usize = 3;
const AT_PHNUM: usize = 5;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PF_W: u32 = 2;

/// What the main program's headers say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    /// Bytes that it can write to (.data and .bss).
    pub data_bytes: usize,
    /// Where its constants are that the loader has written addresses to, and made read-only: whole pages.
    pub constants: Range<usize>,
    /// It is written in Go, and maps memory without libc.
    pub is_go: bool,
}

impl Executable {
    /// Reads them. `None` where the kernel's notes to the program (the auxiliary vector) are not behind the environment
    /// any more.
    ///
    /// # Safety
    /// `envp` must be the environment as the kernel laid it out.
    #[unsafe(link_section = ".text.startup.zfolio")]
    pub unsafe fn read(envp: *const *const u8) -> Option<Executable> {
        let (mut headers, mut count) = (0, 0);
        // SAFETY: the environment ends with NULL, and the vector that follows it with an entry of type 0.
        unsafe {
            let mut at = envp;
            while !(*at).is_null() {
                at = at.add(1);
            }
            let mut entry = at.add(1).cast::<[usize; 2]>();
            while (*entry)[0] != 0 {
                match *entry {
                    [AT_PHDR, value] => headers = value,
                    [AT_PHNUM, value] => count = value,
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
        let base = list().next()?.base;
        if headers == 0 {
            return None;
        }
        // SAFETY: the program's headers, which are mapped with it.
        let segments = unsafe { core::slice::from_raw_parts(headers as *const Segment, count) };
        let writable = segments.iter().filter(|s| s.kind == PT_LOAD && s.flags & PF_W != 0);
        let mut notes = segments.iter().filter(|s| s.kind == PT_NOTE);
        Some(Executable {
            data_bytes: writable.map(|s| s.bytes).sum(),
            constants: segments
                .iter()
                .find(|s| s.kind == PT_GNU_RELRO)
                .map_or(0..0, |s| (base + s.at) & !(PAGE - 1)..(base + s.at + s.bytes) & !(PAGE - 1)),
            // SAFETY: as above; notes are part of what is mapped.
            is_go: notes.any(|s| unsafe { has_note_of_go(base + s.at, s.bytes) }),
        })
    }
}

/// # Safety
/// `at` must be the address of `bytes` of notes.
#[unsafe(link_section = ".text.startup.zfolio")]
unsafe fn has_note_of_go(at: usize, bytes: usize) -> bool {
    // Each: length of the name, length of the contents, type, name and contents, both padded to words of four bytes.
    let mut from = 0;
    while from + 16 <= bytes {
        // SAFETY: the caller's contract; notes are aligned.
        let [name, contents, _, word] = unsafe { *((at + from) as *const [u32; 4]) };
        if name == 4 && word.to_ne_bytes() == *b"Go\0\0" {
            return true;
        }
        from += 12 + (name as usize).next_multiple_of(4) + (contents as usize).next_multiple_of(4);
    }
    false
}

/// True when the calling process has one thread, as far as libc knows; where libc does not say, /proc does.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn has_one_thread() -> bool {
    // A directory has a link for each one in it, and two of its own.
    says_one_thread() || sys::links(b"/proc/self/task\0") == Ok(3)
}

/// True when libc says that the calling process has one thread. In a child of vfork it says what holds for the parent.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn says_one_thread() -> bool {
    let says = SharedObject::libc().and_then(|libc| libc.symbol(b"__libc_single_threaded"));
    // SAFETY: libc's variable, of one byte. It changes before the first pthread_create maps a stack, and so before
    // there is a second thread.
    says.is_some_and(|(at, _)| unsafe { (at as *const u8).read_volatile() != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_found_as_by_the_loader() {
        unsafe extern "C" {
            fn dlsym(handle: usize, name: *const i8) -> usize;
        }
        let libc = SharedObject::libc().expect("this test is linked with glibc");
        for name in [c"mmap", c"brk", c"_Fork", c"mremap", c"environ", c"getpid", c"qsort"] {
            let (at, bytes) = libc.symbol(name.to_bytes()).unwrap();
            // SAFETY: dlsym(3), RTLD_DEFAULT.
            assert_eq!(at, unsafe { dlsym(0, name.as_ptr()) }, "{name:?}");
            assert!((1..10_000).contains(&bytes), "{name:?} {bytes}");
        }
        assert_eq!(libc.symbol(b"no_such_function"), None);
        assert_eq!(libc.symbol(b""), None);
        // The program itself stands first.
        let base = list().next().unwrap().base;
        assert_eq!(symbol_after(base, b"mmap"), libc.symbol(b"mmap").map(|(at, _)| at));
        assert_eq!(symbol_after(base, b"no_such_function"), None);
    }

    #[test]
    fn a_note_of_go_is_found_among_others() {
        let note = |name: &[u8; 4], contents: usize| {
            let mut words = vec![4, contents as u32, 4, u32::from_ne_bytes(*name)];
            words.resize(4 + contents.div_ceil(4), 0);
            words
        };
        let found = |notes: &[Vec<u32>]| {
            let words = notes.concat();
            // SAFETY: the words are there.
            unsafe { has_note_of_go(words.as_ptr() as usize, words.len() * 4) }
        };
        assert!(found(&[note(b"Go\0\0", 83)]));
        assert!(found(&[note(b"GNU\0", 20), note(b"Go\0\0", 3)]));
        assert!(!found(&[note(b"GNU\0", 20), note(b"GNU\0", 16)]));
        assert!(!found(&[]));
    }

    #[test]
    fn threads_are_noticed() {
        let other = std::thread::spawn(|| has_one_thread() || sys::links(b"/proc/self/task\0") == Ok(3));
        assert!(!other.join().unwrap());
    }
}
