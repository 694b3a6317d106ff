//! Pages that leave a mapping that cannot be written to: no move takes them, so the real kernel's side (`detach` in
//! the engine crate) takes them out in one step, looks whether an event came meanwhile, and puts them back if so.
//! The program runs on all the while.

use super::World;
use super::memory::{Content, Page};
use crate::kernel::{Errno, Message, Moved};
use std::ops::Range;
use vmscan::PAGE;

impl World {
    /// True where such memory goes out: not in scenes, which tell of memory that cannot be moved by it.
    pub fn takes_unwritable(&self) -> bool {
        !self.scripted
    }

    /// Takes what a move to `dst`, engine memory, has refused; `None` where it was refused for another reason.
    pub fn take_unwritable(&mut self, dst: usize, src: Range<usize>) -> Option<Moved> {
        let stopped = |errno| Some(Moved { bytes: 0, stop: Some(errno) });
        let (from, vma) = self.memory.vma(src.start)?;
        let is_such = !vma.writable && vma.registered && !vma.locked && !vma.engine;
        if !self.takes_unwritable() || !is_such || src.end > from.end {
            return None;
        }
        if !self.early.is_empty() || self.memory.changing > 0 {
            return stopped(Errno::EAGAIN);
        }
        let is_takeable = |at| self.memory.page(at).is_some_and(|page: &Page| page.pins == 0);
        if !src.clone().step_by(PAGE).all(is_takeable) {
            return stopped(Errno::ENOENT);
        }
        let read = |world: &World| -> Vec<Content> {
            let content = |at| world.memory.page(at).map_or(0, |page| page.content);
            src.clone().step_by(PAGE).map(content).collect()
        };
        self.is_taking = true;
        let contents = read(self);
        if self.bugs.hesitates {
            self.run_on(60);
        }
        for at in src.clone().step_by(PAGE) {
            self.memory.remove(at);
        }
        let steps = self.random.below(6);
        self.run_on(steps);
        // Whoever waits may have to run on before it is settled.
        while self.random.one_in(3)
            && let Some(message) = self.next_message()
        {
            self.early.push_back(message);
        }
        let is_due = self.memory.changing > 0 || self.early.iter().any(is_event);
        for (at, content) in src.clone().step_by(PAGE).zip(contents) {
            if is_due {
                self.put_back(at, content);
            } else {
                self.memory.fill(dst + at - src.start, content);
            }
        }
        self.is_taking = false;
        self.trace("take", [dst as u64, src.start as u64, is_due as u64]);
        if is_due { stopped(Errno::EAGAIN) } else { Some(Moved { bytes: src.len(), stop: None }) }
    }

    /// Copies a page to where it was, once no event is under way, unless one says that it is gone from there.
    fn put_back(&mut self, at: usize, content: Content) {
        let is_gone = |message: &Message| match message {
            Message::Remove(range) | Message::Unmap(range) => range.contains(&at),
            _ => false,
        };
        while !self.early.iter().any(is_gone) {
            if self.memory.changing > 0 {
                let message = self.next_message();
                self.early.extend(message);
                self.run_on(1);
                continue;
            }
            let is_hole = self.memory.page(at).is_none();
            if is_hole && self.memory.vma(at).is_some_and(|(_, vma)| vma.registered) {
                self.memory.fill(at, content);
                self.memory.wake(at..at + PAGE);
            }
            return;
        }
    }
}

fn is_event(message: &Message) -> bool {
    !matches!(message, Message::Fault { .. })
}
