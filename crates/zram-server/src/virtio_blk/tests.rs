//! Requests in the memory of a machine that is simulated.

use super::*;
use crate::Options;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::desc::{RawDescriptor, split::Descriptor};
use virtio_queue::mock::MockSplitQueue;
use vm_memory::{Bytes, GuestAddress};

/// Where a machine has its header, its data, and its status.
const HEADER_AT: u64 = 0x10000;
const DATA_AT: u64 = 0x20000;
const STATUS_AT: u64 = 0x80000;

/// And a table of parts.
const TABLE_AT: u64 = 0x90000;

/// What the status is before there is one.
const NONE: u8 = 0xee;

const MEMORY: usize = 1 << 20;

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap()
}

fn server() -> &'static Server {
    let mut options = Options::default();
    options.add("disksize", "16M");
    crate::start(options).unwrap()
}

/// A request of these parts, each an address, a length, and true if the device may write there.
fn serve(server: &Server, memory: &GuestMemoryMmap, parts: &[(u64, u32, bool)]) -> io::Result<u8> {
    memory.write_obj(NONE, GuestAddress(STATUS_AT)).unwrap();
    let queue = MockSplitQueue::create(memory, GuestAddress(0), 16);
    let descriptor = |(at, bytes, is_writable): &(u64, u32, bool)| {
        let flags = if *is_writable { VRING_DESC_F_WRITE as u16 } else { 0 };
        RawDescriptor::from(Descriptor::new(*at, *bytes, flags, 0))
    };
    let chain = queue.build_desc_chain(&parts.iter().map(descriptor).collect::<Vec<_>>()).unwrap();
    Request::read(chain, memory)?.serve(server, &mut Vec::new())?;
    Ok(memory.read_obj(GuestAddress(STATUS_AT)).unwrap())
}

fn header(memory: &GuestMemoryMmap, kind: u32, sector: u64) {
    let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
    memory.write_slice(&header, GuestAddress(HEADER_AT)).unwrap();
}

/// One with a header, data, and a status.
fn ask(server: &Server, memory: &GuestMemoryMmap, kind: u32, sector: u64, bytes: u32) -> u8 {
    header(memory, kind, sector);
    let is_written = matches!(kind, VIRTIO_BLK_T_IN | VIRTIO_BLK_T_GET_ID);
    let mut parts =
        vec![(HEADER_AT, HEADER as u32, false), (DATA_AT, bytes, is_written), (STATUS_AT, 1, true)];
    // A descriptor of no bytes is none.
    parts.retain(|(_, bytes, _)| *bytes > 0);
    serve(server, memory, &parts).unwrap()
}

fn range(memory: &GuestMemoryMmap, at: u64, sector: u64, sectors: u32) {
    let range = [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &[0; 4]].concat();
    memory.write_slice(&range, GuestAddress(DATA_AT + at)).unwrap();
}

#[test]
fn a_machine_reads_what_it_wrote_and_gets_no_further() {
    let server = server();
    let memory = memory();
    let (ok, error) = (VIRTIO_BLK_S_OK as u8, VIRTIO_BLK_S_IOERR as u8);
    let data: Vec<u8> = (0..65536u32).map(|at| (at / 7) as u8).collect();
    memory.write_slice(&data, GuestAddress(DATA_AT)).unwrap();
    assert_eq!(ask(server, &memory, VIRTIO_BLK_T_OUT, 8, 65536), ok);
    assert_eq!(ask(server, &memory, VIRTIO_BLK_T_FLUSH, 0, 0), ok);

    let read = |sector: u64, bytes: usize| {
        memory.write_slice(&vec![NONE; bytes], GuestAddress(DATA_AT)).unwrap();
        let status = ask(server, &memory, VIRTIO_BLK_T_IN, sector, bytes as u32);
        let mut found = vec![0; bytes];
        memory.read_slice(&mut found, GuestAddress(DATA_AT)).unwrap();
        (status, found)
    };
    assert!(read(8, 65536) == (ok, data.clone()));
    assert!(read(9, 1024) == (ok, data[512..1536].to_vec()));

    // Ranges: one block is forgotten, another one is made zeros.
    range(&memory, 0, 8, 8);
    assert_eq!(ask(server, &memory, VIRTIO_BLK_T_DISCARD, 0, 16), ok);
    range(&memory, 0, 24, 8);
    range(&memory, 16, 40, 8);
    assert_eq!(ask(server, &memory, VIRTIO_BLK_T_WRITE_ZEROES, 0, 32), ok);
    for (sector, is_zero) in [(8, true), (16, false), (24, true), (32, false), (40, true), (48, false)] {
        let (status, found) = read(sector, 4096);
        assert_eq!((status, found == [0; 4096]), (ok, is_zero), "{sector}");
    }

    // Outside, and what there is not.
    let sectors = (16 << 20) / SECTOR;
    for kind in [VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT] {
        for sector in [sectors, sectors - 1, u64::MAX, u64::MAX / 512 + 1] {
            assert_eq!(ask(server, &memory, kind, sector, 1024), error, "{kind} at {sector}");
        }
    }
    range(&memory, 0, sectors, 1);
    assert_eq!(ask(server, &memory, VIRTIO_BLK_T_DISCARD, 0, 16), error);
    assert_eq!(ask(server, &memory, VIRTIO_BLK_T_DISCARD, 0, 17), error, "a part of a range");
    assert_eq!(ask(server, &memory, 77, 0, 512), VIRTIO_BLK_S_UNSUPP as u8);
    assert_eq!(ask(server, &memory, VIRTIO_BLK_T_GET_ID, 0, VIRTIO_BLK_ID_BYTES), ok);
    let mut id = [0; 11];
    memory.read_slice(&mut id, GuestAddress(DATA_AT)).unwrap();
    assert_eq!(&id, b"zfolio-zram");

    // Parts outside of the machine's memory, and requests without a place for their status.
    header(&memory, VIRTIO_BLK_T_OUT, 0);
    let (head, status) = ((HEADER_AT, 16, false), (STATUS_AT, 1, true));
    assert!(serve(server, &memory, &[head, (MEMORY as u64, 512, false), status]).is_err());
    assert!(serve(server, &memory, &[head, (DATA_AT, 512, false)]).is_err());
    assert_eq!(serve(server, &memory, &[(HEADER_AT, 7, false), status]).unwrap(), error, "half a header");
    assert!(read(48, 4096).0 == ok, "and others go on");
    assert_eq!(server.end(), 0);
    assert_eq!(ask(server, &memory, VIRTIO_BLK_T_IN, 0, 512), error, "it has ended");
}

/// A request takes one entry of the queue if its parts are in a table beside it.
#[test]
fn parts_in_a_table_of_their_own_are_served_like_those_in_the_queue() {
    let server = server();
    let memory = memory();
    let segments = SEGMENTS_MAX as u64;
    let data: Vec<u8> = (0..segments as u32 * 512).map(|at| (at / 5) as u8).collect();
    for (kind, is_written) in [(VIRTIO_BLK_T_OUT, false), (VIRTIO_BLK_T_IN, true)] {
        let before = if is_written { vec![NONE; data.len()] } else { data.clone() };
        memory.write_slice(&before, GuestAddress(DATA_AT)).unwrap();
        header(&memory, kind, 80);
        let mut parts = vec![(HEADER_AT, HEADER as u32, false)];
        parts.extend((0..segments).map(|segment| (DATA_AT + segment * 512, 512, is_written)));
        parts.push((STATUS_AT, 1, true));
        let last = parts.len() - 1;
        for (index, (at, bytes, is_writable)) in parts.iter().enumerate() {
            let next = if index < last { VRING_DESC_F_NEXT } else { 0 };
            let flags = next | if *is_writable { VRING_DESC_F_WRITE } else { 0 };
            let descriptor = Descriptor::new(*at, *bytes, flags as u16, index as u16 + 1);
            let place = TABLE_AT + (index * size_of::<Descriptor>()) as u64;
            memory.write_obj(descriptor, GuestAddress(place)).unwrap();
        }
        let queue = MockSplitQueue::create(&memory, GuestAddress(0), 16);
        let bytes = (parts.len() * size_of::<Descriptor>()) as u32;
        let table = Descriptor::new(TABLE_AT, bytes, VRING_DESC_F_INDIRECT as u16, 0);
        let chain = queue.build_desc_chain(&[table.into()]).unwrap();
        memory.write_obj(NONE, GuestAddress(STATUS_AT)).unwrap();
        Request::read(chain, &memory).unwrap().serve(server, &mut Vec::new()).unwrap();
        assert_eq!(memory.read_obj::<u8>(GuestAddress(STATUS_AT)).unwrap(), VIRTIO_BLK_S_OK as u8);
    }
    let mut found = vec![0; data.len()];
    memory.read_slice(&mut found, GuestAddress(DATA_AT)).unwrap();
    assert!(found == data);
    assert_eq!(server.end(), 0);
}

/// Also where the driver has no memory for a table: with more segments than that it waits without an end.
#[test]
fn the_largest_request_fits_into_the_shortest_queue() {
    let config = config(4 << 30, 1);
    let at = offset_of!(virtio_blk_config, seg_max);
    let segments = u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
    assert_eq!(segments + 2, 128, "entries, as QEMU and cloud-hypervisor have it");
}

#[test]
fn the_driver_reads_the_size_in_sectors() {
    let config = config(4 << 30, 3);
    assert_eq!(u64::from_le_bytes(config[..8].try_into().unwrap()), (4 << 30) / 512);
    assert_eq!(config[offset_of!(virtio_blk_config, num_queues)], 3);
    assert_eq!(CONFIG_BYTES, 96);
}

#[test]
fn headers_and_ranges_are_as_long_as_the_standard_says() {
    assert_eq!([size_of::<virtio_blk_outhdr>(), size_of::<virtio_blk_discard_write_zeroes>()], [HEADER; 2]);
}
