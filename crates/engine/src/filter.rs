//! Which system calls engine and workers can make: their own, and no other. Whatever is in the program can write to the
//! engine's memory, and a program that has put itself into a cage (seccomp, chroot, namespaces) would leave it by
//! having the engine make a call for it.
//!
//! ```text
//!   engine: Born ──> asleep ──> (Bound, when the program gives something up) ──> awakes, makes workers ──> Manages
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
pub enum Stage {
    /// An engine that sleeps, and may awake.
    Born,
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
    // A new log for its family (heritage.rs).
    g::__NR_memfd_create,
    g::__NR_ftruncate,
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

fn write(stage: Stage, company: Company) -> Vec<Instruction> {
    let Company { program, engine, doors } = company;
    let mut filter = Writer::new();
    filter.allow(ALL);
    // Its own limits.
    filter.allow_where(g::__NR_prlimit64, 0, [0]);
    if stage != Stage::Works {
        filter.allow(ENGINES);
    }
    if stage != Stage::Manages {
        filter.allow_where(g::__NR_process_vm_readv, 0, [engine]);
        filter.allow_where(g::__NR_process_vm_writev, 0, [engine]);
    }
    match stage {
        Stage::Born | Stage::Bound => {
            filter.allow(TO_AWAKE);
            filter.allow_where(g::__NR_clone, 0, CLONES.iter().copied().chain([HELPER]));
        }
        Stage::Manages => {
            let options = creds::PRCTL_OPTIONS.into_iter().chain(ENGINES_OPTIONS);
            filter.allow_where(g::__NR_prctl, 0, options);
            filter.allow_where(g::__NR_kill, 0, [program]);
            filter.allow_where(g::__NR_clone, 0, [HELPER]);
        }
        Stage::Works => {
            filter.allow_where(g::__NR_prctl, 0, creds::PRCTL_OPTIONS);
            filter.allow_where(g::__NR_kill, 0, [program, engine]);
        }
    }
    match (stage, doors) {
        (Stage::Born, _) => {
            filter.allow(TO_OPEN);
            filter.allow(TO_ASK);
            filter.allow_where(g::__NR_socket, 0, [uffd::socket::FAMILY]);
        }
        (Stage::Works, Some(doors)) => filter.allow_opening(doors),
        _ => filter.allow_where(g::__NR_openat, 2, READS.iter().copied()),
    }
    filter.finish()
}

/// From now on the calling process makes its own calls only. False where the kernel refuses that.
pub fn enter(stage: Stage, company: Company) -> bool {
    /// `struct sock_fprog`.
    #[repr(C)]
    struct Program {
        len: u16,
        at: *const Instruction,
    }
    const SET_MODE_FILTER: usize = 1;
    // Older kernels would have the processor guess less from here on.
    const SPEC_ALLOW: usize = 4;
    let filter = write(stage, company);
    let program = Program { len: filter.len() as u16, at: filter.as_ptr() };
    let call = [SET_MODE_FILTER, SPEC_ALLOW, &raw const program as usize, 0, 0, 0];
    // SAFETY: the kernel reads the filter.
    creds::set_no_new_privs().is_ok() && unsafe { sys::syscall(g::__NR_seccomp, call) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use interpose::aside;
    use uffd::Errno;
    use uffd::sys::CpuSet;

    const COMPANY: Company = Company { program: 100, engine: 200, doors: None };

    /// What the kernel would say of a call.
    fn verdict(filter: &[Instruction], architecture: u32, number: u32, arguments: [u64; 3]) -> u32 {
        let (mut at, mut word) = (0, 0);
        loop {
            let Instruction { code, if_true, if_false, operand } = filter[at];
            at += 1;
            match code {
                code::LOAD => {
                    word = match operand {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        half if half % 8 != 0 => (arguments[(half - ARGUMENTS) as usize / 8] >> 32) as u32,
                        argument => arguments[(argument - ARGUMENTS) as usize / 8] as u32,
                    }
                }
                code::AND => word &= operand,
                code::EQUAL => at += if word == operand { if_true } else { if_false } as usize,
                _ => return operand,
            }
        }
    }

    #[test]
    fn each_makes_its_own_calls_and_no_other() {
        use Stage::*;
        let writes = [0, 0, O_RDWR | O_CLOEXEC];
        let reads = [0, 0, O_RDONLY | O_CLOEXEC];
        let threads = [0x3d_0f00, 0, 0];
        for (number, arguments, allowed) in [
            (g::__NR_pread64, [0; 3], &[Born, Bound, Manages, Works][..]),
            (g::__NR_exit, [0; 3], &[Born, Bound, Manages, Works]),
            // Which of a device's queues is a CPU's.
            (g::__NR_getcpu, [0; 3], &[Born, Bound, Manages, Works]),
            (g::__NR_setresuid, [1; 3], &[Born, Bound, Manages, Works]),
            (g::__NR_openat, reads, &[Born, Bound, Manages, Works]),
            (g::__NR_openat, writes, &[Born]),
            (g::__NR_mseal, [0; 3], &[Born, Bound]),
            // To ask `zfolio run`, by a Unix socket.
            (g::__NR_socket, [1, 0, 0], &[Born]),
            (g::__NR_socket, [2, 0, 0], &[]),
            (g::__NR_connect, [0; 3], &[Born]),
            (g::__NR_sendmsg, [0; 3], &[]),
            (g::__NR_ioctl, [0; 3], &[Born, Bound, Manages]),
            (g::__NR_process_vm_readv, [200, 0, 0], &[Born, Bound, Works]),
            (g::__NR_process_vm_readv, [201, 0, 0], &[]),
            (g::__NR_clone, [CLONES[0], 0, 0], &[Born, Bound]),
            (g::__NR_clone, threads, &[]),
            (g::__NR_kill, [100, 9, 0], &[Born, Bound, Manages, Works]),
            (g::__NR_kill, [200, 9, 0], &[Born, Bound, Works]),
            (g::__NR_kill, [300, 9, 0], &[Born, Bound]),
            (g::__NR_prctl, [PR_SET_THP_DISABLE, 1, 0], &[Born, Bound, Manages]),
            (g::__NR_prctl, [22, 1, 0], &[Born, Bound]),
            (g::__NR_execve, [0; 3], &[]),
            (g::__NR_socket, [0; 3], &[]),
            (g::__NR_ptrace, [0; 3], &[]),
            (g::__NR_io_uring_setup, [0; 3], &[]),
            // As x32 programs make it.
            (g::__NR_read | 0x4000_0000, [0; 3], &[]),
        ] {
            for stage in [Born, Bound, Manages, Works] {
                let filter = write(stage, COMPANY);
                let expected = if allowed.contains(&stage) { ALLOW } else { REFUSE };
                assert_eq!(
                    verdict(&filter, X86_64, number, arguments.map(u64::from)),
                    expected,
                    "{stage:?} {number} {arguments:?}"
                );
                assert_eq!(verdict(&filter, X86_64 ^ 1, number, arguments.map(u64::from)), KILL);
            }
        }
    }

    /// A worker opens a device's files by the names that are sealed, and by no other address.
    #[test]
    fn only_a_devices_files_are_opened_to_write() {
        const DOORS: usize = 0x7f12_3456_7000;
        const WRITES: u32 = O_RDWR | O_CLOEXEC;
        let (from, step) = (DOORS as u64, STEP_BYTES as u64);
        let with_doors = Company { doors: Some(DOORS), ..COMPANY };
        for (path, flags, allowed) in [
            (from, WRITES, true),
            (from + step, WRITES, true),
            (from + BYTES as u64 - step, WRITES, true),
            // Not where a name begins.
            (from + 1, WRITES, false),
            (from + step / 2, WRITES, false),
            (from + BYTES as u64 - 1, WRITES, false),
            // Beside the page, and with other upper halves.
            (from - step, WRITES, false),
            (from + BYTES as u64, WRITES, false),
            (from ^ 1 << 32, WRITES, false),
            (from & 0xffff_ffff, WRITES, false),
            (from | 1 << 63, WRITES, false),
            (0, WRITES, false),
            // With other flags.
            (from, O_RDWR, false),
            (from, WRITES | 0o100, false),
            (from, WRITES | 0o1000, false),
            (from, 1 | O_CLOEXEC, false),
            (from, O_RDONLY | O_CLOEXEC, true),
            (0, O_RDONLY | O_CLOEXEC, true),
            (0, O_RDONLY | O_DIRECTORY | O_CLOEXEC, true),
        ] {
            let expected = |allowed| if allowed { ALLOW } else { REFUSE };
            let arguments = [u64::from(u32::MAX), path, flags.into()];
            let filter = write(Stage::Works, with_doors);
            let said = verdict(&filter, X86_64, g::__NR_openat, arguments);
            assert_eq!(said, expected(allowed), "{path:x} {flags:o}");
            // What comes behind it in the filter is reached.
            assert_eq!(verdict(&filter, X86_64, g::__NR_execve, [0; 3]), REFUSE);
            assert_eq!(verdict(&filter, X86_64, g::__NR_close, arguments), ALLOW);
            for stage in [Stage::Bound, Stage::Manages] {
                let said = verdict(&write(stage, with_doors), X86_64, g::__NR_openat, arguments);
                assert_eq!(said, expected(flags & O_RDWR == 0 && flags & 1 == 0), "{stage:?} {flags:o}");
            }
        }
    }

    /// The same by the kernel: a file that its name in the page opens, and that no copy of the name opens; nor can the
    /// page be changed.
    #[test]
    fn the_kernel_takes_a_filter_with_doors() {
        extern "C" fn attempt(at: usize) -> ! {
            // SAFETY: the test waits for the end of this process.
            let (doors, said) = unsafe { &mut *(at as *mut (usize, [bool; 7])) };
            let company = Company { program: 1, engine: 1, doors: Some(*doors) };
            let opens = |path: usize| {
                let call = [usize::MAX, path, (O_RDWR | O_CLOEXEC) as usize, 0, 0, 0];
                // SAFETY: the kernel reads the path, or says that it is not there.
                unsafe { sys::syscall(g::__NR_openat, call) }
            };
            let copy = *b"/dev/null\0";
            let copied = copy.as_ptr() as usize;
            said[0] = opens(copied).is_ok() && enter(Stage::Works, company);
            said[1] = opens(*doors).is_ok();
            said[2] = opens(copied) == Err(Errno::EPERM);
            said[3] = opens(*doors + 1) == Err(Errno::EPERM);
            // A name that is not there opens nothing.
            said[4] = opens(*doors + STEP_BYTES) == Err(Errno::ENOENT);
            // SAFETY: refused.
            said[5] = unsafe { sys::mprotect(*doors, BYTES, PROT_READ | PROT_WRITE) } == Err(Errno::EPERM);
            // SAFETY: refused.
            said[6] = unsafe { sys::munmap(*doors, BYTES) } == Err(Errno::EPERM);
            sys::exit(0)
        }
        // A device with one queue, as far as it takes to find it.
        let root = format!("/tmp/f{}", std::process::id());
        std::fs::create_dir_all(format!("{root}/sys/bus/dsa/devices/iax1/wq1.0")).unwrap();
        std::fs::create_dir_all(format!("{root}/dev/iax")).unwrap();
        std::fs::write(format!("{root}/dev/iax/wq1.0"), "").unwrap();
        let Some(doors) = acomp::doors::seal(&root) else {
            println!("skipped: this kernel does not seal");
            return;
        };
        let mut told = (doors, [false; 7]);
        // SAFETY: as above.
        unsafe { aside::aside(attempt, &raw mut told as usize) }.unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(told.1, [true; 7]);
    }

    /// What the kernel makes of it, one filter after the other.
    #[test]
    fn the_kernel_takes_the_filters() {
        extern "C" fn attempt(result: usize) -> ! {
            let company = Company { program: 1, engine: sys::getpid().unwrap_or(0) as u32, doors: None };
            let opens = |flags| sys::open(b"/dev/null\0", flags).is_ok();
            let mut said = [false; 6];
            said[0] = enter(Stage::Born, company);
            said[1] = opens(O_RDWR);
            said[2] = enter(Stage::Bound, company);
            said[3] = opens(O_RDONLY) && !opens(O_RDWR);
            said[4] = enter(Stage::Manages, company);
            said[5] = !enter(Stage::Works, company) && opens(O_RDONLY);
            // SAFETY: the test waits for the end of this process.
            unsafe { *(result as *mut [bool; 6]) = said };
            sys::exit(0)
        }
        let mut said = [false; 6];
        // SAFETY: `attempt` makes system calls, and uses the heap of this crate's arena or, in tests, std's, which it
        // does not leave locked.
        unsafe { aside::aside(attempt, &raw mut said as usize) }.unwrap();
        assert_eq!(said, [true; 6]);
    }

    /// A worker that may ask for its CPU alone has one; refused, it would be taken for being on the first.
    #[test]
    fn a_worker_learns_on_which_cpu_it_is() {
        extern "C" fn attempt(result: usize) -> ! {
            let company = Company { program: 1, engine: sys::getpid().unwrap_or(0) as u32, doors: None };
            let is_in = enter(Stage::Born, company) && enter(Stage::Works, company);
            // SAFETY: the test waits for the end of this process.
            unsafe { *(result as *mut (bool, usize)) = (is_in, iaa::cpu::current()) };
            sys::exit(0)
        }
        let all = CpuSet::of_this_thread();
        let Some(last) = (1..1024).rev().find(|&cpu| all.contains(cpu)) else {
            println!("skipped: there is one CPU");
            return;
        };
        sys::sched_setaffinity(0, &CpuSet::only(last)).unwrap();
        let mut said = (false, 0);
        // SAFETY: as above.
        unsafe { aside::aside(attempt, &raw mut said as usize) }.unwrap();
        sys::sched_setaffinity(0, &all).unwrap();
        assert_eq!(said, (true, last));
    }
}
