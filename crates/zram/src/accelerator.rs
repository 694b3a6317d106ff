//! Intel's accelerator in the CPU's place: a driver for each algorithm that is made for one.

use crate::log::Log;
use acomp::Compressor;
use iaa::{Config, Driver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zswap::Codec;

/// What comes by a driver with these settings, if there is a queue that may be used.
pub type OpenDriver = dyn Fn(Config) -> Option<Arc<Driver>> + Send + Sync;

/// The accelerators of a device. Each algorithm's driver is opened when a codec first wants it, for all threads, and
/// stays for the life of the device: a dedicated queue has one driver at a time.
pub struct Accelerator {
    open: Arc<OpenDriver>,
    log: Log,
    drivers: Mutex<Vec<(Compressor, Arc<Driver>)>>,
    /// What the log was told of.
    told: Mutex<Vec<Compressor>>,
}

impl Accelerator {
    /// Where `open` comes by drivers; `log` is told of what works in software.
    pub fn new(open: Arc<OpenDriver>, log: Log) -> Accelerator {
        Accelerator { open, log, drivers: Mutex::default(), told: Mutex::default() }
    }

    /// What comes by drivers.
    pub fn open(&self) -> Arc<OpenDriver> {
        self.open.clone()
    }

    /// Has an accelerator do the work of a codec of this compressor. Where none does, the codec works in software, and
    /// the log is told once for each compressor.
    pub fn attach(&self, codec: &mut Codec, compressor: Compressor) {
        if !compressor.is_for_device()
            || codec.attach(|context| context.attach(|config| self.driver(compressor, config)))
        {
            return;
        }
        let mut told = lock(&self.told);
        if !told.contains(&compressor) {
            told.push(compressor);
            (self.log)(&format!(
                "{compressor} runs in software: no queue of an accelerator can be used (`zfolio doctor` says why)"
            ));
        }
    }

    fn driver(&self, compressor: Compressor, config: Config) -> Option<Arc<Driver>> {
        // Others that want the same one wait for it.
        let mut drivers = lock(&self.drivers);
        if let Some((_, driver)) = drivers.iter().find(|(of, _)| *of == compressor) {
            return Some(driver.clone());
        }
        let driver = (self.open)(config)?;
        drivers.push((compressor, driver.clone()));
        Some(driver)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
