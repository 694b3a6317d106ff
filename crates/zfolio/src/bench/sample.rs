//! Memory to try compressors on: a bounded part of what there is, spread evenly over it.
//!
//! ```text
//!   what there is   [ page page page page page page page page page page page page page page page ... ]
//!   spread             [block]             [block]             [block]             [block]
//!   same-filled pages out, and counted: a compressor never gets them
//!   pieces             [unit|unit|un]      [unit|unit|unit]    [unit|unit|unit]    [unit|uni]
//! ```
//!
//! Only neighbours in address share a unit, as in an engine: what lies in one block. So a block is as long as the
//! longest unit.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use zswap::page::same_filled;

/// Bytes of a page.
pub const PAGE: u64 = base::PAGE as u64;

/// The longest stretch of neighbours that a sample takes where it cannot take all.
pub const BLOCK_BYTES: u64 = acomp::UNIT_MAX_BYTES as u64;

/// What was taken.
#[derive(Default)]
pub struct Sample {
    /// Stretches of neighbouring pages, without the same-filled ones.
    pub pieces: Vec<Vec<u8>>,
    /// Bytes that were looked at.
    pub looked_at_bytes: u64,
    /// Pages among them that one word fills.
    pub same_filled: u64,
    /// Bytes that there are in all.
    pub there_are_bytes: u64,
}

impl Sample {
    /// Takes a stretch of neighbouring pages in.
    pub fn add(&mut self, stretch: &[u8]) {
        self.looked_at_bytes += stretch.len() as u64;
        let mut piece = Vec::with_capacity(stretch.len());
        for page in stretch.chunks(PAGE as usize) {
            if page.len() as u64 == PAGE && same_filled(page).is_some() {
                self.same_filled += 1;
            } else {
                piece.extend_from_slice(page);
            }
        }
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    /// Takes part of a file in, at most so many bytes: spread over it where it has a length, else as
    /// [`Sample::add_stream`] does. Of a device, which has no end, the beginning.
    pub fn add_file(&mut self, file: &File, most_bytes: u64) -> io::Result<()> {
        let meta = file.metadata()?;
        if meta.file_type().is_char_device() {
            return self.add_stream(file.take(most_bytes), most_bytes);
        }
        // What the kernel makes up as it is read, as in /proc, says that it has no bytes.
        if !meta.is_file() || meta.len() == 0 {
            return self.add_stream(file, most_bytes);
        }
        self.there_are_bytes += meta.len();
        for range in spread(meta.len(), most_bytes) {
            let mut stretch = Vec::new();
            ReadAt { file, at: range.start }.take(range.end - range.start).read_to_end(&mut stretch)?;
            self.add(&stretch);
        }
        Ok(())
    }

    /// Takes part of what a pipe brings in, which is read to its end: every block, from when those are too many every
    /// second one, and so on.
    pub fn add_stream(&mut self, stream: impl Read, most_bytes: u64) -> io::Result<()> {
        self.add_blocks(stream, most_bytes, BLOCK_BYTES)
    }

    fn add_blocks(&mut self, mut stream: impl Read, most_bytes: u64, block_bytes: u64) -> io::Result<()> {
        let most = (most_bytes / block_bytes).max(1) as usize;
        let (mut kept, mut every): (Vec<Vec<u8>>, usize) = (Vec::new(), 1);
        for index in 0.. {
            let mut block = Vec::new();
            stream.by_ref().take(block_bytes).read_to_end(&mut block)?;
            self.there_are_bytes += block.len() as u64;
            if block.is_empty() {
                break;
            }
            if index % every != 0 {
                continue;
            }
            kept.push(block);
            if kept.len() > most {
                every *= 2;
                let mut number = 0..;
                kept.retain(|_| number.next().is_some_and(|n: usize| n.is_multiple_of(2)));
            }
        }
        let mut left = most_bytes;
        for block in kept {
            let len = left.min(block.len() as u64);
            self.add(&block[..len as usize]);
            left -= len;
        }
        Ok(())
    }
}

/// A file from some place on, by pread(2): standard input's own place stays where it is.
struct ReadAt<'a> {
    file: &'a File,
    at: u64,
}

impl Read for ReadAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(buffer, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

/// The ranges of `total` bytes that a sample of at most `most` takes: all, or blocks at equal distances, the first at
/// the beginning and the last at the end.
pub fn spread(total: u64, most: u64) -> Vec<Range<u64>> {
    if total <= most {
        return vec![Range { start: 0, end: total }];
    }
    let block = most.min(BLOCK_BYTES) / PAGE * PAGE;
    if block == 0 {
        return Vec::new();
    }
    let count = most / block;
    let start = |index: u64| match count {
        1 => (total - block) / 2,
        // In 128 bits: a process may have 2^47 bytes, and a sample many blocks.
        _ => ((total - block) as u128 * index as u128 / (count - 1) as u128) as u64,
    };
    (0..count).map(|index| start(index) / PAGE * PAGE).map(|start| start..start + block).collect()
}

/// How many bytes each of several sources gives of `most`: the same, and what the smaller ones have not is the larger
/// ones'. `None` is a source whose length is not known.
pub fn divide(lengths: &[Option<u64>], most: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&index| lengths[index].unwrap_or(u64::MAX));
    let (mut parts, mut left) = (vec![0; lengths.len()], most);
    for (done, &index) in order.iter().enumerate() {
        let equal = left / (order.len() - done) as u64;
        parts[index] = lengths[index].unwrap_or(u64::MAX).min(equal);
        left -= parts[index];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn all_of_a_small_one_and_equal_blocks_of_a_large_one() {
        assert_eq!(spread(0, 64 * MIB), [Range { start: 0, end: 0 }]);
        assert_eq!(spread(64 * MIB, 64 * MIB), [Range { start: 0, end: 64 * MIB }]);
        assert_eq!(spread(100 * MIB, 6 * MIB), [0..2 * MIB, 49 * MIB..51 * MIB, 98 * MIB..100 * MIB]);
        // One block: from the middle. Less than a block: whole pages.
        assert_eq!(spread(100 * MIB, 3 * MIB), [Range { start: 49 * MIB, end: 51 * MIB }]);
        assert_eq!(spread(MIB, 5000), [Range { start: 508 << 10, end: 512 << 10 }]);
        assert_eq!(spread(MIB, 100), []);
    }

    #[test]
    fn blocks_lie_apart_within_what_there_is_and_begin_with_pages() {
        for total in [5 * MIB + 1, 64 * MIB + 4096, 777_777_777, (1 << 47) - 3] {
            for most in [4096, 3 * MIB, 4 * MIB, 5 * MIB, 64 * MIB] {
                let ranges = spread(total, most);
                assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{total} {most}");
                assert!(ranges.last().unwrap().end <= total, "{total} {most}");
                let taken: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                assert!(taken <= most && (total <= most || taken > most / 2), "{total} {most}: {taken}");
                assert!(ranges.iter().all(|range| range.start.is_multiple_of(PAGE)));
            }
        }
    }

    #[test]
    fn small_sources_leave_their_part_to_the_large() {
        assert_eq!(divide(&[Some(100), Some(5), None, Some(40)], 100), [32, 5, 32, 31]);
        assert_eq!(divide(&[Some(10), Some(20)], 100), [10, 20]);
        assert_eq!(divide(&[None], 100), [100]);
    }

    #[test]
    fn same_filled_pages_are_counted_and_left_out() {
        let mut memory = vec![7; 5 * PAGE as usize + 100];
        for page in [1, 3] {
            memory[page * PAGE as usize + 77] = 9;
        }
        let mut sample = Sample::default();
        sample.add(&memory);
        assert_eq!((sample.same_filled, sample.looked_at_bytes), (3, memory.len() as u64));
        // The rest of a page is no page.
        assert_eq!(sample.pieces.iter().map(Vec::len).collect::<Vec<_>>(), [2 * PAGE as usize + 100]);
        sample.add(&memory[..PAGE as usize]);
        assert_eq!((sample.pieces.len(), sample.same_filled), (1, 4));
    }

    #[test]
    fn a_stream_that_is_too_long_is_thinned_out_evenly() {
        let block = 2 * PAGE as usize;
        for (blocks, expected) in
            [(1, vec![1]), (3, vec![1, 2, 3]), (4, vec![1, 3]), (7, vec![1, 5]), (12, vec![1, 5, 9])]
        {
            let mut stream = Vec::new();
            for number in 1..=blocks {
                stream.extend(vec![number; block]);
                let begin = stream.len() - block;
                stream[begin + 4095] = 0;
            }
            let mut sample = Sample::default();
            sample.add_blocks(&stream[..], 3 * block as u64, block as u64).unwrap();
            let firsts: Vec<u8> = sample.pieces.iter().map(|piece| piece[0]).collect();
            assert_eq!(firsts, expected, "of {blocks}");
            assert_eq!(sample.there_are_bytes, stream.len() as u64);
        }
    }
}
