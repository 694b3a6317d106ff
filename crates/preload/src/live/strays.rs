//! Copies of the process of which the kernel tells (EVENT_FORK): strays, which no hook saw, and the child of a fork under way, which has an engine of its own and whose
//! descriptor nobody needs.
//!
//! Who asks for a fork waits in its clone until the engine has read that there is a copy, and the copy does not run before. So the engine, which stands still for the clone, reads what
//! comes, and keeps it for later. But not before the mappings are copied: until then it must not change anything of its own (the copy's engine takes that over), and other
//! threads must wait in what they do to mappings, since a child cannot tell what was done in which order (mm/fork.rs). That they are copied is seen by where in the kernel
//! the thread waits (/proc/PID/task/TID/wchan). Where that may not be looked at (in a program that has changed its ids) it is seen by its sleeping uninterruptibly while an event is
//! under way, and by our having had the lock of the mappings after that.
//!
//! The child touches a page that is a hole: that is a fault on its own descriptor, and tells it from copies that others make at that time. Where it is not
//! certain all the same, it is not let run, and the others may use nothing that is out.

use super::Live;
use crate::tasks::task_state;
use crate::words::Line;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt::Write;
use mm::kernel::{Kernel, Message, Moved};
use uffd::sys::consts::*;
use uffd::{Errno, Features, PAGE, Userfault, sys};

/// See the head of the file.
#[derive(Default)]
pub struct Strays {
    /// The kernel tells of them, and so what is registered is let into them.
    pub are_told_of: bool,
    known: Vec<Stray>,
    /// Those that were made while the engine stood still.
    newborn: Vec<Stray>,
}

/// A copy of the process.
pub struct Stray {
    uffd: Userfault,
    /// Messages that were read before anybody asked.
    early: VecDeque<Message>,
}

/// How often it is looked for what somebody else is about to do, in nanoseconds.
const LOOK_NS: u64 = 50_000;

/// For how long one waits for a child to say which copy it is: it does nothing else, unless it is stopped.
const TOUCH_NS: u64 = 5_000_000_000;

impl Strays {
    /// The one that has this descriptor, of which a message tells now, or has told.
    pub fn get(&mut self, descriptor: u32) -> &mut Stray {
        let place = self.known.iter().position(|stray| stray.is(descriptor)).unwrap_or_else(|| {
            self.known.push(Stray::new(descriptor));
            self.known.len() - 1
        });
        &mut self.known[place]
    }

    /// Closes one.
    pub fn end(&mut self, descriptor: u32) {
        self.get(descriptor);
        self.known.retain(|stray| !stray.is(descriptor));
    }

    /// Which copy touches the page at `at`; `None` where none does, or those that might are gone.
    fn find_child(&mut self, at: usize) -> Option<usize> {
        let end = sys::now_ns() + TOUCH_NS;
        while sys::now_ns() < end && self.newborn.iter().any(Stray::lives) {
            for (place, stray) in self.newborn.iter_mut().enumerate() {
                while let Some(message) = stray.uffd.next() {
                    if matches!(message, Message::Fault { at: touched, .. } if touched == at) {
                        return Some(place);
                    }
                    stray.early.push_back(message);
                }
            }
            sys::sleep_ns(LOOK_NS);
        }
        None
    }
}

impl Stray {
    fn new(descriptor: u32) -> Stray {
        Stray { uffd: Userfault::of_copy(descriptor), early: VecDeque::new() }
    }

    fn is(&self, descriptor: u32) -> bool {
        self.uffd.fd().raw() as u32 == descriptor
    }

    fn lives(&self) -> bool {
        self.uffd.unprotect(0..PAGE) != Err(Errno::ESRCH)
    }

    /// Its next message.
    pub fn next(&mut self) -> Option<Message> {
        self.early.pop_front().or_else(|| self.uffd.next())
    }

    /// Its memory, if no message was read that nobody has asked for.
    fn memory(&self) -> Result<&Userfault, Errno> {
        if self.early.is_empty() { Ok(&self.uffd) } else { Err(Errno::EAGAIN) }
    }

    /// True when memory that was registered is mapped at `at`.
    pub fn has(&self, at: usize) -> Result<bool, Errno> {
        // Nothing is protected there that anybody would ask for.
        match self.memory()?.unprotect(at..at + PAGE) {
            Err(Errno::ENOENT) => Ok(false),
            asked => asked.map(|()| true),
        }
    }

    /// Copies engine memory into its holes.
    pub fn fill(&self, dst: usize, src: usize, bytes: usize) -> Moved {
        // SAFETY: the pager copies only to what was out as the copy was made, and the copy does nothing to its mappings meanwhile.
        self.memory().map_or(Moved::NOTHING_YET, |memory| unsafe { memory.copy(dst, src, bytes) })
    }

    /// Makes a hole raise SIGBUS.
    pub fn poison(&self, at: usize) -> Result<(), Errno> {
        // SAFETY: nobody knows what was there.
        unsafe { self.memory()?.poison(at..at + PAGE) }
    }
}

impl Live {
    /// From now on, if the kernel tells of copies, all may have what is registered. The engine makes none of itself any more: its workers are there.
    pub fn let_strays_in(&mut self) {
        if self.uffd.features() == Features::Forks {
            self.strays.are_told_of = true;
            self.give_back();
        }
    }

    /// The engine stands still. Each copy that is made meanwhile has this page, which is a hole.
    pub fn watch_copies(&mut self, hole: usize) {
        if self.tells_of_forks() {
            let _ = self.uffd.register_missing(hole..hole + PAGE);
        }
    }

    /// While it stands still for a clone by a thread: reads what has come, if the copy is made. False where the kernel does not tell of copies.
    pub fn look_for_copies(&mut self, thread: u32) -> bool {
        if !self.tells_of_forks() {
            return false;
        }
        if self.has_copied(thread) {
            while let Some(message) = Live::read(&self.uffd, |_| true) {
                match message {
                    Message::Fork(copy) => self.strays.newborn.push(Stray::new(copy)),
                    message => self.early.push_back(message),
                }
            }
        }
        true
    }

    /// After that, where there may be a child: it has its memory to itself. All others are strays. False where it is not certain which is which.
    pub fn tell_apart(&mut self, is_child: bool, hole: usize) -> bool {
        if !self.tells_of_forks() {
            return true;
        }
        let _ = self.uffd.unregister(hole..hole + PAGE);
        let strays = &mut self.strays;
        let child = match strays.newborn.len() {
            _ if !is_child => None,
            0 | 1 => Some(0),
            _ => strays.find_child(hole),
        };
        let is_clear = !is_child || child.is_some();
        if let Some(child) = child.filter(|&child| child < strays.newborn.len()) {
            strays.newborn.swap_remove(child);
        }
        for stray in strays.newborn.drain(..) {
            self.early.push_back(Message::Fork(stray.uffd.fd().raw() as u32));
            strays.known.push(stray);
        }
        is_clear
    }

    /// True when a thread that clones has copied the mappings, and waits for its event to be read.
    fn has_copied(&self, thread: u32) -> bool {
        let mut path = Line::default();
        let _ = write!(path, "{thread}/wchan\0");
        let mut wchan = [b'0'; 11];
        let _ = sys::open_at(&self.tasks, path.as_str().as_bytes(), O_RDONLY)
            .and_then(|file| sys::read(&file, &mut wchan));
        if wchan == *b"userfaultfd" {
            return true;
        }
        let sleeps = || matches!(task_state(&self.tasks, thread), Ok(Some((b'D', _))));
        let is_changing = || self.uffd.zeropage(0, PAGE) == Moved::NOTHING_YET;
        // It runs, or that may not be known.
        if wchan[0] != b'0' || !sleeps() || !is_changing() {
            return false;
        }
        // Whoever waited for the lock has had it before us.
        sys::madvise_keep(self.drop_zone, PAGE, MADV_DONTFORK).is_ok()
    }
}
