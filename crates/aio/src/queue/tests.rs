use super::model::{BUFFERED, Buffer, DIRECT, Model, Scratch, own};
use super::*;
use crate::ring::{Ring, Room, SETUPS};
use crate::skip;
use base::PAGE;
use base::sys::consts::{MADV_DONTFORK, MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

impl Queue {
    pub(super) fn is_ring(&self) -> bool {
        matches!(self.executor, Executor::Ring(_))
    }

    /// Reaps the next result, however long it takes.
    fn next_result(&mut self) -> (u64, Result<usize, Errno>) {
        loop {
            if let Some(reaped) = self.reap() {
                return reaped;
            }
            assert!(self.unreaped() > 0, "nothing is to come");
            self.wait().unwrap();
        }
    }
}

/// Memory for a ring of so many entries. It stays.
fn room(entries: u32) -> Room {
    let (prot, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    let at = sys::mmap(Room::bytes(entries), prot, flags, None).unwrap();
    sys::madvise_keep(at, Room::bytes(entries), MADV_DONTFORK).unwrap();
    // SAFETY: mapped for this, and for ever.
    unsafe { Room::new(at) }
}

/// Queues on io_uring, one for each way of opening it that this kernel knows, and one in memory of its user's; none
/// where it is refused.
fn rings(entries: u32, bell: Option<&Fd>) -> Vec<Queue> {
    let open = |(setup, room): (u32, Option<Room>)| match Ring::open_as(entries, bell, None, room, setup) {
        Ok(ring) => Some(Queue::new(entries, Executor::Ring(ring))),
        Err(Errno::EINVAL) => {
            skip::lacks(&format!("this kernel has no io_uring with flags {setup:#x}"));
            None
        }
        Err(errno @ (Errno::EPERM | Errno::EACCES | Errno::ENOSYS)) => {
            skip::skip(&format!("io_uring is refused, {errno}: the queue on it was not tested"));
            None
        }
        Err(errno) => panic!("{errno}"),
    };
    let apart = SETUPS.iter().map(|&setup| (setup, None));
    apart.chain([(SETUPS[0], Some(room(entries)))]).filter_map(open).collect()
}

/// What it does there the model says, as of any other.
#[test]
fn a_ring_in_memory_of_its_user_s_maps_nothing() {
    if rings(1, None).is_empty() {
        return;
    }
    let file = sys::memfd(c"file").unwrap();
    for entries in [1, 2, 7, 32, 500, 4096] {
        let queue = Queue::open_keeping(entries, None, &file, Some(room(entries))).unwrap();
        let Executor::Ring(ring) = &queue.executor else { panic!("{queue:?}") };
        assert!(ring.is_in_room(), "{entries}");
    }
}

/// These, and the one without io_uring.
fn queues(entries: u32) -> Vec<Queue> {
    let mut queues = rings(entries, None);
    queues.push(Queue::open_blocking(entries));
    queues
}

#[test]
fn requests_by_chance_do_what_the_model_does() {
    for seed in 1..=12 {
        for flags in [BUFFERED, DIRECT] {
            let entries = [1, 2, 7, 32][seed as usize % 4];
            for queue in queues(entries) {
                let what = format!("seed {seed}, flags {flags:#o}, {queue:?}");
                let mut model = Model::new(queue, entries as usize, flags, 256, seed);
                for step in 0..600 {
                    model.step().unwrap_or_else(|wrong| panic!("{what}, step {step}: {wrong}"));
                }
                model.end().unwrap_or_else(|wrong| panic!("{what}, at the end: {wrong}"));
            }
        }
    }
}

#[test]
fn a_file_that_ends_before_is_eio() {
    // With O_DIRECT the last part is one that cannot be asked for.
    for flags in [BUFFERED, DIRECT] {
        let file = Scratch::new(&[7; 3 * PAGE + 1000], flags);
        for mut queue in queues(4) {
            let mut buffers: Vec<Buffer> = (0..4).map(|_| Buffer::new(2)).collect();
            for (token, at) in [0, 2, 3, 4].into_iter().enumerate() {
                let (at, to) = ((at * PAGE) as u64, buffers[token].address());
                // SAFETY: buffers and file stay until all is reaped.
                unsafe { queue.read(token as u64, &file.fd, at, to, 2 * PAGE) }.unwrap();
            }
            let mut results = [Ok(0); 4];
            for _ in 0..4 {
                let (token, result) = queue.next_result();
                results[token as usize] = result;
            }
            let eio = Err(Errno::EIO);
            assert_eq!(results, [Ok(2 * PAGE), eio, eio, eio], "flags {flags:#o}, {queue:?}");
            assert_eq!(buffers[0].bytes(), [7; 2 * PAGE], "{queue:?}");
        }
    }
}

#[test]
fn errors_are_those_of_pread_and_pwrite() {
    let file = Scratch::new(&[1; 2 * PAGE], BUFFERED);
    let read_only = own(file.beside.try_clone().unwrap());
    for mut queue in queues(8) {
        let mut buffer = Buffer::new(1);
        let to = buffer.address();
        // SAFETY: buffer and files stay until all is reaped; what succeeds takes no byte.
        unsafe {
            queue.read(1, &file.write_only, 0, to, PAGE).unwrap();
            queue.write(2, &read_only, 0, to, PAGE).unwrap();
            queue.read(3, &file.fd, u64::MAX, to, 1).unwrap();
            queue.read(4, &file.fd, i64::MAX as u64, to, PAGE).unwrap();
            queue.read(5, &file.fd, 0, 64 as *mut u8, PAGE).unwrap();
            queue.write(6, &file.fd, 5, to, 0).unwrap();
        }
        assert_eq!(queue.unreaped(), 6);
        let mut results: Vec<_> = (0..6).map(|_| queue.next_result()).collect();
        results.sort_by_key(|(token, _)| *token);
        let expected =
            [Errno::EBADF, Errno::EBADF, Errno::EINVAL, Errno::EINVAL, Errno::EFAULT].map(Err::<usize, _>);
        let told: Vec<_> = results.iter().map(|(_, result)| *result).collect();
        assert_eq!((&told[..5], told[5], queue.reap()), (&expected[..], Ok(0), None), "{queue:?}");
        assert_eq!(buffer.bytes(), [0xa5; PAGE], "{queue:?}");
        queue.check().unwrap();
    }
}

#[test]
fn the_bell_rings_for_what_is_complete_and_not_before() {
    let bell = sys::eventfd().unwrap();
    for mut queue in rings(4, Some(&bell)) {
        // It may have rung for what was reaped before.
        let _ = sys::read(&bell, &mut [0; 8]);
        let (from, mut into) = std::io::pipe().unwrap();
        let (from, mut buffer) = (own(from), Buffer::new(1));
        // SAFETY: buffer and pipe stay until all is reaped.
        unsafe { queue.read(9, &from, 0, buffer.address(), 3) }.unwrap();
        queue.submit();
        assert_eq!((queue.reap(), queue.under_way()), (None, 1));
        assert_eq!(sys::poll([&bell], 0), Ok([false]), "{queue:?}");
        // Two bytes of three ring too, and the rest is asked for by `reap`.
        for (bytes, expected) in [(&b"ab"[..], None), (b"c", Some((9, Ok(3))))] {
            into.write_all(bytes).unwrap();
            let mut reaped = None;
            while reaped.is_none() && (expected.is_some() || queue.requests[0].as_ref().unwrap().done < 2) {
                while sys::poll([&bell], 10_000_000_000) != Ok([true]) {}
                assert_eq!(sys::read(&bell, &mut [0; 8]), Ok(8));
                reaped = queue.reap();
            }
            assert_eq!(reaped, expected, "{queue:?}");
        }
        assert_eq!((&buffer.bytes()[..4], queue.unreaped()), (&b"abc\xa5"[..], 0));
    }
}

/// The kernel's late flag had `reap` call for results that nobody had, without an end.
#[test]
fn a_flag_that_comes_after_its_result_is_no_result() {
    let file = Scratch::new(&[1; PAGE], BUFFERED);
    for mut queue in rings(4, None) {
        let Executor::Ring(ring) = &queue.executor else { continue };
        ring.say_unposted();
        assert_eq!(queue.reap(), None, "{queue:?}");
        let buffer = Buffer::new(1);
        // SAFETY: buffer and file stay until all is reaped.
        unsafe { queue.read(1, &file.fd, 0, buffer.address(), PAGE) }.unwrap();
        assert_eq!(queue.next_result(), (1, Ok(PAGE)), "{queue:?}");
    }
}

#[test]
fn a_full_queue_says_so_and_writes_wait_while_reads_have_the_places() {
    let file = Scratch::new(&[1; PAGE], BUFFERED);
    for mut queue in rings(4, None) {
        let (from, mut into) = std::io::pipe().unwrap();
        let (from, buffers) = (own(from), Buffer::new(8));
        // SAFETY: inside the buffer; it, the file and the pipe stay until all is reaped.
        let at = |n: usize| unsafe { buffers.address().add(n * PAGE) };
        for token in 0..4 {
            // SAFETY: as above.
            let (write, read) = unsafe {
                let write = queue.write(10 + token, &file.fd, token * 8, at(4 + token as usize), 8);
                (write, queue.read(token, &from, 0, at(token as usize), 8))
            };
            assert_eq!((write, read), (Ok(()), Ok(())));
        }
        // SAFETY: as above.
        let (write, read) =
            unsafe { (queue.write(20, &file.fd, 0, at(4), 8), queue.read(20, &from, 0, at(0), 8)) };
        assert_eq!((write, read), (Err(Full), Err(Full)));
        queue.submit();
        assert_eq!((queue.reads.with_kernel, queue.writes.with_kernel), (4, 0), "{queue:?}");
        assert_eq!((queue.reap(), file.bytes()), (None, vec![1; PAGE]));
        // A read ends, and writes go one after the other through its place.
        into.write_all(&[3; 8]).unwrap();
        let (token, result) = queue.next_result();
        assert!(token < 4 && result == Ok(8), "{token} {result:?}");
        let mut written: Vec<u64> = (0..4).map(|_| queue.next_result().0).collect();
        written.sort();
        assert_eq!(written, [10, 11, 12, 13]);
        assert_eq!(file.bytes()[..33], [[0xa5; 32].as_slice(), &[1]].concat());
        into.write_all(&[3; 24]).unwrap();
        (0..3).for_each(|_| assert_eq!(queue.next_result().1, Ok(8)));
        assert_eq!((queue.unreaped(), queue.check()), (0, Ok(())));
        file.beside.sync_all().unwrap();
        sys::ftruncate(&file.fd, 0).unwrap();
        // SAFETY: the bytes are there until the call is back, and the file is one of data.
        unsafe { sys::pwrite(&file.fd, &[1; PAGE], 0) }.unwrap();
    }
}

#[test]
fn writes_that_hang_leave_places_to_reads() {
    let file = Scratch::new(&[1; PAGE], BUFFERED);
    for mut queue in rings(4, None) {
        let (mut from, mut into) = std::io::pipe().unwrap();
        const F_GETPIPE_SZ: usize = 1032;
        // SAFETY: the kernel answers by its result.
        let capacity =
            unsafe { sys::syscall(g::__NR_fcntl, [into.as_raw_fd() as usize, F_GETPIPE_SZ, 0, 0, 0, 0]) }
                .unwrap();
        into.write_all(&vec![0; capacity]).unwrap();
        let into = own(into);
        let (mut buffer, written) = (Buffer::new(1), Buffer::new(1));
        for token in 0..4 {
            // SAFETY: buffers, pipe and file stay until all is reaped.
            unsafe { queue.write(token, &into, 0, written.address(), PAGE) }.unwrap();
        }
        queue.submit();
        assert_eq!((queue.writes.with_kernel, queue.writes.waiting.len()), (2, 2), "{queue:?}");
        // SAFETY: as above.
        unsafe { queue.read(9, &file.fd, 0, buffer.address(), PAGE) }.unwrap();
        assert_eq!(queue.next_result(), (9, Ok(PAGE)), "{queue:?}");
        assert_eq!(buffer.bytes(), [1; PAGE]);
        from.read_exact(&mut vec![0; capacity]).unwrap();
        (0..4).for_each(|_| assert_eq!(queue.next_result().1, Ok(PAGE), "{queue:?}"));
    }
}

#[test]
fn a_drop_waits_for_what_is_under_way_and_forgets_what_is_not() {
    let file = Scratch::new(&[1; PAGE], BUFFERED);
    for mut queue in rings(2, None) {
        let what = format!("{queue:?}");
        let (from, mut into) = std::io::pipe().unwrap();
        let (from, mut buffer) = (own(from), Buffer::new(2));
        // SAFETY: inside the buffer.
        let second = unsafe { buffer.address().add(PAGE) };
        // SAFETY: buffer, file and pipe stay until the queue is dropped.
        unsafe {
            queue.read(1, &from, 0, buffer.address(), 8).unwrap();
            queue.read(2, &from, 0, second, 8).unwrap();
            queue.submit();
            queue.write(3, &file.fd, 0, second, PAGE).unwrap();
        }
        assert_eq!(queue.under_way(), 2);
        let late = std::thread::spawn(move || {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(50));
                into.write_all(&[6; 8]).unwrap();
            }
        });
        drop(queue);
        let bytes = buffer.bytes();
        let got = [0, PAGE].map(|at| bytes[at..at + 8] == [6; 8]);
        assert_eq!(got, [true; 2], "{what}: the kernel had the buffer");
        late.join().unwrap();
        assert_eq!(file.bytes(), [1; PAGE], "{what}");
    }
}

/// Has system calls of this thread refused, with EPERM, for its life.
fn refuse(numbers: &[u32]) {
    let (load, equal, end) = (0x20, 0x15, 0x06);
    let mut filter: Vec<(u16, u8, u8, u32)> = vec![(load, 0, 0, 0)];
    for &number in numbers {
        filter.extend([(equal, 0, 1, number), (end, 0, 0, 0x0005_0000 | u32::from(Errno::EPERM.0))]);
    }
    filter.push((end, 0, 0, 0x7fff_0000));
    let code: Vec<u64> =
        filter.iter().map(|(code, yes, no, k)| u64::from_le_bytes(packed(*code, *yes, *no, *k))).collect();
    let program = [code.len() as u64, code.as_ptr() as u64];
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    const SECCOMP_SET_MODE_FILTER: usize = 1;
    // SAFETY: the kernel reads the program.
    unsafe {
        sys::syscall(g::__NR_prctl, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0]).unwrap();
        let at = program.as_ptr() as usize;
        sys::syscall(g::__NR_seccomp, [SECCOMP_SET_MODE_FILTER, 0, at, 0, 0, 0]).unwrap();
    }
}

/// `struct sock_filter`.
fn packed(code: u16, yes: u8, no: u8, k: u32) -> [u8; 8] {
    let ([a, b], [c, d, e, f]) = (code.to_le_bytes(), k.to_le_bytes());
    [a, b, yes, no, c, d, e, f]
}

/// Runs this in a thread of its own, and panics as it does.
fn apart(what: impl FnOnce() + Send + 'static) {
    if let Err(panic) = std::thread::spawn(what).join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn an_open_queue_makes_no_other_call_than_io_uring_enter() {
    apart(|| {
        let queues = rings(8, None);
        refuse(&[g::__NR_pread64, g::__NR_pwrite64, g::__NR_io_uring_setup, g::__NR_io_uring_register]);
        refuse(&[g::__NR_preadv2, g::__NR_pwritev2, g::__NR_ppoll, g::__NR_futex_waitv, g::__NR_sched_yield]);
        for mut queue in queues {
            let (file, mut buffer) = (Scratch::new(&[1; PAGE], DIRECT), Buffer::new(1));
            // SAFETY: buffer and file stay until all is reaped.
            unsafe { queue.read(1, &file.fd, 0, buffer.address(), PAGE) }.unwrap();
            assert_eq!(queue.next_result(), (1, Ok(PAGE)), "{queue:?}");
            assert_eq!(buffer.bytes(), [1; PAGE]);
            buffer.bytes().fill(2);
            // SAFETY: as above.
            unsafe { queue.write(2, &file.fd, 0, buffer.address(), PAGE) }.unwrap();
            assert_eq!(queue.next_result(), (2, Ok(PAGE)), "{queue:?}");
        }
    });
}

#[test]
fn where_io_uring_is_refused_opening_says_so_and_the_other_queue_works() {
    apart(|| {
        refuse(&[g::__NR_io_uring_setup]);
        assert_eq!(Queue::open(4, None).err(), Some(Errno::EPERM));
        let mut queue = Queue::open_blocking(4);
        let (file, mut buffer) = (Scratch::new(&[1; PAGE], BUFFERED), Buffer::new(1));
        // SAFETY: buffer and file stay until all is reaped.
        unsafe { queue.read(1, &file.fd, 0, buffer.address(), PAGE) }.unwrap();
        queue.submit();
        assert_eq!((queue.reap(), queue.reap()), (Some((1, Ok(PAGE))), None));
        assert_eq!(buffer.bytes(), [1; PAGE]);
    });
}

#[test]
fn requests_end_with_the_error_where_the_kernel_refuses_them_later() {
    apart(|| {
        let queues = rings(2, None);
        refuse(&[g::__NR_io_uring_enter]);
        for mut queue in queues {
            let (file, buffer) = (Scratch::new(&[1; PAGE], BUFFERED), Buffer::new(1));
            for token in 0..2 {
                // SAFETY: buffer and file stay until all is reaped; reads of the same bytes.
                unsafe { queue.read(token, &file.fd, 0, buffer.address(), PAGE) }.unwrap();
            }
            assert_eq!(queue.wait(), Ok(()));
            let results = [queue.reap(), queue.reap(), queue.reap()];
            assert_eq!(results, [Some((0, Err(Errno::EPERM))), Some((1, Err(Errno::EPERM))), None]);
            assert_eq!((queue.unreaped(), queue.check()), (0, Ok(())));
        }
    });
}

#[test]
fn the_number_of_entries_has_its_range() {
    if !rings(1, None).is_empty() {
        let open = |entries| Queue::open(entries, None).err();
        assert_eq!([0, 1, ENTRIES_MAX + 1].map(open), [Some(Errno::EINVAL), None, Some(Errno::EINVAL)]);
    }
    let fewest = Queue::open_blocking(0);
    assert_eq!((fewest.entries, Queue::open_blocking(u32::MAX).entries), (1, ENTRIES_MAX as usize));
}

#[test]
fn what_is_kept_stays_locked_until_the_queue_has_gone() {
    if rings(1, None).is_empty() {
        return;
    }
    let file = sys::memfd(c"locks").unwrap();
    let path = format!("/proc/self/fd/{}\0", file.raw());
    let kept = sys::open(path.as_bytes(), sys::consts::O_RDWR).unwrap();
    let queue = Queue::open_keeping(1, None, &kept, None).unwrap();
    assert_eq!(sys::lock_byte(&kept, 7, true), Ok(true));
    drop(kept);
    assert_eq!(sys::is_byte_locked(&file, 7), Ok(true), "by the ring");
    drop(queue);
    // The kernel takes a ring down when it comes to it.
    let end = sys::now_ns() + 20_000_000_000;
    while sys::is_byte_locked(&file, 7) == Ok(true) {
        assert!(sys::now_ns() < end);
        sys::sleep_ns(1_000_000);
    }
}
