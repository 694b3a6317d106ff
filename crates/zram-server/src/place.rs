//! The number of a device, and the directory that has its control socket.
//!
//! ```text
//!   /dev/shm/zfolio.zram0/control       mode 0700; locked for as long as the device is served
//! ```
//!
//! A number is taken by making the directory, which one process alone can do. Where a server was killed its directory
//! stays without a lock, and the next one takes it.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Where directories may be.
const PARENTS: [&str; 2] = ["/dev/shm", "/tmp"];

/// What the names of such directories begin with; the number follows.
const PREFIX: &str = "zfolio.zram";

/// The most devices of a machine.
const MOST: u32 = 1 << 16;

/// A number that is taken; given back when this is dropped.
pub struct Place {
    number: u32,
    directory: PathBuf,
    _lock: File,
}

impl Place {
    /// Takes the lowest number that is free.
    pub fn take() -> io::Result<Place> {
        let parent = Path::new(if Path::new(PARENTS[0]).is_dir() { PARENTS[0] } else { PARENTS[1] });
        Place::take_in(parent)
    }

    fn take_in(parent: &Path) -> io::Result<Place> {
        let mut number = 0;
        while number < MOST {
            let directory = parent.join(format!("{PREFIX}{number}"));
            let made = DirBuilder::new().mode(0o700).create(&directory);
            match (made, lock(&directory)) {
                (Ok(()), Ok(Some(_lock))) => return Ok(Place { number, directory, _lock }),
                // Another one has taken it for one that was left, or is about to.
                (Ok(()), _) => {}
                (Err(error), _) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                // Its server is gone; or has just made it, and then finds it gone, and makes another one.
                // One that cannot be removed is somebody else's.
                (Err(_), Ok(Some(_))) => match fs::remove_dir_all(&directory) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => number += 1,
                    _ => {}
                },
                // Served; another user's; or gone in this moment.
                (Err(_), _) => number += 1,
            }
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    /// The device's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The path of its control socket.
    pub fn socket(&self) -> PathBuf {
        socket_in(&self.directory)
    }

    /// Gives the number back.
    pub fn leave(&self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Locks a directory. `None` where another process has it locked, or it is no longer there.
fn lock(directory: &Path) -> io::Result<Option<File>> {
    let file = File::open(directory)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let locked = file.metadata()?.ino();
    let is_it = fs::metadata(directory).is_ok_and(|metadata| metadata.ino() == locked);
    Ok(is_it.then_some(file))
}

fn socket_in(directory: &Path) -> PathBuf {
    directory.join("control")
}

/// The devices that there are, by their numbers: the control socket of each. Those of other users can be seen, and not
/// asked.
pub fn all() -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    for entry in PARENTS.iter().filter_map(|parent| fs::read_dir(parent).ok()).flatten().flatten() {
        let name = entry.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|rest| rest.parse().ok());
        found.extend(number.map(|number| (number, socket_in(&entry.path()))));
    }
    found.sort();
    found
}

/// The control socket of a device.
pub fn of(number: u32) -> Option<PathBuf> {
    all().into_iter().find(|(other, _)| *other == number).map(|(_, socket)| socket)
}

/// Listens at a path. A socket there at which nobody listens any more is replaced.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// True for a socket whose process has ended.
fn is_left_over(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refusal = std::os::unix::net::UnixStream::connect(path).err();
    is_socket && refusal.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("zram-place-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn each_has_a_number_of_its_own_and_those_of_the_dead_are_taken_again() {
        let parent = scratch("numbers");
        let places: Vec<Place> = (0..3).map(|_| Place::take_in(&parent).unwrap()).collect();
        assert_eq!(places.iter().map(Place::number).collect::<Vec<_>>(), [0, 1, 2]);
        drop(places);
        fs::create_dir(parent.join("zfolio.zram0")).unwrap();
        fs::write(parent.join("zfolio.zram0/control"), "").unwrap();
        let place = Place::take_in(&parent).unwrap();
        assert_eq!(place.number(), 0);
        assert!(!place.socket().exists());
        drop(place);
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
        fs::remove_dir(parent).unwrap();
    }

    #[test]
    fn what_cannot_be_removed_keeps_its_number() {
        let parent = scratch("stuck");
        fs::write(parent.join("zfolio.zram0"), "no directory").unwrap();
        let place = Place::take_in(&parent).unwrap();
        assert_eq!(place.number(), 1);
        drop(place);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn many_at_once_have_different_numbers() {
        let parent = scratch("many");
        for _ in 0..20 {
            let threads = (0..8).map(|_| {
                let parent = parent.clone();
                std::thread::spawn(move || Place::take_in(&parent).unwrap())
            });
            let threads: Vec<_> = threads.collect();
            let places: Vec<Place> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let numbers: std::collections::BTreeSet<u32> = places.iter().map(Place::number).collect();
            assert_eq!(numbers.len(), 8);
        }
        fs::remove_dir(parent).unwrap();
    }

    #[test]
    fn a_socket_is_replaced_only_where_nobody_listens() {
        let parent = scratch("sockets");
        let path = parent.join("s");
        let first = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        drop(listen(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        fs::remove_dir_all(parent).unwrap();
    }
}
