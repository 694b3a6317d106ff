//! Discovery: what accel-config leaves in sysfs, and what is made of it.

mod rig;

use base::Errno;
use iaa::setup::{Setup, Why};
use iaa::sysfs::{self, Unusable};
use iaa::topology::Topology;
use iaa::{Config, Context, Driver, Policy, Reason};
use iaa_model::{DeviceConfig, Fault, Model, Tree};
use rig::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Two packages of four CPUs, three nodes each, a device at two of them; its queues shared or dedicated.
fn machine(name: &str) -> Tree {
    let tree = Tree::new(name);
    tree.package(0, 0..6, &[0, 1, 2]);
    tree.package(3, 6..12, &[3, 4, 5]);
    for (id, node) in [(1, 0), (3, 1), (5, 3), (7, 4)] {
        tree.device(id, node);
        tree.queue(id, 1, "dedicated", 32);
        tree.queue(id, 0, "shared", 96);
    }
    tree
}

#[test]
fn devices_and_queues_are_found_with_their_attributes() {
    let tree = machine("found");
    let devices = sysfs::discover(tree.root()).unwrap();
    assert_eq!(devices.iter().map(|device| device.id).collect::<Vec<_>>(), [1, 3, 5, 7]);
    let device = &devices[2];
    assert!(device.enabled && device.pasid_enabled);
    assert_eq!(
        (device.node, device.engines, device.size, device.transfer_max_bytes),
        (Some(3), 8, 128, 1 << 31)
    );
    assert_eq!(device.queues.iter().map(|queue| queue.to_string()).collect::<Vec<_>>(), ["wq5.0", "wq5.1"]);
    let (shared, dedicated) = (&device.queues[0], &device.queues[1]);
    assert!(!shared.dedicated && dedicated.dedicated && shared.enabled && shared.block_on_fault);
    assert_eq!(
        (shared.size, shared.threshold, shared.transfer_max_bytes, shared.batch_max),
        (96, 96, 2 << 20, 0)
    );
    assert_eq!((&*shared.kind, &*shared.name, &*shared.driver), ("user", "zfolio", "user"));
    assert_eq!(shared.path("/x"), b"/x/dev/iax/wq5.0\0");
    assert_eq!(shared.check_usable(device), Ok(()));
}

#[test]
fn what_cannot_be_used_says_why() {
    let tree = machine("unusable");
    tree.set(1, "state", "disabled");
    tree.set(3, "wq3.0/state", "disabled");
    tree.set(3, "wq3.1/type", "kernel");
    tree.set(5, "wq5.0/size", "0");
    tree.set(7, "pasid_enabled", "0");
    let devices = sysfs::discover(tree.root()).unwrap();
    let why: Vec<_> = devices
        .iter()
        .flat_map(|device| device.queues.iter().map(|queue| queue.check_usable(device).err()))
        .collect();
    use Unusable::*;
    let expected = [
        Some(DeviceDisabled),
        Some(DeviceDisabled),
        Some(Disabled),
        Some(NotForUsers),
        Some(Empty),
        None,
        Some(NoSharedAddresses),
        Some(NoSharedAddresses),
    ];
    assert_eq!(why, expected);
}

#[test]
fn no_device_and_damaged_attributes_are_no_errors() {
    let tree = Tree::new("none");
    assert_eq!(sysfs::discover(tree.root()), Ok(Vec::new()));
    tree.write("sys/bus/dsa/devices/dsa0/state", "enabled");
    assert_eq!(sysfs::discover(tree.root()), Ok(Vec::new()));
    tree.write("sys/bus/dsa/devices/iax1/numa_node", "many");
    tree.write("sys/bus/dsa/devices/iax1/wq1.0/size", "-");
    tree.write("sys/bus/dsa/devices/iax1/wq2.0/size", "1");
    tree.write("sys/bus/dsa/devices/iax1/wqx/size", "1");
    let devices = sysfs::discover(tree.root()).unwrap();
    assert_eq!((devices.len(), devices[0].node, devices[0].queues.len()), (1, None, 1));
    assert_eq!(devices[0].queues[0].check_usable(&devices[0]), Err(Unusable::DeviceDisabled));
}

#[test]
fn nodes_are_mapped_to_packages() {
    let tree = machine("topology");
    let topology = Topology::read(tree.root());
    assert_eq!(topology.packages(), 2);
    assert_eq!(topology.cpus.len(), 12);
    assert_eq!((topology.cpus[5], topology.cpus[6]), (Some(0), Some(1)));
    let packages: Vec<_> = (0..7).map(|node| topology.package_of_node(Some(node))).collect();
    assert_eq!(packages, [Some(0), Some(0), Some(0), Some(1), Some(1), Some(1), None]);
    assert_eq!(topology.package_of_node(None), None);
}

/// The queues' files are ordinary ones here, which take what is written to them: enough to be opened.
#[test]
fn a_driver_follows_queues_as_they_come_and_go() {
    let tree = machine("follow");
    let driver = Driver::open(tree.root(), Config::default()).unwrap();
    assert_eq!(driver.queue_count(), 8);
    let few = Driver::open(tree.root(), Config { queues_max: 5, ..Config::default() }).unwrap();
    let names: Vec<_> = few.stats().queues.iter().map(|(device, id, _)| (*device, *id)).collect();
    assert_eq!(names, [(1, 0), (1, 1), (3, 0), (5, 0), (7, 0)], "each device has one first");
    // With one of each device for compressing, and without room for all, there is one of either kind.
    tree.queue(1, 2, "shared", 16);
    let policy = Policy { g_comp_wqs_per_iaa: 1, ..Policy::default() };
    let some = Driver::open(tree.root(), Config { queues_max: 6, policy, ..Config::default() }).unwrap();
    let names: Vec<_> = some.stats().queues.iter().map(|(device, id, _)| (*device, *id)).collect();
    assert_eq!(names, [(1, 0), (1, 2), (3, 0), (3, 1), (5, 0), (7, 0)]);
    tree.remove("sys/bus/dsa/devices/iax1/wq1.2");
    tree.set(3, "wq3.0/state", "disabled");
    tree.remove("sys/bus/dsa/devices/iax7");
    assert_eq!(driver.refresh(), Ok(5));
    let names: Vec<_> = driver.stats().queues.iter().map(|(device, id, _)| (*device, *id)).collect();
    assert_eq!(names, [(1, 0), (1, 1), (3, 1), (5, 0), (5, 1)]);
    tree.set(3, "wq3.0/state", "enabled");
    tree.remove("dev/iax/wq1.0");
    assert_eq!(driver.refresh(), Ok(6), "what is open stays open");
    assert!(driver.remove(1, 0));
    assert_eq!(driver.refresh(), Ok(5), "without a file it cannot be opened");
}

#[test]
fn the_doctor_has_its_facts() {
    let none = Setup::look(Tree::new("doctor-none").root());
    assert_eq!(none.summary(), "no IAA device: deflate-iaa runs in software");
    assert_eq!((none.commands.len(), none.usable_count()), (0, 0));

    let tree = machine("doctor");
    tree.set(1, "wq1.1/type", "kernel");
    let setup = Setup::look(tree.root());
    assert_eq!(setup.summary(), "4 IAA devices, 7 of 8 work queues usable");
    assert_eq!(setup.queues[1], ("wq1.1".into(), Err(Why::Unusable(Unusable::NotForUsers))));
    assert_eq!(setup.commands, Vec::<String>::new());
}

/// As the kernel sets devices up by itself: one queue of its own.
#[test]
fn the_doctor_says_what_to_run() {
    let tree = Tree::new("doctor-kernel");
    tree.device(1, 0);
    tree.queue(1, 0, "dedicated", 128);
    tree.set(1, "wq1.0/type", "kernel");
    let setup = Setup::look(tree.root());
    assert_eq!(setup.summary(), "1 IAA device, 0 of 1 work queue usable");
    let commands = setup.commands.join("\n");
    let order = [
        "accel-config disable-wq iax1/wq1.0\naccel-config disable-device iax1\naccel-config config-wq iax1/wq1.0 ",
        "--mode=shared --wq-size=128 --threshold=127",
        "--type=user",
        "accel-config config-engine iax1/engine1.0 --group-id=0",
        "accel-config config-engine iax1/engine1.7 --group-id=0\naccel-config enable-device iax1\n\
         accel-config enable-wq iax1/wq1.0\nchmod a+rw /dev/iax/wq1.0",
    ];
    let mut from = 0;
    for part in order {
        from +=
            commands[from..].find(part).unwrap_or_else(|| panic!("no {part:?} in {commands}")) + part.len();
    }
    tree.set(1, "pasid_enabled", "0");
    let setup = Setup::look(tree.root());
    assert_eq!(setup.commands, ["kernel command line: intel_iommu=on,sm_on, and VT-d on in the firmware"]);
}

#[test]
fn this_machine_can_be_looked_at() {
    let setup = Setup::look("");
    println!("{}", setup.summary());
    assert!(setup.devices.is_ok());
}

const SECOND: u64 = 1_000_000_000;

/// A driver that finds its queues in a tree, and behind each file of them the model's queue of that name. Where nobody
/// `may` open, nobody does.
fn followed(tree: &Tree, model: &Arc<Model>, may: &Arc<AtomicBool>) -> Arc<Driver> {
    let (model, may) = (model.clone(), may.clone());
    let driver = Driver::open_by(
        tree.root(),
        patient(),
        Box::new(move |path, spec| {
            let path = std::str::from_utf8(path).unwrap();
            assert!(path.ends_with(&format!("/dev/iax/wq{}.{}\0", spec.device, spec.id)), "{path}");
            let mut queues = model.queues().into_iter();
            let found = queues.find(|(other, _)| (other.device, other.id) == (spec.device, spec.id));
            found.filter(|_| may.load(SeqCst)).map(|(_, portal)| portal).ok_or(Errno::EACCES)
        }),
    );
    Arc::new(driver.unwrap())
}

/// Which of the devices 1 and 3 did a batch, all of which is right; none where software did.
fn who_does(context: &mut Context, model: &Model) -> Vec<u32> {
    let before = [1, 3].map(|device| model.done(device));
    let units: Vec<_> = (0..8).map(|at| Random(at).unit(4096)).collect();
    round_trip(context, &units);
    [1, 3]
        .into_iter()
        .zip(before)
        .filter(|&(device, done)| model.done(device) > done)
        .map(|(d, _)| d)
        .collect()
}

#[test]
fn queues_that_come_later_are_used_and_those_that_go_are_not() {
    let tree = Tree::new("later");
    tree.package(0, 0..64, &[0]);
    for id in [1, 3] {
        tree.device(id, 0);
        tree.queue(id, 0, "shared", 64);
    }
    tree.set(3, "wq3.0/state", "disabled");
    let model = Arc::new(Model::new([1, 3].map(|id| DeviceConfig { id, ..Default::default() })));
    let may = Arc::new(AtomicBool::new(true));
    let driver = followed(&tree, &model, &may);
    let mut context = context(&driver, 8, 4096);
    assert_eq!(who_does(&mut context, &model), [1]);
    assert!(driver.look(SECOND) && !driver.look(SECOND));
    // It comes, and is not looked for before a second is over.
    tree.set(3, "wq3.0/state", "enabled");
    assert!(!driver.look(2 * SECOND - 1));
    assert_eq!(who_does(&mut context, &model), [1]);
    assert!(driver.look(2 * SECOND));
    assert_eq!(who_does(&mut context, &model), [1, 3]);
    // The other one goes.
    tree.set(1, "wq1.0/state", "disabled");
    assert!(driver.look(3 * SECOND));
    assert_eq!((who_does(&mut context, &model), driver.queue_count()), (vec![3], 1));
    // Its file is there a moment before it may be opened: nothing in sysfs changes when it may.
    may.store(false, SeqCst);
    tree.set(1, "wq1.0/state", "enabled");
    assert!(driver.look(4 * SECOND));
    assert_eq!(who_does(&mut context, &model), [3]);
    may.store(true, SeqCst);
    assert!(driver.look(5 * SECOND));
    assert_eq!(who_does(&mut context, &model), [1, 3]);
    // All of them at once, with their devices, which are gone before anybody has looked.
    [1, 3].into_iter().for_each(|device| model.remove(device));
    assert_eq!((who_does(&mut context, &model), driver.queue_count()), (vec![], 0));
    [1, 3].into_iter().for_each(|id| tree.remove(&format!("sys/bus/dsa/devices/iax{id}")));
    assert!(driver.look(6 * SECOND));
    assert_eq!(who_does(&mut context, &model), []);
    for id in [1, 3] {
        model.restore(id);
        tree.device(id, 0);
        tree.queue(id, 0, "shared", 64);
    }
    assert!(driver.look(7 * SECOND));
    assert_eq!(who_does(&mut context, &model), [1, 3]);
    // Away and back between two looks.
    model.remove(1);
    assert_eq!((who_does(&mut context, &model), driver.queue_count()), (vec![3], 1));
    model.restore(1);
    // By whoever rests, at the time that it is.
    context.rest();
    assert_eq!(who_does(&mut context, &model), [1, 3]);
    assert_eq!(driver.stats().software(Reason::Timeout), 0);
}

/// It would have each time-out waited for again.
#[test]
fn a_queue_that_stopped_answering_is_not_opened_again_before_it_was_disabled() {
    let tree = Tree::new("silent");
    tree.device(1, 0);
    tree.queue(1, 0, "shared", 64);
    let model = Arc::new(Model::new([DeviceConfig::default()]));
    let config = Config { timeout_ns: 200_000_000, ..Config::default() };
    let source = model.clone();
    let open = Box::new(move |_: &[u8], _: &iaa::Spec| Ok(source.queues().remove(0).1));
    let driver = Arc::new(Driver::open_by(tree.root(), config, open).unwrap());
    let mut context = context(&driver, 8, 4096);
    model.set_faults(1, Box::new(|_, _| Some(Fault::Lost)));
    let units: Vec<_> = (0..8).map(|at| Random(at).unit(4096)).collect();
    round_trip(&mut context, &units);
    assert_eq!((driver.queue_count(), driver.stats().closed.timeouts), (0, 3));
    model.set_faults(1, iaa_model::fault::none());
    for seconds in 1..4 {
        assert!(driver.look(seconds * SECOND));
        assert_eq!((driver.queue_count(), driver.refresh()), (0, Ok(0)));
    }
    tree.set(1, "wq1.0/state", "disabled");
    assert!(driver.look(4 * SECOND));
    tree.set(1, "wq1.0/state", "enabled");
    assert!(driver.look(5 * SECOND));
    assert_eq!(driver.queue_count(), 1);
    context.rest();
    round_trip(&mut context, &units);
    assert_eq!(driver.stats().total().timeouts, 3);
}

/// Contexts outlive their CPUs, and queues are given out anew.
#[test]
fn cpus_that_come_and_go_are_followed() {
    let tree = Tree::new("cpus");
    let cpu = |at: &str| format!("sys/devices/system/cpu/{at}");
    let online = |list: &str| tree.write(&cpu("online"), list);
    tree.write(&cpu("possible"), "0-127");
    for (id, node) in [(1, 0), (3, 1)] {
        tree.device(id, node);
        tree.queue(id, 0, "shared", 64);
    }
    // Those that this test can run on do not run yet, as far as the tree knows.
    tree.package(1, 64..128, &[1]);
    online("64-127");
    let model = Arc::new(Model::new([1, 3].map(|id| DeviceConfig { id, ..Default::default() })));
    let driver = followed(&tree, &model, &Arc::new(AtomicBool::new(true)));
    assert_eq!(Topology::read(tree.root()).cpus.len(), 128);
    let mut context = context(&driver, 8, 4096);
    assert!(driver.look(SECOND));
    who_does(&mut context, &model);
    // They come online in a package with a device of its own.
    tree.package(0, 0..64, &[0]);
    online("0-127");
    assert_eq!(Topology::online(tree.root()), "0-127");
    assert!(driver.look(2 * SECOND));
    assert_eq!(who_does(&mut context, &model), [1]);
    // They are in the other package.
    (0..128).for_each(|at| {
        tree.write(&cpu(&format!("cpu{at}/topology/physical_package_id")), if at < 64 { "1" } else { "0" });
    });
    tree.write("sys/devices/system/node/node0/cpulist", "64-127");
    tree.write("sys/devices/system/node/node1/cpulist", "0-63");
    online("0-126");
    assert!(driver.look(3 * SECOND));
    assert_eq!(who_does(&mut context, &model), [3]);
    // Unplugged under the context: it goes on.
    (0..64).for_each(|at| tree.remove(&cpu(&format!("cpu{at}/topology"))));
    tree.write("sys/devices/system/node/node1/cpulist", "");
    online("64-126");
    assert!(driver.look(4 * SECOND));
    assert!(!who_does(&mut context, &model).is_empty());
    let stats = driver.stats();
    assert_eq!((driver.queue_count(), stats.reasons), (2, [0; Reason::ALL.len()]));
}
