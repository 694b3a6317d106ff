//! The measuring: every compressor takes the sample out and back at every unit, in turn, several times over.
//!
//! Time is this process's processor time, so that who else uses the machine matters little; of several rounds the
//! middle one counts. A round goes through all compressors before the next begins: what changes meanwhile (the clock of
//! the processor, its neighbours) changes for all. Within a round memory goes in steps, as large as the longest unit:
//! out, back, compared. So the plain bytes come from memory and the objects from a near cache.

use super::candidate::Candidate;
use crate::sys;
use acomp::{CompressRequest, Context, DecompressRequest, Outcome, UNIT_MAX_BYTES};
use std::cmp::Ordering;
use std::rc::Rc;
use std::time::Duration;

/// What came of one compressor at one unit.
#[derive(Clone, Debug)]
pub struct Row {
    /// Who.
    pub compressor: Rc<Candidate>,
    /// Bytes that are compressed as one.
    pub unit_bytes: usize,
    /// Units that there were; the last of a stretch may be shorter.
    pub units: u64,
    /// Those that are kept as they are, because they save less than a thirty-second.
    pub kept: u64,
    /// Bytes that went in.
    pub plain_bytes: u64,
    /// Bytes of those units that shrank, which are all that are decompressed.
    pub shrunk_plain_bytes: u64,
    /// Bytes that they all came to.
    pub object_bytes: u64,
    /// Processor time for all of them, of each round.
    out: Vec<Duration>,
    /// See `out`.
    back: Vec<Duration>,
}

impl Row {
    fn new(compressor: Rc<Candidate>, unit_bytes: usize) -> Row {
        let (out, back) = (Vec::new(), Vec::new());
        let (units, kept, plain_bytes, shrunk_plain_bytes, object_bytes) = (0, 0, 0, 0, 0);
        Row { compressor, unit_bytes, units, kept, plain_bytes, shrunk_plain_bytes, object_bytes, out, back }
    }

    /// Bytes of pages for each byte kept.
    pub fn ratio(&self) -> f64 {
        self.plain_bytes as f64 / self.object_bytes as f64
    }

    /// Bytes of pages compressed in a second of processor time.
    pub fn out_bytes_per_s(&self) -> f64 {
        self.plain_bytes as f64 / median(&self.out).as_secs_f64()
    }

    /// Bytes of pages decompressed in a second of processor time; `None` where nothing was compressed.
    pub fn in_bytes_per_s(&self) -> Option<f64> {
        (self.shrunk_plain_bytes > 0)
            .then(|| self.shrunk_plain_bytes as f64 / median(&self.back).as_secs_f64())
    }

    /// The share of units that are kept as they are.
    pub fn kept_share(&self) -> f64 {
        self.kept as f64 / self.units as f64
    }
}

/// The middle one, of an even number the lower; never nothing, so that it can be divided by.
fn median(times: &[Duration]) -> Duration {
    middle(times, Ord::cmp).unwrap_or_default().max(Duration::from_nanos(1))
}

/// The middle one in this order, of an even number the lower; none of none.
pub fn middle<T: Copy>(values: &[T], order: impl FnMut(&T, &T) -> Ordering) -> Option<T> {
    let mut values = values.to_vec();
    values.sort_unstable_by(order);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

/// How far it is: for who watches.
pub struct Step<'a> {
    /// The round, from 1, and how many there are.
    pub round: usize,
    /// See `round`.
    pub rounds: usize,
    /// Who is being tried.
    pub row: &'a Row,
    /// The share of this round's trials that are done, in hundredths.
    pub percent: usize,
}

/// Tries every compressor at every unit on the pieces, and tells before each what comes. The rows are in the order of
/// units, then of compressors.
pub fn measure(
    pieces: &[Vec<u8>],
    units: &[usize],
    compressors: &[Rc<Candidate>],
    rounds: usize,
    mut watch: impl FnMut(Step),
) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = units
        .iter()
        .flat_map(|unit| compressors.iter().map(|compressor| Row::new(compressor.clone(), *unit)))
        .collect();
    let mut bench = Bench { objects: vec![0; UNIT_MAX_BYTES], back: vec![0; UNIT_MAX_BYTES] };
    let count = rows.len();
    for round in 1..=rounds {
        for (index, row) in rows.iter_mut().enumerate() {
            watch(Step { round, rounds, row, percent: index * 100 / count });
            bench.try_out(pieces, row).map_err(|what| {
                format!("{} at {} KiB: {what}: please report this", row.compressor, row.unit_bytes >> 10)
            })?;
        }
    }
    Ok(rows)
}

/// Room for a step's objects, and for what comes back of them.
struct Bench {
    objects: Vec<u8>,
    back: Vec<u8>,
}

impl Bench {
    /// One round of one row.
    fn try_out(&mut self, pieces: &[Vec<u8>], row: &mut Row) -> Result<(), String> {
        let Candidate { compressor, dictionary, .. } = &*row.compressor;
        let context = Context::with_dictionary(*compressor, row.unit_bytes, dictionary);
        let mut context = context.map_err(|error| error.to_string())?;
        // Of one round only; all come to the same.
        *row = Row {
            out: std::mem::take(&mut row.out),
            back: std::mem::take(&mut row.back),
            ..Row::new(row.compressor.clone(), row.unit_bytes)
        };
        let (mut out, mut back) = (Duration::ZERO, Duration::ZERO);
        let step_bytes = self.objects.len() / row.unit_bytes * row.unit_bytes;
        // The first step is done twice: the context's memory is new, and each page of it a fault.
        if let Some(first) = pieces.first() {
            let mut warm = Row::new(row.compressor.clone(), row.unit_bytes);
            self.step(&mut context, &first[..first.len().min(step_bytes)], &mut warm)?;
        }
        for step in pieces.iter().flat_map(|piece| piece.chunks(step_bytes)) {
            let times = self.step(&mut context, step, row)?;
            out += times.0;
            back += times.1;
        }
        row.out.push(out);
        row.back.push(back);
        Ok(())
    }

    /// Takes some units out and back, and compares.
    fn step(
        &mut self,
        context: &mut Context,
        plain: &[u8],
        row: &mut Row,
    ) -> Result<(Duration, Duration), String> {
        let batch_size = context.batch_size();
        let rooms = self.objects.chunks_mut(row.unit_bytes);
        let mut out: Vec<_> = plain
            .chunks(row.unit_bytes)
            .zip(rooms)
            // What saves less than a thirty-second is kept as it is, as an engine does.
            .map(|(unit, room)| CompressRequest::new(unit, &mut room[..unit.len() - unit.len() / 32]))
            .collect();
        let begin = sys::cpu_time();
        out.chunks_mut(batch_size).for_each(|batch| context.compress(batch));
        let out_time = sys::cpu_time() - begin;

        let mut shrunk = Vec::new();
        for request in &out {
            let plain = request.src.len() as u64;
            row.units += 1;
            row.plain_bytes += plain;
            match request.result.map_err(|error| error.to_string())? {
                Outcome::Shrunk(bytes) => {
                    row.object_bytes += bytes as u64;
                    row.shrunk_plain_bytes += plain;
                    shrunk.push((request.src, &request.dst[..bytes]));
                }
                Outcome::Incompressible => {
                    row.object_bytes += plain;
                    row.kept += 1;
                }
            }
        }

        let pieces = self.back.chunks_mut(row.unit_bytes);
        let mut back: Vec<_> = shrunk
            .iter()
            .zip(pieces)
            .map(|((unit, object), piece)| DecompressRequest::new(object, &mut piece[..unit.len()]))
            .collect();
        let begin = sys::cpu_time();
        back.chunks_mut(batch_size).for_each(|batch| context.decompress(batch));
        let back_time = sys::cpu_time() - begin;
        for (request, (unit, _)) in back.iter().zip(&shrunk) {
            request.result.map_err(|error| error.to_string())?;
            if *request.dst != **unit {
                return Err("what came back is not what went out".to_string());
            }
        }
        Ok((out_time, back_time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use acomp::Compressor;
    use base::Random;

    fn candidate(name: &str) -> Rc<Candidate> {
        Rc::new(Candidate::new(Compressor::parse(name).unwrap()))
    }

    /// Words that no two of are alike, with some zeros between: lz4 shrinks it a little.
    fn memory(len: usize) -> Vec<u8> {
        let mut random = Random(1);
        let words = (0..len as u64 / 16 + 1).flat_map(|_| [random.word() >> 20, 0]);
        words.flat_map(u64::to_le_bytes).take(len).collect()
    }

    fn rows(pieces: &[Vec<u8>], units: &[usize], names: &[&str], rounds: usize) -> Vec<Row> {
        let compressors: Vec<_> = names.iter().map(|name| candidate(name)).collect();
        measure(pieces, units, &compressors, rounds, |_| {}).unwrap()
    }

    #[test]
    fn every_compressor_is_tried_at_every_unit_in_order_and_every_byte_counts_once() {
        // Longer than a step, not a whole number of units, and one shorter than any unit.
        let pieces = [memory((3 << 20) + 5000), memory(100)];
        let rows = rows(&pieces, &[12 << 10, 2 << 20], &["zstd:1", "lz4"], 2);
        let order: Vec<_> = rows.iter().map(|row| (row.unit_bytes, row.compressor.to_string())).collect();
        assert_eq!(
            order,
            [
                (12 << 10, "zstd:1".into()),
                (12 << 10, "lz4:1".into()),
                (2 << 20, "zstd:1".into()),
                (2 << 20, "lz4:1".into())
            ]
        );
        let bytes = (3 << 20) + 5100;
        for row in &rows {
            assert_eq!((row.plain_bytes, row.out.len(), row.back.len()), (bytes, 2, 2));
            assert_eq!(row.units, if row.unit_bytes == 12 << 10 { 257 + 1 } else { 3 });
            assert!(row.ratio() > 1.1 && row.ratio() < 4.0, "{row:?}");
            assert!(row.out_bytes_per_s() > 0.0 && row.in_bytes_per_s().unwrap() > 0.0);
        }
    }

    #[test]
    fn what_does_not_shrink_counts_as_long_as_it_is() {
        let mut noise = memory(128 << 10);
        noise.retain(|byte| *byte != 0);
        let noise: Vec<u8> = noise.into_iter().take(32 << 10).collect();
        let rows = rows(&[noise], &[4 << 10], &["lz4"], 1);
        assert_eq!((rows[0].kept, rows[0].kept_share(), rows[0].ratio()), (8, 1.0, 1.0));
        assert_eq!(rows[0].in_bytes_per_s(), None);
    }

    #[test]
    fn a_dictionary_is_used_both_ways() {
        let memory = memory(64 << 10);
        let with =
            Candidate { dictionary: memory[..16 << 10].to_vec(), ..(*candidate("zstd,dict=x")).clone() };
        let compressors = [candidate("zstd"), Rc::new(with)];
        let rows = measure(&[memory], &[4096], &compressors, 1, |_| {}).unwrap();
        // A quarter of the memory is in the dictionary.
        assert!(rows[1].object_bytes * 10 < rows[0].object_bytes * 9, "{rows:?}");
        assert_eq!(rows[1].units, 16);
    }

    #[test]
    fn the_median_is_the_middle_one() {
        let times = |millis: &[u64]| {
            median(&millis.iter().map(|ms| Duration::from_millis(*ms)).collect::<Vec<_>>()).as_millis()
        };
        assert_eq!((times(&[9, 1, 5]), times(&[7]), times(&[4, 3, 2, 1])), (5, 7, 2));
        assert_eq!(median(&[]), Duration::from_nanos(1));
    }

    #[test]
    fn who_watches_is_told_what_comes() {
        let mut seen = Vec::new();
        measure(&[memory(9000)], &[4096, 8192], &[candidate("lz4")], 2, |step| {
            seen.push((step.round, step.row.unit_bytes, step.percent))
        })
        .unwrap();
        assert_eq!(seen, [(1, 4096, 0), (1, 8192, 50), (2, 4096, 0), (2, 8192, 50)]);
    }
}
