//! Why memory cannot go out: what each cause is called, what is said of it, and what helps. The warnings, the summary
//! and the JSON have it from here; of memory in managed processes it is what engines say ([`Kind`]).

use crate::sys;
use std::fs;
use uffd::kinds::Kind;

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
    /// A process: its limit of addresses leaves no room for what an engine needs.
    Addresses,
    /// A process: its engine could not begin, for another reason.
    Engine,
    /// Memory of a managed process that stays.
    Memory(Kind),
}

use Cause::*;

/// A row for each cause that concerns a whole process: its name in the JSON, and what helps, if anything does.
const PROCESSES: [(Cause, &str, &str); 11] = [
    (Static, "static", "a dynamically linked build of it is managed"),
    (Go, "static_go", "GOMEMLIMIT bounds its heap"),
    (ChangesRights, "changes_rights", "zfolio run behind it helps (sudo zfolio run ...)"),
    (Musl, "musl", "a build for glibc is managed"),
    (Bits32, "32_bit", "a 64-bit build is managed"),
    (Unknown, "unknown_program", ""),
    (Environment, "environment", "let it inherit LD_PRELOAD and ZFOLIO_MEMCG"),
    (
        Hidden,
        "hidden",
        "let it see the /dev/shm of zfolio run, and map code from there (bwrap: --bind /dev/shm /dev/shm, after --dev)",
    ),
    (User, "user", "setfacl -m u:USER:rw /dev/userfaultfd"),
    (Addresses, "address_limit", "4 MiB more of them help"),
    (Engine, "engine", ""),
];

/// What helps in certain programs, by the name of the process.
const PROGRAMS: [(Kind, &str, &str); 3] = [
    (Kind::Shared, "java", "-XX:+UseG1GC has a heap that can"),
    (Kind::Shared, "postgres", "a smaller shared_buffers helps, or a higher limit"),
    (Kind::Locked, "java", "bootstrap.memory_lock=false or its like helps"),
];

impl Cause {
    fn row(self) -> &'static (Cause, &'static str, &'static str) {
        PROCESSES.iter().find(|row| row.0 == self).expect("a row for each cause that is no kind of memory")
    }

    /// Its name in the JSON.
    pub fn key(self) -> &'static str {
        match self {
            Memory(kind) => kind.key(),
            _ => self.row().1,
        }
    }

    /// True where nothing of a process is managed.
    pub fn is_process(self) -> bool {
        !matches!(self, Memory(_))
    }

    /// What the memory is; nothing where it is all of a process.
    pub fn what(self) -> &'static str {
        match self {
            Memory(kind) => kind.what(),
            _ => "",
        }
    }

    /// What helps, for a process of this name and number; nothing where nothing is known to.
    pub fn help(self, name: &str, pid: u32) -> String {
        match self {
            Memory(kind) => match PROGRAMS.iter().find(|row| row.0 == kind && row.1 == name) {
                Some((.., help)) => help.to_string(),
                None if kind.help().contains(", ") => format!("{}, helps", kind.help()),
                None => format!("{} helps", kind.help()),
            },
            User => self.row().2.replace("USER", &user_name(pid)),
            _ => self.row().2.to_string(),
        }
    }

    /// The cause that is behind an engine's words.
    pub fn of_words(words: &str) -> Cause {
        if words.contains("userfaultfd") { User } else { Engine }
    }
}

/// The name of a process's user, or the number where it has none here.
fn user_name(pid: u32) -> String {
    let Some(user) = sys::user_of(pid) else { return "NAME".to_string() };
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
        let kinds = Kind::ALL.map(Kind::key);
        for (index, (cause, key, _)) in PROCESSES.iter().enumerate() {
            assert!(PROCESSES[..index].iter().all(|other| other.0 != *cause && other.1 != *key), "{key}");
            assert!(!kinds.contains(key) && cause.key() == *key, "{key}");
        }
    }

    #[test]
    fn help_is_of_the_program_or_for_its_user() {
        let shared = Memory(Kind::Shared);
        assert_eq!(shared.help("java", 1), "-XX:+UseG1GC has a heap that can");
        assert_eq!(shared.help("javac", 1), "less of it, or a higher limit, helps");
        assert_eq!(Memory(Kind::Executable).help("x", 1), "a higher limit helps");
        let own = std::process::id();
        let help = User.help("x", own);
        assert!(help.starts_with("setfacl -m u:") && !help.contains("USER"), "{help}");
        assert_eq!(Cause::of_words("userfaultfd says EPERM (errno 1)"), User);
    }
}
