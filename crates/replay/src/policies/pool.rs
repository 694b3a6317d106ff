//! The pool of a pager that has an area beside it: what is older than fits goes there.

use crate::memory::Memory;
use crate::price::Tier;
use crate::trace::{PageId, Trace};
use std::collections::VecDeque;
use vmscan::balance::{Balance, Miss};

/// Compressed pages by age.
pub struct Pool {
    /// So much of the limit, or what is weighed.
    percent: Option<usize>,
    balance: Balance,
    list: VecDeque<(PageId, usize)>,
    pages: usize,
    bytes: usize,
    /// How many pages had gone out when this one did, and how many have.
    out_at: Vec<usize>,
    out: usize,
    /// The same of those that left the pool for the area.
    left_at: Vec<usize>,
    left: usize,
}

impl Pool {
    /// An empty one.
    pub fn new(trace: &Trace, percent: Option<usize>) -> Pool {
        let (out_at, left_at) = (vec![0; trace.pages.len()], vec![0; trace.pages.len()]);
        let (list, balance) = (VecDeque::new(), Balance::default());
        Pool { percent, balance, list, pages: 0, bytes: 0, out_at, out: 0, left_at, left: 0 }
    }

    /// A page was touched that is in the pool, or in the area; so many others are resident.
    pub fn missed(&mut self, memory: &Memory<'_>, page: PageId, was: Tier, resident: usize) {
        let touch_us = memory.costs().touch_us[was as usize];
        self.balance.waited(was == Tier::Area, (touch_us * 1000.0) as u64);
        let miss = Miss {
            distance: self.out - self.out_at[page as usize],
            resident,
            left: (was == Tier::Area).then(|| self.left - self.left_at[page as usize]),
            page_bytes: self.bytes / self.pages.max(1),
        };
        self.balance.missed(memory.limit_bytes(), &miss);
        self.gone(memory, page, was);
    }

    /// A page is no longer where it was.
    pub fn gone(&mut self, memory: &Memory<'_>, page: PageId, was: Tier) {
        if was == Tier::Fast {
            self.pages -= 1;
            self.bytes -= memory.bytes_in(page, Tier::Fast);
        }
    }

    /// A page goes into the pool, and the oldest to the area.
    pub fn put(&mut self, memory: &mut Memory<'_>, page: PageId) {
        memory.put(page, Tier::Fast);
        self.out += 1;
        self.out_at[page as usize] = self.out;
        self.list.push_back((page, self.out));
        self.pages += 1;
        self.bytes += memory.bytes_in(page, Tier::Fast);
        let limit = memory.limit_bytes();
        let most = self.percent.map_or_else(|| self.balance.most_bytes(limit), |part| limit * part / 100);
        while self.bytes > most
            && let Some((page, out_at)) = self.list.pop_front()
        {
            if memory.place(page) == Some(Tier::Fast) && self.out_at[page as usize] == out_at {
                self.gone(memory, page, Tier::Fast);
                memory.put(page, Tier::Area);
                self.left += 1;
                self.left_at[page as usize] = self.left;
            }
        }
    }
}
