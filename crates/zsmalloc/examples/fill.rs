//! Fills a pool, churns it, compacts it: prints where the bytes go and what each call costs in processor time.
//!
//! `cargo run --release -p zsmalloc --example fill -- [MEGABYTES]`
//!
//! The lengths are those of compressed folios of 64 KiB (2 to 40 KiB) and, in a second run, of single pages (100 to
//! 4096 bytes). The last column is what the kernel says of the process's resident memory, as a check on `pool_bytes`.

use base::Random;
use std::env;
use std::fs;
use std::hint::black_box;
use std::ptr::NonNull;
use zsmalloc::{Backing, Compacted, Handle, Pool};

unsafe extern "C" {
    fn mmap(at: *mut u8, bytes: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn munmap(at: *mut u8, bytes: usize) -> i32;
    fn madvise(at: *mut u8, bytes: usize, advice: i32) -> i32;
    fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
}

const PROT_READ_WRITE: i32 = 3;
const MAP_PRIVATE_ANONYMOUS_NORESERVE: i32 = 0x4022;
const MADV_DONTNEED: i32 = 4;
const MADV_NOHUGEPAGE: i32 = 15;
const CLOCK_THREAD_CPUTIME_ID: i32 = 3;

/// Private anonymous memory in base pages.
struct Pages;

// SAFETY: a mapping is zeroed and nobody else's; what lies around the aligned part is given back; MADV_DONTNEED leaves
// zeros.
unsafe impl Backing for Pages {
    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        const ALIGN: usize = 64 << 10;
        // SAFETY: new memory, cut down to its aligned part, that nobody else knows of.
        unsafe {
            let raw = mmap(
                std::ptr::null_mut(),
                bytes + ALIGN,
                PROT_READ_WRITE,
                MAP_PRIVATE_ANONYMOUS_NORESERVE,
                -1,
                0,
            );
            if raw.addr() == usize::MAX {
                return None;
            }
            let before = raw.align_offset(ALIGN);
            let at = raw.add(before);
            if before > 0 {
                munmap(raw, before);
            }
            munmap(at.add(bytes), ALIGN - before);
            madvise(at, bytes, MADV_NOHUGEPAGE);
            NonNull::new(at)
        }
    }

    fn decommit(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: the pool's own memory, which holds no object.
        unsafe { madvise(at.as_ptr(), bytes, MADV_DONTNEED) };
    }

    fn unmap(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: the pool has no use for it any more.
        unsafe { munmap(at.as_ptr(), bytes) };
    }
}

/// A number of a range.
fn within(random: &mut Random, range: &std::ops::Range<usize>) -> usize {
    range.start + random.below(range.len())
}

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages") * 4096
}

/// Processor time of `f` in ns: on a busy machine, other programs do not count.
fn cpu_ns(f: impl FnOnce()) -> f64 {
    let now = || {
        let mut time = [0; 2];
        // SAFETY: there is room for a timespec.
        unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mut time) };
        time[0] as f64 * 1e9 + time[1] as f64
    };
    let begin = now();
    f();
    now() - begin
}

fn ns_per(count: usize, f: impl FnOnce()) -> f64 {
    cpu_ns(f) / count as f64
}

fn waste<B: Backing>(pool: &Pool<B>, when: &str, resident_before: usize) {
    let (mut rounding, mut idle, mut bytes) = (0, 0, 0);
    for stat in pool.class_stats() {
        rounding += stat.rounding_bytes();
        idle += stat.idle_bytes();
        bytes += stat.bytes;
    }
    let (held, spare) = (pool.pool_bytes(), pool.spare_bytes());
    let percent = |part: usize| part as f64 * 100.0 / held as f64;
    println!(
        "  {when:<22} {:7.1} MB held, {:5.2} % stored: rounding {:.2} %, idle {:.2} %, spare {:.2} %, metadata {:.2} %; resident +{:.1} MB",
        held as f64 / 1e6,
        percent(pool.stored_bytes()),
        percent(rounding),
        percent(idle),
        percent(spare),
        percent(held - bytes - spare),
        resident_bytes().saturating_sub(resident_before) as f64 / 1e6,
    );
}

fn run(what: &str, lens: std::ops::Range<usize>, total: usize) {
    println!("{what}: lengths {lens:?}, {} MB", total / 1_000_000);
    let resident = resident_bytes();
    let new = cpu_ns(|| drop(Pool::new(Pages)));
    println!("  {:.0} µs for a new pool", new / 1e3);
    let pool = Pool::new(Pages);
    let mut random = Random(1);
    let mut handles: Vec<Handle> = Vec::with_capacity(total / lens.start);
    let mut alloc = |pool: &Pool<Pages>| {
        let len = within(&mut random, &lens);
        pool.alloc(len).expect("memory")
    };
    let count = 2 * total / (lens.start + lens.end);
    let fresh = ns_per(count, || handles.extend((0..count).map(|_| alloc(&pool))));
    let write = ns_per(count, || handles.iter().for_each(|&h| pool.write(h, |object| object.fill(1))));
    waste(&pool, "filled", resident);

    let mut random = Random(2);
    (0..count).for_each(|i| handles.swap(i, within(&mut random, &(0..count))));
    let read = ns_per(count, || {
        handles.iter().for_each(|&h| {
            black_box(pool.read(h).len());
        })
    });
    let half = handles.split_off(count / 2);
    let free = ns_per(half.len(), || half.iter().for_each(|&h| pool.free(h)));
    waste(&pool, "half of it freed", resident);
    let mut done = Compacted::default();
    let compacting = cpu_ns(|| done = pool.compact(usize::MAX));
    waste(&pool, "compacted", resident);
    let again = ns_per(half.len(), || handles.extend((0..half.len()).map(|_| alloc(&pool))));
    let churn = ns_per(count, || {
        for _ in 0..count {
            let i = within(&mut random, &(0..handles.len()));
            pool.free(std::mem::replace(&mut handles[i], alloc(&pool)));
        }
    });
    handles.iter().for_each(|&h| pool.write(h, |object| object.fill(1)));
    waste(&pool, "filled again, churned", resident);
    // As a user of the pool does it: while much of it is idle, a little compaction now and then.
    let (mut kept, mut keeping) = (Compacted::default(), 0.0);
    for turn in 0..count {
        let i = within(&mut random, &(0..handles.len()));
        pool.free(std::mem::replace(&mut handles[i], alloc(&pool)));
        pool.write(handles[i], |object| object.fill(1));
        if turn % 64 == 0 && pool.pool_bytes() > pool.stored_bytes() / 20 * 21 + (1 << 20) {
            keeping += cpu_ns(|| {
                let done = pool.compact(1 << 20);
                kept.bytes_moved += done.bytes_moved;
                kept.bytes_freed += done.bytes_freed;
            });
        }
    }
    waste(&pool, "churned and compacted", resident);
    println!(
        "  to keep that: {:.1} MB moved, {:.1} MB given back, {:.0} ns for each object that was made",
        kept.bytes_moved as f64 / 1e6,
        kept.bytes_freed as f64 / 1e6,
        keeping / count as f64
    );
    println!(
        "  compaction: {done:?} in {:.1} ms, {:.2} GB/s moved, {:.2} GB/s freed",
        compacting / 1e6,
        done.bytes_moved as f64 / compacting,
        done.bytes_freed as f64 / compacting
    );
    println!(
        "  ns: alloc {fresh:.0} first, {again:.0} after compaction; read and unpin {read:.0}; free {free:.0}"
    );
    println!("      free + alloc {churn:.0} in a full pool; write {write:.0} with the first touch of a page");
    pool.check().expect("a sound pool");
}

fn main() {
    let megabytes = env::args().nth(1).map_or(200, |arg| arg.parse::<usize>().expect("megabytes"));
    run("compressed folios of 64 KiB", 2 << 10..40 << 10, megabytes * 1_000_000);
    run("compressed pages of 4 KiB", 100..4096, megabytes * 1_000_000);
}
