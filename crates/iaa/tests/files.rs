//! The driver and queues that it opens itself: sysfs, open(2), write(2), close(2). It takes root, to have the model's
//! queues as files.

#[path = "../../zfolio/tests/skip/mod.rs"]
mod skip;

use iaa::setup::Setup;
use iaa::{Config, Context, Driver, Outcome, Portal, Reason, Request};
use iaa_model::{DeviceConfig, Fault, Files, Model, Tree, Zlib};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A model's files, which go before the tree that they are in; or `None`, which is said, where they may not be had.
fn files(model: &Model, name: &str) -> Option<(Tree, Files)> {
    let tree = Tree::new(name);
    match Files::new(model, &tree) {
        Ok(files) => Some((tree, files)),
        Err(why) => {
            skip::skip(&format!("no file system in user space: {why}"));
            None
        }
    }
}

fn unit(seed: u8) -> Vec<u8> {
    (0..4096u32).map(|at| (at / 7) as u8 ^ seed).collect()
}

/// Compresses units as one batch and says how many came of each.
fn compress(context: &mut Context, units: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut rooms = vec![vec![0; 4096]; units.len()];
    let mut batch: Vec<_> =
        units.iter().zip(&mut rooms).map(|(unit, room)| Request::new(unit, room)).collect();
    context.compress(&mut batch);
    let lengths: Vec<_> = batch.iter().map(|request| request.result).collect();
    let cut = |(room, length): (&Vec<u8>, _)| match length {
        Ok(Outcome::Written(bytes)) => room[..bytes].to_vec(),
        other => panic!("{other:?}"),
    };
    rooms.iter().zip(lengths).map(cut).collect()
}

#[test]
fn what_is_written_to_a_queues_file_is_done_in_the_writers_memory() {
    let config = DeviceConfig { queues: vec![4, 16], ..DeviceConfig::default() };
    let model = Model::new([
        config,
        DeviceConfig { id: 3, dedicated: true, queues: vec![8], ..DeviceConfig::default() },
    ]);
    let Some((tree, files)) = files(&model, "files") else { return };
    assert_eq!(Setup::look(tree.root()).summary(), "2 IAA devices, 3 of 3 work queues usable");
    let driver = Arc::new(
        Driver::open(tree.root(), Config { timeout_ns: 60_000_000_000, ..Config::default() }).unwrap(),
    );
    assert_eq!(driver.queue_count(), 3);
    // The dedicated one is taken now.
    assert_eq!(Setup::look(tree.root()).summary(), "2 IAA devices, 2 of 3 work queues usable");
    let mut context = Context::new(driver.clone(), Box::new(Zlib::default()), 32, 4096).unwrap();
    let units: Vec<Vec<u8>> = (0..64).map(unit).collect();
    for _ in 0..4 {
        let objects = compress(&mut context, &units);
        for (object, unit) in objects.iter().zip(&units) {
            let mut plain = vec![0; 4096];
            assert_eq!(iaa::Software::decompress(&mut Zlib::default(), object, &mut plain), Some(4096));
            assert!(plain == *unit);
        }
    }
    let stats = driver.stats();
    assert!(stats.queues.iter().all(|(.., queue)| queue.comp_calls > 0), "{stats:?}");
    assert!(stats.total().refused > 0, "the small one was full: {stats:?}");
    // A device that is taken away is noticed, and its work redone.
    model.remove(1);
    compress(&mut context, &units);
    assert_eq!(driver.queue_count(), 1, "{:?}", driver.stats());
    drop((context, driver));
    assert_eq!(Setup::look(tree.root()).usable_count(), 3, "what is closed may be opened again");
    drop(files);
}

/// Who closes a queue's file has its memory for himself from then on.
#[test]
fn nothing_is_written_once_the_file_is_closed() {
    let model = Model::new([DeviceConfig { latency: Duration::from_millis(200), ..DeviceConfig::default() }]);
    let Some((tree, _files)) = files(&model, "close") else { return };
    let driver = Driver::open(tree.root(), Config { timeout_ns: 1_000_000, ..Config::default() }).unwrap();
    let driver = Arc::new(driver);
    let mut context = Context::new(driver.clone(), Box::new(Zlib::default()), 8, 4096).unwrap();
    let units: Vec<Vec<u8>> = (0..8).map(unit).collect();
    compress(&mut context, &units);
    assert!(
        driver.stats().software(Reason::Timeout) > 0 && driver.queue_count() == 0,
        "{:?}",
        driver.stats()
    );
    // Closing it gives the lanes back, though nothing was done.
    context.rest();
    model.set_faults(1, Box::new(|_, _| Some(Fault::Full)));
    assert_eq!(driver.refresh(), Ok(0), "it did not answer");
    tree.set(1, "wq1.0/state", "disabled");
    assert_eq!(driver.refresh(), Ok(0));
    tree.set(1, "wq1.0/state", "enabled");
    assert_eq!(driver.refresh(), Ok(1));
    let began = Instant::now();
    compress(&mut context, &units);
    assert_eq!(driver.stats().software(Reason::Full), 8, "{:?}", driver.stats());
    assert!(began.elapsed() < Duration::from_secs(20));
}

/// Another process that has the descriptor has not the memory.
#[test]
fn a_process_that_did_not_open_the_file_is_refused() {
    let model = Model::new([DeviceConfig::default()]);
    let Some((tree, _files)) = files(&model, "others") else { return };
    let open = || {
        let path = format!("{}/dev/iax/wq1.0\0", tree.root());
        let file = base::sys::open(path.as_bytes(), base::sys::consts::O_RDWR).unwrap();
        iaa::portal::File::new(file).unwrap()
    };
    // SAFETY: the record is on no multiple of 64, and so nothing is done.
    let submit = |portal: &iaa::portal::File| unsafe {
        portal.submit(&[iaa::descriptor::Descriptor { completion: 1, ..Default::default() }])
    };
    // A thread is taken for a process here: the kernel says which one asked.
    let portal = open();
    assert_eq!(submit(&portal), Ok(1));
    let other = std::thread::scope(|scope| scope.spawn(|| submit(&portal)).join().unwrap());
    assert_eq!(other, Err(iaa::Gone));
}
