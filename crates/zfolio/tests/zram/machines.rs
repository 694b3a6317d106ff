//! What a machine's socket takes from whoever connects. A machine itself boots in tools/zram-guest.

use super::nbd::{Client, READ};
use super::served::Served;
use super::until::until;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;

#[test]
fn nonsense_at_a_machines_socket_harms_nothing() {
    let path = std::env::temp_dir().join(format!("zfolio-zram-{}.machine", std::process::id()));
    let Some(served) = Served::start("vhost", &["--disksize", "16M", "--vhost-user", path.to_str().unwrap()])
    else {
        return;
    };
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", served.child.id())).unwrap().count();
    let mut before = 0;
    let mut word = 7u64;
    for round in 0..200 {
        if round == 20 {
            until("all of them are gone", || served.figure("clients") == 0);
            before = descriptors();
        }
        let mut socket = UnixStream::connect(&path).unwrap();
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // A header of vhost-user: request, flags (version 1), bytes that follow.
        let message = [(round % 48) as u32, 1, (word >> 58) as u32].map(u32::to_le_bytes).concat();
        let _ = socket.write_all(&message);
        let _ = socket.write_all(&word.to_le_bytes());
        if round % 10 == 0 {
            let (mut client, _) = Client::connect(&served.socket);
            client.begin(READ, 0, 4096);
            assert_eq!((client.answer(), client.take(4096)), (0, vec![0; 4096]));
        }
    }
    until("all of them are gone", || served.figure("clients") == 0);
    // 180 machines later. What waits for the next one has up to 16 threads, with a few descriptors each.
    until("their descriptors are closed", || descriptors() < before + 150);
    assert_eq!(served.end(libc::SIGTERM).0, Some(0));
    assert!(!path.exists());
}
