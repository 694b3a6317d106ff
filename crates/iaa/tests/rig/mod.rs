//! What the tests of batches have in common: memory of all kinds, and both ways through a driver.
#![allow(dead_code, reason = "each test uses a part of it")]

pub use base::Random;
use iaa::aecs::{CompressState, Histogram};
use iaa::topology::Topology;
use iaa::{Config, Context, Driver, Error, Mode, Outcome, Reason, Request, Software};
use iaa_model::{Model, Zlib};
use std::sync::Arc;

/// What devices are given to compress.
pub trait Units {
    /// Memory of a kind: zeros, words, text, noise, or some of each.
    fn unit(&mut self, bytes: usize) -> Vec<u8>;
}

impl Units for Random {
    fn unit(&mut self, bytes: usize) -> Vec<u8> {
        let kind = self.below(6);
        let mut unit = Vec::with_capacity(bytes + 64);
        while unit.len() < bytes {
            match if kind == 5 { self.below(5) } else { kind } {
                0 => unit.extend([0; 48]),
                1 => unit.extend((0x5555_0000_0000 + self.word() % 64 * 16).to_le_bytes()),
                2 => unit.extend_from_slice(format!("line {} of a text, ", self.below(1000)).as_bytes()),
                3 => unit.extend(self.word().to_le_bytes()),
                _ => unit.extend([self.word() as u8 & 15; 5]),
            }
        }
        unit.truncate(bytes);
        unit
    }
}

pub fn driver(config: Config, model: &Model) -> Arc<Driver> {
    let driver = Driver::new(config, Topology { cpus: vec![Some(0); 4], nodes: Vec::new() });
    model.attach(&driver);
    Arc::new(driver)
}

pub fn context(driver: &Arc<Driver>, descriptors: usize, unit_max: usize) -> Context {
    Context::new(driver.clone(), Box::new(Zlib::default()), descriptors, unit_max).unwrap()
}

/// Compresses all units as one batch; `None` where one is incompressible.
pub fn compress(context: &mut Context, units: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    let mut rooms: Vec<Vec<u8>> = units.iter().map(|unit| vec![0xaa; unit.len()]).collect();
    let mut batch: Vec<_> =
        units.iter().zip(&mut rooms).map(|(unit, room)| Request::new(unit, room)).collect();
    context.compress(&mut batch);
    let results: Vec<_> = batch.iter().map(|request| request.result.unwrap()).collect();
    let result = |(outcome, room): (Outcome, &Vec<u8>)| match outcome {
        Outcome::Written(bytes) => Some(room[..bytes].to_vec()),
        Outcome::Incompressible => None,
        Outcome::Checksum(_) => panic!("compressing is not a checksum"),
    };
    results.into_iter().zip(&rooms).map(result).collect()
}

/// Decompresses all objects as one batch into as many bytes as their units had.
pub fn decompress(
    context: &mut Context,
    objects: &[Vec<u8>],
    lengths: &[usize],
) -> Vec<Result<Vec<u8>, Error>> {
    let mut rooms: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![0xaa; length]).collect();
    let mut batch: Vec<_> =
        objects.iter().zip(&mut rooms).map(|(object, room)| Request::new(object, room)).collect();
    context.decompress(&mut batch);
    let results: Vec<_> = batch.iter().map(|request| request.result).collect();
    let result = |(result, room): (Result<Outcome, Error>, &Vec<u8>)| match result {
        Ok(Outcome::Written(bytes)) => Ok(room[..bytes].to_vec()),
        Ok(other) => panic!("decompressing is not {other:?}"),
        Err(error) => Err(error),
    };
    results.into_iter().zip(&rooms).map(result).collect()
}

/// Both ways, through the device, and each object through another inflate too. Returns how many bytes the objects have.
pub fn round_trip(context: &mut Context, units: &[Vec<u8>]) -> usize {
    let objects = compress(context, units);
    let mut room = vec![0; units.iter().map(Vec::len).max().unwrap_or(0)];
    let (mut kept, mut lengths) = (Vec::new(), Vec::new());
    for (unit, object) in units.iter().zip(&objects) {
        let Some(object) = object else { continue };
        let bytes = Zlib::default().decompress(object, &mut room[..unit.len()]).expect("raw deflate");
        assert!(room[..bytes] == unit[..], "another inflate reads what was written");
        kept.push(object.clone());
        lengths.push(unit.len());
    }
    let back = decompress(context, &kept, &lengths);
    let compressible = units.iter().zip(&objects).filter(|(_, object)| object.is_some());
    for ((unit, _), back) in compressible.zip(back) {
        assert!(back.unwrap() == *unit);
    }
    kept.iter().map(Vec::len).sum()
}

pub fn modes() -> [Mode; 3] {
    let mut counts = Histogram::EMPTY;
    let mut random = Random(7);
    (0..64).for_each(|_| counts.add(&iaa::deflate::count(&random.unit(4096))));
    [Mode::Fixed, Mode::Dynamic, Mode::Canned(Box::new(CompressState::canned(&counts)))]
}

/// Where nothing is to be late, however busy the machine is that runs the model.
pub fn patient() -> Config {
    Config { timeout_ns: 60_000_000_000, ..Config::default() }
}

/// Where something is.
pub fn quick() -> Config {
    Config { timeout_ns: 20_000_000, ..Config::default() }
}

/// Where time-outs do not close the queue.
pub fn tireless() -> Config {
    Config { strikes_max: u32::MAX, lost_max: u32::MAX, ..quick() }
}

/// A reason's count, where no other was counted.
pub fn only(driver: &Driver, reason: Reason) -> u64 {
    let stats = driver.stats();
    for other in Reason::ALL.into_iter().filter(|other| *other != reason) {
        assert_eq!(stats.software(other), 0, "{}", other.name());
    }
    let calls = stats.calls();
    assert_eq!(calls.sw_comp_calls + calls.sw_decomp_calls + calls.sw_crc_calls, stats.software(reason));
    stats.software(reason)
}
