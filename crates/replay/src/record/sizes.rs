//! What the pages of a running program take when they are compressed.

use acomp::{CompressRequest, Compressor, Context, Outcome};
use anyhow::{Context as _, Result, ensure};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;
use vmscan::{PAGE, WINDOW};

/// How long after its start, and after each look, the program is looked at again: that much, and a half more each time.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// Sizes of pages, as they were when they were last seen.
#[derive(Default)]
pub struct Sizes {
    pages: HashMap<u64, (u32, u32)>,
    files: Vec<Range<u64>>,
}

impl Sizes {
    /// Runs a command and looks at its process of a name, until it ends.
    pub fn measure(command: &[OsString], comm: &str) -> Result<Sizes> {
        let mut child = Command::new(&command[0]).args(&command[1..]).spawn()?;
        let (mut sizes, mut units, mut wait) = (Sizes::default(), Units::new()?, FIRST_WAIT);
        loop {
            std::thread::sleep(wait);
            wait = wait * 3 / 2;
            if let Some(status) = child.try_wait()? {
                super::check(status)?;
                break;
            }
            if let Some(pid) = largest(child.id(), comm) {
                // It may end meanwhile: then what was seen is what there is.
                let _ = sizes.look(pid, &mut units);
            }
        }
        ensure!(!sizes.pages.is_empty(), "{comm} has ended before it could be looked at");
        Ok(sizes)
    }

    /// Bytes of a page alone, and in its window. What was not seen is as the others are in the mean.
    pub fn of(&self, number: u64) -> (u32, u32) {
        let mean = |of: fn(&(u32, u32)) -> u32| {
            let sum: u64 = self.pages.values().map(|sizes| u64::from(of(sizes))).sum();
            (sum / self.pages.len().max(1) as u64) as u32
        };
        self.pages.get(&number).copied().unwrap_or_else(|| (mean(|sizes| sizes.0), mean(|sizes| sizes.1)))
    }

    /// True for a page of a mapped file.
    pub fn is_file(&self, number: u64) -> bool {
        self.files.iter().any(|range| range.contains(&number))
    }

    #[cfg(test)]
    pub fn of_file(pages: Range<u64>) -> Sizes {
        Sizes { files: vec![pages], ..Sizes::default() }
    }

    fn look(&mut self, pid: u32, units: &mut Units) -> Result<()> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
            let mapping =
                Mapping::parse(line).with_context(|| format!("maps has a line of another kind: {line}"))?;
            if mapping.is_file {
                if !self.files.contains(&mapping.pages) {
                    self.files.push(mapping.pages);
                }
                continue;
            }
            let per_window = (WINDOW / PAGE) as u64;
            let mut first = mapping.pages.start;
            while first < mapping.pages.end {
                let end = mapping.pages.end.min((first / per_window + 1) * per_window);
                self.add(&memory, &pagemap, first..end, units);
                first = end;
            }
        }
        Ok(())
    }

    /// A window, or what of it is in a mapping.
    fn add(&mut self, memory: &File, pagemap: &File, window: Range<u64>, units: &mut Units) {
        let mut entries = vec![0; 8 * (window.end - window.start) as usize];
        if pagemap.read_exact_at(&mut entries, 8 * window.start).is_err() {
            return;
        }
        let (mut there, mut bytes) = (Vec::new(), Vec::new());
        for (number, entry) in window.zip(entries.chunks_exact(8)) {
            let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
            let is_present = entry >> 63 == 1;
            let mut page = [0; PAGE];
            if is_present && memory.read_exact_at(&mut page, number * PAGE as u64).is_ok() {
                there.push(number);
                bytes.extend_from_slice(&page);
            }
        }
        let dense = units.dense(&bytes) / there.len().max(1) as u32;
        for (number, page) in there.into_iter().zip(bytes.chunks_exact(PAGE)) {
            self.pages.insert(number, (units.alone(page), dense));
        }
    }
}

/// A line of /proc/PID/maps.
struct Mapping {
    pages: Range<u64>,
    is_file: bool,
}

impl Mapping {
    fn parse(line: &str) -> Option<Mapping> {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let [start, end] = [start, end].map(|word| u64::from_str_radix(word, 16));
        let inode = words.nth(3)?;
        // The kernel's own pages are nobody's memory.
        let is_kernel = words.next().is_some_and(|name| name.starts_with("[v"));
        Some(Mapping { pages: start.ok()? >> 12..end.ok()? >> 12, is_file: inode != "0" || is_kernel })
    }
}

/// Both ways to compress.
struct Units {
    alone: Context,
    dense: Context,
    object: Vec<u8>,
}

impl Units {
    fn new() -> Result<Units> {
        let context =
            |name: &str| Context::new(Compressor::parse(name).expect("it is in the registry"), WINDOW);
        Ok(Units { alone: context("lz4")?, dense: context("zstd:1")?, object: vec![0; WINDOW] })
    }

    /// Bytes of a page by itself; 0 where it is one word, again and again.
    fn alone(&mut self, page: &[u8]) -> u32 {
        let is_filled = page.chunks_exact(8).all(|word| word == &page[..8]);
        if is_filled { 0 } else { compressed(&mut self.alone, page, &mut self.object) }
    }

    fn dense(&mut self, pages: &[u8]) -> u32 {
        if pages.is_empty() { 0 } else { compressed(&mut self.dense, pages, &mut self.object) }
    }
}

fn compressed(context: &mut Context, unit: &[u8], object: &mut [u8]) -> u32 {
    let mut request = [CompressRequest::new(unit, &mut object[..unit.len()])];
    context.compress(&mut request);
    match request[0].result {
        Ok(Outcome::Shrunk(bytes)) => bytes as u32,
        _ => unit.len() as u32,
    }
}

/// Of a process and its descendants, the one of a name that has most memory.
fn largest(root: u32, comm: &str) -> Option<u32> {
    let processes =
        fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parents: HashMap<u32, u32> = processes.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let is_below =
        |pid: u32| std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).any(|pid| pid == root);
    let named =
        |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == comm);
    let resident = |pid: &u32| -> Option<u64> {
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        statm.split(' ').nth(1)?.parse().ok()
    };
    parents.keys().copied().filter(|pid| is_below(*pid) && named(*pid)).max_by_key(|pid| resident(pid))
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_a_running_program_are_seen() {
        // A mebibyte of zeros that is written, and as much of noise.
        let program = "import os,time; a = bytearray(1<<20); a[::4096] = bytes(256); b = os.urandom(1<<20); time.sleep(1)";
        let command = ["python3", "-c", program].map(OsString::from);
        let sizes = Sizes::measure(&command, "python3").unwrap();
        let [zeros, noise] =
            [0..1, 4096..5000].map(|of| sizes.pages.values().filter(|size| of.contains(&size.0)).count());
        assert!(zeros >= 200 && noise >= 250, "{zeros} {noise} of {}", sizes.pages.len());
        assert!(sizes.files.len() > 4);
    }

    #[test]
    fn what_was_not_seen_is_as_the_others_are() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.of(7), (0, 0));
        sizes.pages.extend([(1, (1000, 500)), (2, (2000, 700))]);
        assert_eq!((sizes.of(2), sizes.of(7)), ((2000, 700), (1500, 600)));
    }

    #[test]
    fn files_and_the_kernels_pages_are_told_from_memory() {
        let is_file = |line| Mapping::parse(line).unwrap().is_file;
        assert!(is_file("7f0000-7f1000 r--p 00000000 08:01 1234       /usr/lib/libc.so"));
        assert!(is_file("7ffff7fc1000-7ffff7fc5000 r--p 00000000 00:00 0   [vvar]"));
        assert!(!is_file("7f0000-7f1000 rw-p 00000000 00:00 0 "));
        assert!(!is_file("555500-555600 rw-p 00000000 00:00 0     [heap]"));
        assert!(Mapping::parse("nonsense").is_none());
    }
}
