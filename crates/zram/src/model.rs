//! The naive model of a device: its bytes, and which blocks are holes. Random requests and commands from a seed, each
//! compared with the model, and the walker after each.

use crate::{BLOCK, Content, Device, Error, Worker};
use base::Random;
use base::sys::DataFile;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use swap::FileArea;
use swap::fate::Faults;
use swap::faulty::FaultyArea;

/// An area whose faults a test chooses.
pub type TestArea = FaultyArea<'static, FileArea>;

/// An area of so many bytes in memory, which lives as long as the process.
pub fn area(bytes: usize, seed: u64) -> &'static TestArea {
    let fd = base::sys::memfd(c"area").unwrap();
    base::sys::ftruncate(&fd, bytes).unwrap();
    let area = FileArea::new(DataFile::new(fd).unwrap(), bytes as u64);
    Box::leak(Box::new(FaultyArea::new(area, seed, Faults::default(), &|_| ())))
}

/// Bytes of a kind that the random numbers choose: zeros, a word, what compresses, noise.
pub fn fill(random: &mut Random, to: &mut [u8]) {
    for piece in to.chunks_mut(BLOCK) {
        match random.below(8) {
            0 => piece.fill(0),
            1 => {
                let word = random.word().to_le_bytes();
                piece.iter_mut().zip(word.iter().cycle()).for_each(|(to, from)| *to = *from);
            }
            2 => random.fill(piece),
            kind => {
                // Few values, in runs: kinds compress differently well.
                let mut at = 0;
                while at < piece.len() {
                    let len = (1 + random.below(4 << kind)).min(piece.len() - at);
                    piece[at..at + len].fill(random.below(16 * kind) as u8);
                    at += len;
                }
            }
        }
    }
}

/// A device, and what it should hold.
pub struct Model {
    pub device: Device,
    pub worker: Worker,
    pub random: Random,
    pub bytes: Vec<u8>,
    holes: Vec<bool>,
    /// Blocks whose objects were damaged, or shared one with such a block: these may be unreadable.
    suspects: BTreeSet<usize>,
    pub area: Option<&'static TestArea>,
    pub is_faulty: bool,
    pub told: Arc<Mutex<Vec<String>>>,
    now_s: u64,
    /// What happened, for the message of a failure.
    log: Vec<String>,
}

impl Model {
    /// A device of so many bytes with algorithms of the seed's, and an area of half as many bytes.
    pub fn new(seed: u64, bytes: usize) -> Model {
        let mut random = Random(seed);
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = told.clone();
        let device = Device::new().log_to(move |line| tell.lock().unwrap().push(line.to_string()));
        let primary = random.pick(&["lz4", "lzo-rle", "zstd", "842", "deflate"]);
        device.set("comp_algorithm", primary).unwrap();
        device.set("recomp_algorithm", "algo=zstd priority=1").unwrap();
        device.set("algorithm_params", "priority=1 level=9").unwrap();
        if random.one_in(2) {
            device.set("recomp_algorithm", "algo=deflate priority=3").unwrap();
        }
        let area = area(bytes / 2, seed);
        device.set_backing("area", Box::new(area)).unwrap();
        device.set("disksize", &bytes.to_string()).unwrap();
        Model {
            worker: device.worker(),
            device,
            random,
            bytes: vec![0; bytes],
            holes: vec![true; bytes / BLOCK],
            suspects: BTreeSet::new(),
            area: Some(area),
            is_faulty: false,
            told,
            now_s: 100,
            log: Vec::new(),
        }
    }

    /// A range: whole groups, whole blocks, or any bytes.
    fn range(&mut self) -> (usize, usize) {
        let random = &mut self.random;
        let unit = *random.pick(&[1, 512, BLOCK, BLOCK, 16 * BLOCK, 16 * BLOCK]);
        let count = self.bytes.len() / unit;
        let most = 1 + random.below(40 * BLOCK / unit + 2);
        let start = random.below(count);
        (start * unit, (1 + random.below(most)).min(count - start) * unit)
    }

    fn blocks(start: usize, len: usize) -> std::ops::Range<usize> {
        start / BLOCK..(start + len).div_ceil(BLOCK)
    }

    fn whole(start: usize, len: usize) -> std::ops::Range<usize> {
        start.div_ceil(BLOCK)..(start + len) / BLOCK
    }

    /// Blocks in the backing device, by what the device says.
    fn written(&self) -> BTreeSet<usize> {
        let state = self.device.show("block_state").unwrap();
        let lines = state.lines().filter(|line| line.contains(".w"));
        lines.map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect()
    }

    /// Fails unless a block may be unreadable.
    fn may_fail(&self, error: &Error) {
        let Error::Damaged { block, .. } = error else { panic!("{error}: {:#?}", self.log) };
        let block = *block as usize;
        let is_known = self.suspects.contains(&block) || self.is_faulty && self.written().contains(&block);
        assert!(is_known, "block {block}: {error}: {:#?}", self.log);
    }

    pub fn read(&mut self) {
        let (start, len) = self.range();
        self.read_at(start, len);
    }

    pub fn read_at(&mut self, start: usize, len: usize) {
        let mut read = vec![0xee; len];
        let result = self.device.read(&mut self.worker, start as u64, &mut read);
        if let Err(error) = &result {
            self.may_fail(error);
        }
        for block in Model::blocks(start, len) {
            let (from, end) = ((block * BLOCK).max(start), ((block + 1) * BLOCK).min(start + len));
            let (is, should) = (&read[from - start..end - start], &self.bytes[from..end]);
            // What is left of a block that cannot be read is zeros.
            let is_lost = result.is_err() && is.iter().all(|byte| *byte == 0);
            assert!(is == should || is_lost, "block {block} of {start}+{len}: {:#?}", self.log);
        }
    }

    pub fn write(&mut self) {
        let (start, len) = self.range();
        let mut from = vec![0; len];
        fill(&mut self.random, &mut from);
        match self.device.write(&mut self.worker, start as u64, &from) {
            Ok(()) => {
                self.bytes[start..start + len].copy_from_slice(&from);
                Model::blocks(start, len).for_each(|block| self.holes[block] = false);
                Model::whole(start, len).for_each(|block| _ = self.suspects.remove(&block));
            }
            Err(error) => {
                self.may_fail(&error);
                self.adopt(start, &from);
            }
        }
    }

    /// After a write that failed each block has what it had, or what was written.
    fn adopt(&mut self, start: usize, from: &[u8]) {
        let len = from.len();
        for block in Model::blocks(start, len) {
            let (at, end) = ((block * BLOCK).max(start), ((block + 1) * BLOCK).min(start + len));
            let mut read = vec![0; end - at];
            if self.device.read(&mut self.worker, at as u64, &mut read).is_err() {
                continue;
            }
            if read == from[at - start..end - start] && read != self.bytes[at..end] {
                self.bytes[at..end].copy_from_slice(&read);
                self.holes[block] = false;
                self.suspects.remove(&block);
            }
        }
    }

    pub fn forget(&mut self) {
        let (start, len) = self.range();
        let is_discard = self.random.one_in(2);
        let whole = Model::whole(start, len);
        let result = if is_discard {
            self.device.discard(&mut self.worker, start as u64, len as u64)
        } else {
            self.device.write_zeroes(&mut self.worker, start as u64, len as u64)
        };
        for block in whole {
            self.bytes[block * BLOCK..(block + 1) * BLOCK].fill(0);
            self.holes[block] = true;
            self.suspects.remove(&block);
        }
        match result {
            Ok(()) if !is_discard => {
                let ends =
                    Model::blocks(start, len).filter(|block| !Model::whole(start, len).contains(block));
                ends.for_each(|block| self.holes[block] = false);
                self.bytes[start..start + len].fill(0);
            }
            Ok(()) => {}
            Err(error) => {
                self.may_fail(&error);
                self.adopt(start, &vec![0; len]);
            }
        }
    }

    pub fn status(&mut self) {
        let (start, len) = self.range();
        let most = 1 + self.random.below(50);
        let extents = self.device.status(&mut self.worker, start as u64, len as u64, most).unwrap();
        assert!(extents.len() <= most && !extents.is_empty());
        assert!(extents.windows(2).all(|two| two[0].content != two[1].content));
        let mut at = start;
        for extent in &extents {
            assert_eq!(extent.offset, at as u64);
            for block in Model::blocks(at, extent.len_bytes as usize) {
                let is_zero = self.bytes[block * BLOCK..(block + 1) * BLOCK].iter().all(|byte| *byte == 0);
                let should = match (self.holes[block], is_zero) {
                    (true, _) => Content::Hole,
                    (false, true) => Content::Zero,
                    (false, false) => Content::Data,
                };
                assert!(
                    extent.content == should || self.suspects.contains(&block),
                    "block {block}: {extent:?}, not {should:?}: {:#?}",
                    self.log
                );
            }
            at += extent.len_bytes as usize;
        }
        assert!(at == start + len || extents.len() == most, "{start}+{len}: {extents:?}");
    }

    /// A command that changes no contents.
    pub fn command(&mut self) {
        let page = self.random.below(self.holes.len());
        let pages =
            format!("page_indexes={page}-{} page_index={page}", (page + 20).min(self.holes.len() - 1));
        let commands = [
            ("idle", "all"),
            ("idle", "3"),
            ("recompress", "type=idle"),
            ("recompress", "type=idle max_pages=20"),
            ("recompress", "type=huge"),
            ("recompress", "threshold=500 algo=zstd"),
            ("recompress", "type=huge_idle priority=1"),
            ("writeback", "idle"),
            ("writeback", "type=huge"),
            ("writeback", "huge_idle"),
            ("writeback", "incompressible"),
            ("writeback", &pages),
            ("compressed_writeback", "0"),
            ("compressed_writeback", "1"),
            ("writeback_batch_size", "3"),
            ("writeback_batch_size", "32"),
            ("auto_recompress", "5"),
            ("auto_recompress", "0"),
            ("auto_writeback", "9"),
            ("auto_writeback", "0"),
            ("auto_max_pages", "100"),
            ("compact", "1"),
            ("mem_used_max", "0"),
        ];
        let (name, value) = *self.random.pick(&commands);
        self.log.push(format!("{name}={value}"));
        match self.device.set(name, value) {
            Ok(()) | Err(Error::NoSpace | Error::BackingFull(_)) => {}
            Err(Error::Path { .. }) if self.is_faulty => {}
            Err(error) => panic!("{name} {value}: {error}: {:#?}", self.log),
        }
    }

    pub fn tick(&mut self) {
        self.now_s += self.random.below(5) as u64;
        self.device.tick(Duration::from_secs(self.now_s)).unwrap();
    }

    /// Goes on with a device that was saved and loaded.
    pub fn reload(&mut self) {
        let mut saved = Vec::new();
        if self.is_faulty {
            // What the area does not give is saved as damaged.
            self.suspects.extend(self.written());
        }
        self.device.save(&mut saved).unwrap();
        let area = area(self.bytes.len() / 2, self.random.word());
        let tell = self.told.clone();
        let device = Device::new().log_to(move |line| tell.lock().unwrap().push(line.to_string()));
        device.set_backing("area", Box::new(area)).unwrap();
        device.tick(Duration::from_secs(self.now_s)).unwrap();
        device.load(&mut &saved[..]).unwrap();
        let old = self.device.stats();
        let new = device.stats();
        assert_eq!((old.orig_data_bytes, old.same_pages), (new.orig_data_bytes, new.same_pages));
        (self.device, self.area, self.is_faulty) = (device, Some(area), false);
    }

    /// Damages the object of a block. What else is in it may be lost as well.
    pub fn damage(&mut self) {
        let block = self.random.below(self.holes.len());
        let at = self.random.word() as usize;
        if self.device.damage(block as u64, at) {
            let first = block / 16 * 16;
            self.suspects.extend((first..first + 16).filter(|block| *block < self.holes.len()));
        }
    }

    /// One of all that can happen.
    pub fn step(&mut self, with_damage: bool) {
        let kind = self.random.below(100);
        self.log.push(format!("step {kind}"));
        match kind {
            0..30 => self.write(),
            30..55 => self.read(),
            55..65 => self.forget(),
            65..70 => self.status(),
            70..88 => self.command(),
            88..95 => self.tick(),
            95..97 => self.reload(),
            _ if with_damage => self.damage(),
            _ => self.device.set("compact", "1").unwrap(),
        }
        if let Err(wrong) = self.device.check() {
            panic!("{wrong}: {:#?}", self.log);
        }
        if self.log.len() > 60 {
            self.log.drain(..20);
        }
    }

    /// Reads everything.
    pub fn compare(&mut self) {
        for start in (0..self.bytes.len()).step_by(16 * BLOCK) {
            self.read_at(start, (16 * BLOCK).min(self.bytes.len() - start));
        }
    }
}

/// A size that does not end with a group.
const BYTES: usize = 67 * 16 * BLOCK + 5 * BLOCK;

/// The seeds of a test, or the one of `ZRAM_SEED`.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("ZRAM_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=count).collect(),
    }
}

/// Runs a test for each seed, and says which one fails.
pub fn for_each_seed(count: u64, test: impl Fn(u64)) {
    for seed in seeds(count) {
        let run = std::panic::AssertUnwindSafe(|| test(seed));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("failed with ZRAM_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn any_requests_and_commands_leave_what_was_written() {
    for_each_seed(12, |seed| {
        let mut model = Model::new(seed, BYTES);
        (0..500).for_each(|_| model.step(false));
        model.compare();
        assert_eq!(model.device.stats().damaged_blocks, 0);
    });
}

#[test]
fn a_damaged_object_is_an_error_of_its_blocks_alone() {
    for_each_seed(6, |seed| {
        let mut model = Model::new(seed, BYTES);
        (0..500).for_each(|_| model.step(true));
        model.compare();
    });
}

#[test]
fn an_area_that_fails_loses_nothing_that_is_in_ram_and_never_lies() {
    for_each_seed(6, |seed| {
        let mut model = Model::new(seed, BYTES);
        for round in 0..10 {
            let one_in = |n: usize| if round % 2 == 0 { n } else { 0 };
            let faults = Faults {
                read_errors: one_in(9),
                write_errors: one_in(7),
                short_writes: one_in(11),
                wrong_reads: one_in(13),
                wrong_writes: one_in(23),
                lost_writes: one_in(29),
                full: one_in(17),
                ..Faults::default()
            };
            model.area.expect("there is one").set(faults);
            model.is_faulty = true;
            (0..60).for_each(|_| model.step(false));
        }
        model.compare();
    });
}

#[test]
fn what_cannot_be_read_is_told_once() {
    let mut model = Model::new(3, 1 << 20);
    let noise = {
        let mut noise = vec![0; BLOCK];
        Random(5).fill(&mut noise);
        noise
    };
    model.device.write(&mut model.worker, 0, &noise).unwrap();
    assert!(model.device.damage(0, 2000 * 8));
    let mut read = vec![0; BLOCK];
    for _ in 0..5 {
        let error = model.device.read(&mut model.worker, 0, &mut read).unwrap_err();
        assert!(matches!(error, Error::Damaged { block: 0, .. }), "{error}");
    }
    assert_eq!(model.told.lock().unwrap().len(), 1);
    let stats = model.device.stats();
    assert_eq!((stats.damaged_blocks, stats.failed_reads), (1, 5));
    model.device.write(&mut model.worker, 0, &noise).unwrap();
    model.device.read(&mut model.worker, 0, &mut read).unwrap();
    assert_eq!(read, noise);
}
