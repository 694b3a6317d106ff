//! nbdkit's plugin for a compressed block device: what NBD asks for, handed to the server.
//!
//! nbdkit has the protocol, the sockets, threads and TLS. It loads this library, hands it `NAME=VALUE` of its command
//! line, and calls [`Server`]'s functions on threads of each connection. `zfolio zram serve --nbd` carries the library
//! and runs nbdkit with it (crates/zfolio/src/zram/nbdkit.rs).

#![allow(missing_docs, reason = "the only public function is nbdkit's entry, which a macro makes")]

use nbdkit::{Error, ExtentHandle, ExtentType, Flags, FuaFlags, Result, Server, ThreadModel, plugin};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, OnceLock};
use zram_server::server::Client;
use zram_server::{Options, Refusal};

/// What nbdkit's command line says.
static OPTIONS: Mutex<Option<Options>> = Mutex::new(None);

/// The device, from `after_fork` on.
static SERVER: OnceLock<&'static zram_server::Server> = OnceLock::new();

/// Standard output, which nbdkit closes before it serves.
static OUTPUT: Mutex<Option<File>> = Mutex::new(None);

/// The most extents of an answer.
const EXTENTS_MAX: usize = 1 << 12;

/// A connection.
struct Connection {
    server: &'static zram_server::Server,
    _client: Client,
}

impl Server for Connection {
    fn name() -> &'static str {
        "zfolio-zram"
    }

    fn longname() -> Option<&'static str> {
        Some("zfolio zram: a compressed block device")
    }

    fn load() {
        let output = io::stdout().as_fd().try_clone_to_owned().ok();
        *lock(&OUTPUT) = output.map(File::from);
    }

    fn config(name: &str, value: &str) -> Result<()> {
        lock(&OPTIONS).get_or_insert_default().add(name, value);
        Ok(())
    }

    /// Threads may be made only now: nbdkit forks no more.
    fn after_fork() -> Result<()> {
        let options = lock(&OPTIONS).take().unwrap_or_default();
        match zram_server::start(options) {
            Ok(server) => {
                SERVER.get_or_init(|| server);
                lock(&OUTPUT).take().inspect(|output| server.greet(output));
                Ok(())
            }
            // What nbdkit would say of it names a file that the user has never seen.
            Err(why) => {
                eprintln!("zfolio: {why}");
                std::process::exit(why.status.into());
            }
        }
    }

    /// Where nbdkit ends by itself. A signal ends the process before it comes to that.
    fn unload() {
        let status = SERVER.get().map_or(0, |server| server.end());
        if status != 0 {
            std::process::exit(status.into());
        }
    }

    fn thread_model() -> Result<ThreadModel> {
        Ok(ThreadModel::Parallel)
    }

    fn open(_readonly: bool) -> Result<Box<dyn Server>> {
        let Some(server) = SERVER.get() else {
            return Err(Error::new(libc::ENXIO, "there is no device yet"));
        };
        Ok(Box::new(Connection { server, _client: server.open() }))
    }

    fn get_size(&self) -> Result<i64> {
        let size = self.server.device().disksize_bytes();
        i64::try_from(size).map_err(|error| Error::new(libc::EFBIG, error))
    }

    /// One device for all connections, without a cache: what one has written the others read.
    fn can_multi_conn(&self) -> Result<bool> {
        Ok(true)
    }

    fn can_fua(&self) -> Result<FuaFlags> {
        Ok(FuaFlags::Native)
    }

    fn can_fast_zero(&self) -> Result<bool> {
        Ok(true)
    }

    fn read_at(&self, to: &mut [u8], offset: u64) -> Result<()> {
        self.server.read(offset, to).map_err(error)
    }

    fn write_at(&self, from: &[u8], offset: u64, _: Flags) -> Result<()> {
        self.server.write(offset, from).map_err(error)
    }

    fn flush(&self) -> Result<()> {
        self.server.flush().map_err(error)
    }

    fn trim(&self, count: u32, offset: u64, _: Flags) -> Result<()> {
        self.server.discard(offset, count.into()).map_err(error)
    }

    fn zero(&self, count: u32, offset: u64, _: Flags) -> Result<()> {
        self.server.write_zeroes(offset, count.into()).map_err(error)
    }

    fn extents(&self, count: u32, offset: u64, flags: Flags, handle: &mut ExtentHandle) -> Result<()> {
        let most = if flags.contains(Flags::REQ_ONE) { 1 } else { EXTENTS_MAX };
        for extent in self.server.status(offset, count.into(), most).map_err(error)? {
            let kind = match extent.content {
                zram_server::Content::Data => ExtentType::Allocated,
                zram_server::Content::Zero => ExtentType::Zero,
                zram_server::Content::Hole => ExtentType::HoleZero,
            };
            handle.add(extent.offset, extent.len_bytes, kind)?;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn error(refusal: Refusal) -> Error {
    Error::new(refusal.errno(), refusal.to_string())
}

plugin!(Connection {
    load,
    config,
    after_fork,
    unload,
    thread_model,
    can_multi_conn,
    can_fua,
    can_fast_zero,
    write_at,
    flush,
    trim,
    zero,
    extents
});
