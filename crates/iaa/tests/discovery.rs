//! Discovery: what accel-config leaves in sysfs, and what is made of it.

use iaa::setup::{Setup, Why};
use iaa::sysfs::{self, Unusable};
use iaa::topology::Topology;
use iaa::{Config, Driver, Policy};
use iaa_model::Tree;

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
    assert_eq!(driver.refresh(tree.root()), Ok(5));
    let names: Vec<_> = driver.stats().queues.iter().map(|(device, id, _)| (*device, *id)).collect();
    assert_eq!(names, [(1, 0), (1, 1), (3, 1), (5, 0), (5, 1)]);
    tree.set(3, "wq3.0/state", "enabled");
    tree.remove("dev/iax/wq1.0");
    assert_eq!(driver.refresh(tree.root()), Ok(6), "what is open stays open");
    assert!(driver.remove(1, 0));
    assert_eq!(driver.refresh(tree.root()), Ok(5), "without a file it cannot be opened");
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
