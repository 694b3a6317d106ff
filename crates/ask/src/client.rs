//! Who asks.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Sends a line to a socket, and takes what comes until the end, up to so many bytes. Each step has so long.
pub fn exchange(path: &Path, line: &str, time: Duration, bytes: usize) -> io::Result<Vec<u8>> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Also to connect takes no longer, where nobody takes connections.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(time))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(time))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let mut socket = UnixStream::from(socket);
    // Where that is refused there is an answer, too.
    let _ = socket.write_all(line.as_bytes());
    let mut answer = Vec::new();
    match socket.take(bytes as u64).read_to_end(&mut answer) {
        // An answer before all of the request was read comes with an error at its end.
        Err(error) if answer.is_empty() => Err(error),
        _ => Ok(answer),
    }
}
