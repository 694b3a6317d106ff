//! A client of NBD that asks for what no other client does: requests outside of the device, and half of a write.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// What a request asks for.
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;

/// A connection, past its negotiation.
pub struct Client(UnixStream);

impl Client {
    /// Connects, and takes the export without a name; its size in bytes.
    pub fn connect(socket: &Path) -> (Client, u64) {
        let mut stream = UnixStream::connect(socket).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeros at the end; then NBD_OPT_EXPORT_NAME with a name of no bytes.
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        stream.write_all(&[&b"IHAVEOPT"[..], &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat()).unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).unwrap();
        (Client(stream), u64::from_be_bytes(export[..8].try_into().unwrap()))
    }

    /// The first part of a request.
    pub fn begin(&mut self, kind: u16, offset: u64, len_bytes: u32) {
        let request = [
            &0x2560_9513u32.to_be_bytes()[..],
            &0u16.to_be_bytes(),
            &kind.to_be_bytes(),
            &7u64.to_be_bytes(),
            &offset.to_be_bytes(),
            &len_bytes.to_be_bytes(),
        ];
        self.0.write_all(&request.concat()).unwrap();
    }

    /// Data of a write.
    pub fn send(&mut self, data: &[u8]) {
        self.0.write_all(data).unwrap();
    }

    /// The error number of an answer.
    pub fn answer(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    /// Data of a read.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.0.read_exact(&mut data).unwrap();
        data
    }
}
