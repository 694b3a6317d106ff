//! Which system calls engine and workers can make: their own, and no other. Whatever is in the program can write to the
//! engine's memory, and a program that has put itself into a cage (seccomp, chroot, namespaces) would leave it by
//! having the engine make a call for it.
//!
//! ```text
//!   engine: Asleep ──> asleep ──> (Bound, when the program gives something up) ──> awakes, makes workers ──> Manages
//!                                                                                     └─> worker: ──> Works
//! ```
//!
//! Each filter is one more, and what one of them refuses is refused: with EPERM, since what there is no need of can
//! also be done without. The kernel keeps a list of what is allowed whatever its arguments are, and so the frequent
//! calls cost next to nothing. Where a filter was there before nobody knows what it does to who asks for another; so
//! there it is asked for as late as can be, and where it is refused it is not had.

use crate::creds;
use acomp::doors::{BYTES, STEP_BYTES};
use alloc::vec::Vec;
use linux_raw_sys::general as g;
use uffd::sys::{self, consts::*};

/// From when on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// An engine that sleeps, and may awake.
    Asleep,
    /// The same when it has opened what it needs: it opens nothing to write any more.
    Bound,
    /// An engine that has its workers.
    Manages,
    /// A worker that has all it needs.
    Works,
}

/// Whom a process has to do with, by number.
#[derive(Clone, Copy, Debug)]
pub struct Company {
    /// The program.
    pub program: u32,
    /// Its engine.
    pub engine: u32,
    /// Of a worker: where the names of a device's files are, which it may open to write ([`acomp::doors`]).
    pub doors: Option<usize>,
}

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

/// The machine's instructions, of those in linux/bpf_common.h.
mod code {
    /// Loads a word of `struct seccomp_data`.
    pub const LOAD: u16 = 0x20;
    /// Jumps by whether it is the operand.
    pub const EQUAL: u16 = 0x15;
    /// Clears the bits that the operand has not.
    pub const AND: u16 = 0x54;
    /// Ends.
    pub const RETURN: u16 = 0x06;
}

/// Where the words of `struct seccomp_data` are.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// AUDIT_ARCH_X86_64.
const X86_64: u32 = 0xc000_003e;

const KILL: u32 = 0x8000_0000;
const ALLOW: u32 = 0x7fff_0000;
/// SECCOMP_RET_ERRNO with EPERM.
const REFUSE: u32 = 0x0005_0001;

/// Calls that everybody makes, with whatever arguments.
const ALL: &[u32] = &[
    g::__NR_read,
    g::__NR_write,
    g::__NR_pread64,
    g::__NR_pwrite64,
    g::__NR_close,
    g::__NR_lseek,
    g::__NR_getdents64,
    g::__NR_readlink,
    g::__NR_futex,
    g::__NR_ppoll,
    g::__NR_nanosleep,
    g::__NR_clock_gettime,
    // By itself, after a stop.
    g::__NR_restart_syscall,
    g::__NR_sched_yield,
    // Which queues of a device are whose.
    g::__NR_getcpu,
    g::__NR_sched_getaffinity,
    g::__NR_sched_setaffinity,
    g::__NR_sched_setscheduler,
    g::__NR_exit,
    g::__NR_getpid,
    g::__NR_gettid,
    g::__NR_pidfd_send_signal,
    g::__NR_mmap,
    g::__NR_munmap,
    g::__NR_mremap,
    g::__NR_mprotect,
    g::__NR_pkey_mprotect,
    g::__NR_madvise,
    g::__NR_munlock,
    // To give up rights.
    g::__NR_capset,
    g::__NR_setgroups,
    g::__NR_setresuid,
    g::__NR_setresgid,
    g::__NR_setfsuid,
    g::__NR_setfsgid,
];

/// And those of an engine.
const ENGINES: &[u32] = &[
    g::__NR_ioctl,
    g::__NR_wait4,
    g::__NR_kcmp,
    g::__NR_get_robust_list,
    g::__NR_getrusage,
    g::__NR_msync,
    g::__NR_pidfd_getfd,
    // A new log for its family (shared_store.rs).
    g::__NR_memfd_create,
    g::__NR_ftruncate,
    // Locks of rows, and what is given back of swap areas (areas.rs).
    g::__NR_fcntl,
    g::__NR_fallocate,
    g::__NR_io_uring_enter,
];

/// To awake: besides what workers do, who inherit the filter.
const TO_AWAKE: &[u32] = &[
    g::__NR_eventfd2,
    g::__NR_getrandom,
    g::__NR_pidfd_open,
    g::__NR_prctl,
    g::__NR_kill,
    // For filters that are narrower, and for what they take to be unchangeable.
    g::__NR_seccomp,
    g::__NR_mseal,
    // What a swap area's file is.
    g::__NR_statx,
    g::__NR_fstatfs,
    // How it is read and written, where the kernel lets it.
    g::__NR_io_uring_setup,
    g::__NR_io_uring_register,
];

/// To open what an engine needs, and a worker of a device's.
const TO_OPEN: &[u32] =
    &[g::__NR_openat, g::__NR_userfaultfd, g::__NR_access, g::__NR_stat, g::__NR_newfstatat];

/// To be handed what it may not open (handover.rs); its sockets are of one family.
const TO_ASK: &[u32] = &[g::__NR_setsockopt, g::__NR_connect, g::__NR_recvmsg];

/// How files are opened that are only read.
const READS: &[u32] = &[O_RDONLY | O_CLOEXEC, O_RDONLY | O_DIRECTORY | O_CLOEXEC];

/// How workers are made.
const CLONES: &[u32] = &[CLONE_FILES | CLONE_FS, CLONE_FILES | CLONE_FS | CLONE_VM];

/// How helpers are (relro.rs): they inherit the filter.
const HELPER: u32 = CLONE_VM;

/// What an engine's prctl is about, besides giving up rights: huge pages, during forks.
const ENGINES_OPTIONS: [u32; 2] = [PR_SET_THP_DISABLE, PR_GET_THP_DISABLE];

/// A filter that is being written.
struct Writer(Vec<Instruction>);

impl Writer {
    fn new() -> Writer {
        let mut writer = Writer(Vec::with_capacity(160));
        writer.push(code::LOAD, ARCHITECTURE, [0, 0]);
        // Numbers mean other calls there.
        writer.push(code::EQUAL, X86_64, [1, 0]);
        writer.push(code::RETURN, KILL, [0, 0]);
        writer.push(code::LOAD, NUMBER, [0, 0]);
        writer
    }

    fn push(&mut self, code: u16, operand: u32, [if_true, if_false]: [u8; 2]) {
        self.0.push(Instruction { code, if_true, if_false, operand });
    }

    /// Allows what is loaded if it is this.
    fn allow_one(&mut self, operand: u32) {
        self.push(code::EQUAL, operand, [0, 1]);
        self.push(code::RETURN, ALLOW, [0, 0]);
    }

    fn allow(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|&number| self.allow_one(number));
    }

    /// Allows a call where the lower half of an argument is one of these. The calls for which this is used take no more
    /// than that half.
    fn allow_where(
        &mut self,
        number: u32,
        argument: u32,
        values: impl IntoIterator<Item = u32, IntoIter: Clone>,
    ) {
        let values = values.into_iter();
        let behind = 2 + 2 * values.clone().count() as u8;
        self.push(code::EQUAL, number, [0, behind]);
        self.push(code::LOAD, ARGUMENTS + 8 * argument, [0, 0]);
        values.for_each(|value| self.allow_one(value));
        self.push(code::RETURN, REFUSE, [0, 0]);
    }

    /// Allows openat to read, and to read and write where the path's address is one of `doors`' names: what is there
    /// nobody can change.
    fn allow_opening(&mut self, doors: usize) {
        const WRITES: u32 = O_RDWR | O_CLOEXEC;
        const PATH: u32 = ARGUMENTS + 8;
        debug_assert!(doors.is_multiple_of(BYTES));
        let behind = 9 + 2 * READS.len() as u8;
        self.push(code::EQUAL, g::__NR_openat, [0, behind]);
        self.push(code::LOAD, ARGUMENTS + 8 * 2, [0, 0]);
        READS.iter().for_each(|&flags| self.allow_one(flags));
        self.push(code::EQUAL, WRITES, [0, 6]);
        // Other bits than those that tell one name from the next are the page's.
        self.push(code::LOAD, PATH, [0, 0]);
        self.push(code::AND, !((BYTES - STEP_BYTES) as u32), [0, 0]);
        self.push(code::EQUAL, doors as u32, [0, 3]);
        self.push(code::LOAD, PATH + 4, [0, 0]);
        self.push(code::EQUAL, (doors >> 32) as u32, [0, 1]);
        self.push(code::RETURN, ALLOW, [0, 0]);
        self.push(code::RETURN, REFUSE, [0, 0]);
    }

    fn finish(mut self) -> Vec<Instruction> {
        self.push(code::RETURN, REFUSE, [0, 0]);
        self.0
    }
}

fn write(phase: Phase, company: Company) -> Vec<Instruction> {
    let Company { program, engine, doors } = company;
    let mut filter = Writer::new();
    filter.allow(ALL);
    // Its own limits.
    filter.allow_where(g::__NR_prlimit64, 0, [0]);
    if phase != Phase::Works {
        filter.allow(ENGINES);
    }
    if phase != Phase::Manages {
        filter.allow_where(g::__NR_process_vm_readv, 0, [engine]);
        filter.allow_where(g::__NR_process_vm_writev, 0, [engine]);
    }
    match phase {
        Phase::Asleep | Phase::Bound => {
            filter.allow(TO_AWAKE);
            filter.allow_where(g::__NR_clone, 0, CLONES.iter().copied().chain([HELPER]));
        }
        Phase::Manages => {
            let options = creds::PRCTL_OPTIONS.into_iter().chain(ENGINES_OPTIONS);
            filter.allow_where(g::__NR_prctl, 0, options);
            filter.allow_where(g::__NR_kill, 0, [program]);
            filter.allow_where(g::__NR_clone, 0, [HELPER]);
        }
        Phase::Works => {
            filter.allow_where(g::__NR_prctl, 0, creds::PRCTL_OPTIONS);
            filter.allow_where(g::__NR_kill, 0, [program, engine]);
        }
    }
    match (phase, doors) {
        (Phase::Asleep, _) => {
            filter.allow(TO_OPEN);
            filter.allow(TO_ASK);
            filter.allow_where(g::__NR_socket, 0, [uffd::socket::FAMILY]);
        }
        (Phase::Works, Some(doors)) => filter.allow_opening(doors),
        _ => filter.allow_where(g::__NR_openat, 2, READS.iter().copied()),
    }
    filter.finish()
}

/// From now on the calling process makes its own calls only. False where the kernel refuses that.
pub fn enter(phase: Phase, company: Company) -> bool {
    /// `struct sock_fprog`.
    #[repr(C)]
    struct SockFprog {
        len: u16,
        at: *const Instruction,
    }
    const SET_MODE_FILTER: usize = 1;
    // Older kernels would have the processor guess less from here on.
    const SPEC_ALLOW: usize = 4;
    let filter = write(phase, company);
    let program = SockFprog { len: filter.len() as u16, at: filter.as_ptr() };
    let call = [SET_MODE_FILTER, SPEC_ALLOW, &raw const program as usize, 0, 0, 0];
    // SAFETY: the kernel reads the filter.
    creds::set_no_new_privs().is_ok() && unsafe { sys::syscall(g::__NR_seccomp, call) }.is_ok()
}

#[cfg(test)]
mod tests;
