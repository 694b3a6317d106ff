//! A process's memory, read from outside as it runs: what of its private anonymous mappings is present.
//!
//! Those are what `zfolio run` can take out. What is not present is not touched: memory in swap, and memory that zfolio
//! has out, which no other process can see.

use super::sample::{PAGE, Sample, spread};
use crate::smaps::{self, Mapping};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// In /proc/PID/pagemap: the page is there; it is in swap; it is of a file, or shared.
const PRESENT: u64 = 1 << 63;
/// See `PRESENT`.
const SWAPPED: u64 = 1 << 62;
/// See `PRESENT`.
const FILE_OR_SHARED: u64 = 1 << 61;

/// Bytes of an entry there.
const ENTRY: u64 = 8;

/// How many entries are read at a time: those of 2 GiB.
const ENTRIES: u64 = 1 << 19;

/// A process, and where its memory is.
pub struct Process {
    pid: u32,
    /// Its name, or nothing.
    pub name: String,
    /// Runs of pages that are present, in the order of their addresses.
    present: Vec<Range<u64>>,
    /// Pages that are in swap.
    pub swapped: u64,
    /// An engine of zfolio's may have more of it out.
    pub is_managed: bool,
}

impl Process {
    /// Looks where its memory is. An error is one line for the user.
    pub fn open(pid: u32) -> Result<Process, String> {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name: String = name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let mut process = Process { pid, name, present: Vec::new(), swapped: 0, is_managed: false };
        process.look().map_err(|error| process.explain(&error))?;
        if process.present.is_empty() {
            return Err(format!(
                "{process}: it has no private memory, as one that has ended, or a kernel thread"
            ));
        }
        Ok(process)
    }

    fn look(&mut self) -> io::Result<()> {
        let mut mappings = Vec::new();
        smaps::maps(self.pid, |mapping| {
            self.is_managed |= mapping.name().ends_with(b"/libzfolio.so");
            mappings.extend(can_go_out(mapping));
        })?;
        let pagemap = File::open(format!("/proc/{}/pagemap", self.pid))?;
        if self.is_managed {
            mappings.clear();
            smaps::smaps(self.pid, |mapping| mappings.extend(can_go_out(mapping)))?;
        }
        for range in mappings {
            self.look_into(&pagemap, range)?;
        }
        Ok(())
    }

    /// Adds the present pages of a mapping.
    fn look_into(&mut self, pagemap: &File, range: Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let count = ENTRIES.min((range.end - at) / PAGE);
            let mut entries = vec![0; (count * ENTRY) as usize];
            let len = pagemap.read_at(&mut entries, at / PAGE * ENTRY)?;
            // The process has ended.
            if len < ENTRY as usize {
                break;
            }
            for entry in entries[..len].as_chunks().0 {
                let entry = u64::from_le_bytes(*entry);
                self.swapped += (entry & SWAPPED != 0) as u64;
                if entry & (PRESENT | FILE_OR_SHARED) == PRESENT {
                    match self.present.last_mut() {
                        Some(run) if run.end == at => run.end += PAGE,
                        _ => self.present.push(at..at + PAGE),
                    }
                }
                at += PAGE;
            }
        }
        Ok(())
    }

    /// Takes at most so many bytes of it in, spread over what is present.
    pub fn sample(&self, sample: &mut Sample, most_bytes: u64) -> Result<(), String> {
        let memory = File::open(format!("/proc/{}/mem", self.pid)).map_err(|error| self.explain(&error))?;
        let total = self.present.iter().map(|run| run.end - run.start).sum();
        sample.there_are_bytes += total;
        for part in spread(total, most_bytes) {
            let mut stretch = Vec::with_capacity((part.end - part.start) as usize);
            for run in addresses(&self.present, part) {
                read_what_is_there(&memory, run, &mut stretch).map_err(|error| self.explain(&error))?;
            }
            sample.add(&stretch);
        }
        if sample.looked_at_bytes == 0 {
            return Err(format!("{self}: it ended, or gave up its memory, while it was looked at"));
        }
        Ok(())
    }

    fn explain(&self, error: &io::Error) -> String {
        match error.kind() {
            ErrorKind::NotFound => format!("there is no process {}", self.pid),
            _ if error.raw_os_error() == Some(libc::ESRCH) => format!("{self}: it has ended"),
            ErrorKind::PermissionDenied => format!(
                "{self}: no right to read its memory: be root or have CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE), or be its \
                 owner where `sysctl kernel.yama.ptrace_scope` is 0 or not there"
            ),
            _ => format!("{self}: its memory cannot be read: {error}"),
        }
    }
}

/// Prints what messages call it: `process 123 (name)`.
impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match &*self.name {
            "" => write!(f, "process {}", self.pid),
            name => write!(f, "process {} ({name})", self.pid),
        }
    }
}

/// The addresses of a mapping whose memory can go out: private, readable, writable, not executable, without a file, and
/// not the main thread's stack; nor what no core dump would have (`dd`): an engine's memory is all so, and holds what
/// is compressed already. (What no child would get is the program's own where it is managed.)
fn can_go_out(mapping: &Mapping) -> Option<Range<u64>> {
    let name = mapping.name();
    let is_programs = name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:");
    let is_it =
        mapping.permissions == *b"rw-p" && mapping.inode == 0 && is_programs && !mapping.flags.has(b"dd");
    is_it.then_some(mapping.range.start as u64..mapping.range.end as u64)
}

/// Where a part of all that the runs hold, taken as one, lies.
fn addresses(runs: &[Range<u64>], part: Range<u64>) -> Vec<Range<u64>> {
    let (mut before, mut found) = (0, Vec::new());
    for run in runs {
        let len = run.end - run.start;
        let (from, to) = (part.start.max(before), part.end.min(before + len));
        if from < to {
            found.push(run.start + (from - before)..run.start + (to - before));
        }
        before += len;
    }
    found
}

/// Reads a run of pages but for those that are no longer there: the process goes on meanwhile.
fn read_what_is_there(memory: &File, run: Range<u64>, to: &mut Vec<u8>) -> io::Result<()> {
    let mut at = run.start;
    let mut buffer = vec![0; (run.end - run.start) as usize];
    while at < run.end {
        match memory.read_at(&mut buffer[..(run.end - at) as usize], at) {
            Ok(0) => break,
            Ok(len) => {
                // A page that was read in part is not there as a whole.
                let whole = len as u64 / PAGE * PAGE;
                to.extend_from_slice(&buffer[..whole as usize]);
                at += if whole == len as u64 { whole } else { whole + PAGE };
            }
            // Unmapped, or taken out by zfolio.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::EFAULT)) => at += PAGE,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &str) -> Vec<Range<u64>> {
        let (mut parser, mut found) = (uffd::smaps::Parser::default(), Vec::new());
        parser.feed(format!("{text}\n").as_bytes(), |mapping| found.extend(can_go_out(mapping)));
        parser.end(|mapping| found.extend(can_go_out(mapping)));
        found
    }

    #[test]
    fn only_mappings_whose_memory_can_go_out_are_taken() {
        for line in [
            "7f00-9f00 rw-p 00000000 00:00 0 ",
            "7f00-9f00 rw-p 00000000 00:00 0                          [heap]",
            "7f00-9f00 rw-p 00000000 00:00 0                          [anon: glibc: malloc arena]",
        ] {
            assert_eq!(taken(line), [Range { start: 0x7f00, end: 0x9f00 }], "{line}");
        }
        for line in [
            "7f00-9f00 rw-s 00000000 00:01 4711                       /dev/zero (deleted)",
            "7f00-9f00 rwxp 00000000 00:00 0 ",
            "7f00-9f00 r--p 00000000 00:00 0 ",
            "7f00-9f00 ---p 00000000 00:00 0 ",
            "7f00-9f00 rw-p 00000000 00:00 0                          [stack]",
            "7f00-9f00 rw-p 00001000 fe:00 4711                       /usr/lib/libc.so.6",
            "",
            "nonsense",
        ] {
            assert_eq!(taken(line), [], "{line}");
        }
    }

    #[test]
    fn an_engines_memory_is_left_out() {
        let smaps = "7f00-9f00 rw-p 00000000 00:00 0\nRss:    8 kB\nVmFlags: rd wr mr mw me dc um ac sd\n\
                     a000-b000 rw-p 00000000 00:00 0\nRss:    4 kB\nVmFlags: rd wr mr mw me dc dd sd\n\
                     c000-d000 r--p 00000000 00:00 0\nRss:    4 kB\nVmFlags: rd mr mw me sd\n\
                     e000-f000 rw-p 00000000 00:00 0 [anon: dd]\nRss:    4 kB\nVmFlags: rd wr\n";
        assert_eq!(taken(smaps), [0x7f00..0x9f00, 0xe000..0xf000]);
    }

    #[test]
    fn a_part_of_all_runs_is_found_where_it_lies() {
        let runs = [100..110, 200..205, 300..400];
        assert_eq!(addresses(&runs, 0..115), [100..110, 200..205, 300..400]);
        assert_eq!(addresses(&runs, 8..17), [108..110, 200..205, 300..302]);
        assert_eq!(addresses(&runs, 15..16), [Range { start: 300, end: 301 }]);
        assert_eq!(addresses(&runs, 115..120), []);
    }

    /// A page that the process unmaps between the look and the reading is left out, and no error.
    #[test]
    fn what_is_gone_meanwhile_is_left_out() {
        let memory = vec![0x5a_u8; 5 * PAGE as usize];
        let begin = (memory.as_ptr() as u64).next_multiple_of(PAGE);
        let mut read = Vec::new();
        let own = File::open("/proc/self/mem").unwrap();
        // The pages below 64 KiB are nobody's.
        read_what_is_there(&own, 0x1000..0x4000, &mut read).unwrap();
        assert!(read.is_empty());
        read_what_is_there(&own, begin..begin + 4 * PAGE, &mut read).unwrap();
        assert_eq!(read, vec![0x5a; 4 * PAGE as usize]);
    }
}
