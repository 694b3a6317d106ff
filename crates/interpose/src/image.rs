//! The file that a call is about to execute, as far as it can be told before: by that is decided which name of the
//! library the program gets. A file that cannot be told is one for any loader.
//!
//! The file is open for the length of a read, and closed by exec, in the process that is about to execute it: other
//! threads end there, and a signal handler that makes a child at that very moment hands on what its own exec would
//! close. Signals are not blocked for it: filters of system calls that let exec through may kill for that. Where
//! posix_spawn is called the process goes on, see `exec::spawned`.

use crate::environment::Vector;
use core::ffi::CStr;
use uffd::{Errno, loader};

/// Room for the path of a file that is searched for, with its NUL.
const PATH_BYTES: usize = 256;

/// What a call names.
#[derive(Clone, Copy)]
pub enum Image {
    /// The file at this path, which only the kernel reads: it may point to nothing.
    At(*const u8),
    /// A file of this name, which execvp looks for with the PATH of this environment.
    Called(*const u8, Vector),
    /// What cannot be told.
    Unknown,
}

impl Image {
    /// What execvp is to execute in a process with this environment.
    ///
    /// # Safety
    /// As for execvp: `file` must end with NUL, and the environment be one.
    pub unsafe fn by_search(file: *const u8, environment: Vector) -> Image {
        // SAFETY: the caller's contract.
        match unsafe { CStr::from_ptr(file.cast()) }.to_bytes() {
            [] => Image::Unknown,
            name if name.contains(&b'/') => Image::At(file),
            _ => Image::Called(file, environment),
        }
    }

    /// The same in a process that may have gone to another directory before.
    ///
    /// # Safety
    /// The path must end with NUL.
    pub unsafe fn from_anywhere(self) -> Image {
        match self {
            // SAFETY: the caller's contract: one byte is there.
            Image::At(path) if path.is_null() || unsafe { *path } != b'/' => Image::Unknown,
            other => other,
        }
    }

    /// True for a program that glibc's 64-bit loader starts.
    pub fn is_glibcs(self) -> bool {
        match self {
            Image::At(path) => loader::is_glibcs(path) == Ok(true),
            Image::Called(name, environment) => {
                // SAFETY: as `by_search` was told.
                let found = unsafe { path_variable(environment) }
                    .and_then(|path| search(unsafe { CStr::from_ptr(name.cast()) }.to_bytes(), path));
                found == Some(true)
            }
            Image::Unknown => false,
        }
    }
}

/// The value of PATH.
///
/// # Safety
/// It must be an environment.
unsafe fn path_variable<'a>(environment: Vector) -> Option<&'a [u8]> {
    let mut at = environment;
    // SAFETY: the caller's contract: an array that ends with NULL, of strings that end with NUL.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            if let Some(value) = CStr::from_ptr((*at).cast()).to_bytes().strip_prefix(b"PATH=") {
                return Some(value);
            }
            at = at.add(1);
        }
    }
    None
}

/// Looks at the first file of this name in the directories of `path`, which are all from the root as far as that. What
/// execvp does not simply pass by ends the search: it goes on, or fails, by rules of its own.
fn search(name: &[u8], path: &[u8]) -> Option<bool> {
    for directory in path.split(|byte| *byte == b':') {
        let mut file = [0; PATH_BYTES];
        let bytes = directory.len() + 1 + name.len();
        if !directory.starts_with(b"/") || bytes >= PATH_BYTES {
            return None;
        }
        file[..directory.len()].copy_from_slice(directory);
        file[directory.len()] = b'/';
        file[directory.len() + 1..bytes].copy_from_slice(name);
        match loader::is_glibcs(file.as_ptr()) {
            Err(Errno::ENOENT) => {}
            other => return other.ok(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_name_is_looked_for_where_execvp_looks_for_it() {
        let dir = std::env::temp_dir().join(format!("interpose-image-{}", std::process::id()));
        for sub in ["first", "second", "plain"] {
            fs::create_dir_all(dir.join(sub)).unwrap();
        }
        symlink(std::env::current_exe().unwrap(), dir.join("second/program")).unwrap();
        fs::write(dir.join("second/text"), "exit").unwrap();
        fs::set_permissions(dir.join("second/text"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.join("plain/program"), "exit").unwrap();
        let looked_at = |name: &str, path: &str| {
            let strings =
                ["XPATH=/", path].map(|text| CString::new(text.replace('@', dir.to_str().unwrap())).unwrap());
            let vector = [strings[0].as_ptr().cast(), strings[1].as_ptr().cast(), core::ptr::null()];
            let name = CString::new(name.replace('@', dir.to_str().unwrap())).unwrap();
            // SAFETY: a name and an environment.
            unsafe { Image::by_search(name.as_ptr().cast(), vector.as_ptr()) }.is_glibcs()
        };
        assert!(looked_at("program", "PATH=@/second"));
        assert!(looked_at("program", "PATH=@/first:@/missing:@/second:relative"));
        assert!(looked_at("@/second/program", "PATH="));
        for (name, path) in [
            ("program", "PATH=@/first"),
            ("program", "PATH="),
            ("program", "PATH=:@/second"),
            ("program", "PATH=relative:@/second"),
            ("program", "OTHER=@/second"),
            // It is there, and may not be executed: execvp remembers that and goes on.
            ("program", "PATH=@/plain:@/second"),
            ("text", "PATH=@/second"),
            ("", "PATH=@/second"),
            ("missing/program", "PATH=@/second"),
        ] {
            assert!(!looked_at(name, path), "{name} {path}");
        }
        let long = format!("PATH=/{}:@/second", "x".repeat(PATH_BYTES));
        assert!(!looked_at("program", &long));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn from_anywhere_only_what_begins_at_the_root_is_known() {
        let own =
            CString::new(std::env::current_exe().unwrap().into_os_string().into_encoded_bytes()).unwrap();
        for (path, known) in
            [(own.as_ptr(), true), (c"./program".as_ptr(), false), (core::ptr::null(), false)]
        {
            // SAFETY: a string, or none.
            let image = unsafe { Image::At(path.cast()).from_anywhere() };
            assert_eq!(image.is_glibcs(), known);
        }
        assert!(!Image::Unknown.is_glibcs());
        assert!(!Image::At(core::ptr::null()).is_glibcs());
    }
}
