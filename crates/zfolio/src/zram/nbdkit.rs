//! NBD: this process becomes nbdkit, with the plugin that the command carries.
//!
//! ```text
//!   zfolio zram serve ── exec ──> nbdkit --foreground OPTIONS /proc/self/fd/N disksize=4G ... PARAMETERS
//!     descriptors 3, 4 ...: sockets that listen (LISTEN_FDS)        N: the plugin, a file in memory
//! ```
//!
//! nbdkit makes sockets of one kind by itself; it takes any number that are made for it. The plugin has no name in any
//! file system, so that nothing is left where the process is killed.

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use zram_server::{Options, place};

/// The plugin, built by build.rs from the crate `zram-nbdkit`.
static PLUGIN: &[u8] = include_bytes!(env!("ZFOLIO_ZRAM_PLUGIN"));

/// The first descriptor that is handed over, as systemd has it.
const FIRST: i32 = 3;

/// The program.
const NBDKIT: &str = "nbdkit";

/// Of several threads of a connection, nbdkit 1.32 lets one answer a client that has vanished at a socket that another
/// one has closed: an assertion ends it, and with it the device. Clients have several connections instead.
const ONE_THREAD: &str = "--threads=1";

/// Where a port without an address is.
const LOCAL: &str = "127.0.0.1";

/// Returns only where it fails: an error is one line for the user.
pub fn become_it(mut options: Options, arguments: &[String]) -> Result<Infallible, String> {
    if program(NBDKIT).is_none() {
        return Err(format!(
            "NBD is served by {NBDKIT}, which is not installed (Debian's package: {NBDKIT})"
        ));
    }
    let mut sockets = Vec::new();
    let error =
        listen(&mut options.nbd, &mut sockets).and_then(|()| execute(&options, sockets, arguments)).err();
    for path in options.nbd_sockets() {
        let _ = std::fs::remove_file(path);
    }
    Err(error.expect("it has not become another program"))
}

/// Executes nbdkit.
fn execute(options: &Options, sockets: Vec<OwnedFd>, arguments: &[String]) -> Result<Infallible, String> {
    let words = options.words()?;
    let failed = |error: io::Error| format!("{NBDKIT} cannot be run: {error}");
    let library = plugin().and_then(|plugin| hand_over(sockets, plugin)).map_err(failed)?;
    let (before, behind): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| argument.starts_with('-'));
    let error = Command::new(NBDKIT)
        .args(["--foreground", ONE_THREAD])
        .args(before)
        .arg(format!("/proc/self/fd/{library}"))
        .args(words)
        .args(behind)
        .env("LISTEN_PID", std::process::id().to_string())
        .env("LISTEN_FDS", options.nbd.len().to_string())
        .exec();
    Err(failed(error))
}

/// Where the shell would find a program.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// Listens at each place, which is then told by the address that it has. After an error those stay that have a socket.
fn listen(places: &mut Vec<String>, sockets: &mut Vec<OwnedFd>) -> Result<(), String> {
    for at in 0..places.len() {
        match socket(&places[at]) {
            Ok((socket, place)) => {
                sockets.push(socket);
                places[at] = place;
            }
            Err(why) => {
                let error = format!("--nbd {}: {why}", places[at]);
                places.truncate(at);
                return Err(error);
            }
        }
    }
    Ok(())
}

fn socket(place: &str) -> Result<(OwnedFd, String), String> {
    let said = |error: io::Error| error.to_string();
    match place.split_once(':') {
        Some(("unix", path)) if !path.is_empty() => {
            let listener = place::listen(Path::new(path)).map_err(said)?;
            Ok((listener.into(), place.into()))
        }
        Some(("tcp", address)) => {
            let bound = match address.parse::<u16>() {
                Ok(port) => TcpListener::bind((LOCAL, port)),
                Err(_) => TcpListener::bind(address),
            };
            let listener = bound.map_err(said)?;
            let address = listener.local_addr().map_err(said)?;
            Ok((listener.into(), format!("tcp:{address}")))
        }
        _ => Err("expected unix:PATH, tcp:PORT or tcp:ADDR:PORT".into()),
    }
}

/// The plugin as a file in memory that may be executed, which the next program inherits.
fn plugin() -> io::Result<OwnedFd> {
    let make = |flags| memfd_create("zfolio-zram-nbdkit.so", flags);
    // Before Linux 6.3 the flag is not known, and every such file may be executed.
    let made = make(MemfdFlags::EXEC).or_else(|_| make(MemfdFlags::empty()))?;
    let mut file = File::from(made);
    file.write_all(PLUGIN)?;
    Ok(file.into())
}

/// Puts the sockets where the next program looks for them, and the plugin above them, which it inherits too: its
/// descriptor there.
fn hand_over(sockets: Vec<OwnedFd>, plugin: OwnedFd) -> io::Result<i32> {
    let above = FIRST + sockets.len() as i32;
    let apart: Vec<OwnedFd> =
        sockets.iter().map(|socket| fcntl_dupfd_cloexec(socket, above)).collect::<Result<_, _>>()?;
    let library = fcntl_dupfd_cloexec(&plugin, above)?;
    fcntl_setfd(&library, FdFlags::empty())?;
    drop((sockets, plugin));
    for (at, socket) in apart.iter().enumerate() {
        // SAFETY: both are descriptors, and what the second one was is nobody's here who would use it: the process
        // becomes another program now, or ends.
        if unsafe { libc::dup2(socket.as_raw_fd(), FIRST + at as i32) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(library.into_raw_fd())
}
