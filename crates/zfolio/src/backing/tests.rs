//! Areas as users give them.

use super::*;
use std::os::unix::fs::MetadataExt;

const MIB: u64 = 1 << 20;

/// A directory of the test's own.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        Directory::on("/var/tmp", name)
    }

    fn on(parent: &str, name: &str) -> Directory {
        let path = Path::new(parent).join(format!("zfolio-backing-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    /// A file in it, of so many bytes, with these bytes somewhere.
    fn file(&self, bytes: u64, at: u64, data: &[u8]) -> PathBuf {
        let path = self.0.join("file");
        let file = File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        file.write_all_at(data, at).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn open(text: String) -> Result<Opened, String> {
    Backing::parse(&text)?.open().map_err(|error| format!("{error:#}"))
}

#[test]
fn areas_are_read_as_they_are_given() {
    let plain = Backing { path: "/a b".into(), size: None, priority: 0, force: false };
    assert_eq!(Backing::parse("/a b"), Ok(plain.clone()));
    let all = Backing { size: Some(Size::Bytes(2 << 30)), priority: 32767, force: true, ..plain.clone() };
    assert_eq!(Backing::parse("/a b,size=2G,prio=32767,encrypt=yes,force"), Ok(all));
    assert_eq!(
        Backing::parse("/a b,encrypt=yes,size=50%"),
        Ok(Backing { size: Some(Size::Percent(50.0)), ..plain })
    );
}

#[test]
fn nonsense_is_refused_in_one_line_that_says_what_is_right() {
    for (text, expected) in [
        ("", "no path"),
        (",size=1G", "no path"),
        ("/a,size=12Q", "size=12Q: expected a size such as 512M"),
        ("/a,size=32M,force,size=64M", "size is given twice"),
        ("/a,prio=-1", "prio=-1: expected 0 to 32767"),
        ("/a,prio=32768", "expected 0 to 32767"),
        ("/a,prio=x", "expected 0 to 32767"),
        ("/a,encrypt", "expected encrypt=yes"),
        ("/a,encrypt=no", "all that leaves RAM is encrypted"),
        ("/a,force=1", "\"force=1\" is no option of an area"),
        ("/a,", "\"\" is no option"),
        ("/a,size", "\"size\" is no option"),
        ("/no/such/path", "/no/such/path: cannot be used as an area: No such file"),
        ("/dev/null", "expected a directory, a file or a block device"),
        ("/proc/self/mem", "/proc/self/mem"),
    ] {
        let error = open(text.to_string()).unwrap_err();
        assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
    }
}

#[test]
fn a_directory_has_a_file_without_a_name() {
    let directory = Directory::new("directory");
    let path = directory.0.display();
    let opened = open(format!("{path},size=33M,prio=5")).unwrap();
    assert_eq!((opened.area.bytes(), opened.priority), (32 * MIB, 5));
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
    let named = named_once(&directory.0, OFlags::empty()).unwrap();
    assert_eq!((fs::read_dir(&directory.0).unwrap().count(), named.metadata().unwrap().nlink()), (0, 0));
    let usual = open(format!("{path}")).unwrap().area.bytes();
    assert!(usual >= LEAST_BYTES && usual <= free_bytes(&directory.0).unwrap(), "{usual}");
    for size in ["15M", "1000000T", "0%", "101%"] {
        let error = open(format!("{path},size={size}")).unwrap_err();
        assert!(error.contains("expected 16 MiB to "), "{error}");
    }
}

#[test]
fn an_area_is_written_and_read_as_its_alignment_asks() {
    #[repr(align(4096))]
    struct Pages([u8; 8192]);
    let directory = Directory::new("written");
    let opened = open(format!("{},size=16M", directory.0.display())).unwrap();
    let (written, mut read) = (Pages([7; 8192]), Pages([0; 8192]));
    assert!(opened.area.align() <= 4096, "{}", opened.area.align());
    opened.area.write(3 * MIB, &written.0).unwrap();
    opened.area.read(3 * MIB, &mut read.0).unwrap();
    assert!(read.0 == written.0);
}

#[test]
fn what_lies_in_memory_is_refused() {
    let directory = Directory::on("/dev/shm", "memory");
    let path = directory.0.display();
    for text in [path.to_string(), format!("{path}/file"), format!("{path},size=16M")] {
        File::create(directory.0.join("file")).unwrap();
        let error = open(text).unwrap_err();
        assert!(error.contains("its files are memory"), "{error}");
    }
    assert_eq!(open(format!("{path},size=16M,force")).unwrap().area.bytes(), 16 * MIB);
    let error = open("/proc,size=16M".into()).unwrap_err();
    assert!(error.starts_with("/proc: "), "{error}");
}

#[test]
fn what_a_file_holds_is_not_lost() {
    let directory = Directory::new("foreign");
    for (at, data, expected) in [
        (4086, &b"SWAPSPACE2"[..], "holds a swap area"),
        (1080, &[0x53, 0xef], "holds an ext2, ext3 or ext4 file system"),
        (0, b"XFSB", "holds an XFS file system"),
        (510, &[0x55, 0xaa], "holds a partition table"),
        (MIB - 1, b"x", "holds data"),
        (32 * MIB - 1, b"x", "holds data"),
    ] {
        let path = directory.file(32 * MIB, at, data);
        let error = open(path.display().to_string()).unwrap_err();
        assert!(error.contains(expected) && error.contains("with ,force it is used"), "{error}");
        let mut byte = vec![0; data.len()];
        File::open(&path).unwrap().read_exact_at(&mut byte, at).unwrap();
        assert_eq!(byte, data);
        assert_eq!(open(format!("{},force", path.display())).unwrap().area.bytes(), 32 * MIB);
        // It is ours now, and was left empty.
        assert_eq!(open(path.display().to_string()).unwrap().area.bytes(), 32 * MIB);
    }
}

#[test]
fn a_file_is_one_runs_and_is_left_empty() {
    let directory = Directory::new("left");
    let path = directory.file(0, 0, b"");
    let opened = open(format!("{},size=16M", path.display())).unwrap();
    let error = open(format!("{},size=16M", path.display())).unwrap_err();
    assert!(error.contains("another run or program has a lock"), "{error}");
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[1; 100_000], 5000).unwrap();
    assert!(fs::metadata(&path).unwrap().blocks() > 0);
    drop(opened);
    let left = fs::metadata(&path).unwrap();
    assert_eq!((left.len(), left.blocks()), (16 * MIB, 0));
}
