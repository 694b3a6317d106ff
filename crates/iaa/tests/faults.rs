//! Batches through the model of the device, whatever goes wrong: what comes back is what went in, and it is counted who
//! did it.

mod rig;

use iaa::descriptor::Descriptor;
use iaa::topology::Topology;
use iaa::{Config, Driver, Gone, Operation, Portal, Reason, Request, Requests, Spec};
use iaa_model::{DeviceConfig, Fault, Model};
use rig::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Runs units through a device with a plan of faults, and says which reasons were counted.
fn with_faults(
    config: Config,
    devices: impl IntoIterator<Item = DeviceConfig>,
    plan: impl Fn(u64) -> Option<Fault> + Send + Sync + 'static,
) -> (Arc<Driver>, Model) {
    let model = Model::new(devices);
    model.set_faults(1, Box::new(move |serial, _| plan(serial)));
    let driver = driver(config, &model);
    let mut context = context(&driver, 8, 16_384);
    let mut random = Random(1);
    for _ in 0..4 {
        let units: Vec<_> = (0..16).map(|_| random.unit(16_384)).collect();
        round_trip(&mut context, &units);
        context.rest();
    }
    (driver, model)
}

#[test]
fn a_full_queue_is_asked_again() {
    let one = [DeviceConfig::default()];
    let (driver, _model) = with_faults(patient(), one, |serial| (serial % 3 == 1).then_some(Fault::Full));
    assert_eq!(only(&driver, Reason::Full), 0);
    assert!(driver.stats().total().refused > 0);
}

#[test]
fn a_queue_that_is_always_full_is_done_without() {
    let (driver, model) = with_faults(patient(), [DeviceConfig::default()], |_| Some(Fault::Full));
    let count = only(&driver, Reason::Full);
    assert_eq!(
        (model.done(1), count),
        (0, driver.stats().calls().sw_comp_calls + driver.stats().calls().sw_decomp_calls)
    );
    assert!(count >= 64);
}

#[test]
fn a_small_queue_takes_a_large_batch_in_parts() {
    for dedicated in [false, true] {
        let config = DeviceConfig { queues: vec![2], engines: 1, dedicated, ..Default::default() };
        let (driver, model) = with_faults(patient(), [config], |_| None);
        // A dedicated queue drops what it has no room for, and says nothing: the driver has to count.
        assert_eq!(only(&driver, Reason::Timeout), 0);
        assert!(model.in_flight_max(1) <= if dedicated { 2 } else { 3 });
    }
}

#[test]
fn what_is_not_done_in_time_the_cpu_does() {
    // Long enough that nothing else is late, however busy the machine is.
    let steady = Config { timeout_ns: 300_000_000, ..tireless() };
    let one = [DeviceConfig::default()];
    let (driver, _model) = with_faults(steady, one, |serial| (serial % 16 == 5).then_some(Fault::Lost));
    let count = only(&driver, Reason::Timeout);
    assert!(count >= 4, "{count}");
    assert_eq!((driver.stats().total().timeouts, driver.queue_count()), (count, 1));
}

#[test]
fn a_queue_that_does_nothing_is_closed() {
    let (driver, _model) = with_faults(quick(), [DeviceConfig::default()], |_| Some(Fault::Lost));
    let stats = driver.stats();
    assert!(stats.software(Reason::Timeout) >= 3, "{stats:?}");
    assert!(stats.software(Reason::NoQueue) > 0 && stats.closed.timeouts >= 3, "{stats:?}");
    assert_eq!((driver.queue_count(), stats.total().comp_calls), (0, 0));
}

/// One that answers most of the time is never late three times in a row. What it loses it keeps a lane for each time,
/// until it has too many.
#[test]
fn a_queue_that_loses_now_and_then_does_not_get_all_lanes() {
    let model = Model::new([1, 3].map(|id| DeviceConfig { id, ..Default::default() }));
    model.set_faults(1, Box::new(|serial, _| (serial % 8 == 5).then_some(Fault::Lost)));
    let driver = driver(Config { timeout_ns: 500_000_000, ..Config::default() }, &model);
    let mut context = context(&driver, 8, 4096);
    let mut random = Random(2);
    let mut rounds = 0;
    while driver.queue_count() == 2 && rounds < 30 {
        let units: Vec<_> = (0..8).map(|_| random.unit(4096)).collect();
        compress(&mut context, &units);
        rounds += 1;
    }
    let stats = driver.stats();
    assert_eq!((driver.queue_count(), stats.queues[0].0), (1, 3), "{stats:?}");
    assert_eq!((only(&driver, Reason::Timeout), stats.closed.timeouts), (4, 4));
    // It has let go of the lanes, which the other one has from now on.
    context.rest();
    let units: Vec<_> = (0..64).map(|_| random.unit(4096)).collect();
    round_trip(&mut context, &units);
    assert_eq!(only(&driver, Reason::Timeout), 4);
    let model_max = model.in_flight_max(3);
    assert_eq!(model_max, 8, "all lanes are in use");
}

/// What comes late after all is no loss: a queue that is slow now and then is kept.
#[test]
fn what_is_done_late_is_not_lost() {
    let model = Model::new([DeviceConfig::default()]);
    let late = |serial| (serial % 8 == 5).then_some(Fault::Late(Duration::from_millis(600)));
    model.set_faults(1, Box::new(move |serial, _| late(serial)));
    let driver =
        driver(Config { timeout_ns: 200_000_000, strikes_max: u32::MAX, ..Config::default() }, &model);
    let mut context = context(&driver, 8, 4096);
    let units: Vec<_> = (0..8).map(|at| Random(at).unit(4096)).collect();
    for _ in 0..6 {
        compress(&mut context, &units);
        std::thread::sleep(Duration::from_millis(600));
    }
    assert!(driver.stats().total().timeouts >= 5, "{:?}", driver.stats());
    assert_eq!(driver.queue_count(), 1);
}

/// Whoever gives up a batch does not wait for its time-out. The lanes are taken back all the same.
#[test]
fn what_was_given_up_and_never_comes_is_found_out() {
    let model = Model::new([1, 3].map(|id| DeviceConfig { id, ..Default::default() }));
    let driver = driver(Config { timeout_ns: 300_000_000, ..Config::default() }, &model);
    let mut context = context(&driver, 8, 4096);
    model.set_faults(1, Box::new(|_, _| Some(Fault::Lost)));
    let units: Vec<_> = (0..8).map(|at| Random(at).unit(4096)).collect();
    for _ in 0..4 {
        let mut rooms = vec![vec![0; 4096]; 8];
        let mut batch: Vec<_> =
            units.iter().zip(&mut rooms).map(|(unit, room)| Request::new(unit, room)).collect();
        drop(context.begin(Requests(Operation::Compress, &mut batch)));
        std::thread::sleep(Duration::from_millis(310));
    }
    assert_eq!(driver.stats().total().comp_calls, 0);
    context.rest();
    assert_eq!((driver.queue_count(), driver.stats().closed.timeouts), (1, 3));
    context.rest();
    round_trip(&mut context, &units);
    assert_eq!(driver.stats().reasons, [0; Reason::ALL.len()]);
    assert!(driver.stats().total().comp_calls > 0);
}

/// An entrance behind which nothing happens, and which takes long to close.
struct Dead(Arc<AtomicBool>);

impl Portal for Dead {
    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<usize, Gone> {
        Ok(descriptors.len())
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Whoever polls may have a fault to serve next, and must not wait for a device that is being drained.
#[test]
fn a_queue_is_not_closed_by_who_polls() {
    let is_dropped = Arc::new(AtomicBool::new(false));
    let driver = Arc::new(Driver::new(quick(), Topology::default()));
    let spec = Spec {
        device: 1,
        id: 0,
        package: None,
        dedicated: false,
        size: 128,
        transfer_max_bytes: 2 << 20,
        block_on_fault: false,
    };
    assert!(driver.add(spec, Box::new(Dead(is_dropped.clone()))));
    let mut context = context(&driver, 4, 4096);
    let units: Vec<_> = (0..8).map(|at| Random(at).unit(4096)).collect();
    compress(&mut context, &units);
    assert_eq!((driver.queue_count(), driver.stats().closed.timeouts), (0, 3));
    // Its lanes are not used meanwhile, and nobody waits for them.
    compress(&mut context, &units);
    assert!(!is_dropped.load(SeqCst) && driver.stats().software(Reason::NoDescriptor) >= 8);
    context.rest();
    assert!(is_dropped.load(SeqCst));
    // They are the next queue's.
    let model = Model::new([DeviceConfig::default()]);
    model.attach(&driver);
    round_trip(&mut context, &units);
    assert_eq!(model.in_flight_max(1), 4);
}

/// The device writes after the driver has given up: into a lane that nobody uses, and the lane is used again after
/// that.
#[test]
fn what_is_done_too_late_harms_nothing() {
    let late = |serial| (serial % 8 == 3).then_some(Fault::Late(Duration::from_millis(60)));
    let (driver, _model) = with_faults(tireless(), [DeviceConfig::default()], late);
    assert!(only(&driver, Reason::Timeout) >= 4);
    // All descriptors late: the lanes run out, and come back.
    let model = Model::new([DeviceConfig::default()]);
    let driver = self::driver(tireless(), &model);
    let mut context = context(&driver, 4, 4096);
    model.set_faults(1, Box::new(|_, _| Some(Fault::Late(Duration::from_millis(700)))));
    let units: Vec<_> = (0..12).map(|at| Random(at).unit(4096)).collect();
    compress(&mut context, &units);
    assert_eq!(driver.stats().software(Reason::Timeout), 4);
    assert_eq!(driver.stats().software(Reason::NoDescriptor), 8);
    model.set_faults(1, iaa_model::fault::none());
    while model.done(1) < 4 {
        std::thread::sleep(Duration::from_millis(5));
    }
    round_trip(&mut context, &units);
    assert_eq!(driver.stats().software(Reason::NoDescriptor), 8);
    assert!(driver.stats().total().comp_calls >= 12);
}

#[test]
fn what_a_queue_does_not_take_is_not_given_to_it() {
    let small = DeviceConfig { transfer_max_bytes: 8192, ..Default::default() };
    let (driver, model) = with_faults(patient(), [small], |_| None);
    // Whole units are too long for it, both ways: it is never asked.
    assert!(only(&driver, Reason::TooLong) > 64);
    assert_eq!(model.done(1), 0);
}

#[test]
fn bad_statuses_are_done_in_software() {
    for (status, error, reason) in [
        (0x0a, 19, Reason::Data),
        (0x10, 0, Reason::Status),
        (0x1c, 0, Reason::Status),
        (0x20, 0, Reason::Status),
        (0x22, 0, Reason::Status),
        (0x24, 0, Reason::Status),
        (0x30, 0, Reason::Status),
        (0x3f, 0, Reason::Status),
    ] {
        let plan = move |serial| (serial % 4 == 2).then_some(Fault::Status(status, error));
        let (driver, _model) = with_faults(patient(), [DeviceConfig::default()], plan);
        let count = only(&driver, reason);
        assert!(count >= 16, "{count} of status {status:#x}");
        assert_eq!(driver.stats().total().errors, count);
    }
}

#[test]
fn a_success_without_output_is_none() {
    let plan = |serial| (serial % 4 == 2).then_some(Fault::Status(0x01, 0));
    let (driver, _model) = with_faults(patient(), [DeviceConfig::default()], plan);
    assert!(only(&driver, Reason::Status) >= 16);
}

#[test]
fn page_faults_are_resolved_by_touching() {
    for fault in [Fault::PageFaultReading, Fault::PageFaultWriting] {
        let (driver, _model) = with_faults(patient(), [DeviceConfig::default()], move |serial| {
            (serial % 3 == 0).then_some(fault)
        });
        assert_eq!(only(&driver, Reason::PageFault), 0);
        assert!(driver.stats().total().page_faults >= 32);
        // Never ending: the CPU.
        let (driver, _model) = with_faults(patient(), [DeviceConfig::default()], move |_| Some(fault));
        let count = only(&driver, Reason::PageFault);
        assert!(count >= 64);
        assert_eq!(driver.stats().total().page_faults, 5 * count);
    }
    let (driver, _model) = with_faults(patient(), [DeviceConfig::default()], |serial| {
        (serial % 4 == 0).then_some(Fault::PageFaultElsewhere)
    });
    assert!(only(&driver, Reason::PageFault) >= 16, "an address that nobody gave is not touched");
}

#[test]
fn verification_finds_what_is_wrong() {
    for fault in [Fault::WrongCrc, Fault::WrongOutput, Fault::Longer(1), Fault::OtherInput] {
        let model = Model::new([DeviceConfig::default()]);
        let driver = driver(Config { verify_compress: true, ..patient() }, &model);
        let mut context = context(&driver, 8, 4096);
        let plan = move |serial: u64, d: &iaa::descriptor::Descriptor| {
            (d.opcode() == iaa::descriptor::Opcode::Compress as u8 && serial.is_multiple_of(2))
                .then_some(fault)
        };
        model.set_faults(1, Box::new(plan));
        let units: Vec<_> = (0..64).map(|at| Random(at).unit(4096)).collect();
        round_trip(&mut context, &units);
        assert!(only(&driver, Reason::Verify) >= 8, "{fault:?}");
    }
}

#[test]
fn a_result_that_there_is_no_room_for_is_not_believed() {
    for more in [1 << 20, u32::MAX] {
        let (driver, _model) = with_faults(patient(), [DeviceConfig::default()], move |serial| {
            (serial % 3 == 0).then_some(Fault::Longer(more))
        });
        assert!(only(&driver, Reason::Status) >= 16);
    }
}

#[test]
fn a_device_may_vanish_in_the_middle() {
    let devices =
        || [1, 3].map(|id| DeviceConfig { id, latency: Duration::from_micros(200), ..Default::default() });
    // Descriptors that the device had are lost without a word, unless another one is refused.
    let config = || Config { timeout_ns: 2_000_000_000, ..Config::default() };
    // The other device goes on alone.
    let (driver, model) = with_faults(config(), devices(), |serial| (serial == 21).then_some(Fault::Gone));
    let stats = driver.stats();
    assert!(stats.software(Reason::Gone) + stats.software(Reason::Timeout) > 0, "{stats:?}");
    assert_eq!((driver.queue_count(), stats.queues[0].0), (1, 3));
    assert!(model.done(3) > 32);
    // The only one.
    let [one, _] = devices();
    let (driver, _model) = with_faults(config(), [one], |serial| (serial == 21).then_some(Fault::Gone));
    let stats = driver.stats();
    assert!(stats.software(Reason::NoQueue) > 0 && driver.queue_count() == 0, "{stats:?}");
}

#[test]
fn a_device_that_is_gone_is_asked_once() {
    let model = Model::new([DeviceConfig::default()]);
    let driver = driver(patient(), &model);
    model.remove(1);
    let units: Vec<_> = (0..8).map(|at| Random(at).unit(4096)).collect();
    compress(&mut context(&driver, 8, 4096), &units);
    assert_eq!((only(&driver, Reason::NoQueue), driver.queue_count()), (8, 0));
    assert_eq!(driver.stats().closed.refused, 8);
}

#[test]
fn a_queue_that_is_removed_takes_its_work_along() {
    let model = Model::new([DeviceConfig { latency: Duration::from_millis(400), ..Default::default() }]);
    let driver = driver(patient(), &model);
    let mut context = context(&driver, 8, 4096);
    let units: Vec<_> = (0..8).map(|at| Random(at).unit(4096)).collect();
    let mut rooms = vec![vec![0; 4096]; 8];
    let mut batch: Vec<_> =
        units.iter().zip(&mut rooms).map(|(unit, room)| Request::new(unit, room)).collect();
    let flight = context.begin(Requests(Operation::Compress, &mut batch));
    assert_eq!(flight.in_flight(), 8);
    assert!(driver.remove(1, 0) && !driver.remove(1, 0));
    flight.wait();
    assert!(batch.iter().all(|request| request.result.is_ok()));
    assert_eq!(only(&driver, Reason::Gone), 8);
    // It comes back, and so do the descriptors that were lost to it.
    model.attach(&driver);
    assert_eq!(driver.queue_count(), 1);
    round_trip(&mut context, &units[..1]);
    assert_eq!((only(&driver, Reason::Gone), driver.stats().calls().comp_calls), (8, 1));
}

/// Everything at once, from seeds.
#[test]
fn nothing_is_ever_wrong() {
    for seed in 0..12 {
        let devices =
            [1, 3].map(|id| DeviceConfig { id, engines: 3, queues: vec![6, 6], ..Default::default() });
        let model = Model::new(devices);
        for device in [1, 3] {
            model.set_faults(
                device,
                Box::new(move |serial, _| {
                    match Random(seed << 32 ^ u64::from(device) << 20 ^ serial).word() % 64 {
                        0 => Some(Fault::Lost),
                        1 => Some(Fault::Late(Duration::from_millis(15))),
                        2..=5 => Some(Fault::Full),
                        6 => Some(Fault::Status(0x0a, 17)),
                        7 => Some(Fault::Status(0x20, 0)),
                        8..=9 => Some(Fault::PageFaultReading),
                        10..=11 => Some(Fault::PageFaultWriting),
                        12 => Some(Fault::WrongCrc),
                        13 if serial > 100 => Some(Fault::Gone),
                        _ => None,
                    }
                }),
            );
        }
        let mode = modes()[seed as usize % 3].clone();
        let config =
            Config { mode, verify_compress: seed % 2 == 0, timeout_ns: 5_000_000, ..Config::default() };
        let driver = driver(config, &model);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let driver = &driver;
                scope.spawn(move || {
                    let mut context = context(driver, 8, 16_384);
                    let mut random = Random(seed << 8 | thread);
                    for _ in 0..6 {
                        let length = 1 + random.below(16_384);
                        let units: Vec<_> = (0..1 + random.below(20)).map(|_| random.unit(length)).collect();
                        round_trip(&mut context, &units);
                    }
                });
            }
        });
    }
}
