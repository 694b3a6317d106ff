//! Areas while processes come, write, and are killed.

use super::*;
use base::sys::{is_byte_locked, lock_byte};
use std::fs::{self, File, OpenOptions};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where files are no memory, as areas want it.
const DISK: &str = "/var/tmp";

/// An area of so many clusters, in a file without a name.
fn areas(clusters: u64) -> SwapAreas {
    let asked = format!("{DISK},size={}", clusters * CLUSTER_BYTES);
    SwapAreas::new(open(&[asked]).unwrap()).unwrap().0
}

/// The table's file by a description of its own, as processes are handed it.
fn description(areas: &SwapAreas) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", areas.table_file.raw());
    OpenOptions::new().read(true).write(true).open(path).unwrap().into()
}

/// A process that lives until its description is closed, with a row of this number.
fn process(areas: &SwapAreas, number: u16) -> (OwnedFd, Row) {
    let own = description(areas);
    let lock = Fd::own(own.try_clone().unwrap().into_raw_fd() as usize);
    assert_eq!(lock_byte(&lock, Row::lock_at(number), true), Ok(true));
    (own, areas.table.take_this_row(number, 1000 + number as u64).unwrap())
}

fn read(areas: &SwapAreas, cluster: u32) -> u8 {
    let mut file = Page([0; 4096]);
    areas.opened[0].area.read(cluster as u64 * CLUSTER_BYTES, &mut file.0).unwrap();
    file.0[0]
}

/// Aligned as O_DIRECT has it.
#[repr(align(4096))]
struct Page([u8; 4096]);

fn write(areas: &SwapAreas, cluster: u32, byte: u8) {
    areas.opened[0].area.write(cluster as u64 * CLUSTER_BYTES, &Page([byte; 4096]).0).unwrap();
}

#[test]
fn a_process_is_buried_when_its_lock_has_gone() {
    let mut areas = areas(8);
    let table = areas.table;
    let (a, a_row) = process(&areas, 3);
    let (_b, b_row) = process(&areas, 5);
    let claimed = [0, 0].map(|from| table.claim(a_row, 0..8, from).unwrap());
    table.copy_row(a_row, b_row);
    assert_eq!(table.claim(a_row, 0..8, 0), Some(2));
    areas.tick(true);
    assert_eq!((table.holder(a_row), table.holder(b_row)), (1003, 1005));
    drop(a);
    areas.tick(false);
    assert_eq!(table.holder(a_row), 1003, "a second has not passed, and nobody has ended");
    areas.tick(true);
    assert_eq!((table.holder(a_row), table.holder(b_row)), (0, 1005));
    assert!(claimed.iter().all(|cluster| table.has(b_row, *cluster)), "what relatives have stays");
    assert_eq!(table.free_clusters(0..8), 6);
    table.check().unwrap();
}

#[test]
fn who_was_killed_is_dead_with_the_last_who_shares_its_description() {
    let mut areas = areas(8);
    let (own, row) = process(&areas, 0);
    let mut child = Command::new("sleep").arg("1000").stdin(Stdio::from(own)).spawn().unwrap();
    areas.tick(true);
    assert_eq!(areas.table.holder(row), 1000);
    child.kill().unwrap();
    child.wait().unwrap();
    areas.next = Instant::now();
    areas.tick(false);
    assert_eq!(areas.table.holder(row), 0);
}

#[test]
fn what_the_dead_had_is_given_back_and_what_others_have_taken_since_is_not() {
    let mut areas = areas(8);
    let table = areas.table;
    let (dead, dead_row) = process(&areas, 0);
    let (_living, row) = process(&areas, 1);
    for cluster in 0..5 {
        assert!(table.claim_this(dead_row, cluster));
        write(&areas, cluster, 7);
    }
    drop(dead);
    areas.bury();
    assert_eq!(areas.freed, [0, 1, 2, 3, 4]);
    assert!(table.claim_this(row, 2));
    write(&areas, 2, 9);
    areas.give_back();
    assert_eq!([0, 1, 2, 3, 4].map(|cluster| read(&areas, cluster)), [0, 0, 9, 0, 0]);
    assert_eq!((table.free_clusters(0..8), table.held_rows().count()), (7, 1));
    table.check().unwrap();
}

#[test]
fn much_is_given_back_in_parts_and_each_area_gets_its_own() {
    let path = Path::new(DISK);
    let asked = [50, 50].map(|clusters| format!("{},size={}", path.display(), clusters * CLUSTER_BYTES));
    let mut areas = SwapAreas::new(open(&asked).unwrap()).unwrap().0;
    let (dead, row) = process(&areas, 0);
    assert!((0..100).all(|cluster| areas.table.claim_this(row, cluster)));
    let pages = [0, 49].map(|cluster| cluster * CLUSTER_BYTES);
    let of = |areas: &SwapAreas, n: usize| {
        let mut page = Page([0; 4096]);
        pages.map(|at| areas.opened[n].area.read(at, &mut page.0).map(|()| page.0[0]).unwrap())
    };
    for opened in &areas.opened {
        pages.iter().for_each(|at| opened.area.write(*at, &Page([7; 4096]).0).unwrap());
    }
    drop(dead);
    areas.tick(true);
    assert_eq!((of(&areas, 0), of(&areas, 1)), ([0, 0], [0, 7]), "64 of 100 clusters");
    areas.tick(false);
    assert_eq!((of(&areas, 0), of(&areas, 1)), ([0, 0], [0, 0]));
    assert_eq!((areas.freed.len(), areas.table.free_clusters(0..100)), (0, 100));
    areas.table.check().unwrap();
}

#[test]
fn a_file_is_emptied_at_the_end_but_for_what_the_living_have() {
    let path = Path::new(DISK).join(format!("zfolio-areas-end-{}", std::process::id()));
    File::create(&path).unwrap().set_len(100 * CLUSTER_BYTES).unwrap();
    let asked = [path.display().to_string(), format!("{DISK},size=16M")];
    let mut areas = SwapAreas::new(open(&asked).unwrap()).unwrap().0;
    let (_living, row) = process(&areas, 0);
    let (dead, dead_row) = process(&areas, 1);
    assert!(areas.table.claim_this(row, 70) && areas.table.claim_this(dead_row, 71));
    for cluster in [3, 70, 71, 99] {
        write(&areas, cluster, 7);
    }
    areas.opened[1].area.write(0, &Page([7; 4096]).0).unwrap();
    drop(dead);
    areas.end();
    assert_eq!([3, 70, 71, 99].map(|cluster| read(&areas, cluster)), [0, 7, 0, 0]);
    let mut page = Page([0; 4096]);
    areas.opened[1].area.read(0, &mut page.0).unwrap();
    assert_eq!(page.0[0], 7, "what has no name goes by itself");
    drop(areas);
    let file = File::open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 70 * CLUSTER_BYTES).unwrap();
    assert_eq!((byte, file.metadata().unwrap().len()), ([7], 100 * CLUSTER_BYTES));
    fs::remove_file(path).unwrap();
}

#[test]
fn where_all_rows_are_taken_nothing_is_given_back_and_nothing_is_wrong() {
    let mut areas = areas(8);
    let processes: Vec<_> = (0..swap::table::ROWS as u16).map(|number| process(&areas, number)).collect();
    areas.freed = vec![1];
    write(&areas, 1, 7);
    areas.tick(true);
    assert_eq!((areas.freed.len(), read(&areas, 1), areas.table.free_clusters(0..8)), (0, 7, 8));
    drop(processes);
    // A child that another test is making has their descriptions until it executes.
    let deadline = Instant::now() + Duration::from_secs(20);
    while areas.table.held_rows().count() > 0 {
        assert!(Instant::now() < deadline, "{} rows are held", areas.table.held_rows().count());
        areas.tick(true);
    }
}

#[test]
fn engines_are_told_of_the_areas_in_their_order() {
    let path = Path::new(DISK);
    let asked = ["33M", "16M,prio=7"].map(|how| format!("{},size={how}", path.display()));
    let areas = SwapAreas::new(open(&asked).unwrap()).unwrap().0;
    let settings = memcg::Settings { areas: areas.settings(), ..memcg::Settings::default() };
    assert_eq!(settings.area_clusters().collect::<Vec<_>>(), [(0..16, 0), (16..24, 7)]);
    assert_eq!(areas.table.clusters(), 24);
}

#[test]
fn the_key_is_random_in_locked_memory_and_in_no_dump() {
    let keys = [c"zfolio-test-key"; 2].map(|name| {
        let file = base::sys::memfd(name).unwrap();
        assert_eq!(sys::make_secret(&file, seal::KEY), Ok(Ok(())));
        let mut page = [1; 4096];
        File::from(sys::duplicate(&file).unwrap()).read_exact_at(&mut page, 0).unwrap();
        assert!(page[seal::KEY..].iter().all(|byte| *byte == 0));
        page[..seal::KEY].to_vec()
    });
    assert!(keys[0] != keys[1] && keys.iter().all(|key| key.iter().any(|byte| *byte != 0)));
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let (_, of_key) = maps.split_once("/memfd:zfolio-test-key").unwrap();
    let flags = of_key.lines().find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
    assert!([" lo", " dd"].iter().all(|flag| flags.contains(flag)), "{flags}");
}

#[test]
fn the_run_sees_the_lock_of_the_byte_that_engines_lock() {
    let areas = areas(8);
    let (own, row) = process(&areas, 9);
    let mine = Fd::own(own.try_clone().unwrap().into_raw_fd() as usize);
    let at = Row::lock_at(row.number());
    assert_eq!(at, 1 << 40 | 9);
    assert_eq!((is_byte_locked(&mine, at), areas.is_locked(row)), (Ok(false), true));
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let dir = DISK.to_string();
    let nine = vec![dir.clone(); AREAS_MAX + 1];
    for (asked, expected) in [
        (nine, "--backing: 9 areas, expected at most 8"),
        (vec![dir.clone(), format!("{dir},prio=x")], "prio=x: expected 0 to 32767"),
        (vec!["/no/such".to_string()], "--backing: /no/such: cannot be used as an area"),
    ] {
        let error = format!("{:#}", open(&asked).err().unwrap());
        assert!(
            error.starts_with("--backing") && error.contains(expected) && !error.contains('\n'),
            "{error}"
        );
    }
    assert!(open(&[]).unwrap().is_empty());
}
