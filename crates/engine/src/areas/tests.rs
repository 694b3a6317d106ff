//! Areas in files without a name, and rows that are locked in the table's.

use super::*;
use memcg::AreaSetting;
use std::cell::RefCell;
use swap::Place;
use swap::seal::TAG;
use uffd::PAGE;
use uffd::pagemap::Pagemap;
use zswap::objects::{Body, Piece};

const CLUSTERS: usize = 3;

/// The files of a run with one area.
struct Run {
    table: Fd,
    key: Fd,
    area: Fd,
    settings: Settings,
}

/// Another description of the same file.
fn again(file: &Fd) -> Fd {
    sys::open(format!("/proc/self/fd/{}\0", file.raw()).as_bytes(), O_RDWR).unwrap()
}

impl Run {
    fn new() -> Run {
        let [table, key, area] = [c"table", c"key", c"area"].map(|name| sys::memfd(name).unwrap());
        sys::ftruncate(&table, Table::file_len(CLUSTERS)).unwrap();
        sys::write(&key, &[5; KEY]).unwrap();
        sys::ftruncate(&area, CLUSTERS << 21).unwrap();
        let mut settings = Settings::default();
        settings.areas[0] = AreaSetting { bytes: (CLUSTERS as u64) << 21, ..AreaSetting::default() };
        Run { table, key, area, settings }
    }

    /// What `zfolio run` hands over.
    fn handed(&self) -> Handed {
        let files = core::array::from_fn(|n| (n == 0).then(|| again(&self.area)));
        Handed { table: again(&self.table), key: again(&self.key), files }
    }

    fn open(&self) -> SwapAreas {
        SwapAreas::open(self.handed(), &self.settings, &bell()).unwrap()
    }

    /// The kernel takes a ring down, which has the lock too, when it comes to it.
    fn await_unlocked(&self, row: Row) {
        let end = sys::now_ns() + 20_000_000_000;
        while self.is_locked(row) {
            assert!(sys::now_ns() < end, "{row:?} stays locked");
            sys::sleep_ns(1_000_000);
        }
    }

    fn is_locked(&self, row: Row) -> bool {
        sys::is_byte_locked(&self.table, Row::lock_at(row.number())).unwrap()
    }
}

/// The process ends: its mapping of the table goes too, which is of the same description.
fn end(areas: SwapAreas) {
    let (at, clusters) = (areas.at, areas.table.clusters() as usize);
    // SAFETY: nothing of the table is used any more.
    unsafe { arena::unmap(at, Table::file_len(clusters)) };
}

/// What a child has of it: a mapping of the same description.
fn copy_of(parent: &SwapAreas) -> Parents {
    let clusters = parent.table.clusters() as usize;
    let at = arena::map_file_let_in(Table::file_len(clusters), PROT_READ | PROT_WRITE, &parent.file).unwrap();
    // SAFETY: mapped just now.
    Parents { at, table: unsafe { table_at(at, clusters) }, holder: parent.holder }
}

fn inherit(run: &Run, row: Row, parent: &SwapAreas) -> Result<SwapAreas, (&'static str, Errno)> {
    // SAFETY: nothing else is done with the copy.
    unsafe { SwapAreas::inherit(run.handed(), &run.settings, &bell(), row, copy_of(parent)) }
}

fn bell() -> Fd {
    sys::eventfd().unwrap()
}

fn body(handle: u32) -> Body {
    Body::Blob { handle, fingerprint: 0, bytes: 0 }
}

/// Objects of so many bytes, each full of its number, one after the other in a batch.
fn batch(slots: &mut Slots, bytes: &[usize]) -> Batch {
    let run = slots.take(5).unwrap();
    let mut batch = Batch { run, pieces: Vec::new() };
    for (n, len) in bytes.iter().enumerate() {
        let at = batch.bytes();
        let (slot, offset) = (run.slot + (at / SLOT) as u32, (at % SLOT) as u16);
        let (key, serial) = (slots.row().number(), slots.serials().next().unwrap());
        let place = Place { slot, offset, key, bytes: *len as u32, serial };
        let (body, tag) = (body(n as u32 + 1), [0; TAG]);
        batch.pieces.push(Piece { id: n as u32, body, place, is_raw: false, tag, is_damaged: false });
    }
    batch
}

fn write(areas: &mut SwapAreas, batch: &mut Batch) -> bool {
    areas.write(2, batch, |piece, room| {
        let Body::Blob { handle, .. } = piece.body else { panic!("{piece:?}") };
        room.fill(handle as u8);
        true
    });
    let Done::Written { number: 2, is_written } = wait(areas, |_| Came::Not) else { panic!("another") };
    is_written
}

fn wait(areas: &mut SwapAreas, take_in: impl Fn(&[u8]) -> Came) -> Done {
    loop {
        if let Some(done) = areas.next_done(|_, object| take_in(object)) {
            return done;
        }
        std::thread::yield_now();
    }
}

/// What came of it, and the object's bytes if it is there.
fn read(areas: &mut SwapAreas, place: Place, tag: [u8; TAG]) -> Result<Vec<u8>, Damaged> {
    let bytes = RefCell::new(Vec::new());
    areas.read(Read { id: 7, place, fingerprint: 0, tag, is_raw: false });
    let done = wait(areas, |object| {
        bytes.borrow_mut().extend(object);
        Came::Here(body(1))
    });
    match done {
        Done::Read { id: 7, came: Came::Here(_) } => Ok(bytes.into_inner()),
        Done::Read { id: 7, came: Came::Lost(damaged) } => Err(damaged),
        _ => panic!("another"),
    }
}

#[test]
fn what_is_written_is_read_and_nothing_else_is_taken_for_it() {
    let run = Run::new();
    let mut areas = run.open();
    let mut slots = areas.slots(&run.settings);
    let lengths = [1400, 20_000, 3, 65_900, 4096 - TAG, 4096];
    let mut batch = batch(&mut slots, &lengths);
    assert!(write(&mut areas, &mut batch));
    for (n, piece) in batch.pieces.iter().enumerate() {
        assert_eq!(read(&mut areas, piece.place, piece.tag), Ok(alloc::vec![n as u8 + 1; lengths[n]]), "{n}");
    }
    let [first, second] = [0, 1].map(|n| batch.pieces[n].place);
    let [tag, seconds_tag] = [0, 1].map(|n| batch.pieces[n].tag);
    // Not as another object, nor as the one that was there before.
    assert_eq!(read(&mut areas, Place { serial: second.serial, ..first }, tag), Err(Damaged::Seal));
    assert_eq!(read(&mut areas, Place { key: first.key + 1, ..first }, tag), Err(Damaged::Seal));
    let area = DataFile::new(again(&run.area)).unwrap();
    let at = second.at() + 10_000;
    let mut byte = [0];
    area.read_at(&mut byte, at).unwrap();
    area.write_at(&[byte[0] ^ 1], at).unwrap();
    assert_eq!(read(&mut areas, second, seconds_tag), Err(Damaged::Seal), "a bit has changed");
    assert_eq!(read(&mut areas, first, seconds_tag), Err(Damaged::Seal));
    assert!(read(&mut areas, first, tag).is_ok());
    sys::ftruncate(&run.area, 0).unwrap();
    assert_eq!(read(&mut areas, first, tag), Err(Damaged::Unread(Errno::EIO)));
    let AreaCounts { out, lost, .. } = areas.take_counts();
    assert_eq!((out, lost), (batch.bytes().div_ceil(SLOT) as u64, 5));
}

/// What buffers hold is missing in the program.
#[test]
fn a_buffer_holds_little_once_its_request_has_ended() {
    let run = Run::new();
    let mut areas = run.open();
    let mut slots = areas.slots(&run.settings);
    let mut batch = batch(&mut slots, &[65_900, 300]);
    let pagemap = Pagemap::open().unwrap();
    let buffers = areas.io.buffers();
    let held = |areas: &mut SwapAreas| {
        // One look more, since the last one's bytes stay until then.
        assert!(areas.next_done(|_, _| Came::Not).is_none());
        buffers.clone().map(|pages| pages.step_by(PAGE).filter(|at| pagemap.is_present(*at).unwrap()).count())
    };
    assert!(write(&mut areas, &mut batch));
    assert_eq!(held(&mut areas), [0, 0]);
    for piece in &batch.pieces {
        read(&mut areas, piece.place, piece.tag).unwrap();
    }
    assert_eq!(held(&mut areas), [0, 2]);
}

#[test]
fn an_area_that_refuses_again_and_again_is_told_once() {
    let run = Run::new();
    let mut areas = run.open();
    let mut slots = areas.slots(&run.settings);
    let mut batch = batch(&mut slots, &[1400]);
    // A file that may only be read.
    let path = format!("/proc/self/fd/{}\0", run.area.raw());
    let file = DataFile::new(sys::open(path.as_bytes(), O_RDONLY).unwrap()).unwrap();
    let one = OneArea::new(0..CLUSTERS as u32, FileArea::new(file, (CLUSTERS as u64) << 21));
    areas.io = AreaIo::open(Vec::from([one]), &bell(), &areas.file).unwrap();
    for _ in 0..io::REFUSALS {
        assert_eq!(areas.refusing(), None);
        assert!(!write(&mut areas, &mut batch));
    }
    let refusing = Refusing { number: 0, first_cluster: 0, errno: Errno::EBADF };
    assert_eq!([areas.refusing(), areas.refusing()], [Some(refusing), None]);
    assert_eq!(areas.take_counts().refused, io::REFUSALS as u64);
}

#[test]
fn faults_of_the_test_mode_are_what_the_settings_say() {
    let mut run = Run::new();
    run.settings.area_faults = memcg::Text::new("full=1").unwrap();
    let mut areas = run.open();
    let mut slots = areas.slots(&run.settings);
    let mut one = batch(&mut slots, &[1400]);
    for _ in 0..io::REFUSALS {
        assert!(!write(&mut areas, &mut one));
    }
    let refusing = Refusing { number: 0, first_cluster: 0, errno: Errno::ENOSPC };
    assert_eq!(areas.refusing(), Some(refusing));
    run.settings.area_faults = memcg::Text::new("wrong_writes=1").unwrap();
    let mut areas = run.open();
    let mut slots = areas.slots(&run.settings);
    let mut two = batch(&mut slots, &[4096]);
    assert!(write(&mut areas, &mut two));
    assert_eq!(read(&mut areas, two.pieces[0].place, two.pieces[0].tag), Err(Damaged::Seal));
    run.settings.area_faults = memcg::Text::new("slow=1,wrong_reads=2,read_errors=3").unwrap();
    let mut areas = run.open();
    let mut slots = areas.slots(&run.settings);
    let mut three = batch(&mut slots, &[1400]);
    let began = sys::now_ns();
    assert!(write(&mut areas, &mut three));
    assert!(sys::now_ns() - began >= 1_000_000, "it was not late");
    let read: Vec<_> =
        (0..50).map(|_| read(&mut areas, three.pieces[0].place, three.pieces[0].tag)).collect();
    let whole = read.iter().filter(|read| **read == Ok(alloc::vec![1; 1400])).count();
    let lost = read.iter().filter(|read| read.is_err()).count();
    assert!(whole > 25 && whole + lost == 50, "{read:?}");
    assert_eq!(areas.under_way(), (0, 0));
}

#[test]
fn each_process_has_a_row_for_as_long_as_its_descriptor_is_open() {
    let run = Run::new();
    let (one, mut other) = (run.open(), run.open());
    assert_ne!(one.row, other.row);
    let (row, holder) = (one.row, one.holder);
    assert!(run.is_locked(row) && run.is_locked(other.row));
    end(one);
    run.await_unlocked(row);
    assert!(run.is_locked(other.row));
    assert_eq!(other.table.holder(row), holder, "until it is buried");
    // Who comes next does not take it before that.
    let next = run.open();
    assert!(next.row != row && next.row != other.row);
    other.leave();
    assert_eq!((other.table.holder(other.row), run.is_locked(other.row)), (0, false));
}

#[test]
fn a_childs_row_is_locked_at_all_times_and_taken_back_from_one_that_never_comes() {
    let run = Run::new();
    let mut parent = run.open();
    let row = parent.row_for_child().unwrap();
    assert!(row != parent.row && run.is_locked(row));
    parent.look_at_children(sys::now_ns(), true);
    let child = inherit(&run, row, &parent).unwrap();
    parent.look_at_children(sys::now_ns(), true);
    assert!(parent.children.is_empty() && run.is_locked(row), "by the child alone");
    end(child);
    run.await_unlocked(row);
    let late = parent.row_for_child().unwrap();
    parent.look_at_children(sys::now_ns(), false);
    assert!(parent.children.is_empty() && !run.is_locked(late));
    assert!(inherit(&run, late, &parent).is_err());
}

#[test]
fn a_child_whose_parent_has_died_has_the_table_where_that_had_it() {
    let run = Run::new();
    let mut parent = run.open();
    let (row, parents_row, copy) = (parent.row_for_child().unwrap(), parent.row, copy_of(&parent));
    end(parent);
    assert!(run.is_locked(row) && run.is_locked(parents_row), "as long as the child has the mapping");
    // SAFETY: nothing else is done with the copy.
    let child = unsafe { SwapAreas::inherit(run.handed(), &run.settings, &bell(), row, copy) }.unwrap();
    run.await_unlocked(parents_row);
    assert!(run.is_locked(row));
    assert_eq!((child.at, child.table.holder(row)), (copy.at, child.holder));
}
