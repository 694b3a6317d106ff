//! What the kernel's document says of each attribute.

use super::{area, device, noise, state, text};
use std::time::Duration;
use zram::{ATTRIBUTES, Access, BLOCK, DISKSIZE_MAX_BYTES, Device, Error};

const UNIT: usize = 16 * BLOCK;

#[test]
fn a_refusal_is_one_line_that_says_what_is_accepted() {
    let (device, _) = device("1M");
    for attribute in ATTRIBUTES {
        let error = device.set(attribute.name, "some nonsense").unwrap_err();
        let line = error.to_string();
        assert!(!line.contains('\n') && line.len() > 10, "{}: {line}", attribute.name);
        match device.show(attribute.name) {
            Ok(text) => assert!(attribute.access != Access::Set && !text.ends_with('\n'), "{text}"),
            Err(error) => assert_eq!(attribute.access, Access::Set, "{}: {error}", attribute.name),
        }
    }
    for (name, value, expected) in [
        ("none", "1", "none: no such attribute: accepted are disksize, initstate, "),
        ("mm_stat", "1", "mm_stat: it can only be shown"),
        ("compact", "no", "compact: no: accepted is a positive number"),
        ("compact", "", "compact: \"\": accepted is a positive number"),
        ("comp_algorithm", "foo", "comp_algorithm: foo: no such compressor: accepted are lz4["),
        (
            "comp_algorithm",
            "zstd,dict=a",
            "comp_algorithm: zstd,dict=a: a dictionary is given by algorithm_params",
        ),
        (
            "recomp_algorithm",
            "algo=zstd:99",
            "recomp_algorithm: zstd:99: no such LEVEL of zstd: accepted is zstd[",
        ),
        (
            "algorithm_params",
            "level=0",
            "algorithm_params: level=0: no such ACCELERATION of lz4: accepted is lz4[",
        ),
        ("writeback", "huge", "writeback: the device has no backing_dev, which is set before its disksize"),
        ("writeback", "all", "writeback: all: accepted is [type=]idle|huge|"),
    ] {
        let line = device.set(name, value).unwrap_err().to_string();
        assert!(line.starts_with(expected), "{line}");
    }
    assert_eq!(device.show("compact").unwrap_err().to_string(), "compact: it can only be set");
    assert!(matches!(device.set("none", "1"), Err(Error::Invalid { .. })));
    assert!(matches!(device.show("none"), Err(Error::Invalid { .. })));
}

#[test]
fn a_device_begins_with_its_disksize_and_ends_with_reset() {
    let device = Device::new();
    let mut worker = device.worker();
    assert!(matches!(device.read(&mut worker, 0, &mut [0]), Err(Error::NotInitialised)));
    assert_eq!(
        (device.show("initstate").unwrap(), device.show("disksize").unwrap()),
        ("0".into(), "0".into())
    );
    for bad in ["0", "", "x", "5Q", "99999999999999999999", "-1", "17T", "16777215T"] {
        assert!(matches!(device.set("disksize", bad), Err(Error::Invalid { .. })), "{bad}");
    }
    device.set("disksize", "16T").unwrap();
    assert_eq!(device.disksize_bytes(), DISKSIZE_MAX_BYTES);
    device.set("reset", "1").unwrap();
    device.set("disksize", "5000").unwrap();
    assert_eq!((device.disksize_bytes(), device.show("initstate").unwrap()), (8192, "1".into()));
    for (name, value) in [
        ("disksize", "1M"),
        ("comp_algorithm", "zstd"),
        ("recomp_algorithm", "algo=zstd"),
        ("algorithm_params", "level=1"),
        ("backing_dev", "/dev/null"),
    ] {
        assert!(matches!(device.set(name, value), Err(Error::Busy(_))), "{name}");
    }
    device.write(&mut worker, 0, &noise(1)).unwrap();
    assert!(device.read(&mut worker, 8191, &mut [0; 2]).is_err());
    device.set("reset", "1").unwrap();
    assert_eq!(device.disksize_bytes(), 0);
    assert!(matches!(device.write(&mut worker, 0, &[1]), Err(Error::NotInitialised)));
    device.set("disksize", "256K").unwrap();
    let mut read = vec![1; BLOCK];
    device.read(&mut worker, 0, &mut read).unwrap();
    assert_eq!((device.disksize_bytes(), read), (256 << 10, vec![0; BLOCK]));
}

#[test]
fn algorithms_are_listed_with_the_chosen_one_in_brackets() {
    let device = Device::new();
    assert!(device.show("comp_algorithm").unwrap().starts_with("[lz4] lz4hc zstd"));
    device.set("comp_algorithm", "zstd:3").unwrap();
    assert!(device.show("comp_algorithm").unwrap().starts_with("lz4 lz4hc [zstd]"));
    assert_eq!(device.show("recomp_algorithm").unwrap(), "");
    device.set("recomp_algorithm", "algo=lz4hc priority=2").unwrap();
    device.set("recomp_algorithm", "algo=deflate").unwrap();
    let both = device.show("recomp_algorithm").unwrap();
    assert!(both.starts_with("#1: lz4 lz4hc zstd [deflate]") && both.contains("\n#2: lz4 [lz4hc]"), "{both}");
    device.set("algorithm_params", "algo=lz4hc level=9").unwrap();
    device.set("algorithm_params", "priority=1 level=2").unwrap();
    for bad in ["priority=3 level=1", "level=100", "algo=842 level=1", "priority=4", "what=1"] {
        assert!(matches!(device.set("algorithm_params", bad), Err(Error::Invalid { .. })), "{bad}");
    }
    for bad in ["algo=zstd priority=0", "algo=zstd priority=4", "priority=1", "algo=none"] {
        assert!(matches!(device.set("recomp_algorithm", bad), Err(Error::Invalid { .. })), "{bad}");
    }
}

#[test]
fn a_dictionary_makes_objects_smaller_and_goes_along_when_saved() {
    let path = std::env::temp_dir().join(format!("zram-dictionary-{}", std::process::id()));
    std::fs::write(&path, text(7)).unwrap();
    let with = |params: &str| {
        let device = Device::new();
        device.set("comp_algorithm", "zstd").unwrap();
        device.set("algorithm_params", params).unwrap();
        device.set("disksize", "1M").unwrap();
        let mut worker = device.worker();
        device.write(&mut worker, 0, &text(7)).unwrap();
        (device.stats().compr_data_bytes, device)
    };
    let (without, _) = with("level=1");
    let (bytes, old) = with(&format!("level=1 dict={}", path.display()));
    std::fs::remove_file(&path).unwrap();
    assert!(bytes * 2 < without, "{bytes} {without}");
    let mut saved = Vec::new();
    old.save(&mut saved).unwrap();
    let new = Device::new();
    new.load(&mut &saved[..]).unwrap();
    let mut read = vec![0; BLOCK];
    new.read(&mut new.worker(), 0, &mut read).unwrap();
    assert_eq!(read, text(7));
}

#[test]
fn mm_stat_counts_as_the_kernel_does() {
    let (device, mut worker) = device("4M");
    device.write(&mut worker, 0, &vec![9; 2 * BLOCK]).unwrap();
    device.write(&mut worker, 2 * BLOCK as u64, &text(1)).unwrap();
    device.write(&mut worker, 3 * BLOCK as u64, &noise(1)).unwrap();
    let stats = device.stats();
    assert_eq!((stats.orig_data_bytes, stats.same_pages), (4 * BLOCK as u64, 2));
    assert_eq!((stats.huge_pages, stats.huge_pages_since), (1, 1));
    assert!(stats.compr_data_bytes > BLOCK as u64 && stats.compr_data_bytes < 2 * BLOCK as u64);
    device.write(&mut worker, 3 * BLOCK as u64, &noise(2)).unwrap();
    let stats = device.stats();
    assert_eq!((stats.huge_pages, stats.huge_pages_since), (1, 2), "one has taken the place of another");
    device.write(&mut worker, 3 * BLOCK as u64, &text(2)).unwrap();
    device.discard(&mut worker, 0, BLOCK as u64).unwrap();
    let stats = device.stats();
    assert_eq!((stats.huge_pages, stats.huge_pages_since, stats.notify_free), (0, 2, 1));
    assert_eq!((stats.orig_data_bytes, stats.same_pages), (3 * BLOCK as u64, 1));
    device.write(&mut worker, 100, &[1]).unwrap();
    assert_eq!(device.stats().invalid_io, 1);
    let numbers: Vec<u64> =
        device.show("mm_stat").unwrap().split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!((numbers.len(), numbers[0]), (9, device.stats().orig_data_bytes));
    device.check().unwrap();
}

#[test]
fn idle_marks_last_until_a_request() {
    let (device, mut worker) = device("1M");
    let at = |block: usize| (block * BLOCK) as u64;
    device.tick(Duration::from_secs(100)).unwrap();
    (0..3).for_each(|block| device.write(&mut worker, at(block), &text(block as u64)).unwrap());
    device.write(&mut worker, at(3), &vec![5; BLOCK]).unwrap();
    device.set("idle", "all").unwrap();
    assert_eq!([0, 1, 3].map(|block| state(&device, block)), ["...i..", "...i..", "s....."]);
    device.read(&mut worker, at(1), &mut [0]).unwrap();
    device.tick(Duration::from_secs(150)).unwrap();
    device.write(&mut worker, at(2), &text(9)).unwrap();
    assert_eq!([0, 1, 2].map(|block| state(&device, block)), ["...i..", "......", "......"]);
    device.set("idle", "20").unwrap();
    assert_eq!([0, 1, 2].map(|block| state(&device, block)), ["...i..", "...i..", "......"]);
}

#[test]
fn recompression_keeps_what_gets_smaller_and_marks_what_does_not() {
    let (device, mut worker) = device("1M");
    let at = |block: usize| (block * BLOCK) as u64;
    (0..4).for_each(|block| device.write(&mut worker, at(block), &text(block as u64)).unwrap());
    device.write(&mut worker, at(20), &noise(1)).unwrap();
    let before = device.stats().compr_data_bytes;
    device.set("recompress", "type=idle").unwrap();
    assert_eq!(device.stats().compr_data_bytes, before, "nothing is idle");
    device.set("recompress", "type=huge").unwrap();
    assert_eq!([0, 20].map(|block| state(&device, block)), ["......", "..h..n"]);
    device.set("recompress", "threshold=4096").unwrap();
    assert_eq!(state(&device, 0), "......", "it is smaller than the threshold");
    device.set("recompress", "max_pages=2").unwrap();
    let recompressed = (0..4).filter(|block| state(&device, *block) == "....r.").count();
    assert_eq!(recompressed, 2);
    device.set("idle", "all").unwrap();
    device.set("recompress", "type=idle").unwrap();
    assert_eq!([0, 3].map(|block| state(&device, block)), ["...ir.", "....r."], "0 was done before");
    assert!(device.stats().compr_data_bytes < before);
    for bad in ["type=incompressible", "threshold=4097", "algo=lz4", "algo=842", "priority=2", "x"] {
        assert!(matches!(device.set("recompress", bad), Err(Error::Invalid { .. })), "{bad}");
    }
    for block in 0..4 {
        let mut read = vec![0; BLOCK];
        device.read(&mut worker, at(block), &mut read).unwrap();
        assert_eq!(read, text(block as u64));
    }
    device.check().unwrap();
}

#[test]
fn idle_neighbours_become_one_object() {
    let (device, mut worker) = device("1M");
    let bytes: Vec<u8> = (0..16).flat_map(|block| text(block / 4)).collect();
    for (block, bytes) in bytes.chunks_exact(BLOCK).enumerate() {
        device.write(&mut worker, (block * BLOCK) as u64, bytes).unwrap();
    }
    let before = device.stats().compr_data_bytes;
    device.set("idle", "all").unwrap();
    device.set("recompress", "type=idle").unwrap();
    let after = device.stats().compr_data_bytes;
    assert!(after * 3 < before, "{before} {after}");
    let mut read = vec![0; UNIT];
    device.read(&mut worker, 0, &mut read).unwrap();
    assert_eq!(read, bytes);
    device.check().unwrap();
}

/// A device with an area in a file without a name.
fn with_area(slots: usize) -> (Device, zram::Worker) {
    let device = Device::new().log_to(|_| ());
    device.set_backing("memory", Box::new(area(slots))).unwrap();
    device.set("disksize", "1M").unwrap();
    let worker = device.worker();
    (device, worker)
}

#[test]
fn writeback_takes_what_it_is_told_and_keeps_to_its_limit() {
    let (device, mut worker) = with_area(100);
    assert_eq!(device.show("backing_dev").unwrap(), "memory");
    let at = |block: usize| (block * BLOCK) as u64;
    let bytes: Vec<Vec<u8>> =
        (0..20).map(|block| if block % 2 == 0 { text(block) } else { noise(block) }).collect();
    bytes.iter().enumerate().for_each(|(n, block)| device.write(&mut worker, at(n), block).unwrap());
    device.set("writeback_limit", "3").unwrap();
    device.set("writeback_limit_enable", "1").unwrap();
    assert!(matches!(device.set("writeback", "huge"), Err(Error::Busy(_))), "the limit is used up");
    assert_eq!((device.show("writeback_limit").unwrap(), device.stats().bd_writes), ("0".into(), 3));
    device.set("writeback_limit_enable", "0").unwrap();
    device.set("writeback", "huge").unwrap();
    assert_eq!(
        (device.stats().bd_count, state(&device, 1), state(&device, 0)),
        (10, ".wh...".into(), "......".into())
    );
    device.set("writeback", "page_indexes=4-5 page_index=0").unwrap();
    let written = (0..20).filter(|block| state(&device, *block).starts_with(".w")).count();
    assert_eq!((written, device.stats().bd_count), (12, 12));
    for (n, block) in bytes.iter().enumerate() {
        let mut read = vec![0; BLOCK];
        device.read(&mut worker, at(n), &mut read).unwrap();
        assert!(read == *block, "block {n}");
    }
    assert_eq!(device.stats().bd_reads, 12);
    device.write(&mut worker, at(1), &[1]).unwrap();
    device.discard(&mut worker, at(3), at(1)).unwrap();
    assert_eq!(device.stats().bd_count, 10);
    device.check().unwrap();
    for bad in ["", "all", "page_index=256", "page_indexes=5-4", "page_indexes=5", "idle page_index=1"] {
        assert!(matches!(device.set("writeback", bad), Err(Error::Invalid { .. })), "{bad:?}");
    }
}

#[test]
fn a_unit_is_written_back_in_as_many_slots_as_it_needs() {
    let (device, mut worker) = with_area(100);
    let bytes: Vec<u8> = (0..16).flat_map(text).collect();
    device.write(&mut worker, 0, &bytes).unwrap();
    device.set("compressed_writeback", "1").unwrap();
    device.set("idle", "all").unwrap();
    device.set("writeback", "idle").unwrap();
    let slots = device.stats().bd_count;
    assert!((1..12).contains(&slots), "{slots}");
    assert_eq!(device.stats().compr_data_bytes, 0);
    let mut read = vec![0; UNIT];
    device.read(&mut worker, 0, &mut read).unwrap();
    assert!(read == bytes);
    device.check().unwrap();
}

#[test]
fn a_full_area_leaves_the_rest_in_ram() {
    let (device, mut worker) = with_area(5);
    (0..9).for_each(|n| device.write(&mut worker, n * BLOCK as u64, &noise(n)).unwrap());
    device.set("writeback_batch_size", "2").unwrap();
    let full = device.set("writeback", "huge").unwrap_err();
    assert_eq!(
        (full.to_string(), full.errno()),
        ("memory: the backing device is full".into(), base::Errno::ENOSPC)
    );
    assert_eq!(device.stats().bd_count, 5);
    for n in 0..9 {
        let mut read = vec![0; BLOCK];
        device.read(&mut worker, n * BLOCK as u64, &mut read).unwrap();
        assert!(read == noise(n));
    }
    device.check().unwrap();
}

#[test]
fn by_itself_a_device_gets_denser_with_age_and_then_leaves_ram() {
    let fd = base::sys::memfd(c"area").unwrap();
    base::sys::ftruncate(&fd, 1 << 20).unwrap();
    let area = swap::FileArea::new(base::sys::DataFile::new(fd).unwrap(), 1 << 20);
    let device = Device::new();
    device.set_backing("memory", Box::new(area)).unwrap();
    device.set("recomp_algorithm", "algo=zstd").unwrap();
    device.set("disksize", "1M").unwrap();
    let mut worker = device.worker();
    device.write(&mut worker, 0, &(0..16).flat_map(text).collect::<Vec<_>>()).unwrap();
    device.set("auto_recompress", "10").unwrap();
    device.set("auto_writeback", "30").unwrap();
    let mut seen = Vec::new();
    for second in 1..40 {
        device.tick(Duration::from_secs(second)).unwrap();
        seen.push(state(&device, 3));
    }
    seen.dedup();
    assert_eq!(seen, ["......", "....r.", ".w..r."]);
    device.check().unwrap();
}

#[test]
fn an_object_of_which_little_is_left_is_packed_anew() {
    let (device, mut worker) = device("1M");
    let bytes: Vec<u8> = (0..16).flat_map(text).collect();
    device.write(&mut worker, 0, &bytes).unwrap();
    let whole = device.stats().compr_data_bytes;
    device.discard(&mut worker, 0, 11 * BLOCK as u64).unwrap();
    assert_eq!(device.stats().compr_data_bytes, whole, "five of sixteen refer to it");
    device.write(&mut worker, 11 * BLOCK as u64, &vec![0; BLOCK]).unwrap();
    assert!(device.stats().compr_data_bytes * 3 < whole);
    let mut read = vec![0; 4 * BLOCK];
    device.read(&mut worker, 12 * BLOCK as u64, &mut read).unwrap();
    assert!(read == bytes[12 * BLOCK..]);
    device.check().unwrap();
}

#[test]
fn a_backing_device_is_one_devices_until_that_is_reset() {
    let path = std::env::temp_dir().join(format!("zram-alone-{}", std::process::id()));
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let name = path.to_str().unwrap();
    let (first, second) = (Device::new(), Device::new());
    first.set("backing_dev", name).unwrap();
    first.set("disksize", "1M").unwrap();
    let mut worker = first.worker();
    first.write(&mut worker, 0, &text(1)).unwrap();
    let refusal = second.set("backing_dev", name).unwrap_err().to_string();
    assert!(refusal.contains(name) && refusal.contains("uses it"), "{refusal}");
    // Its worker has not come again.
    first.set("reset", "1").unwrap();
    second.set("backing_dev", name).unwrap();
    std::fs::remove_file(path).unwrap();
}

/// A file of 1 MiB for a test, which holds `data` at its beginning; its path, with a comma.
fn backing_file(test: &str, data: &[u8]) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("zram-{test},{}", std::process::id()));
    let mut bytes = data.to_vec();
    bytes.resize(1 << 20, 0);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn is_empty(path: &std::path::Path) -> bool {
    let bytes = std::fs::read(path).unwrap();
    bytes.len() == 1 << 20 && bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn a_backing_device_that_holds_data_is_refused_without_force() {
    let path = backing_file("held", b"mine");
    let name = path.to_str().unwrap();
    let device = Device::new();
    let refusal = device.set("backing_dev", name).unwrap_err().to_string();
    let expected = format!("{name}: holds data, which would be lost; backing_dev={name},force ");
    assert!(refusal.starts_with(&expected) && !refusal.contains('\n'), "{refusal}");
    assert_eq!(device.show("backing_dev").unwrap(), "none");
    assert!(matches!(device.set("backing_dev", ",force"), Err(Error::Invalid { .. })));
    device.set("backing_dev", &format!("{name},force")).unwrap();
    assert_eq!(device.show("backing_dev").unwrap(), name);
    device.set("backing_dev", "none").unwrap();
    assert!(std::fs::read(&path).unwrap().starts_with(b"mine"), "no disk has used it");
    device.set("backing_dev", &format!("{name},force")).unwrap();
    device.set("disksize", "1M").unwrap();
    assert_eq!(device.show("backing_dev").unwrap(), name);
    device.set("reset", "1").unwrap();
    assert!(std::fs::read(&path).unwrap().starts_with(b"mine"), "nothing was written");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_backing_device_is_left_empty_for_the_next() {
    let path = backing_file("left", b"");
    let name = path.to_str().unwrap();
    let ends: [fn(Device); 3] =
        [|device| device.set("reset", "1").unwrap(), |device| device.close_backing(), drop];
    for end in ends {
        let device = Device::new().log_to(|_| ());
        device.set("backing_dev", name).unwrap();
        device.set("disksize", "1M").unwrap();
        device.write(&mut device.worker(), 0, &noise(1)).unwrap();
        device.set("writeback", "huge").unwrap();
        assert!(!is_empty(&path));
        end(device);
        assert!(is_empty(&path));
    }
    std::fs::remove_file(path).unwrap();
}
