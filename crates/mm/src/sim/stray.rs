//! Copies of the program that no hook saw: what they do while the engine brings them what they lack, and what they find when it has let them go.

use super::World;
use super::memory::{Access, Marker, Memory, Task};
use super::shadow::Shadow;
use crate::kernel::Message;
use std::collections::VecDeque;
use std::ops::Range;
use vmscan::PAGE;

/// A stray has one thread.
const SELF: Task = Task::Thread(0);

/// A copy of the program.
#[derive(Default)]
pub struct Stray {
    pub memory: Memory,
    /// What it must find.
    shadow: Shadow,
    /// Events of the call that it is in; one was raised, and it has not run since.
    events: VecDeque<Message>,
    is_raised: bool,
    /// What it discards when those were read.
    zaps: Option<Range<usize>>,
    /// The engine has been told of it.
    is_told: bool,
    /// The engine has let it go.
    pub is_over: bool,
    /// How many pages it lacked as it was made, or may have, and how many it lost.
    pub lacked: usize,
    pub lost: usize,
}

impl World {
    /// A thread makes one; its descriptor.
    pub fn copy(&mut self) -> u32 {
        let memory = self.memory.stray();
        let shadow = self.shadow.fork();
        self.enter_stray(memory, shadow)
    }

    fn enter_stray(&mut self, memory: Memory, shadow: Shadow) -> u32 {
        let space = self.program.space();
        let lacks = |at: &usize| memory.page(*at).is_none() && !shadow.may(*at).contains(&0);
        let lacked = space.step_by(PAGE).filter(lacks).count();
        self.strays.push(Stray { memory, shadow, lacked, ..Stray::default() });
        self.strays.len() as u32 - 1
    }

    /// The engine has read a message. What another thread discards while a clone is under way the copy has, or has not.
    pub fn tell_strays(&mut self, message: &Message) {
        match message {
            Message::Fork(stray) => self.stray(*stray).is_told = true,
            Message::Remove(range) => {
                for stray in self.strays.iter_mut().filter(|stray| !stray.is_told) {
                    stray.shadow.may_be_gone(range.clone());
                }
            }
            _ => {}
        }
    }

    /// The stray that has this descriptor.
    pub fn stray(&mut self, stray: u32) -> &mut Stray {
        &mut self.strays[stray as usize]
    }

    /// A stray comes a step further, or does not.
    pub fn step_stray(&mut self, number: u32) {
        if self.scripted || self.random.one_in(2) {
            return;
        }
        let mut stray = std::mem::take(self.stray(number));
        if !stray.memory.blocked.contains(&SELF) {
            self.step(&mut stray, number);
        }
        *self.stray(number) = stray;
    }

    fn step(&mut self, stray: &mut Stray, number: u32) {
        if std::mem::take(&mut stray.is_raised) {
            stray.memory.changing -= 1;
            return;
        }
        if let Some(event) = stray.events.pop_front() {
            stray.memory.raise(SELF, event);
            stray.is_raised = true;
            return;
        }
        if let Some(range) = stray.zaps.take() {
            stray.memory.wipe(range);
            return;
        }
        let space = self.program.space();
        let pages = space.len() / PAGE;
        let (first, many) = (self.random.below(pages), 1 + self.random.below(24));
        let range = space.start + first * PAGE..(space.start + (first + many) * PAGE).min(space.end);
        let does = self.random.below(16);
        self.trace("a stray does", [number as u64, does as u64, range.start as u64]);
        match does {
            0 => {
                stray.shadow.forget(range.clone());
                if stray.memory.unmap(range.clone()) {
                    stray.announce([Message::Unmap(range)]);
                }
            }
            1 => stray.discard(range),
            2 => stray.mremap(range, space.start + self.random.below(pages) * PAGE, &space),
            3 if self.strays.len() < 200 => {
                let memory = stray.memory.stray();
                let copy = self.enter_stray(memory, stray.shadow.fork());
                stray.announce([Message::Fork(copy)]);
            }
            _ => {
                let content = self.random.word() | 1 << 63;
                if let Access::Done(_) = stray.memory.access(SELF, range.start, Some(content)) {
                    stray.shadow.write(range.start, content);
                }
            }
        }
    }

    /// The engine has let a stray go: it must find what was there, or what it has put there since.
    pub fn end_stray(&mut self, number: u32) {
        let space = self.program.space();
        // One thread's calls are in order, and leave no doubt.
        let may_lose = self.program.threads() > 1;
        let damaged = self.shelves.damaged.clone();
        let stray = self.stray(number);
        assert!(!std::mem::replace(&mut stray.is_over, true), "a stray is let go twice");
        if let Some(range) = stray.zaps.take() {
            stray.memory.wipe(range);
        }
        for at in space.step_by(PAGE) {
            if stray.memory.vma(at).is_none() {
                continue;
            }
            let may = stray.shadow.may(at);
            match (stray.memory.markers.get(&at), stray.memory.page(at)) {
                (Some(Marker::Poison), _) => {
                    let is_damaged = may.iter().any(|content| damaged.contains(content));
                    assert!(may_lose || is_damaged, "a stray of one thread has lost {at:#x}");
                    stray.lost += 1;
                }
                (Some(Marker::Guard), _) => {}
                (None, page) => {
                    let found = page.map_or(0, |page| page.content);
                    assert!(
                        may.contains(&found),
                        "a copy finds {found:#x} at {at:#x}, and may find {may:#x?} only"
                    );
                }
            }
        }
    }
}

impl Stray {
    fn announce<const N: usize>(&mut self, events: [Message; N]) {
        self.memory.changing += N;
        self.events.extend(events);
    }

    fn discard(&mut self, range: Range<usize>) {
        let Some((found, vma)) = self.memory.vma(range.start) else { return };
        let (range, registered) = (range.start..range.end.min(found.end), vma.registered);
        self.shadow.forget(range.clone());
        if registered {
            self.announce([Message::Remove(range.clone())]);
        }
        self.zaps = Some(range);
    }

    fn mremap(&mut self, range: Range<usize>, to: usize, space: &Range<usize>) {
        let Some((found, vma)) = self.memory.vma(range.start) else { return };
        let (from, registered) = (range.start..range.end.min(found.end), vma.registered);
        let target = to..to + from.len();
        if target.end > space.end || target.start < from.end && from.start < target.end {
            return;
        }
        if self.memory.unmap(target.clone()) {
            self.announce([Message::Unmap(target)]);
        }
        self.memory.remap(from.clone(), to, from.len(), false);
        self.shadow.rename(from.clone(), to, |_| false);
        if registered {
            self.announce([Message::Remap { from: from.clone(), to }, Message::Unmap(from)]);
        }
    }
}
