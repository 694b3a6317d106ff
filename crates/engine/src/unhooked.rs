//! Copies of the process that passed no hook: a system-call instruction of the program's own. What is out is missing
//! there, since it is kept out of children, and a copy that touches it ends by SIGSEGV. Nobody else could say why: its
//! parent reaps it.
//!
//! No call tells of such a copy, and it may be gone before anybody looks. But the kernel write-protects each page as it
//! copies the memory, and to write to one that was the process's own is a fault after that, however short the copy
//! lived. So the engine writes to a page of its own now and then, and counts its faults. Where one came, and no copy
//! that was seen has been made since the last look, there was another.

use control::CONTROL;
use core::sync::atomic::{AtomicU32, Ordering::*};
use memcg::Memcg;
use uffd::PAGE;
use uffd::sys;

/// A page that nothing else is on, and that children have.
#[repr(align(4096))]
struct Canary {
    word: AtomicU32,
    _rest: [u8; PAGE - 4],
}

static CANARY: Canary = Canary { word: AtomicU32::new(0), _rest: [0; PAGE - 4] };

/// What was known at the last look.
#[derive(Default)]
pub struct UnhookedCopies {
    copies: Option<u32>,
}

impl UnhookedCopies {
    /// For the engine: looks, and has the user told of the first one.
    pub fn look(&mut self, memcg: &Memcg, pid: u32) {
        if self.has_come() {
            let _ = memcg.unseen_copy.compare_exchange(0, pid, AcqRel, Relaxed);
        }
    }

    /// True when a copy that was not seen has been made since the last look. One that was seen hides others.
    fn has_come(&mut self) -> bool {
        // A copy that is seen counts before it is made and after it. In between the engine stands still, or `forks` is
        // not 0. So where that is 0, and no more were counted from before the last look until after this one, none of
        // those that are seen was made meanwhile.
        let seen = || (CONTROL.forks.load(SeqCst), CONTROL.copies.load(SeqCst));
        let (forks, copies) = seen();
        let faulted = sys::write_faults(&CANARY.word);
        let is_known = self.copies.replace(copies) == Some(copies);
        faulted && is_known && forks == 0 && seen() == (0, copies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uffd::sys::consts::*;

    /// A copy that ends at once.
    fn copy() {
        // SAFETY: the copy does nothing but end.
        let pid = unsafe { sys::syscall(NR_CLONE, [SIGCHLD as usize, 0, 0, 0, 0, 0]) }.unwrap();
        if pid == 0 {
            sys::exit(0);
        }
        let mut status = 0;
        assert_eq!(sys::wait4(pid as u32, &mut status, 0), Ok(pid));
    }

    #[test]
    fn a_copy_is_noticed_when_it_has_ended_and_only_once() {
        let mut unseen = UnhookedCopies::default();
        assert!(!unseen.has_come(), "of what was before nothing is known");
        assert!(!unseen.has_come());
        copy();
        assert!(unseen.has_come());
        assert!(!unseen.has_come());
        CONTROL.begin_copy();
        copy();
        CONTROL.end_copy();
        assert!(!unseen.has_come(), "that one was seen");
        CONTROL.forks.fetch_add(1, SeqCst);
        copy();
        assert!(!unseen.has_come(), "it may be one that is under way");
        CONTROL.forks.fetch_sub(1, SeqCst);
        assert!(!unseen.has_come());
    }
}
