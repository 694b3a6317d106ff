//! What every move, copy and fill of the engine's begins with, and how it goes from page to page.

use super::World;
use crate::kernel::{Errno, Moved};
use vmscan::PAGE;

pub fn stopped(bytes: usize, stop: Errno) -> Moved {
    // The kernel says EAGAIN for every move that ended early, and the true reason only to the next.
    Moved { bytes, stop: Some(if bytes > 0 { Errno::EAGAIN } else { stop }) }
}

impl World {
    /// The checks that every move, copy and fill begins with. The mappings are looked up between two looks at
    /// mmap_changing.
    pub fn admit(&mut self, find: impl Fn(&World) -> Result<(), Errno>) -> Result<(), Errno> {
        let blind = self.bugs.blind_moves;
        if self.memory.changing > 0 && !blind {
            return Err(Errno::EAGAIN);
        }
        if self.chance(16) {
            self.run_on(1);
        }
        find(self)?;
        if self.memory.changing > 0 && !blind || self.chance(100) {
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }

    /// Both mappings of a move.
    pub fn movable(&self, dst: usize, src: usize, bytes: usize) -> Result<(), Errno> {
        let find = |at| self.memory.vma(at).ok_or(Errno::ENOENT);
        let ((d, to), (s, from)) = (find(dst)?, find(src)?);
        let alike = to.writable && from.writable && to.locked == from.locked;
        if dst + bytes > d.end || src + bytes > s.end || !alike || !to.registered {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// The mapping that a copy or fill goes to.
    pub fn fillable(&self, dst: usize, bytes: usize) -> Result<(), Errno> {
        match self.memory.vma(dst) {
            Some((range, vma)) if vma.registered && dst + bytes <= range.end => Ok(()),
            _ => Err(Errno::ENOENT),
        }
    }

    /// Does `each` page of a range until one fails, and wakes those who wait for what was done.
    pub fn pages(
        &mut self,
        dst: usize,
        bytes: usize,
        mut each: impl FnMut(&mut World, usize) -> Result<(), Errno>,
    ) -> Moved {
        for offset in (0..bytes).step_by(PAGE) {
            let done = if offset > 0 && self.chance(150) { Err(Errno::EAGAIN) } else { each(self, offset) };
            if let Err(errno) = done {
                self.memory.wake(dst..dst + offset);
                return stopped(offset, errno);
            }
        }
        self.memory.wake(dst..dst + bytes);
        Moved { bytes, stop: None }
    }
}
