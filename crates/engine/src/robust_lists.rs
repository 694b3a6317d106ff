//! The threads' control blocks and robust lists: what must stay. Where they are the kernel tells only who may trace the
//! program (get_robust_list). Who may not finds them by libc's own list of its threads: libc describes its control
//! blocks to debuggers, and in each the head lies as far from the beginning as in that of a thread which has asked for
//! its own.
//!
//! Other threads change libc's list meanwhile, under a lock of libc's: who is missed is looked for again, and nothing
//! here is believed but that a block has the thread's number. Everything is read by a glance, since it may be gone.

use alloc::vec::Vec;
use control::CONTROL;
use control::blocks::BlockLayout;
use control::tasks::parse_tid;
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use uffd::sys;
use uffd::{Errno, Fd, Memory, PAGE};

/// True when a robust list head that was a thread's still is, as far as can be told.
fn is_of(layout: &BlockLayout, memory: &Memory, head: usize, tid: u32) -> bool {
    let Some(offset) = layout.tid_from_head() else { return true };
    let mut number = [0; 4];
    memory.glance(head.wrapping_add_signed(offset), &mut number) == Ok(4) && u32::from_ne_bytes(number) == tid
}

/// Calls `each` with the heads of the threads in `wanted`, which leave it, and with what is out, as far as it is found.
fn find(layout: &BlockLayout, memory: &Memory, wanted: &mut Vec<u32>, mut each: impl FnMut(Found)) {
    let head = layout.head.load(Acquire);
    for _ in 0..if head == 0 { 0 } else { LOOKS } {
        for list in &layout.lists {
            walk(layout, memory, list.load(Relaxed), |found| {
                match found {
                    Ok((block, tid)) => {
                        if let Some(at) = wanted.iter().position(|&w| w == tid) {
                            wanted.swap_remove(at);
                            each(Found::Head(tid, block + head));
                        }
                    }
                    Err(out) => each(Found::Out(out)),
                }
                !wanted.is_empty()
            });
        }
        if wanted.is_empty() {
            return;
        }
    }
}

/// Calls `each` with the blocks of a list and their threads' numbers, or with the address where it is out and ends for
/// now, until it says false.
fn walk(
    layout: &BlockLayout,
    memory: &Memory,
    list: usize,
    mut each: impl FnMut(Result<(usize, u32), usize>) -> bool,
) {
    let (link, tid) = (layout.list.load(Relaxed), layout.tid.load(Relaxed));
    let mut at = list;
    for _ in 0..THREADS_MAX {
        let mut next = [0; 8];
        if memory.glance(at, &mut next) != Ok(8) {
            each(Err(at));
            return;
        }
        at = usize::from_ne_bytes(next);
        if at == list || at == 0 {
            return;
        }
        let (block, mut number) = (at.wrapping_sub(link), [0; 4]);
        if memory.glance(block.wrapping_add(tid), &mut number) != Ok(4) {
            each(Err(block.wrapping_add(tid)));
            return;
        }
        if !each(Ok((block, u32::from_ne_bytes(number)))) {
            return;
        }
    }
}

/// What is found in libc's list.
enum Found {
    /// A thread's robust list head.
    Head(u32, usize),
    /// The address of a part of a block that is out.
    Out(usize),
}

/// A thread that is neither found then is none of libc's.
const LOOKS: usize = 3;

/// As many as the kernel has at a time.
const THREADS_MAX: usize = 1 << 22;

/// How far the words lie from a robust list head that the kernel writes or reads without a fault: glibc's `struct
/// pthread` around it. No farther do they lie from its exit word, before or behind.
const BEFORE_HEAD: usize = 0x310;
const AFTER_HEAD: usize = 0x710;

/// As many entries of a robust list as the kernel itself follows.
const LOCKS_MAX: usize = 2048;

/// Finds the pages that must stay: what the kernel touches as a thread ends, where it cannot wait.
#[derive(Default)]
pub struct RobustLists {
    /// What was found at the last look, by thread.
    told: Vec<(u32, usize)>,
    unknown: Vec<u32>,
}

impl RobustLists {
    /// The pages of control blocks and robust locks of all threads in `tasks`, an open /proc/PID/task.
    pub fn pins(&mut self, memory: &Memory, tasks: &Fd, pins: &mut Vec<usize>) {
        // The main thread's, which the engine reads itself: the thread of a forked child has no robust list before it
        // has run.
        if let Some((word, _)) = CONTROL.order().main_thread {
            pins.extend(pages(word - AFTER_HEAD..word + AFTER_HEAD));
        }
        let before = core::mem::take(&mut self.told);
        let (told, unknown) = (&mut self.told, &mut self.unknown);
        unknown.clear();
        let _ = sys::read_dir(tasks, |name| {
            let Some(tid) = parse_tid(name) else { return };
            match sys::robust_list(tid) {
                Err(Errno::EPERM) => unknown.push(tid),
                // It has none, or has ended.
                Ok(0) | Err(_) => {}
                Ok(head) => told.push((tid, head)),
            }
        });
        if !unknown.is_empty() {
            let known = |(tid, head): &(u32, usize)| {
                // Another thread may have its number by now.
                let place = unknown.iter().position(|t| t == tid);
                place
                    .filter(|_| is_of(&CONTROL.blocks, memory, *head, *tid))
                    .map(|at| unknown.swap_remove(at))
                    .is_some()
            };
            told.extend(before.into_iter().filter(known));
        }
        if !unknown.is_empty() {
            find(&CONTROL.blocks, memory, unknown, |found| match found {
                Found::Head(tid, head) => told.push((tid, head)),
                // The list goes on when it is home.
                Found::Out(at) => pins.push(at & !(PAGE - 1)),
            });
        }
        told.iter().for_each(|&(_, head)| pin_list(memory, head, pins));
        pins.sort_unstable();
        pins.dedup();
    }
}

/// The pages that a range touches.
fn pages(range: Range<usize>) -> impl Iterator<Item = usize> {
    (range.start & !(PAGE - 1)..range.end).step_by(PAGE)
}

/// The pages of a control block, by its robust list head, and of the locks in the list.
fn pin_list(memory: &Memory, head: usize, pins: &mut Vec<usize>) {
    pins.extend(pages(head - BEFORE_HEAD..head + AFTER_HEAD));
    // struct robust_list_head: next, offset of the futex word, pending entry; the list ends where it began.
    let mut words = [0u8; 24];
    if memory.glance(head, &mut words) != Ok(24) {
        return;
    }
    let word = |i: usize| usize::from_ne_bytes(core::array::from_fn(|b| words[i * 8 + b]));
    let (mut entry, offset, pending) = (word(0) & !1, word(1), word(2) & !1);
    let mut pin = |entry: usize| {
        pins.push(entry & !(PAGE - 1));
        pins.push(entry.wrapping_add(offset) & !(PAGE - 1));
    };
    if pending != 0 {
        pin(pending);
    }
    for _ in 0..LOCKS_MAX {
        if entry == head || entry == 0 {
            break;
        }
        pin(entry);
        let mut next = [0u8; 8];
        // Where an entry is out the list goes on when it is home (`return_pins`).
        if memory.glance(entry, &mut next) != Ok(8) {
            break;
        }
        entry = usize::from_ne_bytes(next) & !1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, mpsc};

    #[test]
    fn libc_s_list_has_every_thread_s_robust_list() {
        let layout = &BlockLayout::unknown();
        interpose::libc_threads::learn(layout);
        if layout.head.load(Relaxed) == 0 {
            crate::skip::skip("this libc does not describe its threads");
            return;
        }
        let (sender, receiver) = mpsc::channel();
        let barrier = Barrier::new(9);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let (sender, barrier) = (sender.clone(), &barrier);
                scope.spawn(move || {
                    sender.send(sys::gettid().unwrap() as u32).unwrap();
                    barrier.wait();
                });
            }
            let mut tids: Vec<u32> = receiver.iter().take(8).collect();
            tids.push(std::process::id());
            let mut expected: Vec<usize> = tids.iter().map(|&tid| sys::robust_list(tid).unwrap()).collect();
            let mut found = Vec::new();
            let memory = Memory::own().unwrap();
            find(layout, &memory, &mut tids, |head| match head {
                Found::Head(_, head) => found.push(head),
                Found::Out(at) => panic!("{at:x} is out"),
            });
            barrier.wait();
            expected.sort_unstable();
            found.sort_unstable();
            assert_eq!((found, tids), (expected, Vec::new()));
        });
    }
}
