//! What is done with an input that the fuzzer found for objects (`make fuzz`), there and in the test that replays them.
//!
//! ```text
//!   [ algorithm | what | first | count | place, 2 | body ]
//! ```
//!
//! The body is an object, of which pages are asked for; or, where `what` is odd, what a window repeats, which is
//! packed, damaged, and unpacked. Where `what` has the bit [`TWO`] there are two algorithms, one for each tier.

use crate::samples::fence::Fenced;
use crate::samples::{Random, Samples};
use acomp::Compressor;
use zswap::layout::View;
use zswap::{Choice, Codec, New, PAGE, PARCEL_MAX_BYTES, Packed, Priors, WINDOW_PAGES};

const WINDOW_BYTES: usize = WINDOW_PAGES * PAGE;

const TWO: u8 = 0x40;

/// A codec for each algorithm and one for two, and fenced buffers.
pub struct Trials {
    codecs: Vec<Codec>,
    object: Fenced,
    pages: Fenced,
    parcel: Vec<u8>,
}

impl Trials {
    /// Codecs of all algorithms, at their usual levels.
    pub fn new() -> Trials {
        let codec = |a: &&acomp::Algorithm| Codec::new(Compressor::parse(a.name).unwrap(), 1, &[]).unwrap();
        let two = Codec::new(Choice::parse("lz4,zstd:1").unwrap(), 1, &[]).unwrap();
        Trials {
            codecs: Compressor::ALL.iter().map(codec).chain([two]).collect(),
            object: Fenced::new(2 * WINDOW_BYTES),
            pages: Fenced::new(WINDOW_BYTES),
            parcel: vec![0; PARCEL_MAX_BYTES],
        }
    }

    /// Tries one input: what comes out is what went in, or an error.
    pub fn run(&mut self, input: &[u8]) {
        let Some((&[algorithm, what, first, count, p0, p1], body)) = input.split_first_chunk() else {
            return;
        };
        let two = self.codecs.len() - 1;
        let algorithm = if what & TWO != 0 { two } else { algorithm as usize % two };
        let (first, count) = (first as usize % WINDOW_PAGES, 1 + count as usize % WINDOW_PAGES);
        let place = u16::from_le_bytes([p0, p1]);
        if what & 1 == 0 {
            let _ = self.unpack(algorithm, body, first, count);
        } else if !body.is_empty() {
            let window = &body.repeat(WINDOW_BYTES.div_ceil(body.len()))[..WINDOW_BYTES];
            let packed = self.pack(algorithm, window, place, count);
            let pages: Vec<usize> = packed.in_objects.iter().collect();
            let mut at = 0;
            for (object, pages) in packed.objects.iter().flatten().zip(pages.chunks(count)) {
                let New::Blob { bytes, .. } = *object else { continue };
                let mut object = self.parcel[at..][..bytes as usize].to_vec();
                at += object.len();
                let expected: Vec<&[u8]> = pages.iter().map(|page| &window[page * PAGE..][..PAGE]).collect();
                let expected = expected.concat();
                assert!(self.unpack(algorithm, &object, 0, pages.len()).unwrap() == expected);
                let damaged = place as usize % object.len();
                object[damaged] ^= what | 1;
                let first = first % pages.len();
                let rest = pages.len() - first;
                if let Some(read) = self.unpack(algorithm, &object, first, rest) {
                    assert!(*read == expected[first * PAGE..], "damaged, and nobody says so");
                }
            }
        }
    }

    fn pack(&mut self, algorithm: usize, window: &[u8], pages: u16, unit: usize) -> Packed {
        self.codecs[algorithm].pack_one(
            &mut window.to_vec(),
            pages.into(),
            unit,
            &Priors::default(),
            false,
            &mut self.parcel,
        )
    }

    /// Pages of an object that may be anything. That it is another is said by its fingerprint, which is taken from
    /// itself here.
    fn unpack(&mut self, algorithm: usize, object: &[u8], first: usize, count: usize) -> Option<&[u8]> {
        let fingerprint = View::read(object).map_or(0, |view| view.fingerprint());
        let at = self.object.back(object.len());
        at.copy_from_slice(object);
        let to = self.pages.back(count * PAGE);
        self.codecs[algorithm].unpack(at, fingerprint, first, to).ok()?;
        Some(to)
    }

    /// Inputs to begin with: objects of all algorithms.
    #[allow(dead_code)] // The fuzzer alone begins.
    pub fn first_inputs(&mut self, random: &mut Random) -> Vec<Vec<u8>> {
        let mut inputs = Vec::new();
        let two = self.codecs.len() - 1;
        let alone = (0..two).map(|algorithm| (algorithm, 0));
        for (algorithm, what) in alone.chain([(two, TWO)]) {
            for (pages, unit) in [(1, 1), (0x00f0, 4), (0xffff, 16)] {
                let window = random.text(WINDOW_BYTES);
                let packed = self.pack(algorithm, &window, pages, unit);
                let Some(New::Blob { bytes, .. }) = packed.objects[0] else { continue };
                let head = [algorithm as u8, what, 0, unit as u8 - 1, 0xff, 0xff];
                inputs.push([&head, &self.parcel[..bytes as usize]].concat());
                let head = [algorithm as u8, what | 1, 0, unit as u8 - 1, 0xff, 0xff];
                inputs.push([&head, &window[..100]].concat());
            }
        }
        inputs
    }
}
