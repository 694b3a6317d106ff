//! The directory of one run: libzfolio.so for the loader, and the page that the run's processes share.
//!
//! ```text
//!   libzfolio.so                       the library
//!   x86_64, haswell, xeon_phi -> .     what 64-bit loaders put in the place of $PLATFORM
//!   i686/libzfolio.so                  the empty object for 32-bit loaders
//!   i586, i386 -> i686
//!   memcg, memcg-0 ... memcg-8         the shared page, and links to it
//!   settings                           its beginning, which nobody writes but `zfolio run`
//!   handover                           the socket by which others get it (handover.rs)
//!   control                            the socket by which the user changes the run (control_socket.rs)
//! ```
//!
//! The library is for every user, since processes of the run may change theirs. The page is this user's alone, and the
//! directory cannot be listed.
//!
//! **Whose run is over.** `zfolio run` has a lock on the directory for as long as it lives, and each process that has
//! mapped the page has a shared one on that (interpose's page.rs). The kernel takes a lock away with the last
//! descriptor or mapping of its file, however that goes, and shows it in all namespaces. A run removes the directories
//! that have neither lock, and that no process has in its environment. It may take the lock of one that is just being
//! made: whose lock was taken, or whose directory is gone, makes another one.
//!
//! LD_PRELOAD holds the library's own path where it is known that glibc's 64-bit loader will read it, which costs that
//! loader less, and else the path with `$PLATFORM` as it is written. A shell that has the text evaluated once too often
//! makes nothing of that, and then the path is still the library's.

use crate::cgroup::Memory;
use crate::control_socket::ControlSocket;
use crate::handover::{AreaFiles, Handover};
use crate::{library, sys};
use anyhow::{Context, Result, bail};
use memcg::{Memcg, Settings};
use std::ffi::{CStr, OsString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use zswap::Choice;

/// What the names of such directories begin with.
pub const PREFIX: &str = "zfolio-";

/// A run's directory; removed when dropped, unless kept.
pub struct RunDir {
    path: PathBuf,
    /// The shared page. It stays mapped when the directory is gone.
    pub memcg: &'static Memcg,
    handover: Option<Handover>,
    control: Option<ControlSocket>,
    /// The directory and the page, with the locks that say that this run is alive.
    _locked: [File; 2],
    kept: bool,
}

impl RunDir {
    /// Creates the directory with this library and a page of this limit, these settings and this dictionary of the
    /// user's.
    pub fn create(library: &[u8], max_bytes: u64, settings: Settings, dictionary: &[u8]) -> Result<RunDir> {
        let parents = parents();
        let mut refusals = Vec::new();
        for parent in &parents {
            match RunDir::create_in(parent, library, max_bytes, settings, dictionary) {
                Ok(dir) => return Ok(dir),
                Err(e) => refusals.push(format!("{}: {e:#}", parent.display())),
            }
        }
        bail!("no directory for libzfolio.so ({})", refusals.join("; "))
    }

    fn create_in(
        parent: &Path,
        library: &[u8],
        max_bytes: u64,
        settings: Settings,
        dictionary: &[u8],
    ) -> Result<RunDir> {
        if !sys::allows_code(parent) {
            bail!("not there, or mounted noexec");
        }
        sweep(parent);
        let (path, lock) = make(parent)?;
        let parts = library::parts_of(Choice::parse(settings.compressor.as_str()).ok());
        let fill = || -> Result<(File, &'static mut Memcg)> {
            library::write(&path, library, &parts).context("cannot write libzfolio.so")?;
            let page = library::new_file(&path.join(memcg::PAGE_FILE), 0o600)?;
            // While it is empty: who looks for dead runs by the page's lock alone leaves an empty one be.
            sys::share_lock(&page);
            let fixed = library::new_file(&path.join(memcg::FIXED_FILE), 0o600)?;
            sys::allocate(&fixed, 0..memcg::fixed_bytes(dictionary.len()))
                .and_then(|()| fixed.set_len(memcg::FIXED_BYTES as u64))
                .and_then(|()| memcg::ROOMS.into_iter().try_for_each(|range| sys::allocate(&page, range)))
                .and_then(|()| page.set_len(size_of::<Memcg>() as u64))
                .context("no room for the run's shared page")?;
            for mib in 0..=GROWN_MIB {
                symlink(memcg::PAGE_FILE, page_in(&path, mib))?;
            }
            // SAFETY: the files have the length of a `Memcg`, which consists of integers and atomics alone.
            let memcg = unsafe { sys::map_shared::<Memcg>(&page, &fixed, memcg::FIXED_BYTES) }?;
            Ok((page, memcg))
        };
        match fill() {
            Ok((page, memcg)) => {
                memcg.set_dictionary(dictionary);
                memcg.init(max_bytes, settings);
                // Where there can be no socket (its path is too long) who may not open the page runs unmanaged.
                let handover = Handover::new(&path).ok();
                let control = ControlSocket::new(&path).ok();
                Ok(RunDir { path, memcg, handover, control, _locked: [lock, page], kept: false })
            }
            Err(e) => {
                let _ = fs::remove_dir_all(&path);
                Err(e)
            }
        }
    }

    /// From now on processes of the run are handed what they may not open, and what swap areas take. It takes a thread.
    pub fn serve(&mut self, areas: Option<AreaFiles>) {
        if let Some(handover) = &mut self.handover {
            // Without it they run unmanaged, and say so.
            let _ = handover.serve(areas);
        }
    }

    /// From now on the user may change the run, whose limit is a part of this memory. It takes a thread.
    pub fn listen(&mut self, memory: Memory) {
        if let Some(control) = &mut self.control {
            // Without it the run stays as it is, and who asks is told.
            let _ = control.serve(self.memcg, memory);
        }
    }

    /// False where there is no socket by which processes could be handed anything.
    pub fn has_handover(&self) -> bool {
        self.handover.is_some()
    }

    /// The directory that this one is in.
    pub fn parent(&self) -> &Path {
        self.path.parent().expect("made as a child")
    }

    /// The library's path, as LD_PRELOAD has it for any program: with a `$PLATFORM` that the loader replaces.
    pub fn library(&self) -> PathBuf {
        self.path.join(memcg::PLATFORM).join(memcg::LIBRARY_FILE)
    }

    /// The file that it is, as LD_PRELOAD has it for a program of glibc's 64-bit loader.
    pub fn library_file(&self) -> PathBuf {
        self.path.join(memcg::LIBRARY_FILE)
    }

    /// The one of these for the program in `file`.
    pub fn library_for(&self, file: &CStr) -> PathBuf {
        match uffd::loader::is_glibcs(file.as_ptr().cast()) {
            Ok(true) => self.library_file(),
            _ => self.library(),
        }
    }

    /// The shared page's path, by that of its names by which processes have an engine as soon as there is something to
    /// win by it; or from their start, if `at_once`.
    pub fn page(&self, at_once: bool) -> PathBuf {
        let grown_mib = grown_bytes(self.memcg.max_bytes.load(Relaxed)) >> 20;
        page_in(&self.path, if at_once { 0 } else { grown_mib })
    }

    /// Leaves the directory to processes of the run that live on: each program that they start still loads the library.
    /// A later run removes it when they are gone.
    pub fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        (self.handover, self.control) = (None, None);
        if !self.kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// How often another directory is made because a run that sweeps has got hold of the one before.
const ATTEMPTS: usize = 100;

/// Makes a directory with a name that nobody else has, and takes its lock.
fn make(parent: &Path) -> Result<(PathBuf, File)> {
    for _ in 0..ATTEMPTS {
        let random = RandomState::new().hash_one(parent) as u32;
        let path = parent.join(format!("{PREFIX}{}-{random:08x}", std::process::id()));
        if page_in(&path, 0).as_os_str().len() >= memcg::PATH_BYTES {
            bail!("its name is too long");
        }
        DirBuilder::new().mode(0o700).create(&path).context("cannot create a directory")?;
        if let Some(lock) = lock(&path)? {
            // Opened to others by its mode, whatever the umask: processes of the run may have another user's id.
            fs::set_permissions(&path, Permissions::from_mode(0o711))?;
            return Ok((path, lock));
        }
    }
    bail!("other runs took it away again and again")
}

/// Takes the lock of a directory that was just made; none where another run has it, which removes the directory, or has
/// removed it.
fn lock(path: &Path) -> Result<Option<File>> {
    let Ok(dir) = File::open(path) else { return Ok(None) };
    let same =
        |there: fs::Metadata, mine: fs::Metadata| (there.dev(), there.ino()) == (mine.dev(), mine.ino());
    // In this order: who has the lock of a directory that is there keeps it from being removed.
    let is_kept = sys::try_lock(&dir)
        && fs::symlink_metadata(path).is_ok_and(|m| dir.metadata().is_ok_and(|d| same(m, d)));
    Ok(is_kept.then_some(dir))
}

/// A process has an engine when it has so much of its own: one part in so many of the limit, but 1 MiB at least and
/// this at most. With less it costs more than it brings; but many that start together must not fill the limit before
/// one of them has an engine.
const GROWN_PART: u64 = 128;
const GROWN_MIB: u64 = 8;

/// How much a process has of its own when it gets an engine, by the limit of the run.
pub fn grown_bytes(max_bytes: u64) -> u64 {
    (max_bytes / GROWN_PART / (1 << 20)).clamp(1, GROWN_MIB) << 20
}

/// The page of the run in `dir`, by the name for so many MiB.
fn page_in(dir: &Path, mib: u64) -> PathBuf {
    dir.join(format!("{}{mib}", memcg::PAGE_FILE_GROWN))
}

/// Where a run's directory may be, best first.
fn parents() -> Vec<PathBuf> {
    // Root's programs may change to another user, who does not get into root's own directory.
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| sys::effective_user() != 0).map(PathBuf::from);
    own.into_iter()
        .filter(|dir| dir.is_absolute() && loadable(dir))
        .chain([PathBuf::from("/dev/shm"), PathBuf::from("/tmp")])
        .collect()
}

/// LD_PRELOAD has no way to write these two characters.
fn loadable(dir: &Path) -> bool {
    !dir.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte))
}

/// Removes this user's directories whose run is over: those of runs that were killed, or that left a daemon behind
/// which has ended since.
fn sweep(parent: &Path) {
    let user = sys::effective_user();
    let Ok(entries) = fs::read_dir(parent) else { return };
    let mut idle = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
                && fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir() && m.uid() == user);
        if let Some(locks) = ours.then(|| locks_of_dead(&path)).flatten() {
            idle.push((path, locks));
        }
    }
    // Twice, a moment apart: while a process executes a program it has no environment.
    for look in 0..2 {
        if idle.is_empty() {
            return;
        }
        if look > 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let environments = environments_of_all();
        idle.retain(|(path, _)| {
            let needle = path.as_os_str().as_encoded_bytes();
            !environments.iter().any(|text| text.windows(needle.len()).any(|part| part == needle))
        });
    }
    for (path, _locks) in idle {
        let _ = fs::remove_dir_all(&path);
    }
}

/// The locks of a directory and of its page, if it has one: `None` while a run has them, or a process that one has left
/// behind. With them nobody else removes it.
fn locks_of_dead(path: &Path) -> Option<[Option<File>; 2]> {
    let dir = File::open(path).ok().filter(sys::try_lock)?;
    // One that is killed as it makes or removes the directory leaves no page.
    let page = File::open(path.join(memcg::PAGE_FILE)).ok();
    if page.as_ref().is_some_and(|page| !sys::try_lock(page)) {
        return None;
    }
    Some([Some(dir), page])
}

fn environments_of_all() -> Vec<Vec<u8>> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes.flatten().filter_map(|entry| fs::read(entry.path().join("environ")).ok()).collect()
}

/// The environment of CMD: this process's, with the library before what is preloaded already. A run inside a run leaves
/// the outer one: two engines cannot manage one process.
pub fn environment(
    own: impl Iterator<Item = (OsString, OsString)>,
    library: &Path,
    page: &Path,
) -> Vec<(OsString, OsString)> {
    let mut variables: Vec<_> = own.collect();
    let outer = take(&mut variables, memcg::ENV).map(|page| {
        let file = Path::new(&page).with_file_name(memcg::LIBRARY_FILE);
        [file.with_file_name(memcg::PLATFORM).join(memcg::LIBRARY_FILE), file]
    });
    let mut preload = library.as_os_str().to_os_string();
    if let Some(before) = take(&mut variables, "LD_PRELOAD") {
        use std::os::unix::ffi::OsStrExt;
        for name in before.as_bytes().split(|&b| b == b' ' || b == b':').filter(|name| !name.is_empty()) {
            let name = Path::new(std::ffi::OsStr::from_bytes(name));
            if !outer.iter().flatten().any(|outer| outer == name) {
                preload.push(":");
                preload.push(name);
            }
        }
    }
    variables.push(("LD_PRELOAD".into(), preload));
    variables.push((memcg::ENV.into(), page.into()));
    variables
}

fn take(variables: &mut Vec<(OsString, OsString)>, name: &str) -> Option<OsString> {
    let index = variables.iter().position(|(key, _)| key == name)?;
    Some(variables.remove(index).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::LIBRARY;
    use crate::{blank, elf};
    use uffd::PAGE;

    fn preload_with(own: &[(&str, &str)]) -> String {
        let own = own.iter().map(|(k, v)| (k.into(), v.into()));
        let library = Path::new("/run/a/$PLATFORM/libzfolio.so");
        let made = environment(own, library, Path::new("/run/a/memcg"));
        assert_eq!(made.iter().filter(|(k, _)| k == memcg::ENV).count(), 1);
        assert_eq!(made.iter().filter(|(k, _)| k == "LD_PRELOAD").count(), 1);
        made.iter().find(|(k, _)| k == "LD_PRELOAD").unwrap().1.to_str().unwrap().to_string()
    }

    #[test]
    fn the_library_comes_before_what_is_preloaded_already() {
        assert_eq!(preload_with(&[("HOME", "/")]), "/run/a/$PLATFORM/libzfolio.so");
        assert_eq!(preload_with(&[("LD_PRELOAD", "x.so y.so:")]), "/run/a/$PLATFORM/libzfolio.so:x.so:y.so");
    }

    #[test]
    fn a_run_inside_a_run_leaves_the_outer_one() {
        for outer in ["/run/b/$PLATFORM/libzfolio.so:x.so", "/run/b/libzfolio.so:x.so"] {
            let outer = [("LD_PRELOAD", outer), (memcg::ENV, "/run/b/memcg")];
            assert_eq!(preload_with(&outer), "/run/a/$PLATFORM/libzfolio.so:x.so");
        }
    }

    #[test]
    fn a_run_directory_holds_its_files_and_goes_when_dropped() {
        let dir =
            RunDir::create(LIBRARY, 1 << 28, Settings { seed: 7, ..Settings::default() }, b"words").unwrap();
        let path = dir.path.clone();
        let library_of = |platform: &str| {
            let file = dir.library().to_str().unwrap().replace(memcg::PLATFORM, platform);
            let metadata = fs::metadata(&file).unwrap();
            assert_eq!(metadata.mode() & 0o777, 0o755);
            assert!(metadata.blocks() * 512 >= metadata.len(), "room for all of it");
            fs::read(file).unwrap()
        };
        // The last is what is left where `$PLATFORM` was taken for a variable of a shell's.
        for platform in ["x86_64", "haswell", "xeon_phi", ""] {
            let written = library_of(platform);
            let loaded = elf::loaded(LIBRARY).unwrap();
            let header = object::pod::bytes_of(&loaded.header);
            assert!(written.starts_with(header), "{platform}");
            assert!(written[header.len()..] == loaded.file[header.len()..], "{platform}");
        }
        for platform in ["i686", "i586", "i386"] {
            assert_eq!(library_of(platform), blank::object(), "{platform}");
            assert_eq!(fs::metadata(path.join(platform)).unwrap().mode() & 0o777, 0o755);
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o711);
        assert_eq!(fs::metadata(dir.page(false)).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::canonicalize(dir.page(true)).unwrap(), fs::canonicalize(dir.page(false)).unwrap());
        assert_eq!((dir.memcg.settings.seed, dir.memcg.dictionary()), (7, &b"words"[..]));
        drop(dir);
        assert!(!path.exists());
    }

    /// Sweeps until it is gone: another test's sweep may hold the locks this moment.
    fn is_swept(path: &Path) -> bool {
        let is_gone = || {
            sweep(path.parent().unwrap());
            !path.exists()
        };
        (0..1000).any(|_| {
            is_gone() || {
                std::thread::sleep(Duration::from_millis(1));
                false
            }
        })
    }

    #[test]
    fn a_dead_run_is_swept_away_and_a_living_one_is_not() {
        let living = RunDir::create(LIBRARY, 1 << 28, Settings::default(), &[]).unwrap();
        let parent = living.parent().to_path_buf();
        // What is left of a run that was killed as it began, or as it ran: nobody has the locks, nor the path in the
        // environment.
        for page in [None, Some(&b""[..]), Some(b"page")] {
            let path = parent.join(format!("{PREFIX}{}-dead", std::process::id()));
            fs::create_dir(&path).unwrap();
            page.iter().for_each(|page| fs::write(path.join(memcg::PAGE_FILE), page).unwrap());
            assert!(is_swept(&path), "{page:?}");
            assert!(living.path.exists(), "{page:?}");
        }
    }

    #[test]
    fn what_a_process_has_mapped_is_not_swept_away() {
        let mut dir = RunDir::create(LIBRARY, 1 << 28, Settings::default(), &[]).unwrap();
        dir.keep();
        let (path, page) = (dir.path.clone(), dir.path.join(memcg::PAGE_FILE));
        let file = File::options().read(true).write(true).open(page).unwrap();
        assert!(sys::share_lock(&file));
        // What `zfolio run` has mapped itself goes with it.
        // SAFETY: it is not used any more.
        unsafe { uffd::sys::munmap(std::ptr::from_ref(dir.memcg) as usize, size_of::<Memcg>()) }.unwrap();
        // SAFETY: as long as it is.
        let mapped = unsafe { sys::map_shared::<[u8; PAGE]>(&file, &file, PAGE) }.unwrap();
        drop((dir, file));
        for _ in 0..3 {
            sweep(path.parent().unwrap());
            assert!(path.exists(), "the mapping has the lock of the descriptor that is closed");
        }
        // SAFETY: nobody uses it any more.
        unsafe { uffd::sys::munmap(std::ptr::from_mut(mapped) as usize, PAGE) }.unwrap();
        assert!(is_swept(&path));
    }

    #[test]
    fn whose_lock_another_has_taken_makes_another_directory() {
        let parent = std::env::temp_dir();
        let (path, held) = make(&parent).unwrap();
        assert!(lock(&path).unwrap().is_none(), "somebody has it");
        drop(held);
        let held = File::open(&path).unwrap();
        fs::remove_dir(&path).unwrap();
        assert!(sys::try_lock(&held) && lock(&path).unwrap().is_none(), "it is gone");
    }
}
