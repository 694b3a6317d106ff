//! A Unix socket from which descriptors come.

use crate::sys::{self, Errno, Fd, Result};
use linux_raw_sys::{general as g, net as n};

/// Bytes of a path that the kernel takes, its NUL included.
const PATH_BYTES: usize = 108;

/// AF_UNIX: the only family of sockets here.
pub const FAMILY: u32 = n::AF_UNIX;

/// As many descriptors as may come with one message.
const MOST: usize = 16;

/// `struct sockaddr_un`.
#[repr(C)]
struct Address {
    family: u16,
    path: [u8; PATH_BYTES],
}

/// `struct cmsghdr` with descriptors.
#[repr(C)]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    descriptors: [i32; MOST],
}

/// Connects to the socket at `path`, which ends with NUL. What is done with it later takes no longer than `timeout_ns`,
/// each time, and so does this.
pub fn connect(path: &[u8], timeout_ns: u64) -> Result<Fd> {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    let mut address = Address { family: FAMILY as u16, path: [0; PATH_BYTES] };
    // ENAMETOOLONG is no number that is met elsewhere.
    address.path.get_mut(..path.len()).ok_or(Errno::EINVAL)?.copy_from_slice(path);
    let kind = n::SOCK_STREAM | g::O_CLOEXEC;
    // SAFETY: a new descriptor changes no memory.
    let socket = unsafe { call(g::__NR_socket, [FAMILY as usize, kind as usize, 0, 0, 0]) }.map(Fd::own)?;
    let timeout = [timeout_ns / 1_000_000_000, timeout_ns % 1_000_000_000 / 1000];
    for option in [n::SO_RCVTIMEO_OLD, n::SO_SNDTIMEO_OLD] {
        let value = [timeout.as_ptr() as usize, size_of_val(&timeout)];
        // SAFETY: the kernel reads the time.
        unsafe {
            call(
                g::__NR_setsockopt,
                [socket.raw() as usize, n::SOL_SOCKET as usize, option as usize, value[0], value[1]],
            )
        }?;
    }
    // SAFETY: the kernel reads the address.
    unsafe {
        call(
            g::__NR_connect,
            [socket.raw() as usize, &raw const address as usize, size_of_val(&address), 0, 0],
        )
    }?;
    Ok(socket)
}

/// Waits for one message, of one byte, and the descriptors that come with it: `N` of them at most. None where the other
/// side has hung up.
pub fn receive<const N: usize>(socket: &Fd) -> Result<(u8, [Option<Fd>; N])> {
    const { assert!(N <= MOST) };
    let mut byte = [0u8];
    // struct iovec.
    let mut part = [byte.as_mut_ptr() as usize, byte.len()];
    let mut control = Control { len: 0, level: 0, kind: 0, descriptors: [-1; MOST] };
    // SAFETY: integers and pointers, for which zeros are a value.
    let mut message: n::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = ((&raw mut part).cast(), 1);
    (message.msg_control, message.msg_controllen) = ((&raw mut control).cast(), size_of_val(&control));
    let flags = n::MSG_CMSG_CLOEXEC as usize;
    // SAFETY: the kernel writes the byte, the message and the control data, all of which are ours.
    unsafe { call(g::__NR_recvmsg, [socket.raw() as usize, &raw mut message as usize, flags, 0, 0]) }?;
    let head = size_of::<Control>() - size_of::<[i32; MOST]>();
    let are_descriptors = message.msg_controllen as usize >= head
        && (control.level, control.kind) == (n::SOL_SOCKET as i32, n::SCM_RIGHTS as i32);
    let count = if are_descriptors { control.len.saturating_sub(head) / size_of::<i32>() } else { 0 };
    let mut all = control.descriptors.into_iter().take(count).map(|fd| Fd::own(fd as usize));
    let wanted = core::array::from_fn(|_| all.next());
    // What is beyond is closed.
    all.for_each(drop);
    Ok((byte[0], wanted))
}

/// # Safety
/// As for [`sys::syscall`].
unsafe fn call(number: u32, [a, b, c, d, e]: [usize; 5]) -> Result<usize> {
    // SAFETY: the caller's contract.
    unsafe { sys::syscall(number, [a, b, c, d, e, 0]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    #[test]
    fn who_is_sent_nothing_has_nothing_and_does_not_wait_for_ever() {
        let path = std::env::temp_dir().join(format!("zfolio-socket-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let name = format!("{}\0", path.display());
        let socket = connect(name.as_bytes(), 20_000_000).unwrap();
        assert_eq!(receive::<2>(&socket).err(), Some(Errno::EAGAIN), "nobody says anything");
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"x").unwrap();
        assert!(receive::<2>(&socket).unwrap().1.iter().all(Option::is_none), "a byte without descriptors");
        drop(peer);
        assert!(receive::<2>(&socket).unwrap().1.iter().all(Option::is_none), "the end");
        std::fs::remove_file(path).unwrap();
        assert_eq!(connect(name.as_bytes(), 1).err(), Some(Errno::ENOENT));
        assert_eq!(connect(&[&[b'a'; 200][..], b"\0"].concat(), 1).err(), Some(Errno::EINVAL));
    }
}
