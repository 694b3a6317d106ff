//! Swap-in: how a page that a thread waits for comes from its object.

use vmscan::split::Splitting;
use zswap::objects::Object;

/// What it is done with.
#[derive(Debug)]
pub struct SwapIn {
    /// A window of engine memory that is not registered: loads go through it where there is no stock.
    bounce: usize,
    /// How much of what is asked for alone has objects of its own.
    splitting: Splitting,
    /// One thread alone misses: a single page is moved in from stock instead of being copied. A move interrupts
    /// every CPU on which another thread of the program runs, and so costs less only where the others sleep. And
    /// its fault is served before more messages are read.
    is_alone: bool,
}

impl SwapIn {
    /// Loads go through the window at `bounce`.
    pub fn new(bounce: usize) -> SwapIn {
        SwapIn { bounce, splitting: Splitting::default(), is_alone: false }
    }

    /// The address of the window that loads go through.
    pub fn bounce(&self) -> usize {
        self.bounce
    }

    /// True while one thread alone misses.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// From now on one thread alone misses, or several.
    pub fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
    }

    /// A fault, or a page that is brought home, is served from an object: its page alone, or not.
    pub fn load(&mut self, object: &Object, is_alone: bool) {
        self.splitting.load(is_alone && object.pages == 1);
    }

    /// True when an object, a page of which is asked for alone, is to be made objects of a page each.
    pub fn splits(&self, object: &Object) -> bool {
        object.pages != 1 && !object.is_shared() && object.picked > self.splitting.picks()
    }

    /// So many loads of pages with objects of their own.
    #[cfg(test)]
    pub fn loads_of_single_pages(&mut self, count: usize) {
        (0..count).for_each(|_| self.splitting.load(true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zswap::objects::Body;
    use zswap::objects::Objects;

    #[test]
    fn an_object_is_split_at_the_second_page_and_at_the_first_where_most_are() {
        let mut objects = Objects::<()>::default();
        let [whole, single] = [16, 1].map(|pages| objects.insert(Body::Same(1), pages, 0));
        let mut swapin = SwapIn::new(0);
        objects.pick(whole);
        objects.pick(single);
        assert!(!swapin.splits(objects.get(whole)));
        swapin.loads_of_single_pages(10_000);
        assert!(swapin.splits(objects.get(whole)) && !swapin.splits(objects.get(single)));
        (0..10_000).for_each(|_| swapin.load(objects.get(whole), true));
        assert!(!swapin.splits(objects.get(whole)));
        objects.pick(whole);
        assert!(swapin.splits(objects.get(whole)));
    }
}
