//! How an object is sealed before it leaves RAM: AES-256-GCM (NIST SP 800-38D) where the CPU has instructions for it,
//! else ChaCha20-Poly1305 (RFC 8439); in place. Who seals also opens, on the same machine.
//!
//! ```text
//!   key:    subkey of the row that wrote the object, from the key of the run
//!   nonce:  serial (64 bits), 0 (32 bits)        never twice: Serials counts a row's objects, whoever holds it
//!   also authenticated: slot, offset, row, length
//!   sealed: [ object, encrypted | tag, 16 bytes ]
//! ```
//!
//! A changed byte breaks the seal, and so does an object that lies where another should (slot and offset), or that lay
//! there before (serial). The seal says nothing about objects that are not read. The key of the run is the caller's to
//! keep; what is made of it is on the stack while an object is sealed or opened, and wiped then.

use crate::Place;
use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey};
use zeroize::Zeroize;

cpufeatures::new!(aes_instructions, "aes", "pclmulqdq");

/// Bytes that a seal adds to an object.
pub const TAG: usize = 16;

/// Bytes of a key.
pub const KEY: usize = 32;

/// The last word of the nonces that objects have, and of those that subkeys are made with.
const OF_OBJECTS: u32 = 0;
const OF_SUBKEYS: u32 = 1;

/// The seal of an object is broken: it is not what was sealed for this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the object is not the one that was written there")
    }
}

/// The numbers of the objects that are sealed with one subkey: none comes twice.
#[derive(Clone, Copy, Debug)]
pub struct Serials(&'static AtomicU64);

impl Serials {
    /// Numbers from where the counter stands. All that count for the same subkey have the same counter.
    pub fn new(counter: &'static AtomicU64) -> Serials {
        Serials(counter)
    }

    /// The next number. `None` when all have been given: nothing can be sealed with the subkey any more.
    pub fn next(&self) -> Option<u64> {
        self.0.fetch_update(SeqCst, SeqCst, |count| count.checked_add(1)).ok()
    }
}

/// The faster one on this machine.
fn algorithm() -> &'static Algorithm {
    if aes_instructions::get() { &AES_256_GCM } else { &CHACHA20_POLY1305 }
}

fn cipher(algorithm: &'static Algorithm, key: &[u8; KEY]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(algorithm, key).expect("both ciphers have keys of 32 bytes"))
}

/// The cipher of the objects of a row. Its key is the run's cipher's key stream under a nonce that no object has.
fn cipher_of_row(key: &[u8; KEY], row: u16) -> LessSafeKey {
    let mut subkey = [0; KEY];
    seal_with(&cipher(algorithm(), key), nonce(row as u64, OF_SUBKEYS), &[], &mut subkey);
    cipher(algorithm(), &subkey)
}

/// Words of stack that work with ciphers takes: some 600 bytes for each place that a cipher passes as it is made, and
/// what the assembly saves.
const STACK_WORDS: usize = 1024;

/// Does what takes ciphers, and wipes the stack that they were on: they hold their keys, do not wipe them, and the
/// machine may swap the stack out.
fn wiped<T>(work: impl FnOnce() -> T) -> T {
    let made = below(work);
    wipe_below();
    made
}

/// In frames of its own.
#[inline(never)]
fn below<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Wipes where the frames of [`below`] were.
#[inline(never)]
fn wipe_below() {
    [u64::MAX; STACK_WORDS].zeroize();
}

fn nonce(number: u64, of: u32) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    nonce[8..].copy_from_slice(&of.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

fn seal_with(cipher: &LessSafeKey, nonce: Nonce, also: &[u8], object: &mut [u8]) -> [u8; TAG] {
    let tag = cipher.seal_in_place_separate_tag(nonce, Aad::from(also), object);
    let tag = tag.expect("an object is shorter than the 64 GiB of one nonce");
    tag.as_ref().try_into().expect("both ciphers have tags of 16 bytes")
}

fn open_with(
    cipher: &LessSafeKey,
    nonce: Nonce,
    also: &[u8],
    tag: [u8; TAG],
    object: &mut [u8],
) -> Result<(), Broken> {
    let opened = cipher.open_in_place_separate_tag(nonce, Aad::from(also), Tag::from(tag), object, 0..);
    opened.map(drop).map_err(|_| Broken)
}

/// What is authenticated beside the object.
fn also(place: &Place) -> [u8; 12] {
    let mut also = [0; 12];
    also[..4].copy_from_slice(&place.slot.to_le_bytes());
    also[4..6].copy_from_slice(&place.offset.to_le_bytes());
    also[6..8].copy_from_slice(&place.key.to_le_bytes());
    also[8..].copy_from_slice(&place.bytes.to_le_bytes());
    also
}

/// Encrypts an object where it is. Returns the tag, which stays in memory. `key` is the run's; the row whose subkey it
/// is sealed with is `place.key`, and `place.serial` has come from its [`Serials`]. No key is left on the stack.
///
/// # Panics
/// If `place.bytes` is not the object's length.
pub fn seal(key: &[u8; KEY], place: &Place, object: &mut [u8]) -> [u8; TAG] {
    assert_eq!(place.bytes as usize, object.len(), "the length of a sealed object");
    let nonce = nonce(place.serial, OF_OBJECTS);
    wiped(|| seal_with(&cipher_of_row(key, place.key), nonce, &also(place), object))
}

/// Decrypts an object where it is, from what has been read at its place, by the tag that it was sealed with. Bytes with
/// a broken seal are of no use afterwards: they may be zeros. No key is left on the stack.
pub fn open(key: &[u8; KEY], place: &Place, tag: &[u8; TAG], object: &mut [u8]) -> Result<(), Broken> {
    if object.len() != place.bytes as usize {
        return Err(Broken);
    }
    let nonce = nonce(place.serial, OF_OBJECTS);
    wiped(|| open_with(&cipher_of_row(key, place.key), nonce, &also(place), *tag, object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Random;

    const SERIAL: u64 = 77;

    fn key(seed: u64) -> Box<[u8; KEY]> {
        let mut key = Box::new([0; KEY]);
        Random(seed).fill(&mut *key);
        key
    }

    fn place(object: usize) -> Place {
        Place { slot: 12345, offset: 700, bytes: object as u32, key: 3, serial: SERIAL }
    }

    /// An object of random bytes, what is written of it, and its tag.
    fn sealed(len: usize) -> (Vec<u8>, Vec<u8>, [u8; TAG]) {
        let mut object = vec![0; len];
        Random(len as u64).fill(&mut object);
        let mut sealed = object.clone();
        let tag = seal(&key(1), &place(len), &mut sealed);
        (object, sealed, tag)
    }

    /// Seals by the cipher, compares with what the standard says, and opens again.
    fn check(cipher: &LessSafeKey, nonce: [u8; 12], also: &[u8], text: &[u8], sealed: &[u8], tag: [u8; TAG]) {
        let (mut bytes, nonce) = (text.to_vec(), || Nonce::assume_unique_for_key(nonce));
        assert_eq!(seal_with(cipher, nonce(), also, &mut bytes), tag);
        assert_eq!(bytes, sealed);
        assert_eq!(open_with(cipher, nonce(), also, tag, &mut bytes), Ok(()));
        assert_eq!(bytes, text);
    }

    fn hex(digits: &str) -> Vec<u8> {
        let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    /// The Galois/Counter Mode of Operation (McGrew, Viega), test case 16.
    #[test]
    fn aes_is_that_of_the_standard() {
        let key = hex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
        let key = key.try_into().unwrap();
        let text = hex("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
             1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39");
        let sealed = hex("522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
             8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662");
        let also = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let nonce = hex("cafebabefacedbaddecaf888").try_into().unwrap();
        let tag = hex("76fc6ece0f4e1768cddf8853bb2d551b").try_into().unwrap();
        check(&cipher(&AES_256_GCM, &key), nonce, &also, &text, &sealed, tag);
    }

    /// RFC 8439, 2.8.2.
    #[test]
    fn chacha20_is_that_of_the_rfc() {
        let key = core::array::from_fn(|n| 0x80 + n as u8);
        let nonce: [u8; 12] = [7, 0, 0, 0, 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47];
        let also = [0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
        let text = "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the \
                    future, sunscreen would be it.";
        let sealed = hex(
            "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b\
             1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc\
             3ff4def08e4b7a9de576d26586cec64b6116",
        );
        let tag = hex("1ae10b594f09e26a7e902ecbd0600691").try_into().unwrap();
        check(&cipher(&CHACHA20_POLY1305, &key), nonce, &also, text.as_bytes(), &sealed, tag);
    }

    #[test]
    fn what_is_sealed_is_hidden_and_comes_back() {
        for len in [0, 1, 15, 16, 64, 1434, 4096, 20480, 65536] {
            let (object, mut sealed, tag) = sealed(len);
            assert!(len < 15 || sealed != object);
            assert_eq!(open(&key(1), &place(len), &tag, &mut sealed), Ok(()), "{len}");
            assert_eq!(sealed, object);
        }
    }

    #[test]
    fn each_bit_that_is_changed_breaks_the_seal() {
        let (object, sealed, tag) = sealed(100);
        for bit in 0..(sealed.len() + TAG) * 8 {
            let (mut changed, mut tag) = (sealed.clone(), tag);
            let byte = changed.get_mut(bit / 8).unwrap_or_else(|| &mut tag[bit / 8 - 100]);
            *byte ^= 1 << (bit % 8);
            assert_eq!(open(&key(1), &place(100), &tag, &mut changed), Err(Broken), "bit {bit}");
            assert_ne!(changed, object, "nothing is decrypted that is not authentic");
        }
        for len in 0..sealed.len() {
            let part = &mut sealed.clone()[..len];
            assert_eq!(open(&key(1), &place(100), &tag, part), Err(Broken), "{len}");
        }
    }

    #[test]
    fn moved_and_stale_objects_break_the_seal() {
        let (_, sealed, tag) = sealed(100);
        let right = place(100);
        for wrong in [
            Place { slot: right.slot + 1, ..right },
            Place { offset: right.offset + 1, ..right },
            Place { key: right.key + 1, ..right },
            Place { serial: SERIAL + 1, ..right },
            Place { serial: SERIAL | 1 << 63, ..right },
        ] {
            assert_eq!(open(&key(1), &wrong, &tag, &mut sealed.clone()), Err(Broken), "{wrong:?}");
        }
        assert_eq!(open(&key(2), &right, &tag, &mut sealed.clone()), Err(Broken));
    }

    /// How often bytes are found in the mapping of this process that has the address `at`.
    fn found(bytes: &[u8; KEY], at: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut ranges = maps.lines().map(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            usize::from_str_radix(start, 16).unwrap()..usize::from_str_radix(end, 16).unwrap()
        });
        let mapping = ranges.find(|range| range.contains(&at)).expect("it is mapped");
        let mut all = vec![0; mapping.len()];
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut all, mapping.start as u64).unwrap();
        all.windows(KEY).filter(|window| window == bytes).count()
    }

    /// A cipher's schedule begins with its key as it is.
    #[test]
    fn no_key_is_left_on_the_stack() {
        let work = || {
            let (run, mut row, mut object, mark) = (key(1), Box::new([0; KEY]), vec![7; 4096], 0u8);
            wiped(|| seal_with(&cipher(algorithm(), &run), nonce(3, OF_SUBKEYS), &[], &mut *row));
            let at = &raw const mark as usize;
            let tag = seal(&run, &place(4096), &mut object);
            let after_seal = [&run, &row].map(|key| found(key, at));
            assert_eq!(open(&run, &place(4096), &tag, &mut object), Ok(()));
            let after_open = [&run, &row].map(|key| found(key, at));
            let _not_wiped = below(|| cipher_of_row(&run, 3));
            (after_seal, after_open, found(&row, at))
        };
        let (after_seal, after_open, not_wiped) = std::thread::spawn(work).join().unwrap();
        assert_eq!((after_seal, after_open), ([0, 0], [0, 0]));
        assert!(not_wiped > 0, "what is not wiped is found");
    }

    #[test]
    fn no_serial_comes_twice() {
        let counter = Box::leak(Box::new(AtomicU64::new(0)));
        let serials = Serials::new(counter);
        assert_eq!([serials.next(), serials.next()], [Some(0), Some(1)]);
        let threads = [(); 4].map(|()| {
            std::thread::spawn(move || (0..1000).map(|_| serials.next().unwrap()).collect::<Vec<_>>())
        });
        let mut all: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        all.sort();
        assert_eq!(all, (2..4002).collect::<Vec<_>>());
        counter.store(u64::MAX - 1, SeqCst);
        assert_eq!([serials.next(), serials.next(), serials.next()], [Some(u64::MAX - 1), None, None]);
    }
}
