//! Intel's accelerator in the CPU's place: a driver for each algorithm that is made for one.

use crate::log::Log;
use acomp::Compressor;
use iaa::{Config, Driver};
use std::sync::{Arc, Mutex, PoisonError};
use zswap::Codec;

/// What comes by a driver with these settings, if there is a queue that may be used.
pub type OpenDriver = dyn Fn(Config) -> Option<Arc<Driver>> + Send + Sync;

/// The accelerators of a disk. Each algorithm's driver is opened when its first codec is made, for all threads.
pub struct Accelerator {
    open: Arc<OpenDriver>,
    drivers: Mutex<Vec<(Compressor, Option<Arc<Driver>>)>>,
    log: Log,
}

impl Accelerator {
    /// Where `open` comes by drivers; `log` is told of what works in software.
    pub fn new(open: Arc<OpenDriver>, log: Log) -> Accelerator {
        Accelerator { open, drivers: Mutex::default(), log }
    }

    /// Has an accelerator do the work of a codec of this compressor. Where none can, the codec works in software, and
    /// the log is told once for each compressor.
    pub fn attach(&self, codec: &mut Codec, compressor: Compressor) {
        if compressor.is_for_device() {
            codec.attach(|context| context.attach(|config| self.driver(compressor, config)));
        }
    }

    fn driver(&self, compressor: Compressor, config: Config) -> Option<Arc<Driver>> {
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, driver)) = drivers.iter().find(|(of, _)| *of == compressor) {
            return driver.clone();
        }
        let driver = (self.open)(config);
        if driver.is_none() {
            (self.log)(&format!(
                "{compressor} runs in software: no queue of an accelerator can be used (`zfolio doctor` says why)"
            ));
        }
        drivers.push((compressor, driver.clone()));
        driver
    }
}
