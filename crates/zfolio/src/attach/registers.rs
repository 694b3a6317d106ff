//! What a thread has in its registers when it is stopped, when it is made to call a function, and when it is let go.

use crate::ptrace::Registers;

/// The kernel's, which no program sees: a call that was interrupted is to be made again, if no handler is called
/// before, or whatever its flags; and with what is left of its time.
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;

/// Selectors of 64-bit code and its stack.
pub(super) const CODE_64: u64 = 0x33;
pub(super) const STACK_64: u64 = 0x2b;

/// The flags that code of ours begins with: interrupts on, and nothing else.
const FLAGS: u64 = 0x202;

/// The system call that a thread was interrupted in; none where it was not in one.
fn interrupted(registers: &Registers) -> Option<u64> {
    (registers.orig_rax as i64 >= 0).then_some(registers.orig_rax)
}

/// Sees to it that a system call that the stop has ended is made again. False where a signal has come that it is to end
/// by.
pub(super) fn make_again(registers: &mut Registers, has_pending: impl FnOnce() -> bool) -> bool {
    let is_ended = registers.rax as i64 == -i64::from(libc::EINTR);
    match interrupted(registers) {
        // That has closed the descriptor, and another may have its number.
        Some(call) if is_ended && call as i64 != libc::SYS_close => {
            registers.rax = ERESTARTNOHAND as u64;
            !has_pending()
        }
        _ => true,
    }
}

/// A call that would go on with the time that is left begins anew, since the kernel may have forgotten that time.
pub(super) fn forget_time(registers: &mut Registers) {
    if interrupted(registers).is_some() && registers.rax as i64 == ERESTART_RESTARTBLOCK {
        registers.rax = ERESTARTNOHAND as u64;
    }
}

/// What a thread goes on with that nobody fetches: as the kernel would have it, without a signal.
fn alone(registers: &Registers) -> Registers {
    let mut alone = *registers;
    if let Some(call) = interrupted(registers) {
        let again = match registers.rax as i64 {
            ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => Some(call),
            ERESTART_RESTARTBLOCK => Some(libc::SYS_restart_syscall as u64),
            _ => None,
        };
        if let Some(again) = again {
            // A `syscall` has two bytes.
            (alone.rip, alone.rax) = (registers.rip - 2, again);
        }
    }
    alone
}

/// Where it then goes on, as iretq takes it.
pub(super) fn own_return(registers: &Registers) -> Vec<u8> {
    let r = alone(registers);
    [r.rip, r.cs, r.eflags, r.rsp, r.ss].map(u64::to_le_bytes).concat()
}

/// The registers with which a thread enters the function; it is in no system call, and so none is made again meanwhile.
pub(super) fn entering(registers: &Registers, entry: u64, stack: u64) -> Registers {
    let rax = alone(registers).rax;
    Registers { rip: entry, rsp: stack, rax, eflags: FLAGS, orig_rax: u64::MAX, ..*registers }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(call: i64, rax: i64) -> Registers {
        // SAFETY: integers, for which all zeros is a value.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        (registers.orig_rax, registers.rax) = (call as u64, rax as u64);
        (registers.rip, registers.rsp, registers.cs, registers.ss) = (0x1002, 0x7000, CODE_64, STACK_64);
        registers
    }

    #[test]
    fn a_call_that_only_the_stop_has_ended_is_made_again() {
        let eintr = -i64::from(libc::EINTR);
        let again = |call, rax, pending| {
            let mut registers = registers(call, rax);
            (make_again(&mut registers, || pending), registers.rax as i64)
        };
        assert_eq!(again(libc::SYS_epoll_wait, eintr, false), (true, ERESTARTNOHAND));
        assert!(!again(libc::SYS_epoll_wait, eintr, true).0, "a signal has ended it");
        assert_eq!(again(libc::SYS_close, eintr, false), (true, eintr), "the descriptor is closed");
        assert_eq!(again(libc::SYS_read, ERESTARTSYS, true), (true, ERESTARTSYS), "the kernel decides");
        assert_eq!(again(-1, eintr, true), (true, eintr), "a number in a register, and no call");
        assert_eq!(again(libc::SYS_read, 17, true), (true, 17));
    }

    #[test]
    fn whoever_is_not_fetched_makes_its_call_again() {
        let alone = |call, rax| {
            let alone = alone(&registers(call, rax));
            (alone.rip, alone.rax as i64)
        };
        for restart in [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND] {
            assert_eq!(alone(libc::SYS_read, restart), (0x1000, libc::SYS_read));
        }
        assert_eq!(alone(libc::SYS_nanosleep, ERESTART_RESTARTBLOCK), (0x1000, libc::SYS_restart_syscall));
        assert_eq!(alone(libc::SYS_read, 17), (0x1002, 17), "that call has ended");
        assert_eq!(alone(-1, ERESTARTSYS), (0x1002, ERESTARTSYS), "a number in a register, and no call");
        let entering = entering(&registers(libc::SYS_read, ERESTARTSYS), 0x5000, 0x6000);
        assert_eq!((entering.rip, entering.rsp, entering.rax), (0x5000, 0x6000, libc::SYS_read as u64));
        assert_eq!(entering.orig_rax as i64, -1, "no call is made again before the function has run");
    }

    #[test]
    fn time_that_may_be_forgotten_is_not_counted_on() {
        for (rax, then) in [(ERESTART_RESTARTBLOCK, ERESTARTNOHAND), (ERESTARTSYS, ERESTARTSYS), (3, 3)] {
            let mut registers = registers(libc::SYS_nanosleep, rax);
            forget_time(&mut registers);
            assert_eq!(registers.rax as i64, then);
        }
    }
}
