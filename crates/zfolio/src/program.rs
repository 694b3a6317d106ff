//! CMD before it runs: where it is, as a shell looks for it, and whether libzfolio.so will be loaded into it, as the
//! kernel and the dynamic loader decide that.

use crate::causes::Cause;
use crate::elf::{self, Elf};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many `#!` the kernel follows (`BINPRM_MAX_RECURSION` and the first).
const SCRIPT_DEPTH: usize = 5;
/// How much of a file the kernel looks at for its `#!` line (`BINPRM_BUF_SIZE`).
const SCRIPT_LINE: usize = 256;

/// Why CMD cannot be run at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoProgram {
    /// Nothing of that name. A shell exits with 127.
    NotFound,
    /// A file that is not for this user to execute. A shell exits with 126.
    NotExecutable(&'static str),
}

impl NoProgram {
    /// The exit status that a shell has for it.
    pub fn exit_status(&self) -> u8 {
        match self {
            NoProgram::NotFound => 127,
            NoProgram::NotExecutable(_) => 126,
        }
    }
}

impl fmt::Display for NoProgram {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            NoProgram::NotFound => "command not found",
            NoProgram::NotExecutable(why) => why,
        })
    }
}

/// Why a program that runs cannot be managed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmanageable {
    /// The file that it is about: CMD, or the interpreter of a script.
    pub file: PathBuf,
    /// Why, as an end of the sentence "FILE ...".
    pub why: String,
    /// The kind of that.
    pub cause: Cause,
}

impl fmt::Display for Unmanageable {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {}", self.file.display(), self.why)
    }
}

/// Finds `name` as execvp(3) does: by itself with a slash in it, else in the directories of `path` (PATH's value).
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, NoProgram> {
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return executable(&file).map(|()| file);
    }
    if name.is_empty() {
        return Err(NoProgram::NotFound);
    }
    let mut refused = NoProgram::NotFound;
    for dir in path.unwrap_or(OsStr::new("/bin:/usr/bin")).as_bytes().split(|&b| b == b':') {
        // An empty entry is the working directory.
        let dir = if dir.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(dir) };
        let file = Path::new(dir).join(name);
        match executable(&file) {
            Ok(()) => return Ok(file),
            // The first file that is there but not to be executed is the reason, unless a later one is.
            Err(why) if refused == NoProgram::NotFound => refused = why,
            Err(_) => {}
        }
    }
    Err(refused)
}

fn executable(file: &Path) -> Result<(), NoProgram> {
    let kind = match fs::metadata(file) {
        Ok(metadata) => metadata.file_type(),
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(NoProgram::NotExecutable("permission denied"));
        }
        Err(_) => return Err(NoProgram::NotFound),
    };
    if kind.is_dir() {
        return Err(NoProgram::NotExecutable("is a directory"));
    }
    if !kind.is_file() || !crate::sys::may_execute(file) {
        return Err(NoProgram::NotExecutable("permission denied"));
    }
    Ok(())
}

/// Tells whether the loader will take libzfolio.so into the program. A script is what its interpreter is.
pub fn inspect(file: &Path) -> Result<(), Unmanageable> {
    let mut file = file.to_path_buf();
    for _ in 0..SCRIPT_DEPTH {
        let because = |cause, why: String| Err(Unmanageable { file: file.clone(), why, cause });
        match interpreter(&file) {
            // One that is not there is execve's to report.
            Ok(Some(next)) if executable(&next).is_err() => return Ok(()),
            Ok(Some(next)) => {
                file = next;
                continue;
            }
            Ok(None) => {}
            // Executable, but not readable: the kernel will run it, and nobody can say what it is.
            Err(e) => return because(Cause::Unknown, format!("cannot be read to see what it is ({e})")),
        }
        if let Some(rights) = changes_rights(&file) {
            let why =
                format!("is {rights}: the loader ignores LD_PRELOAD in programs that change their rights");
            return because(Cause::ChangesRights, why);
        }
        return match elf::read(&file) {
            Ok(Elf::Dynamic) => Ok(()),
            Ok(kind @ (Elf::Static | Elf::StaticGo)) => {
                let cause = if kind == Elf::StaticGo { Cause::Go } else { Cause::Static };
                because(cause, "is statically linked: no loader runs that could load libzfolio.so".into())
            }
            Ok(Elf::Musl) => {
                because(Cause::Musl, "is linked with musl: libzfolio.so needs glibc's loader".into())
            }
            Ok(Elf::Bits32) => {
                because(Cause::Bits32, "is a 32-bit program: zfolio manages 64-bit ones".into())
            }
            Ok(Elf::Foreign) => because(Cause::Unknown, "is a program for another processor".into()),
            // Without `#!`: execvp(3) and shells give it to /bin/sh.
            Ok(Elf::No) if file != Path::new("/bin/sh") => {
                file = PathBuf::from("/bin/sh");
                continue;
            }
            Ok(Elf::No) => because(Cause::Unknown, "is neither a program nor a script".into()),
            Err(e) => because(Cause::Unknown, format!("has a damaged header ({e})")),
        };
    }
    let why = "is a script whose interpreters are scripts, too many of them".to_string();
    Err(Unmanageable { file, why, cause: Cause::Unknown })
}

/// The interpreter that a file's `#!` line names.
fn interpreter(file: &Path) -> std::io::Result<Option<PathBuf>> {
    let mut line = Vec::new();
    File::open(file)?.take(SCRIPT_LINE as u64).read_to_end(&mut line)?;
    let Some(line) = line.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|&b| b == b'\n' || b == 0).next().unwrap_or_default();
    let mut words = line.split(|&b| b == b' ' || b == b'\t').filter(|word| !word.is_empty());
    Ok(words.next().map(|word| PathBuf::from(OsString::from_vec(word.to_vec()))))
}

/// Which right the file gives to whoever runs it.
fn changes_rights(file: &Path) -> Option<&'static str> {
    let mode = fs::metadata(file).ok()?.mode();
    if mode & libc::S_ISUID != 0 {
        return Some("setuid");
    }
    // Without the group's execute bit the setgid bit means something else (mandatory locks, once).
    if mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP {
        return Some("setgid");
    }
    crate::sys::has_attribute(file, c"security.capability").then_some("given capabilities (setcap)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(dir: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn scratch(test: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("zfolio-program-{test}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_command_is_looked_for_as_by_a_shell() {
        let dir = scratch("find");
        let (first, second) = (dir.join("1"), dir.join("2"));
        fs::create_dir_all(first.join("tool")).unwrap();
        fs::create_dir_all(&second).unwrap();
        let tool = file(&second, "tool", "", 0o755);
        let plain = file(&first, "plain", "", 0o644);
        let path = std::env::join_paths([&dir.join("none"), &first, &second]).unwrap();
        let find = |name: &str| find(OsStr::new(name), Some(&path));
        assert_eq!(
            find("tool"),
            Ok(tool.clone()),
            "a directory of the name does not hide the command behind it"
        );
        assert_eq!(find("plain"), Err(NoProgram::NotExecutable("permission denied")));
        assert_eq!(find("nothing"), Err(NoProgram::NotFound));
        assert_eq!(find(""), Err(NoProgram::NotFound));
        assert_eq!(find(tool.to_str().unwrap()), Ok(tool));
        assert_eq!(find(plain.to_str().unwrap()).unwrap_err().exit_status(), 126);
        assert_eq!(find(first.to_str().unwrap()), Err(NoProgram::NotExecutable("is a directory")));
        assert_eq!(find("/no/such").unwrap_err().exit_status(), 127);
        assert_eq!(super::find(OsStr::new("sh"), None), Ok(PathBuf::from("/bin/sh")));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_script_is_what_its_interpreter_is() {
        let dir = scratch("script");
        let inspect_text =
            |text: &str| inspect(&file(&dir, "script", text, 0o755)).map_err(|u| u.to_string());
        assert_eq!(inspect_text("#!/bin/sh\n"), Ok(()));
        assert_eq!(inspect_text("#! \t/usr/bin/env python3\nprint(1)"), Ok(()));
        assert_eq!(inspect_text("echo no interpreter named\n"), Ok(()));
        assert_eq!(inspect_text("#!/no/such\n"), Ok(()), "starting it will say what is wrong");
        let itself = format!("#!{}\n", dir.join("script").display());
        assert!(inspect_text(&itself).unwrap_err().contains("too many"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn programs_that_change_their_rights_are_told() {
        let dir = scratch("rights");
        let copy = dir.join("true");
        fs::copy("/bin/true", &copy).unwrap();
        for (mode, expected) in
            [(0o4755, Some("setuid")), (0o2755, Some("setgid")), (0o2745, None), (0o755, None)]
        {
            fs::set_permissions(&copy, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(changes_rights(&copy), expected, "{mode:o}");
            assert_eq!(inspect(&copy).is_ok(), expected.is_none());
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
