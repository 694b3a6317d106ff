//! Tests of the filters.

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
    use Phase::*;
    let writes = [0, 0, O_RDWR | O_CLOEXEC];
    let reads = [0, 0, O_RDONLY | O_CLOEXEC];
    let threads = [0x3d_0f00, 0, 0];
    for (number, arguments, allowed) in [
        (g::__NR_pread64, [0; 3], &[Asleep, Bound, Manages, Works][..]),
        (g::__NR_exit, [0; 3], &[Asleep, Bound, Manages, Works]),
        // Which of a device's queues is a CPU's.
        (g::__NR_getcpu, [0; 3], &[Asleep, Bound, Manages, Works]),
        (g::__NR_setresuid, [1; 3], &[Asleep, Bound, Manages, Works]),
        (g::__NR_openat, reads, &[Asleep, Bound, Manages, Works]),
        (g::__NR_openat, writes, &[Asleep]),
        (g::__NR_mseal, [0; 3], &[Asleep, Bound]),
        // To ask `zfolio run`, by a Unix socket.
        (g::__NR_socket, [1, 0, 0], &[Asleep]),
        (g::__NR_socket, [2, 0, 0], &[]),
        (g::__NR_connect, [0; 3], &[Asleep]),
        (g::__NR_sendmsg, [0; 3], &[]),
        (g::__NR_ioctl, [0; 3], &[Asleep, Bound, Manages]),
        (g::__NR_process_vm_readv, [200, 0, 0], &[Asleep, Bound, Works]),
        (g::__NR_process_vm_readv, [201, 0, 0], &[]),
        (g::__NR_clone, [CLONES[0], 0, 0], &[Asleep, Bound]),
        (g::__NR_clone, threads, &[]),
        (g::__NR_kill, [100, 9, 0], &[Asleep, Bound, Manages, Works]),
        (g::__NR_kill, [200, 9, 0], &[Asleep, Bound, Works]),
        (g::__NR_kill, [300, 9, 0], &[Asleep, Bound]),
        (g::__NR_prctl, [PR_SET_THP_DISABLE, 1, 0], &[Asleep, Bound, Manages]),
        (g::__NR_prctl, [22, 1, 0], &[Asleep, Bound]),
        (g::__NR_execve, [0; 3], &[]),
        (g::__NR_socket, [0; 3], &[]),
        (g::__NR_ptrace, [0; 3], &[]),
        // For swap areas: made as it awakes, used for as long as it works.
        (g::__NR_io_uring_setup, [0; 3], &[Asleep, Bound]),
        (g::__NR_io_uring_register, [0; 3], &[Asleep, Bound]),
        (g::__NR_io_uring_enter, [0; 3], &[Asleep, Bound, Manages]),
        // As x32 programs make it.
        (g::__NR_read | 0x4000_0000, [0; 3], &[]),
    ] {
        for phase in [Asleep, Bound, Manages, Works] {
            let filter = write(phase, COMPANY);
            let expected = if allowed.contains(&phase) { ALLOW } else { REFUSE };
            assert_eq!(
                verdict(&filter, X86_64, number, arguments.map(u64::from)),
                expected,
                "{phase:?} {number} {arguments:?}"
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
        let filter = write(Phase::Works, with_doors);
        let said = verdict(&filter, X86_64, g::__NR_openat, arguments);
        assert_eq!(said, expected(allowed), "{path:x} {flags:o}");
        // What comes behind it in the filter is reached.
        assert_eq!(verdict(&filter, X86_64, g::__NR_execve, [0; 3]), REFUSE);
        assert_eq!(verdict(&filter, X86_64, g::__NR_close, arguments), ALLOW);
        for phase in [Phase::Bound, Phase::Manages] {
            let said = verdict(&write(phase, with_doors), X86_64, g::__NR_openat, arguments);
            assert_eq!(said, expected(flags & O_RDWR == 0 && flags & 1 == 0), "{phase:?} {flags:o}");
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
        said[0] = opens(copied).is_ok() && enter(Phase::Works, company);
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
        crate::skip::lacks("this kernel does not seal");
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
        said[0] = enter(Phase::Asleep, company);
        said[1] = opens(O_RDWR);
        said[2] = enter(Phase::Bound, company);
        said[3] = opens(O_RDONLY) && !opens(O_RDWR);
        said[4] = enter(Phase::Manages, company);
        said[5] = !enter(Phase::Works, company) && opens(O_RDONLY);
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
        let is_in = enter(Phase::Asleep, company) && enter(Phase::Works, company);
        // SAFETY: the test waits for the end of this process.
        unsafe { *(result as *mut (bool, usize)) = (is_in, iaa::cpu::current()) };
        sys::exit(0)
    }
    let all = CpuSet::of_this_thread();
    let Some(last) = (1..1024).rev().find(|&cpu| all.contains(cpu)) else {
        crate::skip::lacks("there is one CPU");
        return;
    };
    sys::sched_setaffinity(0, &CpuSet::only(last)).unwrap();
    let mut said = (false, 0);
    // SAFETY: as above.
    unsafe { aside::aside(attempt, &raw mut said as usize) }.unwrap();
    sys::sched_setaffinity(0, &all).unwrap();
    assert_eq!(said, (true, last));
}
