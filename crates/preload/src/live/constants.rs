//! How pages that cannot be written to leave the program (relro.rs), and what is to be done about messages that come meanwhile.

use super::Live;
use crate::locked;
use crate::relro::{self, Landing, Removed};
use crate::words;
use core::ops::Range;
use mm::kernel::{Kernel, Message, Moved};
use uffd::pagemap::Run;
use uffd::{Errno, PAGE, sys};

impl Live {
    /// Moves pages that cannot be written to from the program to the stage (relro.rs), a part of them if they are many.
    pub(super) fn take_constants(&mut self, dst: usize, src: Range<usize>) -> Moved {
        let stopped = |errno| Moved { bytes: 0, stop: Some(errno) };
        if src.len() < relro::FEWEST * PAGE || locked::is_locked(src.start) {
            return stopped(Errno::EINVAL);
        }
        let wanted = src.len();
        let src = src.start..src.end.min(src.start + relro::PIECE);
        let Some(landing) = Landing::new(src.len()) else { return stopped(Errno::ENOMEM) };
        let to = landing.range();
        let removed = self.remove(&src, to.start);
        let is_event = |message: &Message| !matches!(message, Message::Fault { .. });
        let is_due = self.early.iter().any(is_event);
        match removed {
            // Events come first. What was refused is refused the next time too, whatever the errno.
            Removed::Refused => return stopped(if is_due { Errno::EAGAIN } else { Errno::EINVAL }),
            Removed::Foreign => {
                words::last_words("pages were taken that somebody had mapped in the place of the executable");
                words::stop_program();
                return stopped(Errno::EINVAL);
            }
            Removed::All => {}
        }
        let _ = self.uffd.unregister(to.clone());
        let mut run = [Run::default()];
        let (found, _) = self.present(to.clone(), usize::MAX, &mut run);
        let is_whole = found == 1 && run[0].start == to.start && run[0].end == to.end;
        if !is_due && is_whole {
            // SAFETY: the landing is the engine's, and so is this part of the stage, of which nothing was there.
            unsafe { core::ptr::copy_nonoverlapping(to.start as *const u8, dst as *mut u8, src.len()) };
            return Moved { bytes: src.len(), stop: (src.len() < wanted).then_some(Errno::EAGAIN) };
        }
        self.put_back(&to, &src);
        // Without an event some pages had gone before they could be taken.
        stopped(if self.early.iter().any(is_event) { Errno::EAGAIN } else { Errno::ENOENT })
    }

    /// Calls for the pages, and reads what comes meanwhile.
    fn remove(&mut self, src: &Range<usize>, to: usize) -> Removed {
        let (uffd, early) = (&self.uffd, &mut self.early);
        relro::remove(src.clone(), to, || {
            let mut is_ours = false;
            let message = Live::read(uffd, |message| {
                is_ours = matches!(message, Message::Remap { to: at, .. } if *at == to);
                !is_ours
            });
            let is_read = is_ours || message.is_some();
            early.extend(message);
            is_read.then_some(is_ours)
        })
    }

    /// Undoes it, but for what the events say that have come since. What cannot be put back ends the program.
    fn put_back(&mut self, from: &Range<usize>, to: &Range<usize>) {
        for offset in (0..from.len()).step_by(PAGE) {
            let (src, dst) = (from.start + offset, to.start + offset);
            let is_gone = |message: &Message| match message {
                Message::Remove(range) | Message::Unmap(range) => range.contains(&dst),
                Message::Remap { from, .. } => from.contains(&dst),
                _ => false,
            };
            while self.pagemap.has_page(src) == Ok(true) && !self.early.iter().any(is_gone) {
                // SAFETY: the page was there, and is a hole now.
                match unsafe { self.uffd.copy(dst, src, PAGE) }.stop {
                    // The second and third: somebody has filled the place, or it is gone.
                    None | Some(Errno::EEXIST | Errno::ENOENT) => break,
                    Some(Errno::EAGAIN) => match Live::read(&self.uffd, |_| true) {
                        Some(message) => self.early.push_back(message),
                        None => sys::sched_yield(),
                    },
                    Some(_) => {
                        words::last_words("constants of the executable could not be put back");
                        return words::stop_program();
                    }
                }
            }
        }
    }
}
