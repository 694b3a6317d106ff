//! Records a trace of a program, in two runs under zfolio with the same addresses.
//!
//! ```text
//!   1. everything goes out all the time; perf hears of each fault, discard and 100 us        ──> log::Log ──┐
//!   2. nothing goes out; the pages are read now and then, and compressed                ──> sizes::Sizes ──┴──> Trace
//! ```
//!
//! So a touch is seen if the page went out since the one before it: a matter of some milliseconds. A run that makes
//! several processes is recorded in the one of them that touches most.

mod log;
mod sizes;

use crate::trace::{Event, Page, PageId, Trace};
use anyhow::{Context as _, Result, ensure};
use log::{Log, Seen};
use sizes::Sizes;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// What perf listens to; behind a slash is that 100,000 ns of the program's own processor time are one event.
const EVENTS: [&str; 7] = [
    "exceptions:page_fault_user",
    "syscalls:sys_enter_munmap",
    "syscalls:sys_enter_madvise",
    "syscalls:sys_enter_mremap",
    "syscalls:sys_exit_mremap",
    "sched:sched_process_exec",
    "task-clock/period=100000/u",
];

/// Runs a command twice under a zfolio, and returns what it touched.
pub fn record(zfolio: &Path, command: &[OsString]) -> Result<Trace> {
    let place = Place::new()?;
    let data = place.0.join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-o"]).arg(&data).args(EVENTS.iter().flat_map(|event| ["-e", event]));
    perf.arg("--").args(under(zfolio, &["--evict-all", "--memory", "90%"], command));
    check(perf.status().context("perf cannot be started; Debian's package is linux-perf")?)?;
    let log = Log::read(&data)?;
    let sizes = Sizes::measure(&under(zfolio, &["--memory", "90%"], command), &log.comm)?;
    trace(&log.seen, &sizes)
}

/// The command under zfolio, at the same addresses each time.
fn under(zfolio: &Path, options: &[&str], command: &[OsString]) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        vec!["setarch".into(), "-R".into(), zfolio.into(), "run".into(), "--quiet".into()];
    words.extend(options.iter().map(OsString::from));
    words.push("--".into());
    words.extend_from_slice(command);
    words
}

fn check(status: ExitStatus) -> Result<()> {
    ensure!(status.success(), "the program ended with {status}");
    Ok(())
}

/// A directory that goes with this value.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Place> {
        let place = std::env::temp_dir().join(format!("replay-{}", std::process::id()));
        std::fs::create_dir(&place).with_context(|| format!("cannot make {}", place.display()))?;
        Ok(Place(place))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // It is in the way of nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Pages get their numbers in the order of their addresses; those of files are left out.
fn trace(seen: &[Seen], sizes: &Sizes) -> Result<Trace> {
    let mut identities = Identities::default();
    let mut events = Vec::new();
    for seen in seen {
        match *seen {
            Seen::Touch { number, .. } if sizes.is_file(number) => {}
            Seen::Touch { number, is_write } => {
                events.push(Event::Touch { page: identities.of(number), is_write });
            }
            Seen::Ran => match events.last_mut() {
                Some(Event::Ran { us }) => *us += 100,
                _ => events.push(Event::Ran { us: 100 }),
            },
            Seen::Discard { first, pages } => {
                let gone = identities.range(first, pages);
                events.extend(gone.into_iter().map(|first| Event::Discard { first, count: 1 }));
            }
            Seen::Move { first, pages, to } => identities.rename(first, pages, to),
        }
    }
    ensure!(!identities.numbers.is_empty(), "no touch of memory of its own was seen");
    Ok(in_order(&identities.numbers, events, sizes))
}

/// Pages by where they are now; one that mremap moves stays the same page.
#[derive(Default)]
struct Identities {
    now: std::collections::BTreeMap<u64, PageId>,
    /// Where each was seen first.
    numbers: Vec<u64>,
}

impl Identities {
    fn of(&mut self, number: u64) -> PageId {
        *self.now.entry(number).or_insert_with(|| {
            self.numbers.push(number);
            self.numbers.len() as PageId - 1
        })
    }

    fn range(&self, first: u64, pages: u64) -> Vec<PageId> {
        self.now.range(first..first.saturating_add(pages)).map(|(_, page)| *page).collect()
    }

    fn rename(&mut self, first: u64, pages: u64, to: u64) {
        let moved: Vec<u64> =
            self.now.range(first..first.saturating_add(pages)).map(|(number, _)| *number).collect();
        let moved =
            moved.into_iter().map(|number| (to + (number - first), self.now[&number])).collect::<Vec<_>>();
        self.now.retain(|number, _| !(first..first.saturating_add(pages)).contains(number));
        self.now.extend(moved);
    }
}

/// Numbers pages by their addresses, and joins neighbours that are discarded one after the other.
fn in_order(numbers: &[u64], events: Vec<Event>, sizes: &Sizes) -> Trace {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by_key(|page| numbers[*page]);
    let mut place = vec![0; numbers.len()];
    order.iter().enumerate().for_each(|(at, page)| place[*page] = at as PageId);
    // Two pages may have been at one address at different times: each is a page of its own.
    let pages = order.iter().map(|page| {
        let (alone_bytes, dense_bytes) = sizes.of(numbers[*page]);
        Page { number: numbers[*page], alone_bytes, dense_bytes }
    });
    let mut trace = Trace { pages: pages.collect(), events: Vec::new() };
    for event in events {
        match (event, trace.events.last_mut()) {
            (Event::Touch { page, is_write }, _) => {
                trace.events.push(Event::Touch { page: place[page as usize], is_write });
            }
            (Event::Discard { first, .. }, Some(Event::Discard { first: before, count }))
                if *before + *count == place[first as usize] =>
            {
                *count += 1;
            }
            (Event::Discard { first, count }, _) => {
                trace.events.push(Event::Discard { first: place[first as usize], count });
            }
            (Event::Ran { .. }, _) => trace.events.push(event),
        }
    }
    trace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_moved_stays_the_same_and_files_are_left_out() {
        let touch = |number| Seen::Touch { number, is_write: false };
        let seen = [
            touch(20),
            touch(21),
            touch(500),
            Seen::Ran,
            Seen::Ran,
            Seen::Move { first: 20, pages: 2, to: 10 },
            touch(11),
            touch(21),
            Seen::Discard { first: 9, pages: 3 },
        ];
        let trace = trace(&seen, &Sizes::of_file(400..600)).unwrap();
        let page = |page| Event::Touch { page, is_write: false };
        let gone = Event::Discard { first: 0, count: 2 };
        assert_eq!(trace.events, [page(0), page(1), Event::Ran { us: 200 }, page(1), page(2), gone]);
        assert_eq!(trace.pages.iter().map(|page| page.number).collect::<Vec<_>>(), [20, 21, 21]);
    }

    #[test]
    fn nothing_that_was_touched_is_said() {
        assert!(trace(&[Seen::Ran], &Sizes::default()).is_err());
    }
}
