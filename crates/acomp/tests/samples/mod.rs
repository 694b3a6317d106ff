//! Seeded memory of a few kinds, for tests.

#![allow(dead_code)] // Each test takes what it needs.

pub mod fence;
#[path = "../../../zfolio/tests/skip/mod.rs"]
pub mod skip;
pub mod trials;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use acomp::{CompressRequest, Compressor, Context, DecompressRequest, Error, Outcome};
pub use base::Random;

/// Memory of several kinds, from a seed.
pub trait Samples {
    /// `len` bytes that nothing compresses.
    fn noise(&mut self, len: usize) -> Vec<u8>;
    /// `len` bytes of objects as a heap holds them: headers, pointers near each other, small numbers, zeros.
    fn heap(&mut self, len: usize) -> Vec<u8>;
    /// `len` bytes of a heap with runs of zeros in it, as programs have them: lzo-rle has an instruction for these.
    fn sparse(&mut self, len: usize) -> Vec<u8>;
    /// `len` bytes of words that come again and again.
    fn text(&mut self, len: usize) -> Vec<u8>;
    /// `len` bytes of a kind taken by chance, or of all kinds in turn.
    fn memory(&mut self, len: usize) -> Vec<u8>;
}

impl Samples for Random {
    fn noise(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.word().to_le_bytes()).take(len).collect()
    }

    fn heap(&mut self, len: usize) -> Vec<u8> {
        let base = 0x7f00_0000_0000 | (self.word() & 0xff_ffff_f000);
        let mut memory = Vec::with_capacity(len + 48);
        while memory.len() < len {
            let words = [1, base + 0x1000, base + (self.word() & 0xffff0), self.word() & 0xff, 0, 0];
            memory.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        memory.truncate(len);
        memory
    }

    fn sparse(&mut self, len: usize) -> Vec<u8> {
        let mut memory = self.heap(len);
        for _ in 0..len / 200 {
            let at = self.below(len);
            let end = (at + self.below(300)).min(len);
            memory[at..end].fill(0);
        }
        memory
    }

    fn text(&mut self, len: usize) -> Vec<u8> {
        let words: Vec<Vec<u8>> = (0..200)
            .map(|_| (0..1 + self.below(9)).map(|_| b'a' + self.below(26) as u8).chain([b' ']).collect())
            .collect();
        let mut memory = Vec::with_capacity(len + 10);
        while memory.len() < len {
            let (a, b) = (self.below(words.len()), self.below(words.len()));
            memory.extend_from_slice(&words[a.min(b)]);
        }
        memory.truncate(len);
        memory
    }

    fn memory(&mut self, len: usize) -> Vec<u8> {
        match self.below(5) {
            0 => vec![self.word() as u8; len],
            1 => self.heap(len),
            2 => self.text(len),
            3 => self.noise(len),
            _ => {
                let mut memory = Vec::with_capacity(len);
                while memory.len() < len {
                    let piece = (1 + self.below(8192)).min(len - memory.len());
                    memory.extend(match self.below(4) {
                        0 => vec![0; piece],
                        1 => self.heap(piece),
                        2 => self.text(piece),
                        _ => self.noise(piece),
                    });
                }
                memory
            }
        }
    }
}

/// A context for `text`, such as `zstd:1`. The dictionary, where it has one, is of text and heap.
pub fn context(text: &str, unit_max: usize) -> Context {
    let mut random = Random(1);
    let dictionary = [random.text(5000), random.heap(5000)].concat();
    Context::with_dictionary(Compressor::parse(text).unwrap(), unit_max, &dictionary).unwrap()
}

/// Compresses one unit into a buffer of the length to which it must shrink.
pub fn compress(context: &mut Context, src: &[u8], dst: &mut [u8]) -> Result<Outcome, Error> {
    let mut batch = [CompressRequest::new(src, dst)];
    context.compress(&mut batch);
    batch[0].result
}

/// The most that a unit of these many bytes becomes: 842 makes 69 bits of 64, and deflate-iaa's canned codes 10 of 8,
/// behind a header.
pub fn grown_bytes(bytes: usize) -> usize {
    bytes + bytes / 4 + 128
}

/// The object of a unit, with room for one that grows.
pub fn object(context: &mut Context, src: &[u8]) -> Vec<u8> {
    let mut dst = vec![0; grown_bytes(src.len())];
    match compress(context, src, &mut dst) {
        Ok(Outcome::Shrunk(bytes)) => dst.truncate(bytes),
        other => panic!("{}: a unit of {} bytes came to {other:?}", context.compressor(), src.len()),
    }
    dst
}

/// Decompresses one object.
pub fn decompress(context: &mut Context, src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
    let mut batch = [DecompressRequest::new(src, dst)];
    context.decompress(&mut batch);
    batch[0].result
}

/// Decompresses the beginning of an object that holds `full_len` bytes.
pub fn decompress_prefix(
    context: &mut Context,
    src: &[u8],
    dst: &mut [u8],
    full_len: usize,
) -> Result<(), Error> {
    context.decompress_prefix(src, dst, full_len)
}

/// The seed of this run: `ACOMP_SEED`, or always the same one.
pub fn seed() -> u64 {
    let seed = std::env::var("ACOMP_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20260101);
    println!("ACOMP_SEED={seed}");
    seed
}

/// What a program makes of its input.
pub fn filter(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // It may have written more than a pipe holds before it has read all; one that fails need not read all.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{program} {arguments:?}: {}", output.status);
    output.stdout
}

/// Whether a program can be run. If not, that is said, or fails.
pub fn is_installed(program: &str, package: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        skip::skip(&format!(
            "{program} is not installed (apt-get install {package}): its streams were not compared"
        ));
    }
    found.is_ok()
}

/// A new folder for a test's files, which removes it.
pub fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("acomp-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
