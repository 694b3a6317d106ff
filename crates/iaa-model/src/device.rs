//! Devices: queues with entries, and engines that take from them.
//!
//! A device is one thread, however many engines it has: an engine is a place for a descriptor whose time is not over.
//! So it needs little of a machine with few CPUs, and what is measured with it is waiting, as with the real one.

use crate::engine::{self, Done};
use crate::fault::{self, Fault, Plan};
use crate::memory::Memory;
use iaa::descriptor::{Descriptor, Record, Status};
use iaa::{Driver, Gone, Portal, Spec};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a device is like.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The X of iaxX.
    pub id: u32,
    /// The package that it is at.
    pub package: Option<u8>,
    /// How many descriptors it works on at the same time.
    pub engines: usize,
    /// How long each takes, at least. What the model itself takes is part of it.
    pub latency: Duration,
    /// For measurements: what came of an address is remembered, and not computed again. The real device takes no time
    /// of any CPU's. The memory must not change.
    pub recall: bool,
    /// Entries of each of its queues.
    pub queues: Vec<u32>,
    /// Whether they are dedicated.
    pub dedicated: bool,
    /// The longest input or output.
    pub transfer_max_bytes: usize,
}

impl Default for DeviceConfig {
    /// A device of the first generation, with all entries in one shared queue, and as fast as the model can.
    fn default() -> Self {
        DeviceConfig {
            id: 1,
            package: None,
            engines: 8,
            latency: Duration::ZERO,
            recall: false,
            queues: vec![128],
            dedicated: false,
            transfer_max_bytes: 2 << 20,
        }
    }
}

/// prctl(2).
const NR_PRCTL: u32 = 157;

struct Job {
    descriptor: Descriptor,
    fault: Option<Fault>,
    queue: usize,
    /// The number of the portal that it came by.
    portal: u64,
    memory: Memory,
}

/// A job that has an engine.
struct Running {
    due: Instant,
    job: Job,
    done: Done,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Entries in use, by queue. An entry is free again as soon as an engine has taken it.
    used: Vec<u32>,
    gone: bool,
    /// Portals that work is done for: those that are open, and were made since the device was last taken away.
    portals: Vec<u64>,
    portal_last: u64,
    stopped: bool,
}

pub(crate) struct Device {
    config: DeviceConfig,
    state: Mutex<State>,
    work: Condvar,
    plan: Mutex<Plan>,
    offered: AtomicU64,
    /// Descriptors that it has and has not done.
    in_flight: AtomicUsize,
    in_flight_max: AtomicUsize,
    done: AtomicU64,
}

impl Device {
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no engine panics with the lock held")
    }

    fn remove(&self) {
        let mut state = self.state();
        state.gone = true;
        state.portals.clear();
        self.in_flight.fetch_sub(state.jobs.len(), SeqCst);
        state.jobs.clear();
        state.used.iter_mut().for_each(|used| *used = 0);
    }

    /// All engines: takes jobs and ends them when it is time, until the device is stopped.
    fn serve(&self) {
        // A latency of some ten microseconds is not to become a hundred: timers may otherwise be 50 us late.
        const PR_SET_TIMERSLACK: usize = 29;
        // SAFETY: it changes nothing but this thread's timers.
        let _ = unsafe { base::sys::syscall(NR_PRCTL, [PR_SET_TIMERSLACK, 1, 0, 0, 0, 0]) };
        let (mut running, mut known) = (Vec::<Running>::new(), HashMap::new());
        let mut state = self.state();
        while !state.stopped {
            let now = Instant::now();
            let next = (0..running.len()).min_by_key(|&at| running[at].due);
            let wait = next.map(|at| running[at].due.saturating_duration_since(now));
            if let Some(at) = next.filter(|_| wait == Some(Duration::ZERO)) {
                self.finish(&state, running.swap_remove(at));
            } else if running.len() < self.config.engines
                && let Some(job) = state.jobs.pop_front()
            {
                state.used[job.queue] -= 1;
                drop(state);
                match job.fault {
                    Some(Fault::Lost) => drop(self.in_flight.fetch_sub(1, SeqCst)),
                    _ => running.push(self.begin(job, now, &mut known)),
                }
                state = self.state();
            } else {
                let woken = self.work.wait_timeout(state, wait.unwrap_or(Duration::from_secs(3600)));
                state = woken.expect("nobody panics with the lock held").0;
            }
        }
    }

    /// Computes what comes of a job. Nothing of it is written yet.
    fn begin(&self, job: Job, now: Instant, known: &mut HashMap<(Memory, [u64; 4]), Done>) -> Running {
        let d = &job.descriptor;
        let most = self.config.transfer_max_bytes as u64;
        let compute = || engine::execute(d, job.memory, most);
        let mut done = if self.config.recall {
            let key = [d.src, d.flags_opcode.into(), d.operation_flags.into(), d.src_bytes.into()];
            known.entry((job.memory, key)).or_insert_with(compute).clone()
        } else {
            compute()
        };
        let mut due = now + self.config.latency;
        match job.fault {
            None | Some(Fault::Full | Fault::Lost | Fault::Gone) => {}
            Some(Fault::Late(more)) => due += more,
            Some(Fault::OtherInput) => {
                done = engine::execute(d, Memory { wrong_at: Some(d.src), ..job.memory }, most);
            }
            Some(Fault::WrongCrc) => done.record.crc32 ^= 1,
            Some(Fault::WrongOutput) => {
                if let Some(byte) = done.output.last_mut() {
                    *byte ^= 0x10;
                }
            }
            Some(Fault::Longer(bytes)) => done.record.dst_bytes = done.record.dst_bytes.saturating_add(bytes),
            Some(Fault::Status(status, error)) => {
                done.record = Record { status: Status(status), error, ..Record::EMPTY };
                done.output.clear();
            }
            Some(Fault::PageFaultReading) => done.fault_at(d, d.src + u64::from(d.src_bytes) / 2, 0),
            Some(Fault::PageFaultWriting) => done.fault_at(d, d.dst, Status::WRITE),
            Some(Fault::PageFaultElsewhere) => done.fault_at(d, 0x1000, 0),
        }
        Running { due, job, done }
    }

    /// Writes what came of a job, and says so. With the lock: who takes the device away, or closes the portal, knows
    /// that nothing more is written when that is done.
    fn finish(&self, state: &State, Running { job, mut done, .. }: Running) {
        self.in_flight.fetch_sub(1, SeqCst);
        self.done.fetch_add(1, SeqCst);
        if !state.portals.contains(&job.portal) {
            return;
        }
        let d = &job.descriptor;
        // SAFETY: the descriptor is under way (`Portal::submit`), and these are its output and its record.
        unsafe {
            if let Err(missing) = job.memory.write(d.dst, &done.output) {
                done.fault_at(d, missing.0, Status::WRITE);
            }
            let record: [u8; 64] = std::mem::transmute(done.record);
            // A record that has nowhere to go is dropped, as the device does. The status goes last.
            if job.memory.write(d.completion + 1, &record[1..]).is_ok() {
                let _ = job.memory.write(d.completion, &record[..1]);
            }
        }
    }
}

/// A queue's entrance, for one process's memory.
pub(crate) struct ModelPortal {
    device: Arc<Device>,
    queue: usize,
    number: u64,
    memory: Memory,
}

impl ModelPortal {
    fn new(device: Arc<Device>, queue: usize) -> ModelPortal {
        ModelPortal::of(device, queue, Memory::own().pid)
    }

    /// For the memory of process `pid`.
    pub fn of(device: Arc<Device>, queue: usize, pid: u32) -> ModelPortal {
        let mut state = device.state();
        state.portal_last += 1;
        let number = state.portal_last;
        state.portals.push(number);
        drop(state);
        ModelPortal { device, queue, number, memory: Memory { pid, wrong_at: None } }
    }
}

impl Drop for ModelPortal {
    fn drop(&mut self) {
        self.device.state().portals.retain(|&number| number != self.number);
    }
}

impl Portal for ModelPortal {
    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<usize, Gone> {
        let device = &*self.device;
        let plan = device.plan.lock().expect("plans do not panic");
        let mut state = device.state();
        for (taken, descriptor) in descriptors.iter().enumerate() {
            if state.gone {
                return if taken == 0 { Err(Gone) } else { Ok(taken) };
            }
            let fault = plan(device.offered.fetch_add(1, SeqCst), descriptor);
            if state.used[self.queue] >= device.config.queues[self.queue] {
                // A dedicated queue says nothing, and drops what it has no room for.
                if device.config.dedicated {
                    continue;
                }
                return Ok(taken);
            }
            match fault {
                Some(Fault::Full) if !device.config.dedicated => return Ok(taken),
                Some(Fault::Gone) => {
                    drop(state);
                    device.remove();
                    state = device.state();
                    continue;
                }
                _ => {}
            }
            // What has no place for its record is dropped: nobody would hear of it.
            if !descriptor.completion.is_multiple_of(64) {
                continue;
            }
            state.used[self.queue] += 1;
            state.jobs.push_back(Job {
                descriptor: *descriptor,
                fault,
                queue: self.queue,
                portal: self.number,
                memory: self.memory,
            });
            let now = device.in_flight.fetch_add(1, SeqCst) + 1;
            device.in_flight_max.fetch_max(now, SeqCst);
            // It sleeps only where there was no job, or no engine for one.
            if state.jobs.len() == 1 {
                device.work.notify_one();
            }
        }
        Ok(descriptors.len())
    }
}

/// Devices with their threads.
pub struct Model {
    devices: Vec<Arc<Device>>,
    threads: Vec<JoinHandle<()>>,
}

impl Model {
    /// Makes devices and starts them.
    pub fn new(configs: impl IntoIterator<Item = DeviceConfig>) -> Model {
        let device = |config: DeviceConfig| {
            let state = State { used: vec![0; config.queues.len()], ..State::default() };
            Arc::new(Device {
                config,
                state: Mutex::new(state),
                work: Condvar::new(),
                plan: Mutex::new(fault::none()),
                offered: AtomicU64::new(0),
                in_flight: AtomicUsize::new(0),
                in_flight_max: AtomicUsize::new(0),
                done: AtomicU64::new(0),
            })
        };
        let devices: Vec<Arc<Device>> = configs.into_iter().map(device).collect();
        let start = |device: &Arc<Device>| {
            let device = device.clone();
            std::thread::spawn(move || device.serve())
        };
        let threads = devices.iter().map(start).collect();
        Model { devices, threads }
    }

    pub(crate) fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }

    fn device(&self, id: u32) -> &Arc<Device> {
        self.devices.iter().find(|device| device.config.id == id).expect("a device of the model")
    }

    /// Every queue: what is known of it, and its entrance.
    pub fn queues(&self) -> Vec<(Spec, Box<dyn Portal>)> {
        let queues = |device: &Arc<Device>| {
            let device = device.clone();
            (0..device.config.queues.len()).map(move |queue| {
                let config = &device.config;
                let spec = Spec {
                    device: config.id,
                    id: queue as u32,
                    package: config.package,
                    dedicated: config.dedicated,
                    size: config.queues[queue],
                    transfer_max_bytes: config.transfer_max_bytes,
                    block_on_fault: false,
                };
                let portal: Box<dyn Portal> = Box::new(ModelPortal::new(device.clone(), queue));
                (spec, portal)
            })
        };
        self.devices.iter().flat_map(queues).collect()
    }

    /// Gives a driver all queues that it does not have.
    pub fn attach(&self, driver: &Driver) {
        for (spec, portal) in self.queues() {
            driver.add(spec, portal);
        }
    }

    /// Says what goes wrong from now on, with which descriptors of a device; they are counted anew.
    pub fn set_faults(&self, device: u32, plan: Plan) {
        let device = self.device(device);
        *device.plan.lock().expect("plans do not panic") = plan;
        device.offered.store(0, SeqCst);
    }

    /// Takes a device away. When this is done it writes nothing more, and what it had is never done.
    pub fn remove(&self, device: u32) {
        self.device(device).remove();
    }

    /// Puts a device back that was taken away.
    pub fn restore(&self, device: u32) {
        self.device(device).state().gone = false;
    }

    /// The most descriptors that a device had at a time.
    pub fn in_flight_max(&self, device: u32) -> usize {
        self.device(device).in_flight_max.load(SeqCst)
    }

    /// How many descriptors a device has done.
    pub fn done(&self, device: u32) -> u64 {
        self.device(device).done.load(SeqCst)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        for device in &self.devices {
            device.state().stopped = true;
            device.work.notify_all();
        }
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
