//! Guards (MADV_GUARD_INSTALL), which a move stops at and a copy overwrites. The engine makes them for the program, so
//! that none comes between its look for one and its copy.

use super::Live;
use alloc::vec::Vec;
use control::arena;
use core::ops::Range;
use uffd::sys::{self, consts::*};
use uffd::{Errno, PAGE};

impl Live {
    /// Makes guards as the program asks for it: what came of it, as the kernel would say to a program without an engine
    /// (engine memory is a gap), and which ranges have guards by now.
    pub fn install_guards(
        &self,
        range: Range<usize>,
        regions: &[Range<usize>],
    ) -> (Result<(), Errno>, Vec<Range<usize>>) {
        let (mut at, mut result, mut guarded) = (range.start, Ok(()), Vec::new());
        while at < range.end {
            let part = arena::first_foreign(at..range.end);
            if part.start > at {
                result = Err(Errno::ENOMEM);
            }
            at = part.end;
            if part.is_empty() {
                break;
            }
            // SAFETY: the program has asked for it, and what is there is its own.
            let Err(errno) = (unsafe { sys::madvise(part.start, part.len(), MADV_GUARD_INSTALL) }) else {
                guarded.push(part);
                continue;
            };
            // What comes before the refusal is done, and with a gap what comes after it too.
            for region in regions {
                let managed = part.start.max(region.start)..part.end.min(region.end);
                let guards = managed.step_by(PAGE).filter(|&at| self.has_guard(at..at + PAGE));
                guarded.extend(guards.map(|at| at..at + PAGE));
            }
            result = Err(errno);
            if errno != Errno::ENOMEM {
                break;
            }
        }
        (result, guarded)
    }

    /// True when a page of a range is a guard, as far as this kernel says.
    pub(super) fn has_guard(&self, range: Range<usize>) -> bool {
        range.step_by(PAGE).any(|at| self.pagemap.is_guard(at).unwrap_or(false))
    }
}
