//! The front end of virtual machines: virtio-blk over vhost-user, by rust-vmm's crates.
//!
//! A socket serves one machine at a time, and the next one when that has gone. A machine that sends nonsense at the
//! socket loses its connection. Nonsense in a ring is not answered, and the ring's thread goes on. The device and other
//! clients notice nothing of either.

use crate::server::{Client, Server, lock};
use crate::virtio_blk::{self, CONFIG_BYTES, Request};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VhostUserDaemon, VringRwLock, VringT};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::QueueOwnedT;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

/// The most queues that a machine may have.
const QUEUES: usize = 16;

/// The most entries of a queue.
const QUEUE_ENTRIES: usize = 1024;

/// The pause where a machine cannot be served, for want of threads or descriptors.
const PAUSE: Duration = Duration::from_millis(200);

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// The disk of one machine.
struct Disk {
    server: &'static Server,
    memory: Mutex<Option<Memory>>,
    /// A buffer for each thread, in which requests are read and written. It is locked while the thread is at a ring.
    buffers: Vec<Mutex<Vec<u8>>>,
    /// What threads wait at for their end.
    exits: Mutex<Vec<OwnedFd>>,
    /// The machine as a client, from when it has connected.
    client: OnceLock<Client>,
}

/// Serves one machine after the other.
pub(crate) fn serve(server: &'static Server, listener: UnixListener) {
    let mut listener = Listener::from(listener);
    loop {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(QUEUES);
        let buffers = (0..threads).map(|_| Mutex::default()).collect();
        let (memory, exits, client) = (Mutex::default(), Mutex::default(), OnceLock::new());
        let disk = Arc::new(Disk { server, memory, buffers, exits, client });
        let memory = Memory::new(GuestMemoryMmap::new());
        let Ok(mut daemon) = VhostUserDaemon::new("zram-vhost".into(), disk.clone(), memory) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        match daemon.start(&mut listener) {
            Ok(()) => {
                disk.open();
                // However it ends, the next one comes.
                let _ = daemon.wait();
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
        for handler in daemon.get_epoll_handlers() {
            handler.send_exit_event();
        }
    }
}

impl VhostUserBackend for Disk {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_ENTRIES
    }

    fn features(&self) -> u64 {
        virtio_blk::features()
            | 1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_RING_F_EVENT_IDX
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        use VhostUserProtocolFeatures as Features;
        Features::MQ | Features::CONFIG | Features::REPLY_ACK
    }

    fn set_event_idx(&self, _enabled: bool) {
        // Each ring knows it.
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let config: [u8; CONFIG_BYTES] =
            virtio_blk::config(self.server.device().disksize_bytes(), QUEUES as u16);
        let from = (offset as usize).min(CONFIG_BYTES);
        let to = from.saturating_add(size as usize).min(CONFIG_BYTES);
        config[from..to].to_vec()
    }

    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        *lock(&self.memory) = Some(memory);
        Ok(())
    }

    /// Queues are dealt to the threads in turn.
    fn queues_per_thread(&self) -> Vec<u64> {
        let threads = self.buffers.len();
        let of = |thread: usize| (thread..QUEUES).step_by(threads).fold(0, |mask, queue| mask | 1 << queue);
        (0..threads).map(of).collect()
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        let made = new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC);
        let (consumer, notifier) = made.ok()?;
        // SAFETY: the caller takes the number out of the consumer at once, and never closes it. This disk does, when
        // the last thread that waits for it has gone.
        let exit = unsafe { OwnedFd::from_raw_fd(consumer.as_raw_fd()) };
        lock(&self.exits).push(exit);
        Some((consumer, notifier))
    }

    /// Waits until the requests of a queue that were taken are answered. The queue is not ready any more: its thread
    /// takes no others.
    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        drop(lock(&self.buffers[queue as usize % self.buffers.len()]));
        Ok(())
    }

    fn handle_event(&self, event: u16, _: EventSet, vrings: &[VringRwLock], thread: usize) -> io::Result<()> {
        let (Some(vring), Some(buffer)) = (vrings.get(usize::from(event)), self.buffers.get(thread)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let Some(memory) = lock(&self.memory).clone() else { return Ok(()) };
        // Its first request may be there before its connection is seen.
        self.open();
        // An error would end the thread, and with it its other queues.
        let _ = self.attend(vring, &memory, &mut lock(buffer));
        Ok(())
    }
}

impl Disk {
    /// Has the device open, from now on until this is dropped.
    fn open(&self) {
        self.client.get_or_init(|| self.server.open());
    }

    /// Serves a ring until nothing is in it. An error says that the ring is broken, or was stopped.
    fn attend(&self, vring: &VringRwLock, memory: &Memory, buffer: &mut Vec<u8>) -> io::Result<()> {
        loop {
            vring.disable_notification().map_err(io::Error::other)?;
            self.drain(vring, memory, buffer)?;
            // What came meanwhile is not told again.
            if !vring.enable_notification().map_err(io::Error::other)? {
                return Ok(());
            }
        }
    }

    /// Serves all that is in a ring.
    fn drain(&self, vring: &VringRwLock, memory: &Memory, buffer: &mut Vec<u8>) -> io::Result<()> {
        let chains: Vec<_> = {
            let mut state = vring.get_mut();
            state.get_queue_mut().iter(memory.memory()).map_err(io::Error::other)?.collect()
        };
        for chain in chains {
            let head = chain.head_index();
            let guard = memory.memory();
            // A request without a place for its status cannot even be refused: the ring is broken.
            let written = Request::read(chain, &guard)?.serve(self.server, buffer)?;
            vring.add_used(head, written).map_err(io::Error::other)?;
            if vring.needs_notification().map_err(io::Error::other)? {
                vring.signal_used_queue()?;
            }
        }
        Ok(())
    }
}
