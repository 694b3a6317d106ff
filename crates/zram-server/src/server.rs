//! A device that is served, by whatever front ends: their requests, and its end.
//!
//! Every write that was acknowledged is in the file of `--save`. This is so because
//! 1. the end first stops the disk of this machine, whose kernel writes back what its cache has;
//! 2. then it closes the workers: no request begins any more, and those under way are done;
//! 3. then the device is saved, which nobody changes any more;
//! 4. the file gets its name when all of it is on the disk;
//! 5. then the backing device is emptied: the key to what lies there ends with the process.
//!
//! Where it cannot be saved, a signal ends the server all the same. `hot_remove` does not: the device is served on.

use crate::file;
use crate::options::Options;
use crate::place::Place;
use crate::workers::Workers;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};
use zram::{Device, Error, Extent, Worker};

/// Why a request is refused.
#[derive(Debug)]
pub enum Refusal {
    /// The server ends.
    Ending,
    /// The device says so.
    Device(Error),
}

impl Refusal {
    /// The error number for a client.
    pub fn errno(&self) -> i32 {
        match self {
            Refusal::Ending => libc::ESHUTDOWN,
            Refusal::Device(error) => error.errno().0.into(),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Ending => f.write_str("the server ends"),
            Refusal::Device(error) => error.fmt(f),
        }
    }
}

/// A device that is served, for as long as the process lives.
pub struct Server {
    device: Device,
    workers: Workers,
    options: Options,
    place: Place,
    /// The disk of this machine, where it is one.
    disk: OnceLock<Box<dyn Disk>>,
    clients: AtomicUsize,
    /// Locked while a client opens the device, and for as long as the device is held for what no client may see.
    opening: Mutex<()>,
    /// True when all is saved and removed. It is locked while a disk is made, and while the server ends.
    is_over: Mutex<bool>,
}

/// A disk of this machine that the device is.
pub(crate) trait Disk: Send + Sync {
    /// Its name; `None` where it has gone by itself.
    fn path(&self) -> Option<String>;

    /// Stops it, when its kernel has written back what its cache has. A second caller waits for the first. An error is
    /// one line for the user: something may not have been written.
    fn stop(&self) -> Result<(), String>;
}

/// A client that has the device open, until this is dropped.
pub struct Client(&'static Server);

impl Server {
    /// One that nobody asks for anything yet.
    pub(crate) fn new(device: Device, options: Options, place: Place) -> Server {
        Server {
            device,
            workers: Workers::new(),
            options,
            place,
            disk: OnceLock::new(),
            clients: AtomicUsize::new(0),
            opening: Mutex::default(),
            is_over: Mutex::default(),
        }
    }

    /// The device's number.
    pub fn number(&self) -> u32 {
        self.place.number()
    }

    /// Says where clients find it.
    pub fn greet(&self, mut to: impl Write) {
        let line = format!("zram{} {}\n", self.number(), self.front_ends().join(" "));
        // Who has closed the pipe does not want to know.
        let _ = to.write_all(line.as_bytes()).and_then(|()| to.flush());
    }

    /// Makes it a disk of this machine too, which is a client from then on. An end waits until that is done.
    pub(crate) fn add_disk(
        &'static self,
        make: impl FnOnce(&'static Server, Client) -> Result<Box<dyn Disk>, String>,
    ) -> Result<(), String> {
        let client = self.open();
        let is_over = lock(&self.is_over);
        if *is_over {
            return Err(Refusal::Ending.to_string());
        }
        // It is made once, as serving begins.
        make(self, client).map(|disk| drop(self.disk.set(disk)))
    }

    /// The name of the disk of this machine, where there is one.
    pub(crate) fn disk_path(&self) -> Option<String> {
        self.disk.get().and_then(|disk| disk.path())
    }

    /// Each front end as a client takes it.
    pub fn front_ends(&self) -> Vec<String> {
        self.options.front_ends().into_iter().chain(self.disk_path()).collect()
    }

    /// What it is served with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The device, for what is no request.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many clients have it open.
    pub fn clients(&self) -> usize {
        self.clients.load(Relaxed)
    }

    /// A client opens it. It waits while the device is reset or saved.
    pub fn open(&'static self) -> Client {
        let _opening = lock(&self.opening);
        self.clients.fetch_add(1, Relaxed);
        Client(self)
    }

    /// Does what is done only while no client has the device open; else how many have. None opens it meanwhile.
    pub(crate) fn alone<R>(&self, act: impl FnOnce() -> R) -> Result<R, usize> {
        let _opening = lock(&self.opening);
        match self.clients() {
            0 => Ok(act()),
            clients => Err(clients),
        }
    }

    /// Ends it: saves what is to be saved, removes its sockets, and empties the backing device. The exit status.
    pub fn end(&self) -> u8 {
        let mut is_over = lock(&self.is_over);
        let stopped = self.disk.get().map_or(Ok(()), |disk| disk.stop());
        let finished = self.finish(&mut is_over);
        if finished.is_err() {
            self.remove();
            *is_over = true;
        }
        let failures = [stopped, finished].into_iter().filter_map(Result::err);
        failures.inspect(|why| eprintln!("zfolio: {why}")).count().min(1) as u8
    }

    /// The same; where it cannot be saved it is served on, and the error is one line for the user.
    pub(crate) fn end_if_saved(&self) -> Result<(), String> {
        let mut is_over = lock(&self.is_over);
        self.finish(&mut is_over).inspect_err(|_| self.workers.open())
    }

    fn finish(&self, is_over: &mut bool) -> Result<(), String> {
        if *is_over {
            return Ok(());
        }
        self.workers.close();
        if let Some(path) = &self.options.save {
            if self.device.disksize_bytes() == 0 {
                eprintln!("zfolio: zram{} has no disksize: nothing is saved", self.number());
            } else {
                let named = |why| format!("zram{} is not saved: {why}", self.number());
                file::save(&self.device, path).map_err(named)?;
            }
        }
        self.remove();
        *is_over = true;
        Ok(())
    }

    /// Removes its sockets, and then what it has on the backing device, which may take its time to forget it.
    pub(crate) fn remove(&self) {
        for path in self
            .options
            .nbd_sockets()
            .map(Path::new)
            .chain(self.options.vhost_user.iter().map(|path| &**path))
        {
            let _ = fs::remove_file(path);
        }
        self.place.leave();
        self.device.close_backing();
    }

    fn request<R>(
        &self,
        request: impl FnOnce(&Device, &mut Worker) -> Result<R, Error>,
    ) -> Result<R, Refusal> {
        let served = self.workers.lend(&self.device, |worker| request(&self.device, worker));
        served.ok_or(Refusal::Ending)?.map_err(Refusal::Device)
    }

    /// Reads; see [`Device::read`].
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Refusal> {
        self.request(|device, worker| device.read(worker, offset, to))
    }

    /// Writes; see [`Device::write`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Refusal> {
        self.request(|device, worker| device.write(worker, offset, from))
    }

    /// Forgets; see [`Device::discard`].
    pub fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Refusal> {
        self.request(|device, worker| device.discard(worker, offset, len_bytes))
    }

    /// Makes zeros; see [`Device::write_zeroes`].
    pub fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<(), Refusal> {
        self.request(|device, worker| device.write_zeroes(worker, offset, len_bytes))
    }

    /// Nothing is left to be done; see [`Device::flush`].
    pub fn flush(&self) -> Result<(), Refusal> {
        self.request(|device, worker| device.flush(worker))
    }

    /// What a range holds; see [`Device::status`].
    pub fn status(&self, offset: u64, len_bytes: u64, extents_max: usize) -> Result<Vec<Extent>, Refusal> {
        self.request(|device, worker| device.status(worker, offset, len_bytes, extents_max))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Relaxed);
    }
}

/// Locks it. Who panicked with it locked has left nothing half done that matters here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
