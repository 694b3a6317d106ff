//! ptrace(2), as far as one thread is made to run a function and to go on as if nothing had been: seized and
//! interrupted, so that no signal is sent and its parent is told nothing.

use crate::sys::Pid;
use std::io::{self, Error};
use std::mem::{MaybeUninit, size_of};
use std::ptr::with_exposed_provenance_mut;

/// The general registers.
pub type Registers = libc::user_regs_struct;

/// Where a thread has its restartable sequences, as the kernel was told (`ptrace_rseq_configuration`).
#[repr(C)]
struct RseqConfiguration {
    abi: u64,
    size: u32,
    signature: u32,
    flags: u32,
    pad: u32,
}

/// `PTRACE_EVENT_STOP`, in the third byte of a status: the thread was interrupted, or its process is being stopped.
pub const EVENT_STOP: i32 = 128;

const GET_SIGNAL_MASK: libc::c_uint = 0x420a;
const SET_SIGNAL_MASK: libc::c_uint = 0x420b;
const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const NT_X86_XSTATE: usize = 0x202;

/// No processor has more of it: with tile data some 11 KiB.
const XSTATE_BYTES: usize = 16 << 10;

/// # Safety
/// `data` must be what the request takes.
unsafe fn call(
    request: libc::c_uint,
    tid: Pid,
    address: usize,
    data: *mut libc::c_void,
) -> io::Result<usize> {
    // SAFETY: the caller's contract.
    let result =
        unsafe { libc::ptrace(request, tid, with_exposed_provenance_mut::<libc::c_void>(address), data) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result as usize) }
}

/// A request that takes a number, and gives none.
fn simple(request: libc::c_uint, tid: Pid, number: i32) -> io::Result<()> {
    // SAFETY: these requests read and write no memory of ours.
    unsafe { call(request, tid, 0, with_exposed_provenance_mut(number as usize)) }.map(drop)
}

/// A traced thread. Reading and writing takes that it has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracee(pub Pid);

impl Tracee {
    /// Begins to trace a thread, which goes on, and asks it to stop.
    pub fn seize(tid: Pid) -> io::Result<Tracee> {
        simple(libc::PTRACE_SEIZE, tid, 0)?;
        let tracee = Tracee(tid);
        tracee.interrupt()?;
        Ok(tracee)
    }

    /// Asks it to stop.
    pub fn interrupt(self) -> io::Result<()> {
        simple(libc::PTRACE_INTERRUPT, self.0, 0)
    }

    /// Has it go on, with this signal if it is not 0.
    pub fn go_on(self, signal: i32) -> io::Result<()> {
        simple(libc::PTRACE_CONT, self.0, signal)
    }

    /// Lets go of it, with this signal if it is not 0.
    pub fn detach(self, signal: i32) -> io::Result<()> {
        simple(libc::PTRACE_DETACH, self.0, signal)
    }

    /// Its general registers.
    pub fn registers(self) -> io::Result<Registers> {
        let mut registers = MaybeUninit::uninit();
        // SAFETY: the kernel fills the structure, which is read only then.
        unsafe {
            call(libc::PTRACE_GETREGS, self.0, 0, registers.as_mut_ptr() as *mut libc::c_void)?;
            Ok(registers.assume_init())
        }
    }

    /// Sets them.
    pub fn set_registers(self, registers: &Registers) -> io::Result<()> {
        let registers = std::ptr::from_ref(registers).cast_mut().cast();
        // SAFETY: the kernel reads the structure only.
        unsafe { call(libc::PTRACE_SETREGS, self.0, 0, registers) }.map(drop)
    }

    /// All others, vectors and floating point, as the kernel writes them.
    pub fn xstate(self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; XSTATE_BYTES];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: the kernel writes as much as there is room for, and says how much that was.
        unsafe { call(libc::PTRACE_GETREGSET, self.0, NT_X86_XSTATE, (&raw mut part).cast()) }?;
        bytes.truncate(part.iov_len);
        Ok(bytes)
    }

    /// Sets them.
    pub fn set_xstate(self, bytes: &[u8]) -> io::Result<()> {
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the kernel reads the bytes only.
        unsafe { call(libc::PTRACE_SETREGSET, self.0, NT_X86_XSTATE, (&raw mut part).cast()) }.map(drop)
    }

    /// Which signals it blocks; in a system call that does so for its own time, those outside of it.
    pub fn signal_mask(self) -> io::Result<u64> {
        let mut mask = 0u64;
        // SAFETY: the kernel writes eight bytes.
        unsafe { call(GET_SIGNAL_MASK, self.0, size_of::<u64>(), (&raw mut mask).cast()) }?;
        Ok(mask)
    }

    /// Sets them.
    pub fn set_signal_mask(self, mask: u64) -> io::Result<()> {
        let mask = std::ptr::from_ref(&mask).cast_mut().cast();
        // SAFETY: the kernel reads eight bytes only.
        unsafe { call(SET_SIGNAL_MASK, self.0, size_of::<u64>(), mask) }.map(drop)
    }

    /// The address of its `struct rseq`; 0 where it has none, or the kernel does not say.
    pub fn rseq(self) -> u64 {
        let mut is = RseqConfiguration { abi: 0, size: 0, signature: 0, flags: 0, pad: 0 };
        // SAFETY: the kernel writes the structure only.
        let told = unsafe {
            call(GET_RSEQ_CONFIGURATION, self.0, size_of::<RseqConfiguration>(), (&raw mut is).cast())
        };
        if told.is_ok() { is.abi } else { 0 }
    }
}

/// Writes to the memory of a process, all or nothing of it as far as this is known.
///
/// # Safety
/// The memory must be the caller's to write.
pub unsafe fn write(pid: Pid, at: u64, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the caller's contract.
    match unsafe { uffd::sys::poke(pid as u32, at as usize, bytes) } {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(Error::from_raw_os_error(libc::EFAULT)),
        Err(errno) => Err(Error::from_raw_os_error(errno.0 as i32)),
    }
}

/// Reads of the memory of a process.
pub fn read<const N: usize>(pid: Pid, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    match uffd::sys::peek(pid as u32, at as usize, &mut bytes) {
        Ok(count) if count == N => Ok(bytes),
        Ok(_) => Err(Error::from_raw_os_error(libc::EFAULT)),
        Err(errno) => Err(Error::from_raw_os_error(errno.0 as i32)),
    }
}
