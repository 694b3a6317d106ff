//! Why memory cannot go out: what each cause is called, what is said of it, and what helps. The warnings, the summary and the JSON have it from here.

use crate::descendants;
use std::fs;

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A process: no loader runs that could load the library.
    Static,
    /// The same, of a Go program.
    Go,
    /// A process: its program is setuid, setgid or has capabilities.
    ChangesRights,
    /// A process: linked with musl.
    Musl,
    /// A process: a 32-bit program.
    Bits32,
    /// A process: a program that nobody can read, or of a kind that is not known.
    Unknown,
    /// A process: its environment does not name the library.
    Environment,
    /// A process: its environment names the library, and the loader has not found it.
    Hidden,
    /// A process: its user may not use userfaultfd, or may not be looked at.
    User,
    /// A process: its engine could not begin, for another reason.
    Engine,
    /// Memory: shared memory, memfds, files of a tmpfs.
    Shared,
    /// Memory: locked.
    Locked,
    /// Memory: executable.
    Executable,
    /// Memory: anonymous, and not to be written.
    ReadOnly,
    /// Memory: private copies of file pages.
    FileCopies,
    /// Memory: mappings that are too small.
    Small,
    /// Memory: what the engine has not got hold of, for whatever reason.
    Unregistered,
}

use Cause::*;

/// A row for each cause: its name in the JSON; what such memory is, where it is not all of a process; and what helps, if anything does.
const TABLE: [(Cause, &str, &str, &str); 17] = [
    (Static, "static", "", "a dynamically linked build of it is managed"),
    (Go, "static_go", "", "GOMEMLIMIT bounds its heap"),
    (ChangesRights, "changes_rights", "", "zfolio run behind it helps (sudo zfolio run ...)"),
    (Musl, "musl", "", "a build for glibc is managed"),
    (Bits32, "32_bit", "", "a 64-bit build is managed"),
    (Unknown, "unknown_program", "", ""),
    (Environment, "environment", "", "let it inherit LD_PRELOAD and ZFOLIO_MEMCG"),
    (
        Hidden,
        "hidden",
        "",
        "let it see the /dev/shm of zfolio run, and map code from there (bwrap: --bind /dev/shm /dev/shm, after --dev)",
    ),
    (User, "user", "", "setfacl -m u:USER:rw /dev/userfaultfd"),
    (Engine, "engine", "", ""),
    (Shared, "shared", "shared memory", "less of it, or a higher limit, helps"),
    (Locked, "locked", "locked memory", "the program without mlock helps"),
    (Executable, "executable", "executable memory", "a higher limit helps"),
    (ReadOnly, "read_only", "memory that cannot be written to", "a higher limit helps"),
    (FileCopies, "file_copies", "private copies of file pages", "a higher limit helps"),
    (Small, "small_mappings", "mappings below 64 KiB", "larger mappings help, or a higher limit"),
    (Unregistered, "unregistered", "mappings that the engine has not got hold of", "a higher limit helps"),
];

/// What helps in certain programs, by the name of the process.
const PROGRAMS: [(Cause, &str, &str); 3] = [
    (Shared, "java", "-XX:+UseG1GC has a heap that can"),
    (Shared, "postgres", "a smaller shared_buffers helps, or a higher limit"),
    (Locked, "java", "bootstrap.memory_lock=false or its like helps"),
];

impl Cause {
    fn row(self) -> &'static (Cause, &'static str, &'static str, &'static str) {
        TABLE.iter().find(|row| row.0 == self).expect("a row for each cause")
    }

    /// Its name in the JSON.
    pub fn key(self) -> &'static str {
        self.row().1
    }

    /// True where nothing of a process is managed.
    pub fn is_process(self) -> bool {
        self.row().2.is_empty()
    }

    /// What the memory is.
    pub fn what(self) -> &'static str {
        self.row().2
    }

    /// What helps, for a process of this name and number; nothing where nothing is known to.
    pub fn help(self, name: &str, pid: u32) -> String {
        let special = PROGRAMS.iter().find(|row| row.0 == self && row.1 == name).map(|row| row.2);
        let help = special.unwrap_or(self.row().3);
        if self == User { help.replace("USER", &user_name(pid)) } else { help.to_string() }
    }

    /// The cause that is behind an engine's words.
    pub fn of_words(words: &str) -> Cause {
        if words.contains("userfaultfd") { User } else { Engine }
    }
}

/// The name of a process's user, or the number where it has none here.
fn user_name(pid: u32) -> String {
    let Some(user) = descendants::user(pid) else { return "NAME".to_string() };
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let has_user = |line: &&str| line.split(':').nth(2) == Some(&user.to_string());
    let name = passwd.lines().find(has_user).and_then(|line| line.split(':').next());
    name.map_or(user.to_string(), str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_one_row_and_one_name() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, index, "{:?}", row.0);
            assert!(TABLE.iter().filter(|other| other.1 == row.1).count() == 1, "{}", row.1);
        }
        assert_eq!(Unregistered as usize + 1, TABLE.len());
    }

    #[test]
    fn help_is_of_the_program_or_for_its_user() {
        assert_eq!(Shared.help("java", 1), "-XX:+UseG1GC has a heap that can");
        assert_eq!(Shared.help("javac", 1), Shared.row().3);
        let own = std::process::id();
        let help = User.help("x", own);
        assert!(help.starts_with("setfacl -m u:") && !help.contains("USER"), "{help}");
        assert_eq!(Cause::of_words("userfaultfd says EPERM (errno 1)"), User);
    }
}
