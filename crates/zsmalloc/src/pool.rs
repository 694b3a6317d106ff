//! A pool: alloc, write, read, free.
//!
//! Lock order: EXCLUSIVE of a handle, the lock of a class, the lock of the arenas. Compaction goes the other way, from
//! a class to its objects, and therefore only tries EXCLUSIVE. Nothing is locked for reading.
//!
//! Invariants, checked by `check.rs`:
//! - `held` = committed bytes of zspages and spare spans + owners and tables of zspages + huge objects in pages +
//!   `classes`
//! - `stored` = sum of the lengths of all objects
//! - each LIVE handle is the owner of the slot that it points to, and each owner is LIVE

use crate::PAGE;
use crate::arena::{Arenas, Span, UNIT, pointer};
use crate::backing::Backing;
use crate::class::{CLASS_MAX_BYTES, CLASSES, Class, class_of};
use crate::fullness::Zspages;
use crate::handle::{Handle, Handles};
use crate::zspage::{NONE, Zspage};
use alloc::boxed::Box;
use base::Mutex;
use core::ops::Deref;
use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// The longest object, in bytes: a folio of 2 MiB that did not shrink, and room for headers.
pub const LEN_MAX_BYTES: usize = (2 << 20) + (64 << 10);

/// Objects above `CLASS_MAX_BYTES`: each a mapping of its own.
#[derive(Default)]
pub(crate) struct Huge {
    pub objects: AtomicUsize,
    pub stored: AtomicUsize,
    pub bytes: AtomicUsize,
}

/// Objects of 1 byte to 2 MiB and a little, in few bytes more than they have. Threads share it.
pub struct Pool<B: Backing> {
    pub(crate) backing: B,
    pub(crate) handles: Handles,
    pub(crate) classes: Box<[Class]>,
    pub(crate) arenas: Mutex<Arenas>,
    pub(crate) huge: Huge,
    pub(crate) held: AtomicUsize,
    pub(crate) stored: AtomicUsize,
    /// The class that compaction goes on with.
    pub(crate) cursor: AtomicUsize,
}

impl<B: Backing> Pool<B> {
    /// An empty pool.
    pub fn new(backing: B) -> Self {
        Pool {
            backing,
            handles: Handles::new(),
            classes: (0..CLASSES).map(Class::new).collect(),
            arenas: Mutex::new(Arenas::new()),
            huge: Huge::default(),
            held: AtomicUsize::new(CLASSES * size_of::<Class>()),
            stored: AtomicUsize::new(0),
            cursor: AtomicUsize::new(0),
        }
    }

    /// Makes an object of `len` bytes, 1 to [`LEN_MAX_BYTES`], of any contents. `None` when the backing has no memory.
    pub fn alloc(&self, len: usize) -> Option<Handle> {
        assert!((1..=LEN_MAX_BYTES).contains(&len), "zsmalloc: no object has {len} bytes");
        let handle = self.handles.take(&self.backing)?;
        let placed =
            if len <= CLASS_MAX_BYTES { self.place(handle, len) } else { self.place_huge(handle, len) };
        if placed.is_none() {
            self.handles.give(handle);
            return None;
        }
        self.stored.fetch_add(len, Relaxed);
        Some(handle)
    }

    fn place(&self, handle: Handle, len: usize) -> Option<()> {
        let class = &self.classes[class_of(len)];
        let mut zspages = class.zspages.lock();
        let id = match zspages.fullest() {
            Some(id) => id,
            None => self.new_zspage(class, &mut zspages)?,
        };
        let (at, end, grown) = zspages.change(id, |zspage| {
            let slot = zspage.lowest_free()?;
            let grown = zspage.take(slot, handle.into_raw(), class.size);
            Some((zspage.span.at + slot * class.size, zspage.span.at + zspage.span.committed, grown))
        })?;
        if grown > PAGE {
            self.backing.commit(pointer(end - grown), grown);
        }
        zspages.objects += 1;
        zspages.stored += len;
        // Under the lock, so that compaction never meets an owner without an object.
        self.handles.entry(handle).publish(at, len, id);
        self.held.fetch_add(grown, Relaxed);
        Some(())
    }

    fn new_zspage(&self, class: &Class, zspages: &mut Zspages) -> Option<u32> {
        let span = self.take_span(class.units)?;
        let before = zspages.meta_bytes();
        let inserted = Zspage::new(span, class.slots).and_then(|zspage| zspages.insert(zspage));
        if inserted.is_none() {
            self.release(span);
        }
        self.held.fetch_add(zspages.meta_bytes() - before, Relaxed);
        inserted
    }

    fn take_span(&self, units: usize) -> Option<Span> {
        loop {
            let spare = {
                let mut arenas = self.arenas.lock();
                if let Some(span) = arenas.take(units, &self.backing) {
                    return Some(span);
                }
                arenas.take_spare()?
            };
            self.release(spare);
        }
    }

    fn place_huge(&self, handle: Handle, len: usize) -> Option<()> {
        let at = self.backing.map(len.next_multiple_of(UNIT))?.as_ptr().expose_provenance();
        self.handles.entry(handle).publish(at, len, NONE);
        let bytes = len.next_multiple_of(PAGE);
        self.held.fetch_add(bytes, Relaxed);
        self.huge.objects.fetch_add(1, Relaxed);
        self.huge.stored.fetch_add(len, Relaxed);
        self.huge.bytes.fetch_add(bytes, Relaxed);
        Some(())
    }

    /// Gives `f` the object to write. Waits for readers of this object, and keeps new ones waiting: `f` must not use
    /// its handle.
    pub fn write(&self, handle: Handle, f: impl FnOnce(&mut [u8])) {
        let exclusive = self.handles.entry(handle).exclude();
        // SAFETY: the object lies there, has this length, is initialised (the backing's promise), and nobody else may
        // look at it while `exclusive` lives.
        f(unsafe { slice::from_raw_parts_mut(exclusive.at().as_ptr(), exclusive.len()) });
        drop(exclusive);
    }

    /// The object, pinned for as long as the guard lives: compaction leaves it where it is. Takes no lock.
    pub fn read(&self, handle: Handle) -> Object<'_, B> {
        let (at, len) = self.handles.entry(handle).pin();
        Object { pool: self, handle, at, len }
    }

    /// Pins the object, and says where it is and how long: for readers that no guard can go along with. It stays there
    /// until `unpin` was called as often.
    pub fn pin(&self, handle: Handle) -> (NonNull<u8>, usize) {
        self.handles.entry(handle).pin()
    }

    /// Ends a pin.
    pub fn unpin(&self, handle: Handle) {
        self.handles.entry(handle).unpin();
    }

    /// The object's length in bytes.
    pub fn len(&self, handle: Handle) -> usize {
        self.handles.entry(handle).len()
    }

    /// Frees the object. The caller sees to it that nobody uses the handle any more; if a reader is left all the same,
    /// waits for it.
    pub fn free(&self, handle: Handle) {
        let entry = self.handles.entry(handle);
        debug_assert!(!entry.is_pinned(), "zsmalloc: an object is freed while somebody reads it");
        let exclusive = entry.exclude();
        let (at, len, id) = (exclusive.at().addr().get(), exclusive.len(), exclusive.zspage());
        let emptied =
            if len <= CLASS_MAX_BYTES { self.remove(at, len, id) } else { self.remove_huge(at, len) };
        self.stored.fetch_sub(len, Relaxed);
        // Nothing is left to exclude from: `give` writes the whole word.
        core::mem::forget(exclusive);
        self.handles.give(handle);
        if let Some((span, reusable)) = emptied
            && !(reusable && self.arenas.lock().keep(span))
        {
            self.release(span);
        }
    }

    /// Removes an object from its zspage; returns the memory of the zspage if it was the last, and whether it may be
    /// used again as it is.
    fn remove(&self, at: usize, len: usize, id: u32) -> Option<(Span, bool)> {
        let class = &self.classes[class_of(len)];
        let mut zspages = class.zspages.lock();
        zspages.objects -= 1;
        zspages.stored -= len;
        let (inuse, frozen) = zspages.change(id, |zspage| {
            zspage.give((at - zspage.span.at) / class.size);
            (zspage.inuse, zspage.frozen)
        });
        (inuse == 0).then(|| (self.remove_zspage(&mut zspages, id), !frozen))
    }

    /// Removes an empty zspage, and returns its memory.
    pub(crate) fn remove_zspage(&self, zspages: &mut Zspages, id: u32) -> Span {
        let before = zspages.meta_bytes();
        let zspage = zspages.remove(id);
        self.held.fetch_sub(before - zspages.meta_bytes(), Relaxed);
        zspage.span
    }

    fn remove_huge(&self, at: usize, len: usize) -> Option<(Span, bool)> {
        self.backing.unmap(pointer(at), len.next_multiple_of(UNIT));
        let bytes = len.next_multiple_of(PAGE);
        self.held.fetch_sub(bytes, Relaxed);
        self.huge.objects.fetch_sub(1, Relaxed);
        self.huge.stored.fetch_sub(len, Relaxed);
        self.huge.bytes.fetch_sub(bytes, Relaxed);
        None
    }

    /// Gives a span's memory back to the kernel, and its addresses to the arenas.
    pub(crate) fn release(&self, span: Span) {
        if span.committed > 0 {
            self.backing.decommit(pointer(span.at), span.committed);
            self.held.fetch_sub(span.committed, Relaxed);
        }
        self.arenas.lock().give(span, &self.backing);
    }

    /// Where its memory comes from.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// Physical memory that the pool holds, metadata included, in bytes.
    pub fn pool_bytes(&self) -> usize {
        self.held.load(Relaxed) + self.handles.bytes()
    }

    /// Sum of the lengths of all objects, in bytes.
    pub fn stored_bytes(&self) -> usize {
        self.stored.load(Relaxed)
    }
}

impl<B: Backing> Drop for Pool<B> {
    fn drop(&mut self) {
        for (at, len, _) in self.handles.iter().filter_map(|handle| self.handles.entry(handle).object()) {
            if len > CLASS_MAX_BYTES {
                self.backing.unmap(pointer(at), len.next_multiple_of(UNIT));
            }
        }
        self.arenas.lock().unmap_all(&self.backing);
        self.handles.unmap_all(&self.backing);
    }
}

/// An object, pinned.
pub struct Object<'a, B: Backing> {
    pool: &'a Pool<B>,
    handle: Handle,
    // No slice: a reference must not outlive the pin, and a guard that is moved into `drop` would hold one until `drop`
    // returns.
    at: NonNull<u8>,
    len: usize,
}

impl<B: Backing> Deref for Object<'_, B> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the object lies there, has this length, is initialised, and is neither moved, written nor freed while
        // pinned.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<B: Backing> Drop for Object<'_, B> {
    fn drop(&mut self) {
        self.pool.handles.entry(self.handle).unpin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{ARENA, SPARE_MAX_BYTES};
    use crate::model::Heap;

    #[test]
    fn every_length_has_all_its_bytes() {
        let heap = Heap::new(usize::MAX);
        let pool = Pool::new(&heap);
        let lens: &[usize] = if cfg!(miri) {
            &[1, 33]
        } else {
            &[1, 31, 32, 33, 4096, 65_536, 65_800, CLASS_MAX_BYTES, CLASS_MAX_BYTES + 1, LEN_MAX_BYTES]
        };
        let handles: Vec<_> = lens.iter().map(|&len| pool.alloc(len).unwrap()).collect();
        for (n, &handle) in handles.iter().enumerate() {
            pool.write(handle, |object| object.fill(n as u8));
        }
        for (n, (&handle, &len)) in handles.iter().zip(lens).enumerate() {
            let object = pool.read(handle);
            assert_eq!((object.len(), pool.len(handle)), (len, len));
            assert!(object.iter().all(|&byte| byte == n as u8), "{len}");
        }
        pool.check().unwrap();
        handles.into_iter().for_each(|handle| pool.free(handle));
        pool.check().unwrap();
        assert_eq!(pool.stored_bytes(), 0);
    }

    #[test]
    fn an_empty_pool_keeps_a_bounded_amount_for_the_next_objects() {
        let heap = Heap::new(usize::MAX);
        let pool = Pool::new(&heap);
        let empty = pool.pool_bytes();
        let handles: Vec<_> =
            (0..if cfg!(miri) { 10 } else { 1000 }).map(|_| pool.alloc(10_000).unwrap()).collect();
        let full = pool.pool_bytes();
        handles.into_iter().for_each(|handle| pool.free(handle));
        let spare = pool.spare_bytes();
        assert!(0 < spare && spare <= SPARE_MAX_BYTES, "{spare} spare bytes");
        let (left, tables) = (pool.pool_bytes(), 32 << 10);
        assert!(left < empty + spare + tables, "{left} of {full} bytes are left");
        assert_eq!(pool.compact(0).bytes_freed, spare);
        assert_eq!(pool.spare_bytes(), 0);
        assert_eq!(heap.mapped_bytes(), UNIT, "the handles alone are still mapped");
        pool.check().unwrap();
    }

    #[test]
    fn without_memory_there_is_no_object_and_later_there_is() {
        let heap = Heap::new(0);
        let pool = Pool::new(&heap);
        assert_eq!(pool.alloc(1), None, "not even a handle");
        heap.set_limit(UNIT);
        assert_eq!(pool.alloc(1), None);
        assert_eq!(pool.alloc(LEN_MAX_BYTES), None);
        pool.check().unwrap();
        assert_eq!(pool.stored_bytes(), 0);
        heap.set_limit(UNIT + ARENA);
        let handle = pool.alloc(1).unwrap();
        pool.free(handle);
        pool.check().unwrap();
    }

    #[test]
    fn spare_memory_is_given_up_before_an_object_is_refused() {
        let heap = Heap::new(UNIT + ARENA);
        let pool = Pool::new(&heap);
        // 32 zspages of one unit: the whole arena. Then one that is longer.
        let slots = UNIT / 4096;
        let handles: Vec<_> = (0..32 * slots).map(|_| pool.alloc(4096).unwrap()).collect();
        assert_eq!(pool.alloc(4096), None);
        handles[..2 * slots].iter().for_each(|&handle| pool.free(handle));
        assert_eq!(pool.spare_bytes(), 2 * UNIT);
        let class = pool.classes.iter().find(|class| class.units == 2).expect("a class of two units");
        assert!(pool.alloc(class.size).is_some());
        assert_eq!(pool.spare_bytes(), 0);
        pool.check().unwrap();
    }

    #[test]
    #[should_panic = "freed"]
    fn a_freed_handle_is_refused() {
        let heap = Heap::new(usize::MAX);
        let pool = Pool::new(&heap);
        let handle = pool.alloc(1).unwrap();
        pool.free(handle);
        pool.read(handle);
    }

    #[test]
    #[should_panic = "another pool"]
    fn a_handle_that_never_was_is_refused() {
        let heap = Heap::new(usize::MAX);
        let pool = Pool::new(&heap);
        pool.read(Handle::from_raw(u32::MAX).unwrap());
    }
}
