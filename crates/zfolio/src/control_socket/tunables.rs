//! What `zfolio set` changes: one table, of which help, ranges, lists and error texts are made.
//!
//! Names are those of zswap's parameters and of the kernel's memory controller. A line of the table reads a value, and
//! makes a [`Change`] of a text, which is checked; nothing is changed before all of a request are.

use super::subject::{Subject, has_engine};
use crate::cgroup::Memory;
use crate::compressor::{self, Compressors};
use crate::size::{BadSize, LEAST_BYTES, Size};
use memcg::{Memcg, tunables::NO_MAX};
use std::fs::File;
use std::sync::atomic::{AtomicU32, Ordering::*};
use zswap::Choice;

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The run's.
    Run,
    /// A process's; named by the number of `zfolio run` all processes', those that come later included.
    Process,
}

/// What a value may be.
enum Kind {
    /// The limit of the run.
    Limit,
    /// A percentage from so many to 100.
    Percent { least: u32, cell: fn(&Memcg) -> &AtomicU32 },
    /// What makes new objects.
    Compressor,
    /// `Y` or `N`, of the run.
    Switch(fn(&Memcg) -> &AtomicU32),
    /// `Y` or `N`, of a process.
    Writeback,
    /// A size, or `max`, of a process.
    ZswapMax,
}

/// A line of the table.
pub struct Tunable {
    /// As it is written.
    pub name: &'static str,
    /// Whose it is.
    pub scope: Scope,
    /// It means something only where there are swap areas.
    pub needs_areas: bool,
    /// What it is, a sentence.
    pub text: &'static str,
    kind: Kind,
}

/// The limit's name.
pub const MEMORY: &str = "memory";

/// The table.
pub const TUNABLES: [Tunable; 9] = [
    Tunable {
        name: MEMORY,
        scope: Scope::Run,
        needs_areas: false,
        text: "The limit of the run, as --memory has it; shares are divided anew.",
        kind: Kind::Limit,
    },
    Tunable {
        name: "compressor",
        scope: Scope::Run,
        needs_areas: false,
        text: "What makes new objects; those that are there stay until they are gone.",
        kind: Kind::Compressor,
    },
    Tunable {
        name: "max_pool_percent",
        scope: Scope::Run,
        needs_areas: true,
        text: "The pool takes at most so many percent of the limit.",
        kind: Kind::Percent { least: 0, cell: |memcg| &memcg.tunables.max_pool_percent },
    },
    Tunable {
        name: "accept_threshold_percent",
        scope: Scope::Run,
        needs_areas: true,
        text: "A pool that was full takes more at so many percent of its most.",
        kind: Kind::Percent { least: 1, cell: |memcg| &memcg.tunables.accept_threshold_percent },
    },
    Tunable {
        name: "max_compression_ratio",
        scope: Scope::Run,
        needs_areas: false,
        text: "What comes to more percent of what it was is kept as it is.",
        kind: Kind::Percent { least: 1, cell: |memcg| &memcg.tunables.max_compression_ratio },
    },
    Tunable {
        name: "enabled",
        scope: Scope::Run,
        needs_areas: false,
        text: "With N the pool takes nothing new; without --backing no limit holds then.",
        kind: Kind::Switch(|memcg| &memcg.tunables.enabled),
    },
    Tunable {
        name: "shrinker_enabled",
        scope: Scope::Run,
        needs_areas: true,
        text: "With Y the pool gives its oldest objects early, as programs give pages.",
        kind: Kind::Switch(|memcg| &memcg.tunables.shrinker_enabled),
    },
    Tunable {
        name: "writeback",
        scope: Scope::Process,
        needs_areas: true,
        text: "With N nothing of the process is written to swap areas.",
        kind: Kind::Writeback,
    },
    Tunable {
        name: "zswap.max",
        scope: Scope::Process,
        needs_areas: true,
        text: "The process's pool is at most so large; the rest goes to swap areas.",
        kind: Kind::ZswapMax,
    },
];

/// Finds a line of the table. The error names what was meant, or all that there is.
pub fn find(name: &str) -> Result<&'static Tunable, String> {
    TUNABLES.iter().find(|tunable| tunable.name == name).ok_or_else(|| {
        let nearest = TUNABLES.iter().map(|tunable| (distance(name, tunable.name), tunable.name)).min();
        match nearest {
            Some((steps, nearest)) if steps <= nearest.len() / 2 => {
                format!("there is no tunable {name:?}; {nearest} is meant?")
            }
            _ => format!("there is no tunable {name:?}, only {}", TUNABLES.map(|line| line.name).join(", ")),
        }
    })
}

/// How many letters are to be changed, put in or left out to make one word of the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().take(64).enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let changed = before + usize::from(a != *b);
            before = row[j + 1];
            row[j + 1] = changed.min(before + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

/// A value that is in range, for whom it is meant.
pub struct Change {
    tunable: &'static Tunable,
    value: u64,
}

impl Change {
    /// What it changes.
    pub fn tunable(&self) -> &'static Tunable {
        self.tunable
    }
}

/// What it takes to check and to change.
pub struct Run<'a> {
    /// The run's page.
    pub memcg: &'a Memcg,
    /// The machine's memory, and what the control group leaves of it.
    pub memory: &'a Memory,
    /// The library that its processes load.
    pub library: &'a File,
    /// Whose value it is.
    pub subject: Subject<'a>,
}

impl Run<'_> {
    /// The least limit that can be kept now, in bytes, in whole MiB: what nobody manages, shared memory, what an engine
    /// needs, and the pools where there is no area that they could go to; and an eighth of that for programs.
    fn least_limit(&self) -> u64 {
        let memcg = self.memcg;
        let engines = memcg.used().iter().filter(|slot| has_engine(slot)).count() as u64 * ENGINE_BYTES;
        // Any process of the run can write the page: what cannot be is cut off.
        let bytes = |bytes: u64| bytes.min(MOST);
        let pools = if memcg.has_areas() { 0 } else { bytes(memcg.current.pool()) };
        let held = bytes(memcg.division.unmanaged_bytes.load(Relaxed)) + engines + pools;
        (held + held / 8).max(LEAST_BYTES).next_multiple_of(1 << 20)
    }

    /// The values that there are.
    pub fn range(&self, tunable: &Tunable) -> String {
        match tunable.kind {
            Kind::Limit => {
                format!("{} to {}", size(self.least_limit()), size(self.memory.ram_bytes >> 20 << 20))
            }
            Kind::Compressor => "as for zfolio run --compressor".into(),
            Kind::Percent { least, .. } => format!("{least} to 100"),
            Kind::Switch(_) | Kind::Writeback => "Y or N".into(),
            Kind::ZswapMax => "a size such as 64M, or max".into(),
        }
    }

    /// The value that there is, as it is written.
    pub fn value(&self, tunable: &Tunable) -> String {
        let (memcg, tunables) = (self.memcg, &self.memcg.tunables);
        let yes = |is: bool| if is { "Y" } else { "N" }.to_string();
        let slot = self.subject.slot();
        match tunable.kind {
            Kind::Limit => size(memcg.max_bytes.load(Relaxed)),
            Kind::Compressor => Compressors::read(memcg).now,
            Kind::Percent { cell, .. } => cell(memcg).load(Relaxed).to_string(),
            Kind::Switch(cell) => yes(cell(memcg).load(Relaxed) != 0),
            Kind::Writeback => {
                yes(slot.map_or(tunables.writeback.load(Relaxed) != 0, |slot| memcg.writes_back(slot)))
            }
            Kind::ZswapMax => {
                match slot.map_or(tunables.zswap_max_bytes.load(Relaxed), |slot| memcg.zswap_max_bytes(slot))
                {
                    NO_MAX => "max".into(),
                    bytes => size(bytes),
                }
            }
        }
    }

    /// Checks a value. The error is one line that names the range.
    pub fn check(&self, name: &str, text: &str) -> Result<Change, String> {
        let tunable = find(name)?;
        if tunable.needs_areas && !self.memcg.has_areas() {
            return Err(format!("{name}: this run has no swap areas (zfolio run --backing)"));
        }
        if tunable.scope == Scope::Process {
            self.subject.check()?;
        }
        let refused = || format!("{name}={text}: expected {}", self.range(tunable));
        let value = match tunable.kind {
            Kind::Limit => self.limit(text),
            Kind::Compressor => match self.compressor(text) {
                Err(why) => return Err(format!("{name}={text}: {why}")),
                Ok(word) => Some(word),
            },
            Kind::Percent { least, .. } => {
                text.parse().ok().filter(|value| (u64::from(least)..=100).contains(value))
            }
            Kind::Switch(_) | Kind::Writeback => match text {
                "Y" | "y" | "1" => Some(1),
                "N" | "n" | "0" => Some(0),
                _ => None,
            },
            Kind::ZswapMax if text == "max" => Some(NO_MAX),
            Kind::ZswapMax => match Size::parse(text) {
                Ok(Size::Bytes(bytes)) => Some(bytes),
                _ => None,
            },
        };
        Ok(Change { tunable, value: value.ok_or_else(refused)? })
    }

    fn limit(&self, text: &str) -> Option<u64> {
        let bytes: Result<u64, BadSize> =
            Size::parse(text).and_then(|size| size.bytes(self.memory.base_bytes(), self.memory.ram_bytes));
        bytes.ok().filter(|bytes| *bytes >= self.least_limit())
    }

    /// The word that stands for a compressor in the page. The error is one line on what can be had.
    fn compressor(&self, text: &str) -> Result<u64, String> {
        let choice = Choice::parse(text).map_err(|why| why.to_string())?;
        let first = self.memcg.settings.compressor.as_str();
        let is_named = Choice::dictionary_file(text) == Some(DICTIONARY);
        if choice.with_dictionary().is_some() && (self.memcg.dictionary().is_empty() || !is_named) {
            return Err(format!(
                "a run has the dictionary that it begins with, and dict={DICTIONARY} is that one"
            ));
        }
        let is_first = || Choice::parse(first).is_ok_and(|first| first == choice);
        let word = choice.word().or_else(|| is_first().then_some(0));
        word.ok_or_else(|| format!("a device is opened when the run begins, and this one began with {first}"))
    }

    /// What it takes to do it is made ready. The error is one line.
    pub fn prepare(&self, change: &Change) -> Result<(), String> {
        match change.tunable.kind {
            Kind::Compressor => compressor::prepare(self.memcg, self.library, change.value),
            _ => Ok(()),
        }
    }

    /// Does it. What is the run's own is read by engines and coordinator at their next look.
    pub fn apply(&self, change: &Change) {
        let (memcg, tunables, value) = (self.memcg, &self.memcg.tunables, change.value);
        let slots = || memcg.used().iter();
        match (&change.tunable.kind, self.subject.slot()) {
            (Kind::Limit, _) => {
                tunables.max_peak_bytes.fetch_max(value, Relaxed);
                memcg.max_bytes.store(value, Relaxed);
            }
            (Kind::Compressor, _) => compressor::set(memcg, value),
            (Kind::Percent { cell, .. }, _) => cell(memcg).store(value as u32, Relaxed),
            (Kind::Switch(cell), _) => cell(memcg).store(value as u32, Relaxed),
            (Kind::Writeback, Some(slot)) => slot.tunables.set_writeback(Some(value != 0)),
            (Kind::Writeback, None) => {
                tunables.writeback.store(value as u32, Relaxed);
                slots().for_each(|slot| slot.tunables.set_writeback(None));
            }
            (Kind::ZswapMax, Some(slot)) => slot.tunables.set_zswap_max(Some(value)),
            (Kind::ZswapMax, None) => {
                tunables.zswap_max_bytes.store(value, Relaxed);
                slots().for_each(|slot| slot.tunables.set_zswap_max(None));
            }
        }
    }
}

/// What stands for the run's dictionary, as a compressor's name is printed.
const DICTIONARY: &str = "FILE";

/// No run holds more, in bytes: all of an address space.
pub const MOST: u64 = 1 << 47;

/// What an engine needs at least, in bytes.
const ENGINE_BYTES: u64 = 2 << 20;

/// Bytes as they are written on the command line, in full.
pub fn size(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// The table for the help.
pub fn help() -> String {
    let mut text = String::from("Tunables:\n");
    for Tunable { name, scope, needs_areas, text: what, .. } in &TUNABLES {
        let whose = if *scope == Scope::Process { ", of one process" } else { "" };
        let needs = if *needs_areas { ", with --backing" } else { "" };
        text += &format!("  {name}{whose}{needs}\n      {what}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::{AreaSetting, Settings};

    fn memcg(areas: u64) -> Box<Memcg> {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        let mut settings = Settings::default();
        settings.areas[0] = AreaSetting { bytes: areas, ..AreaSetting::default() };
        memcg.init(256 << 20, settings);
        memcg
    }

    const MEMORY: Memory = Memory { ram_bytes: 8 << 30, cgroup: None, may_swap: false };

    fn run_of<'a>(memcg: &'a Memcg, subject: Subject<'a>) -> Run<'a> {
        let library = Box::leak(Box::new(File::open("/dev/null").unwrap()));
        Run { memcg, memory: &MEMORY, library, subject }
    }

    #[test]
    fn values_of_every_line_are_checked_and_read_back_as_they_are_written() {
        let memcg = memcg(1 << 30);
        let slot = memcg.claim(7).unwrap();
        for subject in [Subject::Run, Subject::Process(slot)] {
            let run = run_of(&memcg, subject);
            for (name, good, bad) in [
                ("memory", &["64M", "1536M", "16M", "8G", "100000K"][..], &["15M", "9G", "x", "", "-1"][..]),
                ("max_pool_percent", &["0", "100", "20"], &["101", "-1", "x", "1.5"]),
                ("accept_threshold_percent", &["1", "100", "90"], &["0", "101"]),
                ("max_compression_ratio", &["1", "100"], &["0", "101"]),
                ("enabled", &["N", "Y"], &["", "yes", "2"]),
                ("writeback", &["N", "Y"], &["x"]),
                ("zswap.max", &["0", "1", "4K", "64M", "max"], &["50%", "-1", "Max"]),
            ] {
                for text in good {
                    let change = run.check(name, text).unwrap();
                    run.apply(&change);
                    assert_eq!(run.value(find(name).unwrap()), *text, "{name}");
                }
                for text in bad {
                    let error = run.check(name, text).err().unwrap();
                    let range = run.range(find(name).unwrap());
                    assert_eq!(error, format!("{name}={text}: expected {range}"));
                }
            }
        }
        assert_eq!(memcg.tunables.max_peak_bytes.load(Relaxed), 8 << 30);
    }

    #[test]
    fn a_compressor_is_one_that_the_run_can_have() {
        let device = "deflate-iaa:fixed,verify_compress=1";
        for (first, dictionary) in [("zstd:1", &[][..]), ("zstd:1,dict=FILE", &[7; 99]), (device, &[])] {
            let mut memcg = memcg(0);
            memcg.settings.compressor = memcg::Text::new(first).unwrap();
            memcg.set_dictionary(dictionary);
            let run = run_of(&memcg, Subject::Run);
            let value = || run.value(find("compressor").unwrap());
            assert_eq!(value(), first);
            for text in ["lz4:1", "lz4:1,zstd:3", "zstd:-5", "842", "deflate:9,lzo"] {
                run.apply(&run.check("compressor", text).unwrap());
                assert_eq!(value(), text);
            }
            for (text, can_be_had, why) in [
                ("zstd:3,dict=FILE", !dictionary.is_empty(), "a run has the dictionary that it begins with"),
                (
                    "lz4:1,zstd:3,dict=FILE",
                    !dictionary.is_empty(),
                    "a run has the dictionary that it begins with",
                ),
                ("zstd:3,dict=/etc/passwd", false, "a run has the dictionary that it begins with"),
                (device, first == device, "a device is opened when the run begins, and this one began with"),
                ("lz4,deflate-iaa", false, "a device is opened when the run begins, and this one began with"),
                ("deflate-iaa", false, "a device is opened when the run begins, and this one began with"),
                ("gzip", false, "no such compressor: accepted are lz4["),
                ("zstd:23", false, "no such LEVEL of zstd: accepted is zstd["),
                ("lz4,zstd,842", false, "more than two compressors: accepted is one, or two as FAST,DENSE"),
            ] {
                let before = value();
                match run.check("compressor", text) {
                    Ok(change) => run.apply(&change),
                    Err(said) => assert!(said.starts_with(&format!("compressor={text}: {why}")), "{said}"),
                }
                assert_eq!(value(), if can_be_had { text } else { &before });
            }
        }
    }

    #[test]
    fn what_is_set_for_the_run_holds_for_every_process_and_what_is_set_for_one_for_it_alone() {
        let memcg = memcg(1 << 30);
        let [one, other] = [7, 8].map(|pid| memcg.claim(pid).unwrap());
        let set = |subject, name, text| {
            let run = run_of(&memcg, subject);
            run.apply(&run.check(name, text).unwrap());
        };
        set(Subject::Process(one), "writeback", "N");
        set(Subject::Process(one), "zswap.max", "5M");
        assert_eq!([one, other].map(|slot| memcg.writes_back(slot)), [false, true]);
        assert_eq!([one, other].map(|slot| memcg.zswap_max_bytes(slot)), [5 << 20, NO_MAX]);
        set(Subject::Run, "writeback", "Y");
        set(Subject::Run, "zswap.max", "9M");
        assert_eq!([one, other].map(|slot| memcg.writes_back(slot)), [true, true]);
        assert_eq!([one, other].map(|slot| memcg.zswap_max_bytes(slot)), [9 << 20; 2]);
    }

    #[test]
    fn the_limit_leaves_room_for_what_cannot_go_out() {
        for (areas, expected) in [(0, "126M to 8G"), (1 << 30, "36M to 8G")] {
            let memcg = memcg(areas);
            let slot = memcg.claim(7).unwrap();
            slot.begin(7, 8);
            memcg.publish(slot, 100 << 20, 300 << 20, 200 << 20, 80 << 20);
            memcg.division.unmanaged_bytes.store(30 << 20, Relaxed);
            let run = run_of(&memcg, Subject::Run);
            let error = run.check("memory", "35M").err().unwrap();
            assert_eq!(error, format!("memory=35M: expected {expected}"));
            assert!(run.check("memory", "126M").is_ok());
        }
    }

    #[test]
    fn without_areas_or_an_engine_it_is_said() {
        let memcg = memcg(0);
        for line in TUNABLES.iter().filter(|line| line.needs_areas) {
            let error = run_of(&memcg, Subject::Run).check(line.name, "Y").err().unwrap();
            assert!(error.contains("--backing"), "{error}");
        }
        let with_areas = self::memcg(1 << 30);
        let run = run_of(&with_areas, Subject::WithoutEngine(9));
        assert!(run.check("writeback", "N").err().unwrap().starts_with("process 9 has no engine"));
        assert!(run.check("memory", "64M").is_ok(), "it is the run's");
    }

    #[test]
    fn an_unknown_name_is_told_with_the_nearest_one() {
        for (name, nearest) in
            [("memroy", "memory"), ("max-pool-percent", "max_pool_percent"), ("zswap_max", "zswap.max")]
        {
            assert_eq!(
                find(name).err().unwrap(),
                format!("there is no tunable {name:?}; {nearest} is meant?")
            );
        }
        let error = find("swappiness").err().unwrap();
        assert!(TUNABLES.iter().all(|line| error.contains(line.name)), "{error}");
        assert_eq!((distance("", "abc"), distance("abc", "abc"), distance("abcd", "bce")), (3, 0, 2));
    }

    #[test]
    fn the_help_is_of_the_table_and_fits_a_terminal() {
        let help = help();
        assert!(help.lines().all(|line| line.len() <= 80), "{help}");
        for line in &TUNABLES {
            assert!(help.contains(line.name) && line.text.ends_with('.'), "{}", line.name);
        }
    }
}
