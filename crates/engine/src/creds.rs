//! What a process may do, as /proc/PID/status has it, and how the calling process gives up what another one has given
//! up.
//!
//! Nothing is ever gained but ids: those become the other's, since signals between the two go by them. Of groups and
//! capabilities is kept what both have. Securebits are not shown anywhere, and say only what a process may gain, by its
//! ids or by executing a program; engines do neither.

use control::line::Line;
use control::tasks::parse_tid;
use core::fmt::Write;
use linux_raw_sys::general as g;
use uffd::sys::{self, Errno, Fd, consts::*};

/// Takes processes out of SCHED_IDLE; see capabilities(7).
pub const CAP_SYS_NICE: u32 = 23;

/// As many supplementary groups as are told apart.
const GROUPS_MAX: usize = 64;

/// Supplementary groups; of more than 64 none is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    all: [u32; GROUPS_MAX],
    len: usize,
    /// How many there are in truth.
    count: usize,
}

impl Groups {
    const NONE: Groups = Groups { all: [0; GROUPS_MAX], len: 0, count: 0 };

    fn push(&mut self, group: u32) {
        self.count += 1;
        if self.len < GROUPS_MAX {
            self.all[self.len] = group;
            self.len += 1;
        }
    }

    fn list(&self) -> &[u32] {
        // A part would be taken for all.
        if self.count > self.len { &[] } else { &self.all[..self.len] }
    }

    /// Those that `other` has too.
    fn common(&self, other: &Groups) -> Groups {
        let mut common = Groups::NONE;
        self.list().iter().filter(|group| other.list().contains(group)).for_each(|&group| common.push(group));
        common
    }
}

/// The sets of capabilities, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// What is in force.
    pub effective: u64,
    /// What can be brought in force.
    pub permitted: u64,
    /// What programs that are executed can be given.
    pub inheritable: u64,
    /// What they can have at most.
    pub bounding: u64,
    /// What they get.
    pub ambient: u64,
}

/// What a process may do: its ids, groups and capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Real, effective, saved, and for files.
    pub uids: [u32; 4],
    /// As `uids`.
    pub gids: [u32; 4],
    /// The supplementary ones.
    pub groups: Groups,
    /// Its capabilities.
    pub caps: Caps,
    /// It can gain nothing by executing a program.
    pub no_new_privs: bool,
    /// A filter says which system calls it may make.
    pub is_filtered: bool,
    /// Its main thread has ended.
    pub is_zombie: bool,
}

impl Rights {
    const NONE: Rights = Rights {
        uids: [0; 4],
        gids: [0; 4],
        groups: Groups::NONE,
        caps: Caps { effective: 0, permitted: 0, inheritable: 0, bounding: 0, ambient: 0 },
        no_new_privs: false,
        is_filtered: false,
        is_zombie: false,
    };

    /// Of an open /proc/PID/status.
    pub fn read(status: &Fd) -> Result<Rights, Errno> {
        let (mut rights, mut lines) = (Rights::NONE, 0);
        each_line(status, |line| {
            if let Some(colon) = line.iter().position(|&b| b == b':') {
                lines += rights.note(&line[..colon], &line[colon + 1..]) as usize;
            }
        })?;
        // A kernel without one of them says nothing that could be followed.
        if lines == KEYS { Ok(rights) } else { Err(Errno::EINVAL) }
    }

    /// Of a process's main thread, by its open /proc/PID/status; of another thread where that has ended: what that may
    /// do nobody changes any more.
    pub fn of_process(pid: u32, status: &Fd) -> Result<Rights, Errno> {
        let rights = Rights::read(status)?;
        if !rights.is_zombie {
            return Ok(rights);
        }
        let open = |path: &Line, flags| sys::open(path.as_str().as_bytes(), flags);
        let mut path = Line::default();
        let _ = write!(path, "/proc/{pid}/task\0");
        let tasks = open(&path, O_RDONLY | O_DIRECTORY)?;
        let mut found = Err(Errno::ESRCH);
        sys::read_dir(&tasks, |name| {
            if let Some(tid) = parse_tid(name).filter(|_| found.is_err()) {
                let mut path = Line::default();
                let _ = write!(path, "/proc/{pid}/task/{tid}/status\0");
                let rights = open(&path, O_RDONLY).and_then(|status| Rights::read(&status));
                found = rights.and_then(|r| if r.is_zombie { Err(Errno::ESRCH) } else { Ok(r) });
            }
        })?;
        found
    }

    /// Takes a line of the file in; true when it was one of those that are needed.
    fn note(&mut self, key: &[u8], value: &[u8]) -> bool {
        let words = || value.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let number = |word: &[u8]| word.iter().fold(0, |n, digit| n * 10 + digit.wrapping_sub(b'0') as u32);
        let ids = || {
            let mut all = words().map(number);
            core::array::from_fn(|_| all.next().unwrap_or(u32::MAX))
        };
        let set = || {
            let text = words().next().and_then(|word| core::str::from_utf8(word).ok());
            text.and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0)
        };
        let caps = &mut self.caps;
        match key {
            b"State" => self.is_zombie = matches!(words().next(), Some(b"Z" | b"X")),
            b"Uid" => self.uids = ids(),
            b"Gid" => self.gids = ids(),
            b"Groups" => words().for_each(|word| self.groups.push(number(word))),
            b"CapInh" => caps.inheritable = set(),
            b"CapPrm" => caps.permitted = set(),
            b"CapEff" => caps.effective = set(),
            b"CapBnd" => caps.bounding = set(),
            b"CapAmb" => caps.ambient = set(),
            b"NoNewPrivs" => self.no_new_privs = set() != 0,
            b"Seccomp" => self.is_filtered = set() != 0,
            _ => return false,
        }
        true
    }

    /// True when this is more than a process of the rights `model` has, or other ids are; `shares_namespace` as for
    /// [`reduce`].
    pub fn exceed(&self, model: &Rights, shares_namespace: bool) -> bool {
        let beyond = |own: u64, theirs: u64| own & !theirs != 0;
        let (own, theirs) = (&self.caps, &model.caps);
        let sets = |caps: &Caps| caps.effective | caps.permitted | caps.inheritable | caps.ambient;
        self.uids != model.uids
            || self.gids != model.gids
            || self.groups.common(&model.groups).count != self.groups.count
            || !self.no_new_privs && model.no_new_privs
            || beyond(own.effective, theirs.effective)
            || beyond(own.permitted, theirs.permitted)
            || beyond(own.inheritable, theirs.inheritable)
            || beyond(own.ambient, theirs.ambient)
            || beyond(own.bounding, theirs.bounding)
            || !shares_namespace && sets(own) != 0
    }

    /// True when the capability is in force.
    pub fn has(&self, capability: u32) -> bool {
        self.caps.effective >> capability & 1 != 0
    }
}

/// How many lines of the file are needed.
const KEYS: usize = 11;

/// Calls `each` with every line of a file of the kernel's; of one that is longer than a few KiB (groups) with its
/// beginning.
fn each_line(file: &Fd, mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
    let (mut buffer, mut kept, mut at, mut is_cut) = ([0; 4096], 0, 0, false);
    loop {
        let got = sys::pread(file, &mut buffer[kept..], at)?;
        if got == 0 {
            return Ok(());
        }
        at += got;
        let (mut line, filled) = (0, kept + got);
        while let Some(len) = buffer[line..filled].iter().position(|&b| b == b'\n') {
            if !core::mem::take(&mut is_cut) {
                each(&buffer[line..line + len]);
            }
            line += len + 1;
        }
        if line == 0 && filled == buffer.len() {
            if !core::mem::replace(&mut is_cut, true) {
                each(&buffer);
            }
            line = filled;
        }
        buffer.copy_within(line..filled, 0);
        kept = filled - line;
    }
}

/// The capability sets of the calling process are to be these; bounding and ambient ones apart.
fn capset(caps: &Caps) {
    // struct __user_cap_header_struct and two of __user_cap_data_struct, for the lower and the upper 32 bits of each.
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let data = [0, 32]
        .map(|shift| [caps.effective, caps.permitted, caps.inheritable].map(|set| (set >> shift) as u32));
    // SAFETY: the kernel reads both.
    let _ = unsafe { call(g::__NR_capset, [header.as_ptr() as usize, data.as_ptr() as usize, 0]) };
}

/// # Safety
/// As for [`sys::syscall`].
unsafe fn call(number: u32, [a, b, c]: [usize; 3]) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    unsafe { sys::syscall(number, [a, b, c, 0, 0, 0]) }
}

fn prctl(option: u32, a: usize, b: usize) -> Result<usize, Errno> {
    // SAFETY: the options that are used here take no addresses.
    unsafe { call(g::__NR_prctl, [option as usize, a, b]) }
}

/// What the calling process says of itself by prctl.
mod options {
    pub const GET_DUMPABLE: u32 = 3;
    pub const SET_DUMPABLE: u32 = 4;
    pub const SET_KEEPCAPS: u32 = 8;
    pub const GET_SECCOMP: u32 = 21;
    pub const CAPBSET_DROP: u32 = 24;
    pub const SET_NO_NEW_PRIVS: u32 = 38;
    pub const CAP_AMBIENT: u32 = 47;
    pub const CAP_AMBIENT_LOWER: usize = 3;
}

/// The prctl options that giving up rights takes.
pub const PRCTL_OPTIONS: [u32; 6] = [
    options::GET_DUMPABLE,
    options::SET_DUMPABLE,
    options::SET_KEEPCAPS,
    options::CAPBSET_DROP,
    options::SET_NO_NEW_PRIVS,
    options::CAP_AMBIENT,
];

/// The calling process, and whoever has its memory, can gain nothing by executing a program.
pub fn set_no_new_privs() -> Result<usize, Errno> {
    prctl(options::SET_NO_NEW_PRIVS, 1, 0)
}

/// True when a filter says which system calls the calling process may make.
pub fn is_filtered() -> bool {
    prctl(options::GET_SECCOMP, 0, 0) != Ok(0)
}

/// Nobody without the right to trace any process may look into this memory from now on.
pub fn forbid_looks() {
    let _ = prctl(options::SET_DUMPABLE, 0, 0);
}

/// Gives up what a process with the rights `own`, which is the calling one, has beyond `model`; `shares_namespace`:
/// both are in one user namespace, else capabilities are about different things. What the kernel refuses stays.
pub fn reduce(own: &Rights, model: &Rights, shares_namespace: bool) {
    if model.no_new_privs && !own.no_new_privs {
        let _ = set_no_new_privs();
    }
    let theirs =
        if shares_namespace { model.caps } else { Caps { bounding: model.caps.bounding, ..Caps::default() } };
    let bits = |set: u64| (0..64).filter(move |bit| set >> bit & 1 != 0);
    for bit in bits(own.caps.ambient & !theirs.ambient) {
        let _ = prctl(options::CAP_AMBIENT, options::CAP_AMBIENT_LOWER, bit);
    }
    let groups = own.groups.common(&model.groups);
    let needs_rights = own.uids != model.uids
        || own.gids != model.gids
        || own.groups.count != groups.count
        || own.caps.bounding & !theirs.bounding != 0;
    let Caps { effective, permitted, inheritable, .. } = own.caps;
    if needs_rights {
        // What is permitted may be brought in force, and a change of ids must not take it away before all is done.
        capset(&Caps { effective: permitted, permitted, inheritable, ..own.caps });
        let _ = prctl(options::SET_KEEPCAPS, 1, 0);
        for bit in bits(own.caps.bounding & !theirs.bounding) {
            let _ = prctl(options::CAPBSET_DROP, bit, 0);
        }
        change_ids(own, model, &groups, permitted);
        let _ = prctl(options::SET_KEEPCAPS, 0, 0);
    }
    let permitted = permitted & theirs.permitted;
    capset(&Caps {
        permitted,
        effective: permitted & effective & theirs.effective,
        inheritable: inheritable & theirs.inheritable,
        ..Caps::default()
    });
}

/// `permitted`: what may be brought in force for it, as it is now.
fn change_ids(own: &Rights, model: &Rights, groups: &Groups, permitted: u64) {
    let set = |number, ids: [u32; 4]| {
        let [real, effective, saved, _] = ids.map(|id| id as usize);
        // SAFETY: no addresses.
        let _ = unsafe { call(number, [real, effective, saved]) };
    };
    if own.groups.count != groups.count {
        // SAFETY: the kernel reads the list.
        let _ = unsafe { call(g::__NR_setgroups, [groups.len, groups.all.as_ptr() as usize, 0]) };
    }
    if own.gids != model.gids {
        set(g::__NR_setresgid, model.gids);
        // SAFETY: no addresses.
        let _ = unsafe { call(g::__NR_setfsgid, [model.gids[3] as usize, 0, 0]) };
    }
    if own.uids != model.uids {
        set(g::__NR_setresuid, model.uids);
        // An effective id that is not root's has taken everything out of force.
        capset(&Caps { effective: permitted, permitted, inheritable: own.caps.inheritable, ..own.caps });
        // SAFETY: no addresses.
        let _ = unsafe { call(g::__NR_setfsuid, [model.uids[3] as usize, 0, 0]) };
    }
}

/// Calls `act`, which changes rights of the calling process, and leaves as it was who may look into the memory that it
/// has in common with the program: a change of ids forbids it, and a program may have allowed it again since its own.
pub fn with_looks_as_they_are(act: impl FnOnce()) {
    let looks = || prctl(options::GET_DUMPABLE, 0, 0);
    let before = looks();
    act();
    if before == Ok(1) && looks() != before {
        let _ = prctl(options::SET_DUMPABLE, 1, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::IntoRawFd;

    fn rights_in(text: &str) -> Result<Rights, Errno> {
        let path = std::env::temp_dir().join(format!("zfolio-status-{:?}", std::thread::current().id()));
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        let file = Fd::own(std::fs::File::open(&path).unwrap().into_raw_fd() as usize);
        std::fs::remove_file(path).unwrap();
        Rights::read(&file)
    }

    fn text(groups: &str) -> String {
        format!(
            "Name:\ta: Uid:\t7\nState:\tS (sleeping)\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t{groups} \nNStgid:\t1\n\
             CapInh:\t0000000000000001\nCapPrm:\t000001fffeffffff\nCapEff:\t0000000000800000\nCapBnd:\t00000000000000ff\n\
             CapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t0\n"
        )
    }

    #[test]
    fn a_status_is_read() {
        let rights = rights_in(&text("10 20")).unwrap();
        assert_eq!((rights.uids, rights.gids), ([1, 2, 3, 4], [5, 6, 7, 8]));
        assert_eq!(rights.groups.list(), [10, 20]);
        let Caps { effective, permitted, inheritable, bounding, ambient } = rights.caps;
        assert_eq!(
            (effective, permitted, inheritable, bounding, ambient),
            (1 << 23, 0x1ff_feff_ffff, 1, 255, 0)
        );
        assert!(rights.no_new_privs && rights.is_filtered && !rights.is_zombie && rights.has(CAP_SYS_NICE));
        assert_eq!(rights_in("Uid:\t1\t2\t3\t4\n"), Err(Errno::EINVAL));
    }

    #[test]
    fn of_many_groups_none_is_kept_and_the_rest_is_read() {
        let many = (0..30_000).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let rights = rights_in(&text(&many)).unwrap();
        assert_eq!((rights.groups.list(), rights.no_new_privs), (&[][..], true));
        let few = rights_in(&text("1 2 3")).unwrap();
        assert_eq!(few.groups.common(&rights.groups), Groups::NONE);
        assert_eq!(few.groups.common(&rights_in(&text("3 4 1")).unwrap().groups).list(), [1, 3]);
    }

    #[test]
    fn the_calling_process_is_what_it_is() {
        let status = sys::open(b"/proc/self/status\0", O_RDONLY).unwrap();
        let pid = std::process::id();
        assert_eq!(Rights::of_process(pid, &status), Rights::read(&status));
    }
}
