//! How serving begins.

use crate::options::Options;
use crate::place::{self, Place};
use crate::server::Server;
use crate::{control, file, signals, ublk, vhost_user};
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fmt, thread};
use zram::{Device, Error};

/// How often the device is told what time it is.
const TICK: Duration = Duration::from_secs(1);

/// The size that a user gives, by its attribute.
const DISKSIZE: &str = "disksize";

/// What a saved device brings along.
const SAVED: [&str; 4] = [DISKSIZE, "comp_algorithm", "recomp_algorithm", "algorithm_params"];

/// Why serving does not begin. It prints as one line for the user.
#[derive(Debug)]
pub struct Failure {
    /// The exit status: 2 where what was asked for is wrong, else 1.
    pub status: u8,
    why: String,
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure { status: control::REFUSED, why }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { status: control::status(&error), why: error.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// Serves a device: at its control socket, to virtual machines, and for whoever asks the server for more. A signal ends
/// it, and the process.
pub fn start(options: Options) -> Result<&'static Server, Failure> {
    let sockets: Vec<String> = options.nbd_sockets().map(str::to_string).collect();
    serve(options).inspect_err(|_| {
        for path in sockets {
            let _ = fs::remove_file(path);
        }
    })
}

fn serve(options: Options) -> Result<&'static Server, Failure> {
    options.save.as_deref().map_or(Ok(()), file::probe).map_err(|why| format!("--save {why}"))?;
    if options.ublk {
        ublk::become_flusher();
    }
    let device = Device::new().log_to(|line| eprintln!("zfolio: {line}"));
    fill(&device, &options)?;
    let place = Place::take().map_err(|error| format!("no place for a control socket: {error}"))?;
    let listener = ask::listen(&place.socket()).map_err(|error| format!("no control socket: {error}"))?;
    let machines = machines(&options)?;
    let server: &'static Server = Box::leak(Box::new(Server::new(device, options, place)));
    let begun = begin(server, listener, machines).map_err(|error| format!("no thread: {error}"));
    begun.and_then(|()| add_disk(server)).inspect_err(|_| server.remove())?;
    Ok(server)
}

fn begin(server: &'static Server, listener: UnixListener, machines: Vec<UnixListener>) -> io::Result<()> {
    signals::at_end(move || signals::exit(server.end()))?;
    spawn("zram-tick", move || tick(server))?;
    spawn("zram-control", move || control::serve(server, listener))?;
    for listener in machines {
        spawn("zram-vhost", move || vhost_user::serve(server, listener))?;
    }
    Ok(())
}

fn add_disk(server: &'static Server) -> Result<(), String> {
    if server.options().ublk { server.add_disk(ublk::add) } else { Ok(()) }
}

fn tick(server: &Server) {
    let began = Instant::now();
    loop {
        thread::sleep(TICK);
        if let Err(error) = server.device().tick(began.elapsed()) {
            eprintln!("zfolio: zram{}: {error}", server.number());
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(run).map(drop)
}

/// Listens for virtual machines. Where one socket cannot be had, none stays.
fn machines(options: &Options) -> Result<Vec<UnixListener>, String> {
    let mut listeners = Vec::new();
    for path in &options.vhost_user {
        match place::listen(path) {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                for made in &options.vhost_user[..listeners.len()] {
                    let _ = fs::remove_file(made);
                }
                return Err(format!("--vhost-user {}: {error}", path.display()));
            }
        }
    }
    Ok(listeners)
}

/// Sets what a new device has, and fills it. The size is last: much cannot be set after it.
fn fill(device: &Device, options: &Options) -> Result<(), Failure> {
    let (sizes, others): (Vec<_>, Vec<_>) = options.attributes.iter().partition(|(name, _)| name == DISKSIZE);
    for (name, value) in others {
        device.set(name, value)?;
    }
    let set_size = || sizes.iter().try_for_each(|(name, value)| device.set(name, value));
    let Some(path) = &options.load else { return Ok(set_size()?) };
    match File::open(path) {
        Ok(file) => {
            device.load(&mut BufReader::new(file)).map_err(|error| format!("{}: {error}", path.display()))?;
            say_overridden(device, options, path)
        }
        // Its first start: nothing has been saved yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !sizes.is_empty() => Ok(set_size()?),
        Err(error) => Err(format!("{}: {error}", path.display()).into()),
    }
}

/// Says which options are not those of the device that was loaded: it is as it was saved. An error names a value that
/// no device takes.
fn say_overridden(device: &Device, options: &Options, path: &Path) -> Result<(), Failure> {
    let given = options.attributes.iter().filter(|(name, _)| SAVED.contains(&name.as_str()));
    let (sizes, algorithms): (Vec<_>, Vec<_>) = given.partition(|(name, _)| name == DISKSIZE);
    let asked = Device::new().log_to(|_| ());
    for (name, value) in algorithms.iter().chain(&sizes) {
        asked.set(name, value)?;
    }
    let has_other_size = !sizes.is_empty() && asked.disksize_bytes() != device.disksize_bytes();
    let has_others = !algorithms.is_empty() && !device.compresses_as(&asked);
    if let Some(notice) = overridden(has_other_size, has_others) {
        eprintln!("zfolio: {}: {notice}", path.display());
    }
    Ok(())
}

/// What is said of a device that has another size, or other algorithms, than the command line asks for.
fn overridden(has_other_size: bool, has_others: bool) -> Option<String> {
    let (what, those) = match (has_other_size, has_others) {
        (false, false) => return None,
        (true, false) => ("size", "that"),
        (false, true) => ("algorithms", "those"),
        (true, true) => ("size and the algorithms", "those"),
    };
    Some(format!("the device has the {what} that it was saved with, not {those} of the command line"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_that_and_several_are_those() {
        let notices =
            [(true, false), (false, true), (true, true)].map(|(size, others)| overridden(size, others));
        let [size, algorithms, both] = notices.map(Option::unwrap);
        assert!(size.contains("the size that") && size.ends_with("not that of the command line"), "{size}");
        assert!(algorithms.ends_with("not those of the command line"), "{algorithms}");
        assert!(both.ends_with("not those of the command line"), "{both}");
        assert_eq!(overridden(false, false), None);
    }
}
