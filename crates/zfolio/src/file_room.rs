//! Room for file pages, where the run is in a memory control group with a limit: what is executed and read counts
//! against that limit too.
//!
//! zfolio's memory cannot be swapped, and so the kernel, when the group is full, takes file pages alone. Where the
//! run's own limit leaves them too little room, the code of the programs is read from disk again and again, and nobody
//! comes on: of `make -j4` in a group of its limit and 10 % no file was compiled in a minute, in which 9 million pages
//! were read. So the run takes less of its limit as long as that is seen.

use crate::cgroup::Limit;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the group's figures are read.
const LOOK: Duration = Duration::from_millis(250);

/// Between two looks: so many pages that were there before were waited for again where too few have room, and no more
/// where all have.
const OFTEN: u64 = 16;
const SELDOM: u64 = 2;

/// At so many looks in a row at which all have room, some of it is taken back at each.
const CALM: u32 = 20;

/// Files may take one part in so many of the run's limit; it is given in so many steps, of which some at once where
/// much more is missed, and taken back in so many.
const PART: u64 = 4;
const STEPS_UP: u64 = 16;
const MOST_AT_ONCE: u64 = 4;
const STEPS_DOWN: u64 = 128;

/// A group that has less left than one part in so many of its limit is full: the kernel takes pages in batches.
const FULL_PART: u64 = 16;

/// What the group has counted since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    /// Faults that waited for a file to be read.
    major: u64,
    /// File pages that came back after they had been taken.
    refaults: u64,
}

impl Counts {
    /// From the text of memory.stat: of version 1 what is counted with the groups below. `None` where the kernel does
    /// not count it.
    fn parse(stat: &str) -> Option<Counts> {
        let field = |name: &str| {
            let of = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            of(&format!("total_{name}")).or_else(|| of(name))?.trim().parse().ok()
        };
        Some(Counts { major: field("pgmajfault")?, refaults: field("workingset_refault_file")? })
    }
}

/// See the head of the file.
pub struct FileRoom {
    /// The group's limit in bytes, and where it says what it uses and what it has counted.
    limit_bytes: u64,
    usage: PathBuf,
    stat: PathBuf,
    looked: Instant,
    seen: Counts,
    room: Room,
}

impl FileRoom {
    /// For a run of `max_bytes` in a group with this limit; `None` where the group does not count what has to be known.
    pub fn new(limit: &Limit, max_bytes: u64) -> Option<FileRoom> {
        let usage = match limit.file.file_name()?.to_str()? {
            "memory.max" => "memory.current",
            _ => "memory.usage_in_bytes",
        };
        let stat = limit.file.with_file_name("memory.stat");
        let seen = counts(&stat)?;
        let usage = limit.file.with_file_name(usage);
        let room = Room { most: max_bytes / PART, ..Room::default() };
        Some(FileRoom { limit_bytes: limit.bytes, usage, stat, looked: Instant::now(), seen, room })
    }

    /// The run has another limit, in bytes.
    pub fn set_limit(&mut self, max_bytes: u64) {
        self.room.most = max_bytes / PART;
        self.room.bytes = self.room.bytes.min(self.room.most);
    }

    /// Looks, if it is time to; how much of its limit the run leaves to files, in bytes: nothing where programs cannot
    /// give anything.
    pub fn look(&mut self, now: Instant, can_give: bool) -> u64 {
        if now >= self.looked + LOOK {
            self.looked = now;
            let text = fs::read_to_string(&self.usage).unwrap_or_default();
            let used = text.trim().parse::<u64>().ok();
            if let (Some(used), Some(counts)) = (used, counts(&self.stat)) {
                let is_full = used > self.limit_bytes - self.limit_bytes / FULL_PART;
                let major = counts.major.saturating_sub(self.seen.major);
                // What is read for the first time cannot be helped; what is read by read(2), again and again, need not
                // fit.
                let missed = major.min(counts.refaults.saturating_sub(self.seen.refaults));
                self.seen = counts;
                self.room.learn(is_full && can_give, missed);
            }
        }
        if !can_give {
            self.room.bytes = 0;
        }
        self.room.bytes
    }

    /// The most that was left to them, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.room.peak
    }
}

fn counts(stat: &Path) -> Option<Counts> {
    Counts::parse(&fs::read_to_string(stat).ok()?)
}

/// How much is left to files, in bytes.
#[derive(Default)]
struct Room {
    most: u64,
    bytes: u64,
    peak: u64,
    /// Looks in a row at which all had room.
    calm: u32,
}

impl Room {
    /// Takes note of a look: whether the group is full, and how many pages were missed since the last one.
    fn learn(&mut self, is_full: bool, missed: u64) {
        self.calm = if missed > SELDOM { 0 } else { self.calm + 1 };
        if is_full && missed >= OFTEN {
            let steps = (missed / OFTEN).min(MOST_AT_ONCE);
            self.bytes = (self.bytes + steps * (self.most / STEPS_UP)).min(self.most);
            self.peak = self.peak.max(self.bytes);
        } else if self.calm > CALM {
            self.bytes = self.bytes.saturating_sub(self.most / STEPS_DOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_say_what_is_counted() {
        let two = "anon 5\npgmajfault 7\nworkingset_refault_anon 1\nworkingset_refault_file 9\n";
        let one =
            "pgmajfault 1\nworkingset_refault_file 2\ntotal_pgmajfault 7\ntotal_workingset_refault_file 9\n";
        for stat in [one, two] {
            assert_eq!(Counts::parse(stat), Some(Counts { major: 7, refaults: 9 }));
        }
        assert_eq!(Counts::parse("pgmajfault 7\nworkingset_refault 9\n"), None, "before Linux 5.9");
    }

    #[test]
    fn room_is_given_in_steps_where_pages_are_missed_and_taken_back_after_a_while() {
        let mut room = Room { most: 32 << 20, ..Room::default() };
        room.learn(false, 1000);
        room.learn(true, OFTEN - 1);
        assert_eq!(room.bytes, 0, "there is room, or little is missed");
        room.learn(true, OFTEN);
        assert_eq!(room.bytes, 2 << 20);
        room.learn(true, 1000);
        assert_eq!(room.bytes, 10 << 20);
        (0..100).for_each(|_| room.learn(true, 1000));
        assert_eq!((room.bytes, room.peak), (32 << 20, 32 << 20));
        (0..CALM).for_each(|_| room.learn(true, SELDOM));
        assert_eq!(room.bytes, 32 << 20, "it is not known yet that it is enough");
        room.learn(true, 0);
        assert_eq!(room.bytes, (32 << 20) - (256 << 10));
        room.learn(true, SELDOM + 1);
        (0..CALM).for_each(|_| room.learn(true, 0));
        assert_eq!(room.bytes, (32 << 20) - (256 << 10), "it begins anew");
        (0..1000).for_each(|_| room.learn(false, 0));
        assert_eq!((room.bytes, room.peak), (0, 32 << 20));
    }

    #[test]
    fn a_groups_files_are_read_beside_its_limit() {
        let directory = std::env::temp_dir().join(format!("zfolio-file-room-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let write = |file: &str, text: &str| fs::write(directory.join(file), text).unwrap();
        let stat = |major, refaults| {
            write("memory.stat", &format!("pgmajfault {major}\nworkingset_refault_file {refaults}\n"))
        };
        let limit = Limit { bytes: 160 << 20, file: directory.join("memory.max") };
        let new = || FileRoom::new(&limit, 128 << 20);
        assert!(new().is_none(), "it counts nothing");
        stat(100, 200);
        write("memory.current", &(155u64 << 20).to_string());
        let mut files = new().unwrap();
        let began = files.looked;
        stat(150, 200);
        assert_eq!(files.look(began + LOOK, true), 0, "read for the first time");
        stat(200, 300);
        assert_eq!(files.look(began + LOOK, true), 0, "it is not time yet");
        assert_eq!(files.look(began + 2 * LOOK, true), 6 << 20);
        stat(300, 400);
        write("memory.current", &(140u64 << 20).to_string());
        assert_eq!(files.look(began + 3 * LOOK, true), 6 << 20, "the group is not full");
        assert_eq!(files.look(began + 3 * LOOK, false), 0, "a program goes before files");
        stat(400, 500);
        write("memory.current", &(155u64 << 20).to_string());
        assert_eq!(files.look(began + 4 * LOOK, false), 0, "nor is it given any meanwhile");
        assert_eq!(files.look(began + 5 * LOOK, true), 0, "what was missed then is no reason now");
        fs::remove_dir_all(directory).unwrap();
    }
}
