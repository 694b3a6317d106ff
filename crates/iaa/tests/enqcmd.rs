//! ENQCMD and MOVDIR64B as this driver writes them, on CPUs that have neither: a handler of SIGILL (no such
//! instruction) and SIGSEGV (ENQCMD without an address space that is bound to a device) decodes the instruction, and
//! does what the CPU and a queue behind the portal would do.

#![cfg(target_arch = "x86_64")]

mod rig;
#[path = "../../zfolio/tests/skip/mod.rs"]
mod skip;

use base::sys::{self, consts};
use iaa::cpu::Features;
use iaa::descriptor::Descriptor;
use iaa::portal::Mapped;
use iaa::topology::Topology;
use iaa::{Driver, Portal, Reason, Spec};
use iaa_model::{DeviceConfig, Model};
use rig::*;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Once};

/// What the CPU writes into a descriptor: the process's address space.
const PASID: u32 = 0x1234;

/// What the queue took, in order, until there were so many; and where each was put.
const TAKEN_MAX: usize = 4096;
static TAKEN: [[AtomicU64; 8]; TAKEN_MAX] = [const { [const { AtomicU64::new(0) }; 8] }; TAKEN_MAX];
static PLACES: [AtomicUsize; TAKEN_MAX] = [const { AtomicUsize::new(0) }; TAKEN_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// How many the queue has room for.
static ROOM: AtomicUsize = AtomicUsize::new(0);
/// How many it refused.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// There is one queue: who uses it.
static QUEUE: Mutex<()> = Mutex::new(());

/// An instruction that puts 64 bytes into a portal.
#[derive(Debug, PartialEq)]
struct Put {
    /// ENQCMD, not MOVDIR64B.
    asks: bool,
    from: usize,
    to: usize,
    /// Of the instruction, in bytes.
    len: usize,
}

/// Decodes F2 [REX] 0F 38 F8 /r (ENQCMD) or 66 [REX] 0F 38 F8 /r (MOVDIR64B). `register` says what is in a register, by
/// its number, and `next` where the code is.
fn decode(code: &[u8; 16], next: usize, register: impl Fn(u8) -> usize) -> Option<Put> {
    let asks = match code[0] {
        0xf2 => true,
        0x66 => false,
        _ => return None,
    };
    let mut at = 1;
    let rex = if code[at] & 0xf0 == 0x40 { code[at] } else { 0 };
    at += usize::from(rex != 0);
    if code[at..at + 3] != [0x0f, 0x38, 0xf8] {
        return None;
    }
    at += 3;
    let bit = |shift: u8| (rex >> shift & 1) << 3;
    let (mode, reg, rm) = (code[at] >> 6, code[at] >> 3 & 7, code[at] & 7);
    at += 1;
    let is_relative = mode == 0 && rm == 5;
    let mut from = 0usize;
    let mut has_no_base = is_relative;
    if mode == 3 {
        return None;
    } else if rm == 4 {
        let (scale, index, base) = (code[at] >> 6, code[at] >> 3 & 7 | bit(1), code[at] & 7);
        at += 1;
        if index != 4 {
            from = register(index) << scale;
        }
        has_no_base = mode == 0 && base == 5;
        if !has_no_base {
            from = from.wrapping_add(register(base | bit(0)));
        }
    } else if !is_relative {
        from = register(rm | bit(0));
    }
    let displacement = match mode {
        1 => code[at] as i8 as i32,
        2 => i32::from_le_bytes(code[at..at + 4].try_into().ok()?),
        _ if has_no_base => i32::from_le_bytes(code[at..at + 4].try_into().ok()?),
        _ => 0,
    };
    at += match mode {
        1 => 1,
        2 => 4,
        _ if has_no_base => 4,
        _ => 0,
    };
    let origin = if is_relative { next + at } else { 0 };
    let from = from.wrapping_add(origin).wrapping_add_signed(displacement as isize);
    Some(Put { asks, from, to: register(reg | bit(2)), len: at })
}

/// What the CPU would do.
extern "C" fn emulate(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    /// Where the registers are, by their numbers in instructions.
    const ORDER: [i32; 16] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    const ZERO_FLAG: i64 = 1 << 6;
    // The others that ENQCMD clears: carry, parity, auxiliary, sign, overflow.
    const FLAGS: i64 = 1 | 1 << 2 | 1 << 4 | 1 << 7 | 1 << 11;
    // SAFETY: the kernel's, and this handler's alone.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as usize;
    let mut code = [0; 16];
    // Not by a plain look: the code may end here.
    let is_read = at != 0 && sys::peek(std::process::id(), at, &mut code).is_ok();
    let put = decode(&code, at, |n| registers[ORDER[n as usize] as usize] as usize).filter(|_| is_read);
    let Some(put) = put.filter(|put| put.to % 64 == 0) else {
        // Something else: as without this handler.
        // SAFETY: it says what is to be done with the next one, which comes at once.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    };
    let count = COUNT.load(SeqCst);
    let is_taken = ROOM.load(SeqCst) > 0 && count < TAKEN_MAX;
    if is_taken {
        // SAFETY: 64 bytes that the instruction would have read and written.
        unsafe {
            let mut words = (put.from as *const [u64; 8]).read_unaligned();
            if put.asks {
                words[0] = words[0] & !0xffff_ffff | u64::from(PASID);
            }
            (put.to as *mut [u64; 8]).write_volatile(words);
            TAKEN[count].iter().zip(words).for_each(|(to, word)| to.store(word, SeqCst));
        }
        PLACES[count].store(put.to, SeqCst);
        ROOM.fetch_sub(1, SeqCst);
        COUNT.store(count + 1, SeqCst);
    } else {
        REFUSED.fetch_add(1, SeqCst);
    }
    if put.asks {
        registers[libc::REG_EFL as usize] &= !(FLAGS | ZERO_FLAG);
        registers[libc::REG_EFL as usize] |= if is_taken { 0 } else { ZERO_FLAG };
    }
    registers[libc::REG_RIP as usize] += put.len as i64;
}

/// The queue, for the caller alone, with room for so many.
fn queue(room: usize) -> std::sync::MutexGuard<'static, ()> {
    static HANDLER: Once = Once::new();
    let guard = QUEUE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    HANDLER.call_once(|| {
        // SAFETY: zeros are an action; the handler touches its own statics and what the instruction names.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = emulate as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            for signal in [libc::SIGILL, libc::SIGSEGV] {
                assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
            }
        }
    });
    COUNT.store(0, SeqCst);
    REFUSED.store(0, SeqCst);
    ROOM.store(room, SeqCst);
    guard
}

/// What the queue took, from a number on.
fn taken(from: usize) -> Vec<Descriptor> {
    let read = |words: &[AtomicU64; 8]| {
        let words = words.each_ref().map(|word| word.load(SeqCst));
        // SAFETY: plain data of the same size.
        unsafe { std::mem::transmute::<[u64; 8], Descriptor>(words) }
    };
    TAKEN[from..COUNT.load(SeqCst)].iter().map(read).collect()
}

fn portal(dedicated: bool) -> Mapped {
    let file = sys::open(b"/dev/zero\0", consts::O_RDWR).unwrap();
    let features = Features { enqcmd: !dedicated, movdir64b: dedicated, waitpkg: false };
    Mapped::new(file, dedicated, features).ok().unwrap()
}

fn eight() -> [Descriptor; 8] {
    std::array::from_fn(|n| Descriptor {
        flags_opcode: 0x4300_0000,
        src: n as u64 + 1,
        inputs: !(n as u32),
        ..Default::default()
    })
}

#[test]
fn instructions_are_decoded_whatever_the_registers() {
    let register = |n: u8| 0x1000 * (n as usize + 1);
    let with = |bytes: &[u8]| {
        let mut code = [0x90; 16];
        code[..bytes.len()].copy_from_slice(bytes);
        decode(&code, 0x40_0000, register).map(|put| (put.asks, put.to, put.from, put.len))
    };
    // As an assembler writes them: enqcmd rax, [rcx]; r15, [r14]; rdx, [r12]; rdx, [r13]; rdx, [rip + 0x10];
    // rdi, [rsp + 0x100]; rax, [rbx + 4 * rsi - 64].
    for (bytes, to, from) in [
        (&[0xf2, 0x0f, 0x38, 0xf8, 0x01][..], 0x1000, 0x2000),
        (&[0xf2, 0x45, 0x0f, 0x38, 0xf8, 0x3e], 0x1_0000, 0xf000),
        (&[0xf2, 0x41, 0x0f, 0x38, 0xf8, 0x14, 0x24], 0x3000, 0xd000),
        (&[0xf2, 0x41, 0x0f, 0x38, 0xf8, 0x55, 0x00], 0x3000, 0xe000),
        (&[0xf2, 0x0f, 0x38, 0xf8, 0x15, 0x10, 0, 0, 0], 0x3000, 0x40_0019),
        (&[0xf2, 0x0f, 0x38, 0xf8, 0xbc, 0x24, 0, 1, 0, 0], 0x8000, 0x5100),
        (&[0xf2, 0x0f, 0x38, 0xf8, 0x44, 0xb3, 0xc0], 0x1000, 0x4000 + 4 * 0x7000 - 64),
    ] {
        assert_eq!(with(bytes), Some((true, to, from, bytes.len())), "{bytes:02x?}");
    }
    assert_eq!(with(&[0x66, 0x0f, 0x38, 0xf8, 0x01]), Some((false, 0x1000, 0x2000, 5)));
    // crc32, a register where memory must be, and any other.
    for bytes in [&[0xf2, 0x0f, 0x38, 0xf1, 0x01][..], &[0xf2, 0x0f, 0x38, 0xf8, 0xc1], &[0x0f, 0x0b]] {
        assert_eq!(with(bytes), None, "{bytes:02x?}");
    }
}

#[test]
fn a_shared_queue_says_itself_when_it_is_full() {
    let _queue = queue(5);
    let (portal, eight) = (portal(false), eight());
    // SAFETY: no device is behind it.
    let submit = |descriptors: &[Descriptor]| unsafe { portal.submit(descriptors) };
    assert_eq!(submit(&eight), Ok(5));
    // It stops there: what comes after a refused one might find room, and would be taken for the one before.
    assert_eq!((COUNT.load(SeqCst), REFUSED.load(SeqCst)), (5, 1));
    assert_eq!(submit(&eight[5..]), Ok(0));
    assert_eq!((COUNT.load(SeqCst), REFUSED.load(SeqCst)), (5, 2));
    ROOM.store(100, SeqCst);
    assert_eq!((submit(&eight[5..]), submit(&[])), (Ok(3), Ok(0)));
    let expected = eight.map(|descriptor| Descriptor { pasid_privilege: PASID, ..descriptor });
    assert_eq!(taken(0), expected);
    // Each goes to another 64 bytes of the page than the one before, tried or taken, and none beside it.
    let places: Vec<usize> = PLACES[..8].iter().map(|place| place.load(SeqCst)).collect();
    let page = places[0] & !4095;
    let expected: Vec<usize> = [0, 1, 2, 3, 4, 7, 8, 9].map(|n| page + 64 * n).to_vec();
    assert_eq!(places, expected);
    for _ in 0..10 {
        ROOM.store(100, SeqCst);
        assert_eq!(submit(&eight), Ok(8));
    }
    let inside = |place: &AtomicUsize| (page..page + 4096).contains(&place.load(SeqCst));
    assert!(PLACES[..88].iter().all(inside));
    assert_eq!(PLACES[62].load(SeqCst), page, "64 times 64 bytes later it is the same place again");
}

/// True where the CPU does MOVDIR64B itself, also where a hypervisor hides that it has it.
fn has_movdir64b() -> bool {
    #[repr(align(64))]
    struct Target(Descriptor);
    let (source, mut target) = (eight()[0], Target(Descriptor::default()));
    // SAFETY: 64 bytes of this function's; where there is no such instruction the handler takes the source's.
    unsafe { iaa::cpu::movdir64b((&raw mut target.0).cast(), &source) };
    target.0 == source
}

#[test]
fn a_dedicated_queue_says_nothing() {
    let tried = queue(5);
    if has_movdir64b() {
        skip::lacks("this CPU has MOVDIR64B, said or not; see portal.rs");
        return;
    }
    drop(tried);
    let _queue = queue(5);
    let (portal, eight) = (portal(true), eight());
    // SAFETY: no device is behind it.
    assert_eq!(unsafe { portal.submit(&eight) }, Ok(8), "the driver counts");
    assert_eq!((taken(0), REFUSED.load(SeqCst)), (eight[..5].to_vec(), 3));
}

/// Ends the thread, also where an assertion fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Whole batches by ENQCMD: a thread takes out of the queue what the instruction has put in, and gives it to the model
/// of the device.
#[test]
fn batches_go_through_the_instruction() {
    let _queue = queue(6);
    let model = Model::new([DeviceConfig::default()]);
    let (spec, behind): (Spec, Box<dyn Portal>) = model.queues().remove(0);
    let driver = Arc::new(Driver::new(patient(), Topology::default()));
    assert!(driver.add(Spec { size: 6, ..spec }, Box::new(portal(false))));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = 0;
            // Not before there was no room: the first batch has more units than the queue.
            while REFUSED.load(SeqCst) == 0 && !is_over.load(SeqCst) {
                std::thread::yield_now();
            }
            while !is_over.load(SeqCst) {
                for mut descriptor in taken(done) {
                    assert_eq!(std::mem::take(&mut descriptor.pasid_privilege), PASID);
                    // SAFETY: the driver's, who waits for its record.
                    while unsafe { behind.submit(&[descriptor]) } == Ok(0) {}
                    done += 1;
                    ROOM.fetch_add(1, SeqCst);
                }
                std::thread::yield_now();
            }
        });
        let _end = End(&is_over);
        let mut context = context(&driver, 16, 4096);
        let mut random = Random(4);
        for round in 0..20 {
            let count = if round == 0 { 16 } else { 1 + random.below(24) };
            let units: Vec<_> = (0..count).map(|_| random.unit(4096)).collect();
            round_trip(&mut context, &units);
        }
    });
    let stats = driver.stats();
    assert!(stats.total().comp_calls > 100 && stats.total().refused > 0, "{stats:?}");
    assert!(stats.total().refused >= REFUSED.load(SeqCst) as u64, "{stats:?}");
    assert_eq!(only(&driver, Reason::Full), stats.calls().sw_comp_calls + stats.calls().sw_decomp_calls);
}
