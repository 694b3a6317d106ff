//! A system call by which a process makes a copy of itself, as it is made while the engine stands still (fork.rs).
//! clone_calls.rs says who makes them.
//!
//! While the engine stands still for the call the kernel must touch none of the program's memory, since nobody could
//! bring it in; nor may it touch any in the copy before that has taken over, or a page would be there that is out. So
//! 1. the copy begins on the stack of its parent, and goes to the one that the program has for it when all has been
//!    taken over;
//! 2. what the kernel reads (clone3's arguments) was copied before, and what it writes (the copy's number, a pidfd) it
//!    writes to `TOLD`, from where it is brought to the program's memory afterwards. Only who shares that memory can
//!    see that: the copy may run by then;
//! 3. CLONE_CHILD_CLEARTID is asked for always, with a word of the library's, which is the engine's alarm (watch.rs).
//!    The program's own word is not cleared, nor would it be without an engine: for a process that ends the kernel does
//!    so only where another has its memory.

use core::sync::atomic::{AtomicU32, Ordering::*};
use linux_raw_sys::general as g;
use uffd::PAGE;
use uffd::sys::{self, Errno, consts::*};

/// Both ways in which the kernel tells a copy its number, now and by its end.
const CHILD_TID: usize = (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) as usize;

/// Where clone(2) has its arguments.
const FLAGS: usize = 0;
const STACK: usize = 1;
const PARENT_TID: usize = 2;
const CHILD_TID_AT: usize = 3;

/// What the kernel writes, under the bell; of a copy's exit word it is the copy's own.
struct Told {
    parent_tid: AtomicU32,
    pidfd: AtomicU32,
    exit_word: AtomicU32,
}

static TOLD: Told =
    Told { parent_tid: AtomicU32::new(0), pidfd: AtomicU32::new(0), exit_word: AtomicU32::new(0) };

/// Where the program wants it; 0 where it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WantedTids {
    parent_tid: usize,
    pidfd: usize,
    child_tid: usize,
}

/// clone3's arguments, with the numbers that they refer to.
#[derive(Clone, Copy, Debug)]
struct Clone3Arguments {
    args: g::clone_args,
    set_tid: [u32; SET_TID_MOST],
}

/// As many PID namespaces as there can be, one in the other.
const SET_TID_MOST: usize = 32;

#[derive(Clone, Copy, Debug)]
enum CloneForm {
    Clone([usize; 6]),
    Clone3(Clone3Arguments),
}

/// A system call that makes a copy of the process, which begins in the same place of the same stack.
#[derive(Clone, Copy, Debug)]
pub struct Clone {
    form: CloneForm,
    wanted: WantedTids,
}

impl Clone {
    /// As libc's fork makes it, with the exit word where libc has it: on a page that never goes out.
    pub fn of_libc(arguments: [usize; 6]) -> Clone {
        let mut arguments = arguments;
        arguments[STACK] = 0;
        Clone { form: CloneForm::Clone(arguments), wanted: WantedTids::default() }
    }

    /// As the program makes it, by clone(2). Its stack is the caller's business.
    pub fn of_program(arguments: [usize; 6]) -> Result<Clone, Errno> {
        let (mut arguments, flags) = (arguments, arguments[FLAGS]);
        let at =
            |flag: u32, argument: usize| if flags & flag as usize != 0 { arguments[argument] } else { 0 };
        let wanted = WantedTids {
            parent_tid: at(CLONE_PARENT_SETTID, PARENT_TID),
            pidfd: at(CLONE_PIDFD, PARENT_TID),
            child_tid: at(CLONE_CHILD_SETTID, CHILD_TID_AT),
        };
        arguments[FLAGS] |= CHILD_TID;
        arguments[STACK] = 0;
        // Of both the kernel says EINVAL.
        let told = if wanted.pidfd != 0 { &TOLD.pidfd } else { &TOLD.parent_tid };
        arguments[PARENT_TID] = told.as_ptr() as usize;
        arguments[CHILD_TID_AT] = TOLD.exit_word.as_ptr() as usize;
        wanted.can_be_told(flags & CLONE_PIDFD as usize != 0)?;
        Ok(Clone { form: CloneForm::Clone(arguments), wanted })
    }

    /// As the program makes it, by clone3(2), with `bytes` of arguments at `at`; and the end of the stack that the copy
    /// is to have, or 0.
    pub fn of_program_3(at: usize, bytes: usize) -> Result<(Clone, usize), Errno> {
        let mut args = Clone3Arguments::read(at, bytes)?;
        let given = args.args;
        let at = |flag: u32, at: u64| if given.flags & flag as u64 != 0 { at as usize } else { 0 };
        let wanted = WantedTids {
            parent_tid: at(CLONE_PARENT_SETTID, given.parent_tid),
            pidfd: at(CLONE_PIDFD, given.pidfd),
            child_tid: at(CLONE_CHILD_SETTID, given.child_tid),
        };
        let new = &mut args.args;
        new.flags |= CHILD_TID as u64;
        new.child_tid = TOLD.exit_word.as_ptr() as u64;
        new.pidfd = TOLD.pidfd.as_ptr() as u64;
        // Of one place for both the kernel says EINVAL.
        let is_one = wanted.pidfd != 0 && wanted.pidfd == wanted.parent_tid;
        new.parent_tid = if is_one { new.pidfd } else { TOLD.parent_tid.as_ptr() as u64 };
        (new.stack, new.stack_size) = (0, 0);
        wanted.can_be_told(given.flags & CLONE_PIDFD as u64 != 0)?;
        Ok((Clone { form: CloneForm::Clone3(args), wanted }, (given.stack + given.stack_size) as usize))
    }

    fn flags(&self) -> usize {
        match &self.form {
            CloneForm::Clone(arguments) => arguments[FLAGS],
            CloneForm::Clone3(arguments) => arguments.args.flags as usize,
        }
    }

    /// What of it decides whether an engine of the copy's could have what it needs.
    pub fn namespaces(&self) -> u32 {
        self.flags() as u32 & (CLONE_NEWUSER | CLONE_NEWPID)
    }

    /// Makes the call: a number, 0 in the copy, or an error below 0.
    pub fn make(&self) -> isize {
        let made = match self.form {
            // SAFETY: the copy goes on from here as its parent does, in memory of its own.
            CloneForm::Clone(arguments) => unsafe { sys::syscall(NR_CLONE, arguments) },
            CloneForm::Clone3(Clone3Arguments { mut args, set_tid }) => {
                if args.set_tid_size != 0 {
                    args.set_tid = set_tid.as_ptr() as u64;
                }
                // SAFETY: as above.
                unsafe { sys::syscall(NR_CLONE3, [&raw const args as usize, size_of_val(&args), 0, 0, 0, 0]) }
            }
        };
        made.map_or_else(|errno| -(errno.0 as isize), |pid| pid as isize)
    }

    /// The address that the kernel writes the copy's number to, and clears as it ends or executes a program. 0 where it
    /// does not.
    pub fn exit_word(&self) -> usize {
        match &self.form {
            CloneForm::Clone(arguments) if arguments[FLAGS] & CHILD_TID == CHILD_TID => {
                arguments[CHILD_TID_AT]
            }
            CloneForm::Clone(_) => 0,
            CloneForm::Clone3(arguments) => arguments.args.child_tid as usize,
        }
    }

    /// True when the kernel writes what the program wants to be told: the bell must be held.
    pub fn is_told(&self) -> bool {
        self.wanted != WantedTids::default()
    }

    /// Tells the program what it wants to be told; `result` is `make`'s. Memory comes in where it is touched.
    pub fn tell(&self, result: isize) {
        let told: &[(usize, u32)] = match result {
            0 => &[(self.wanted.child_tid, TOLD.exit_word.load(Relaxed))],
            1.. => &[(self.wanted.parent_tid, result as u32), (self.wanted.pidfd, TOLD.pidfd.load(Relaxed))],
            _ => &[],
        };
        for &(at, value) in told.iter().filter(|(at, _)| *at != 0) {
            write(at, value);
        }
    }
}

/// Writes a word to the program's memory. What cannot be written to is left, as the kernel leaves it.
fn write(at: usize, value: u32) {
    let own = sys::getpid().unwrap_or(0) as u32;
    // SAFETY: the program has asked for it.
    match unsafe { sys::poke(own, at, &value.to_ne_bytes()) } {
        Ok(_) | Err(Errno::EFAULT) => {}
        // The call is refused (a filter), which says nothing of the memory.
        // SAFETY: as above.
        Err(_) => unsafe { (at as *mut u32).write_unaligned(value) },
    }
}

impl WantedTids {
    /// A pidfd that can be written nowhere is an error before there is a copy.
    fn can_be_told(&self, wants_pidfd: bool) -> Result<(), Errno> {
        let (own, mut word) = (sys::getpid().unwrap_or(0) as u32, [0; 4]);
        let is_nowhere = wants_pidfd && sys::peek(own, self.pidfd, &mut word) == Err(Errno::EFAULT);
        if is_nowhere { Err(Errno::EFAULT) } else { Ok(()) }
    }
}

impl Clone3Arguments {
    /// From the program's memory, as the kernel reads them.
    fn read(at: usize, bytes: usize) -> Result<Clone3Arguments, Errno> {
        const LEAST: usize = 64;
        const KNOWN: usize = size_of::<g::clone_args>();
        if bytes > PAGE {
            return Err(Errno::E2BIG);
        } else if bytes < LEAST {
            return Err(Errno::EINVAL);
        }
        let mut text = [0u8; PAGE];
        read(at, &mut text[..bytes])?;
        if text[KNOWN..].iter().any(|&b| b != 0) {
            return Err(Errno::E2BIG);
        }
        // SAFETY: as many bytes, of which any are a value.
        let args = unsafe { text.as_ptr().cast::<g::clone_args>().read_unaligned() };
        let count = args.set_tid_size as usize;
        if (args.stack == 0) != (args.stack_size == 0) || count > SET_TID_MOST {
            return Err(Errno::EINVAL);
        }
        let mut set_tid = [0u32; SET_TID_MOST];
        // SAFETY: integers, seen as their bytes.
        let numbers =
            unsafe { core::slice::from_raw_parts_mut(set_tid.as_mut_ptr().cast::<u8>(), count * 4) };
        if count != 0 {
            read(args.set_tid as usize, numbers)?;
        }
        Ok(Clone3Arguments { args, set_tid })
    }
}

/// Reads the program's memory, which may not be there.
pub fn read(at: usize, to: &mut [u8]) -> Result<(), Errno> {
    let own = sys::getpid().unwrap_or(0) as u32;
    match sys::peek(own, at, to) {
        Ok(bytes) if bytes == to.len() => Ok(()),
        Ok(_) | Err(Errno::EFAULT) => Err(Errno::EFAULT),
        Err(_) => {
            // The call is refused (a filter), which says nothing of the memory.
            // SAFETY: the program says that it is there.
            unsafe { to.as_mut_ptr().copy_from_nonoverlapping(at as *const u8, to.len()) };
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn what_the_kernel_would_write_to_the_program_it_writes_to_us() {
        let place = 0u32;
        let at = &raw const place as usize;
        let flags = (CLONE_PARENT_SETTID | CLONE_CHILD_SETTID) as usize;
        let clone = Clone::of_program([flags, 4096, at, at + 8, 7, 0]).unwrap();
        assert_eq!(clone.wanted, WantedTids { parent_tid: at, pidfd: 0, child_tid: at + 8 });
        let CloneForm::Clone(made) = clone.form else { panic!("clone(2)") };
        let (parent, exit) = (TOLD.parent_tid.as_ptr() as usize, TOLD.exit_word.as_ptr() as usize);
        assert_eq!(made, [flags | CHILD_TID, 0, parent, exit, 7, 0]);
        assert_eq!(clone.exit_word(), exit);
        assert_eq!(Clone::of_program([CLONE_PIDFD as usize, 0, 16, 0, 0, 0]).err(), Some(Errno::EFAULT));

        // SAFETY: integers, for which zeros are a value.
        let mut args: g::clone_args = unsafe { core::mem::zeroed() };
        (args.flags, args.pidfd) = (CLONE_PIDFD as u64, at as u64);
        (args.stack, args.stack_size) = (4096, 8192);
        let (clone, stack) = Clone::of_program_3(&raw const args as usize, 64).unwrap();
        assert_eq!((clone.wanted.pidfd, stack, clone.exit_word()), (at, 12288, exit));
        let CloneForm::Clone3(made) = clone.form else { panic!("clone3(2)") };
        assert_eq!((made.args.stack, made.args.pidfd), (0, TOLD.pidfd.as_ptr() as u64));
    }

    #[test]
    fn arguments_that_the_kernel_would_refuse_are_refused_in_the_same_way() {
        let long = [const { AtomicU64::new(0) }; 64];
        let at = long.as_ptr() as usize;
        let refused = |at, bytes| Clone::of_program_3(at, bytes).map(drop);
        assert_eq!(refused(at, 63), Err(Errno::EINVAL));
        assert_eq!(refused(at, PAGE + 1), Err(Errno::E2BIG));
        assert_eq!(refused(16, 88), Err(Errno::EFAULT));
        assert_eq!(refused(at, 512), Ok(()));
        long[63].store(1, Relaxed);
        assert_eq!(refused(at, 512), Err(Errno::E2BIG));
        long[5].store(4096, Relaxed);
        assert_eq!(refused(at, 88), Err(Errno::EINVAL), "a stack without a length");
    }
}
