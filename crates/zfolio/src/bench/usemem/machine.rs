//! What is set in the kernel for a run: each change is put back when it ends, in whatever way, the newest first.
//!
//! A process that is killed (SIGKILL) leaves its changes behind; `zfolio bench usemem --help` says which.

use crate::cgroup::{self, Version};
use crate::sys;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Where zswap's settings are.
pub const ZSWAP: &str = "/sys/module/zswap/parameters";
/// Where huge pages' settings are, with a folder for each size.
const HUGE: &str = "/sys/kernel/mm/transparent_hugepage";
/// Where zram devices come from.
const ZRAM: &str = "/sys/class/zram-control";

/// How often something is tried that others hold for a moment, and how long it is from one time to the next.
const TRIES: usize = 100;
const REST: Duration = Duration::from_millis(50);

/// How to undo a change.
#[derive(Debug)]
enum Undo {
    Write(PathBuf, String),
    SwapOff(String),
    RemoveZram(String),
    RemoveGroup(PathBuf),
    RemoveFile(PathBuf),
}

/// All changes, in their order.
#[derive(Debug, Default)]
pub struct Changes(Vec<Undo>);

impl Changes {
    /// Sets a parameter of a folder.
    pub fn set(&mut self, folder: &str, name: &str, value: &str) -> Result<(), String> {
        let path = Path::new(folder).join(name);
        let old = chosen(&read(&path)?);
        if old == value {
            return Ok(());
        }
        self.0.push(Undo::Write(path.clone(), old));
        write(&path, value)?;
        // What it does not know zswap takes for what it had.
        let now = chosen(&read(&path)?);
        if now == value { Ok(()) } else { Err(format!("{}: this kernel has no {value}", path.display())) }
    }

    /// The same of a number that may be higher already.
    pub fn set_at_least(&mut self, folder: &str, name: &str, least: u64) -> Result<(), String> {
        let now = read(&Path::new(folder).join(name))?;
        let is_less = now.parse::<u64>().is_ok_and(|now| now < least);
        if is_less { self.set(folder, name, &least.to_string()) } else { Ok(()) }
    }

    /// A zram device of so many bytes: its name.
    pub fn zram(&mut self, bytes: u64, compressor: &str) -> Result<String, String> {
        let number = read(&Path::new(ZRAM).join("hot_add")).map_err(|_| {
            "this kernel has no zram, or its module is not loaded, or only root may".to_string()
        })?;
        let name = format!("zram{number}");
        self.0.push(Undo::RemoveZram(name.clone()));
        let attribute = |attribute: &str| Path::new("/sys/block").join(&name).join(attribute);
        write(&attribute("comp_algorithm"), compressor)?;
        write(&attribute("disksize"), &bytes.to_string())?;
        let device = format!("/dev/{name}");
        let written =
            File::options().write(true).open(&device).and_then(|mut file| file.write_all(&header(bytes)));
        written.map_err(|error| format!("{device}: {error}"))?;
        Ok(name)
    }

    /// Swaps to a zram device, ahead of all else.
    pub fn swap_on(&mut self, zram: &str) -> Result<(), String> {
        let device = format!("/dev/{zram}");
        sys::swap_on(Path::new(&device)).map_err(|error| format!("swapon {device}: {error}"))?;
        self.0.push(Undo::SwapOff(device));
        Ok(())
    }

    /// A memory control group with a limit.
    pub fn group(&mut self, limit_bytes: u64) -> Result<Group, String> {
        let (root, version) = cgroup::hierarchy()?;
        let directory = root.join(format!("zfolio-usemem-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        self.0.push(Undo::RemoveGroup(directory.clone()));
        write(&directory.join(version.limit()), &limit_bytes.to_string())?;
        Ok(Group { directory, version })
    }

    /// The path of a file in the folder for temporary files that goes with the changes.
    pub fn scratch_file(&mut self, name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("zfolio-usemem-{}-{name}", std::process::id()));
        self.0.push(Undo::RemoveFile(path.clone()));
        path
    }

    /// Puts everything back, the newest first. What could not be, in words.
    pub fn undo(&mut self) -> Vec<String> {
        let mut failures = Vec::new();
        while let Some(step) = self.0.pop() {
            failures.extend(step.undo().err());
        }
        failures
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        for failure in self.undo() {
            eprintln!("zfolio: not put back: {failure}");
        }
    }
}

impl Undo {
    fn undo(self) -> Result<(), String> {
        match self {
            Undo::Write(path, value) => write(&path, &value),
            Undo::SwapOff(device) => {
                sys::swap_off(Path::new(&device)).map_err(|error| format!("swapoff {device}: {error}"))
            }
            // Who has looked at the device may have it open for a moment more.
            Undo::RemoveZram(name) => again(|| {
                write(&Path::new("/sys/block").join(&name).join("reset"), "1")?;
                write(&Path::new(ZRAM).join("hot_remove"), name.trim_start_matches("zram"))
            }),
            Undo::RemoveGroup(directory) => again(|| {
                for pid in read(&directory.join("cgroup.procs"))?.lines().filter_map(|pid| pid.parse().ok()) {
                    sys::kill(pid, libc::SIGKILL);
                }
                fs::remove_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))
            }),
            Undo::RemoveFile(path) => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(format!("{}: {error}", path.display()))
                }
                _ => Ok(()),
            },
        }
    }
}

fn again(mut step: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    for _ in 1..TRIES {
        if step().is_ok() {
            return Ok(());
        }
        sleep(REST);
    }
    step()
}

/// A memory control group.
pub struct Group {
    directory: PathBuf,
    /// Of which version of control groups it is.
    pub version: Version,
}

impl Group {
    /// A command line's beginning that enters the group and becomes the rest.
    pub fn enter(&self) -> Vec<String> {
        let procs = self.directory.join("cgroup.procs").display().to_string();
        ["/bin/sh", "-c", "echo $$ > \"$0\" && exec \"$@\"", &procs].map(String::from).to_vec()
    }
}

/// From now on fresh memory comes in folios of this size alone, where the kernel serves the fault.
pub fn choose_folios(changes: &mut Changes, folio_bytes: u64) -> Result<(), String> {
    let sizes = huge_sizes();
    if folio_bytes > base::PAGE as u64 && !sizes.contains(&folio_bytes) {
        return Err("this kernel has none".to_string());
    }
    for size in sizes {
        let value = if size == folio_bytes { "always" } else { "never" };
        changes.set(&size_folder(size).display().to_string(), "enabled", value)?;
    }
    Ok(())
}

/// The sizes of huge pages that there are, in bytes.
fn huge_sizes() -> Vec<u64> {
    let names = fs::read_dir(HUGE).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let kib = |name: &str| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    // Some are for shared memory alone.
    let is_for_private = |size: &u64| size_folder(*size).join("enabled").exists();
    names.filter_map(|name| kib(name.to_str()?)).map(|kib| kib << 10).filter(is_for_private).collect()
}

/// Where what concerns a size is.
pub fn size_folder(folio_bytes: u64) -> PathBuf {
    Path::new(HUGE).join(format!("hugepages-{}kB", folio_bytes >> 10))
}

/// True where the kernel has zswap.
pub fn has_zswap() -> bool {
    Path::new(ZSWAP).exists()
}

/// With swap of its own the machine would take part.
pub fn without_swap() -> Result<(), String> {
    let swap = crate::swap::Swap::of_this_machine();
    if swap.is_on() { Err(format!("the machine swaps to {}: swapoff first", swap.words())) } else { Ok(()) }
}

/// Which part of the machine's memory so many bytes are, in percent; rounded up.
pub fn percent(bytes: u64) -> u64 {
    let ram = crate::cgroup::Memory::of_this_process().ram_bytes.max(1);
    (bytes as u128 * 100).div_ceil(ram.into()).clamp(1, 100) as u64
}

/// Of a parameter that shows all its values the one in brackets; else all of it.
fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text, |(inside, _)| inside).to_string()
}

fn read(path: &Path) -> Result<String, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.trim().to_string())
}

fn write(path: &Path, value: &str) -> Result<(), String> {
    // Not made where it is not there.
    let opened = File::options().write(true).truncate(true).open(path);
    let written = opened.and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// What mkswap writes at the beginning of an area: version 1, the last page, no bad pages.
fn header(bytes: u64) -> Vec<u8> {
    let mut page = vec![0; base::PAGE];
    let last = (bytes / base::PAGE as u64 - 1) as u32;
    page[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&last.to_le_bytes());
    page[base::PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
    page
}

/// What a zram device holds in memory now, in bytes.
pub fn zram_bytes(name: &str) -> u64 {
    let stat = read(&Path::new("/sys/block").join(name).join("mm_stat")).unwrap_or_default();
    stat.split_whitespace().nth(2).and_then(|used| used.parse().ok()).unwrap_or(0)
}

/// What zswap's pool holds in memory now, in bytes.
pub fn zswap_bytes() -> u64 {
    let meminfo = read(Path::new("/proc/meminfo")).unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Zswap:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_is_put_back_the_newest_first() {
        let folder = std::env::temp_dir().join(format!("zfolio-machine-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (name, file) = (folder.to_str().unwrap(), folder.join("enabled"));
        fs::write(&file, "never\n").unwrap();
        let mut changes = Changes::default();
        changes.set(name, "enabled", "always").unwrap();
        changes.set(name, "enabled", "madvise").unwrap();
        assert!(changes.set(name, "other", "1").is_err_and(|line| line.contains("other")));
        let scratch = changes.scratch_file("x");
        fs::write(&scratch, "x").unwrap();
        assert_eq!((changes.0.len(), fs::read_to_string(&file).unwrap()), (3, "madvise".to_string()));
        drop(changes);
        assert_eq!((scratch.exists(), fs::read_to_string(&file).unwrap()), (false, "never".to_string()));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_value_in_brackets_is_the_one_that_counts() {
        assert_eq!([chosen("always [madvise] never"), chosen("lzo")], ["madvise", "lzo"]);
        assert_eq!(percent(1), 1);
        assert_eq!(header(1 << 20)[1028..1032], 255u32.to_le_bytes());
    }
}
