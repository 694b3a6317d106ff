//! A device that is saved and loaded, and what is no saved device.

use super::{area, device, noise, text};
use base::Random;
use zram::{BLOCK, DISKSIZE_MAX_BYTES, Device, Error};

/// A device with all kinds of blocks, and what it holds.
fn saved() -> (Vec<u8>, Vec<u8>) {
    let (device, mut worker) = device("1M");
    let mut bytes = vec![0; 1 << 20];
    let mut write = |at: usize, from: &[u8]| {
        bytes[at..at + from.len()].copy_from_slice(from);
        device.write(&mut worker, at as u64, from).unwrap();
    };
    write(0, &(0..16).flat_map(text).collect::<Vec<_>>());
    write(3 * BLOCK + 7, &[1; 90]);
    write(20 * BLOCK, &noise(1));
    write(21 * BLOCK, &vec![6; 2 * BLOCK]);
    write(30 * BLOCK, &text(77));
    write((1 << 20) - BLOCK, &text(78));
    device.set("idle", "all").unwrap();
    device.set("recompress", "type=idle max_pages=20").unwrap();
    let mut saved = Vec::new();
    device.save(&mut saved).unwrap();
    (saved, bytes)
}

#[test]
fn a_loaded_device_is_the_one_that_was_saved() {
    let (saved, bytes) = saved();
    let device = Device::new();
    device.load(&mut &saved[..]).unwrap();
    let (mut worker, mut read) = (device.worker(), vec![1; bytes.len()]);
    device.read(&mut worker, 0, &mut read).unwrap();
    assert!(read == bytes);
    device.check().unwrap();
    assert_eq!(
        (device.stats().huge_pages, device.stats().huge_pages_since),
        (1, 0),
        "nothing was written here"
    );
    assert!(matches!(device.load(&mut &saved[..]), Err(Error::Busy(_))));
    let mut again = Vec::new();
    device.save(&mut again).unwrap();
    assert!(again == saved, "it is the same when it is saved again");
    assert!(device.show("recomp_algorithm").unwrap().contains("[zstd]"));
}

/// It may have more in its area than its limit allows in memory.
#[test]
fn what_there_is_no_memory_for_is_loaded_to_the_area() {
    let path = std::env::temp_dir().join(format!("zram-limited-{}", std::process::id()));
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let device = Device::new().log_to(|_| ());
    device.set("backing_dev", path.to_str().unwrap()).unwrap();
    device.set("disksize", "4M").unwrap();
    let bytes: Vec<u8> =
        (0..600).flat_map(|block| if block % 3 == 0 { noise(block) } else { text(block) }).collect();
    device.write(&mut device.worker(), 0, &bytes).unwrap();
    let (mut saved, mut damaged) = (Vec::new(), Vec::new());
    device.save(&mut saved).unwrap();
    assert!(device.stats().mem_used_bytes > 1 << 20, "{:?}", device.stats());
    // Block 7 can be read no more.
    device.set("writeback", "page_index=7").unwrap();
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    device.save(&mut damaged).unwrap();
    std::fs::remove_file(path).unwrap();

    let limited = || {
        let device = Device::new().log_to(|_| ());
        device.set("mem_limit", "512K").unwrap();
        device
    };
    assert!(matches!(limited().load(&mut &saved[..]), Err(Error::NoSpace)), "without an area");
    let small = limited();
    small.set_backing("memory", Box::new(area(100))).unwrap();
    assert!(matches!(small.load(&mut &saved[..]), Err(Error::BackingFull(_))), "the area is full");
    assert_eq!(small.disksize_bytes(), 0);

    for saved in [saved, damaged.clone()] {
        let loaded = limited();
        loaded.set_backing("memory", Box::new(area(600))).unwrap();
        loaded.load(&mut &saved[..]).unwrap();
        let stats = loaded.stats();
        assert!(stats.mem_used_bytes <= 512 << 10 && stats.bd_count > 300, "{stats:?}");
        let mut worker = loaded.worker();
        for (block, expected) in bytes.chunks(BLOCK).enumerate() {
            let mut page = vec![0; BLOCK];
            match loaded.read(&mut worker, (block * BLOCK) as u64, &mut page) {
                Err(Error::Damaged { .. }) => assert!(block == 7 && saved == damaged),
                read => {
                    assert!(read.is_ok() && page == expected && (block != 7 || saved != damaged), "{block}")
                }
            }
        }
        loaded.check().unwrap();
    }
}

#[test]
fn a_size_that_no_device_may_have_is_refused_in_a_file_too() {
    let (saved, _) = saved();
    let claiming = |bytes: u64| {
        let mut saved = saved.clone();
        saved[12..20].copy_from_slice(&bytes.to_le_bytes());
        // The header has four algorithms without dictionaries.
        let sum = xxhash_rust::xxh3::xxh3_64(&saved[..68]);
        saved[68..76].copy_from_slice(&sum.to_le_bytes());
        saved
    };
    let load = |bytes: u64| Device::new().load(&mut &claiming(bytes)[..]);
    assert!(load(DISKSIZE_MAX_BYTES).is_ok());
    for bytes in [DISKSIZE_MAX_BYTES + BLOCK as u64, 1 << 60, u64::MAX / BLOCK as u64 * BLOCK as u64] {
        let error = load(bytes).unwrap_err();
        assert!(error.to_string().contains("too large"), "{error}");
    }
}

/// Refused in one line, and the device is as new.
fn is_refused(bytes: &[u8]) -> bool {
    let device = Device::new();
    match device.load(&mut &bytes[..]) {
        Ok(()) => false,
        Err(error) => {
            let line = error.to_string();
            assert!(matches!(error, Error::NotSaved(_)) && !line.contains('\n'), "{line}");
            assert_eq!(device.disksize_bytes(), 0);
            true
        }
    }
}

#[test]
fn what_is_cut_short_or_damaged_is_refused() {
    let (saved, _) = saved();
    let mut random = Random(1);
    let len = saved.len();
    for cut in (0..200).chain((200..len).step_by(97)).chain(len - 50..len) {
        assert!(is_refused(&saved[..cut]), "cut to {cut} of {len}");
    }
    for turn in 0..1500 {
        let mut bytes = saved.clone();
        let at = if turn < 1000 { turn % 500 } else { random.below(len) };
        bytes[at] ^= 1 << random.below(8);
        assert!(is_refused(&bytes), "a bit of byte {at} of {len}");
    }
    let mut longer = saved.clone();
    longer.push(0);
    assert!(is_refused(&longer) && is_refused(&[]) && is_refused(&vec![0xff; 1000]));
}

/// Bytes with right checksums may say anything: nothing panics, and what is loaded can be checked and read.
#[test]
fn what_lies_with_a_right_checksum_does_no_harm() {
    let (saved, _) = saved();
    // The first group: number, length, checksum, body.
    let header = saved.windows(8).position(|at| at == 0u64.to_le_bytes()).unwrap();
    let mut random = Random(2);
    let first = (header..saved.len() - 20)
        .find(|at| {
            let len = u32::from_le_bytes(saved[at + 8..at + 12].try_into().unwrap()) as usize;
            let checksum = u64::from_le_bytes(saved[at + 12..at + 20].try_into().unwrap());
            saved[*at..at + 8] == [0; 8]
                && saved.get(at + 20..at + 20 + len).is_some_and(|body| sum(0, body) == checksum)
        })
        .expect("there is a first group");
    let len = u32::from_le_bytes(saved[first + 8..first + 12].try_into().unwrap()) as usize;
    let mut loaded = 0;
    for _ in 0..3000 {
        let mut bytes = saved.clone();
        for _ in 0..1 + random.below(3) {
            let at = first + 20 + if random.one_in(2) { random.below(100) } else { random.below(len) };
            bytes[at] = random.word() as u8;
        }
        let checksum = sum(0, &bytes[first + 20..first + 20 + len]);
        bytes[first + 12..first + 20].copy_from_slice(&checksum.to_le_bytes());
        let device = Device::new().log_to(|_| ());
        if device.load(&mut &bytes[..]).is_ok() {
            loaded += 1;
            device.check().unwrap();
            let mut worker = device.worker();
            let _ = device.read(&mut worker, 0, &mut vec![0; 1 << 20]);
            device.write(&mut worker, 0, &text(1)).unwrap();
            device.discard(&mut worker, 0, 1 << 20).unwrap();
            device.check().unwrap();
        }
    }
    assert!(loaded > 100, "{loaded}");
}

/// The checksum of a group.
fn sum(number: u64, body: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(body) ^ number.rotate_left(32) ^ body.len() as u64
}

#[test]
fn what_cannot_be_read_is_saved_as_damaged_and_all_else_as_it_is() {
    let path = std::env::temp_dir().join(format!("zram-saved-{}", std::process::id()));
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let device = Device::new().log_to(|_| ());
    device.set("backing_dev", path.to_str().unwrap()).unwrap();
    device.set("compressed_writeback", "1").unwrap();
    device.set("disksize", "1M").unwrap();
    let mut worker = device.worker();
    let bytes: Vec<u8> = (0..40).flat_map(text).collect();
    device.write(&mut worker, 0, &bytes[..33 * BLOCK]).unwrap();
    device.write(&mut worker, 33 * BLOCK as u64, &noise(1)).unwrap();
    device.set("writeback", "page_indexes=0-15 page_index=20 page_index=33").unwrap();
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let is_lost = |block: usize| block < 16 || block == 20 || block == 33;
    let (mut first, mut again) = (Vec::new(), Vec::new());
    device.save(&mut first).unwrap();
    let loaded = Device::new().log_to(|_| ());
    loaded.load(&mut &first[..]).unwrap();
    let mut worker = loaded.worker();
    for block in 0..34 {
        let (mut page, at) = (vec![0; BLOCK], block * BLOCK);
        match loaded.read(&mut worker, at as u64, &mut page) {
            Err(Error::Damaged { block: told, .. }) => assert!(is_lost(block) && told == block as u64),
            read => assert!(read.is_ok() && !is_lost(block) && page == bytes[at..][..BLOCK], "{block}"),
        }
    }
    loaded.check().unwrap();
    loaded.save(&mut again).unwrap();
    assert!(again == first);
    loaded.write(&mut worker, 0, &bytes[..BLOCK]).unwrap();
    loaded.check().unwrap();
    std::fs::remove_file(path).unwrap();
}
