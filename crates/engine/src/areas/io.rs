//! Reads and writes of swap areas that are under way: their buffers, and which area has what.
//!
//! This is safe because
//! 1. a buffer has one request at a time, and nobody else touches it from when that is put up until it is reaped;
//! 2. buffers are in engine memory that is kept out of children, and never goes out;
//! 3. the areas' files are open for as long as the queue is there.

use crate::areas::fates::{Ending, Fates};
use crate::areas::together::{Reading, TOGETHER_BYTES, Together, Waiting};
use aio::{Queue, Room};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use control::arena;
use core::ops::Range;
use core::slice;
use swap::area::{Area, FileArea};
use swap::{CLUSTER, SLOT};
use uffd::sys::{self, Errno, Fd, consts::MADV_DONTNEED};
use zswap::objects::{BATCH_BYTES, BATCHES, Read};

/// How many requests read at a time; more wait for a buffer.
const READS: usize = 32;

/// So many bytes of a read's buffer stay when it has ended: what single pages take. The rest goes back to the kernel,
/// as a batch's buffer does, since the program lacks it until the next window is read, or the next batch written.
const KEPT_BYTES: usize = 2 * SLOT;

/// Writes in a row that an area may refuse until no more is written there.
pub const REFUSALS: u32 = 8;

/// Which tokens are writes; the rest of one is the number of its buffer.
const WRITES: u64 = 1 << 32;

/// One of the areas.
pub struct OneArea {
    /// Its clusters.
    pub clusters: Range<u32>,
    /// What has them.
    pub area: FileArea,
    /// Writes that it has refused since the last that it took.
    refusals: u32,
    /// What it said to the last of them.
    errno: Errno,
}

impl OneArea {
    /// One that has refused nothing.
    pub fn new(clusters: Range<u32>, area: FileArea) -> OneArea {
        OneArea { clusters, area, refusals: 0, errno: Errno::ENXIO }
    }
}

/// An area that is to take no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusing {
    /// Which one, as the run numbers them from 0.
    pub number: usize,
    /// Its first cluster.
    pub first_cluster: u32,
    /// Why it has refused the last write.
    pub errno: Errno,
}

/// What has ended.
pub enum Ended {
    /// A write, of this batch.
    Written(usize, Result<(), Errno>),
    /// A read; what came of it.
    Read(Reading, Result<Bytes, Errno>),
}

/// Where in the buffers the bytes of an object are that has been read, until something is put up or looked for.
pub struct Bytes(Range<usize>);

/// The areas' files, and what is under way.
pub struct AreaIo {
    queue: Queue,
    areas: Vec<OneArea>,
    outgoing: usize,
    incoming: usize,
    /// By buffer.
    reads: [Option<Together>; READS],
    /// Of which some reads have not been told yet: its buffer, and what came of it.
    told: Option<(usize, Result<(), Errno>)>,
    /// Of the buffer of the last read that was told, what is of no use once its bytes have been looked at.
    spent: Option<Range<usize>>,
    /// In which area each batch goes.
    writes: [usize; BATCHES],
    /// What is not with the queue yet.
    waiting: Waiting,
    /// Refused before they came as far as the queue.
    refused: VecDeque<usize>,
    fates: Fates,
}

impl AreaIo {
    /// With io_uring, which rings `bell`, or where that is refused without. What is locked by `table` stays locked for
    /// as long as anything is under way. `None`: there is no memory.
    pub fn open(areas: Vec<OneArea>, bell: &Fd, table: &Fd) -> Option<AreaIo> {
        // Among the engine's own addresses, as all that it has: elsewhere a child finds it in the place of what the
        // program has kept from it.
        let room = arena::map_apart(Room::bytes(READS as u32), SLOT)?;
        // SAFETY: it was mapped for this, no child has it, and it stays as long as the process.
        let queue = Queue::open_keeping(READS as u32, Some(bell), table, Some(unsafe { Room::new(room) }))
            .unwrap_or_else(|_| Queue::open_blocking(READS as u32));
        let outgoing = arena::map_apart(BATCHES * BATCH_BYTES, SLOT)?;
        let incoming = arena::map_apart(READS * TOGETHER_BYTES, SLOT)?;
        let (reads, writes) = ([const { None }; READS], [0; BATCHES]);
        let (waiting, refused, fates) = (Waiting::default(), VecDeque::new(), Fates::default());
        Some(AreaIo {
            queue,
            areas,
            outgoing,
            incoming,
            reads,
            told: None,
            spent: None,
            writes,
            waiting,
            refused,
            fates,
        })
    }

    /// Test mode: from now on requests end as these say.
    pub fn misbehave(&mut self, fates: Fates) {
        self.fates = fates;
    }

    /// Which area a slot is in, and where in it, in bytes.
    pub fn find(&self, slot: u32) -> Option<(usize, u64)> {
        let one = self.areas.iter().position(|one| one.clusters.contains(&(slot / CLUSTER)))?;
        let first = self.areas[one].clusters.start as u64 * CLUSTER as u64;
        Some((one, (slot as u64 - first) * SLOT as u64))
    }

    /// The buffer of a batch that is not under way.
    pub fn outgoing(&mut self, number: usize, bytes: usize) -> &mut [u8] {
        assert!(number < BATCHES && bytes <= BATCH_BYTES);
        // SAFETY: mapped as long as the process; no request has it, as the caller says, and nobody else.
        unsafe { slice::from_raw_parts_mut((self.outgoing + number * BATCH_BYTES) as *mut u8, bytes) }
    }

    /// Writes so many bytes of a batch's buffer to where its first slot is.
    pub fn write(&mut self, number: usize, slot: u32, bytes: usize) {
        let Some((one, to)) = self.find(slot) else { return self.refused.push_back(number) };
        self.writes[number] = one;
        let (token, align) = (WRITES | number as u64, self.areas[one].area.align());
        let bytes = self.fates.begin_write(token, bytes, align, sys::now_ns());
        if bytes == 0 {
            return;
        }
        if let Some(bit) = self.fates.wrong_bit(token) {
            self.outgoing(number, bytes)[bit / 8] ^= 1 << (bit % 8);
        }
        let at = self.outgoing(number, bytes).as_ptr();
        let fd = self.areas[one].area.file().fd();
        // SAFETY: see the head of the file: this one is the batch's until it is reaped.
        let put = unsafe { self.queue.write(token, fd, to, at, bytes) };
        if put.is_err() {
            self.refused.push_back(number);
        }
        self.queue.submit();
    }

    /// Puts up a read of what is around an object. It begins with [`AreaIo::submit`], or when results are looked for:
    /// with what lies beside it and is put up until then.
    pub fn read(&mut self, read: Read) {
        self.waiting.add(read);
    }

    /// Reads once more.
    pub fn again(&mut self, reading: Reading) {
        self.waiting.add_again(reading);
    }

    /// Has begin what was put up, as far as there are buffers.
    pub fn submit(&mut self) {
        self.give_back_spent();
        while let Some(buffer) = self.reads.iter().position(Option::is_none)
            && let Some(together) = self.waiting.take()
        {
            self.begin(buffer, together);
        }
        self.queue.submit();
    }

    fn begin(&mut self, buffer: usize, together: Together) {
        let (slots, to) = (together.slots(), (self.incoming + buffer * TOGETHER_BYTES) as *mut u8);
        self.reads[buffer] = Some(together);
        let (one, at) = self.find(slots.start).expect("an object lies in an area");
        let (token, align) = (buffer as u64, self.areas[one].area.align());
        let bytes = self.fates.begin_read(token, slots.len() * SLOT, align, sys::now_ns());
        if bytes == 0 {
            return;
        }
        let fd = self.areas[one].area.file().fd();
        // SAFETY: see the head of the file: this one is the request's until it is reaped.
        let put = unsafe { self.queue.read(token, fd, at, to, bytes) };
        debug_assert!(put.is_ok(), "there are no more buffers than the queue takes");
    }

    /// What has ended. Where an object's bytes are in its buffer holds until the next call of anything.
    pub fn next(&mut self) -> Option<Ended> {
        self.give_back_spent();
        if let Some(ended) = self.next_told() {
            return Some(ended);
        }
        self.submit();
        if let Some(number) = self.refused.pop_front() {
            self.give_back_batch(number);
            return Some(Ended::Written(number, Err(Errno::ENXIO)));
        }
        let (token, result) = self.ended()?;
        let number = (token & (WRITES - 1)) as usize;
        if token & WRITES == 0 {
            self.told = Some((number, result));
            return self.next_told();
        }
        let one = &mut self.areas[self.writes[number]];
        match result {
            Ok(()) if one.refusals == u32::MAX => {}
            Ok(()) => one.refusals = 0,
            Err(errno) => (one.refusals, one.errno) = (one.refusals.saturating_add(1), errno),
        }
        self.give_back_batch(number);
        Some(Ended::Written(number, result))
    }

    /// The next read of the request that ended last. With the last one its buffer is free.
    fn next_told(&mut self) -> Option<Ended> {
        let (buffer, result) = self.told?;
        let together = self.reads[buffer].as_mut().expect("a request has its buffer");
        let (reading, offset) = together.pop().expect("no request is without a read");
        let at = buffer * TOGETHER_BYTES + offset;
        if together.is_empty() {
            let begin = self.incoming + buffer * TOGETHER_BYTES;
            self.spent = Some(begin + KEPT_BYTES..begin + together.slots().len() * SLOT);
            (self.reads[buffer], self.told) = (None, None);
        }
        Some(Ended::Read(reading, result.map(|()| Bytes(at..at + reading.read.place.bytes as usize))))
    }

    /// Gives back the buffer of the read that was told last. Nobody looks at its bytes any more, and no request has
    /// it: one begins after this.
    fn give_back_spent(&mut self) {
        if let Some(spent) = self.spent.take() {
            self.give_back(spent);
        }
    }

    /// Gives back a batch's buffer, before anybody hears that the batch has ended, who would have it written to.
    fn give_back_batch(&self, number: usize) {
        let buffer = self.outgoing + number * BATCH_BYTES;
        self.give_back(buffer..buffer + BATCH_BYTES);
    }

    /// Gives memory of a buffer that no request has back to the kernel.
    fn give_back(&self, Range { start, end }: Range<usize>) {
        if start < end {
            // SAFETY: of a buffer, whose contents are of no use any more. Where the kernel refuses they stay.
            let _ = unsafe { sys::madvise(start, end - start, MADV_DONTNEED) };
        }
    }

    /// The next request that has ended, as it is to be told.
    fn ended(&mut self) -> Option<Ending> {
        loop {
            if self.fates.due_ns().is_some()
                && let Some(ending) = self.fates.next(sys::now_ns())
            {
                return Some(ending);
            }
            let (token, result) = self.queue.reap()?;
            if token & WRITES == 0
                && let Some(bit) = self.fates.wrong_bit(token)
            {
                self.read_buffer(token as usize)[bit / 8] ^= 1 << (bit % 8);
            }
            if let Some(ending) = self.fates.end((token, result.map(drop)), sys::now_ns()) {
                return Some(ending);
            }
        }
    }

    /// Where all buffers are: those of writes, and those of reads.
    #[cfg(test)]
    pub fn buffers(&self) -> [Range<usize>; 2] {
        let of = |at: usize, bytes: usize| at..at + bytes;
        [of(self.outgoing, BATCHES * BATCH_BYTES), of(self.incoming, READS * TOGETHER_BYTES)]
    }

    /// All of a buffer whose read has ended.
    fn read_buffer(&mut self, buffer: usize) -> &mut [u8] {
        assert!(buffer < READS);
        // SAFETY: mapped as long as the process; the request has ended.
        unsafe {
            slice::from_raw_parts_mut((self.incoming + buffer * TOGETHER_BYTES) as *mut u8, TOGETHER_BYTES)
        }
    }

    /// What was read of an object.
    pub fn incoming(&mut self, bytes: &Bytes) -> &mut [u8] {
        let Bytes(Range { start, end }) = *bytes;
        &mut self.read_buffer(start / TOGETHER_BYTES)[start % TOGETHER_BYTES..][..end - start]
    }

    /// Waits until nothing is under way; nobody is told of what came of it. What cannot be waited for ends with the
    /// process.
    pub fn finish(&mut self) {
        (self.waiting, self.told) = (Waiting::default(), None);
        self.fates.forget();
        while self.queue.under_way() > 0 && self.queue.wait().is_ok() {
            while self.queue.reap().is_some() {}
        }
    }

    /// How many requests have not been reaped, or wait; and how many of them have not ended.
    pub fn under_way(&self) -> (usize, usize) {
        let waiting = self.waiting.len();
        let (untold, late) = match self.fates.due_ns() {
            Some(_) => self.fates.untold(sys::now_ns()),
            None => (0, 0),
        };
        let told = usize::from(self.told.is_some());
        let unheard = self.queue.unreaped() + waiting + self.refused.len() + untold + told;
        (unheard, self.queue.under_way() + waiting + late)
    }

    /// When something is told that nobody rings for; `None` where there is nothing of the kind.
    pub fn due_ns(&self) -> Option<u64> {
        self.fates.due_ns()
    }

    /// An area that has refused so many writes in a row that it is to take no more; once.
    pub fn refusing(&mut self) -> Option<Refusing> {
        let is_refusing = |one: &OneArea| one.refusals >= REFUSALS && one.refusals < u32::MAX;
        let number = self.areas.iter().position(is_refusing)?;
        let one = &mut self.areas[number];
        one.refusals = u32::MAX;
        Some(Refusing { number, first_cluster: one.clusters.start, errno: one.errno })
    }

    /// Has the storage forget slots.
    pub fn discard(&self, slots: Range<u32>) {
        if let Some((one, at)) = self.find(slots.start) {
            // Refused, they take room there until they are written again.
            let _ = self.areas[one].area.discard(at, slots.len() as u64 * SLOT as u64);
        }
    }
}
