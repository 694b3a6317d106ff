//! The pager as it is in an engine.

use crate::live::Live;
use crate::store::PageStore;
use mm::Pager;

/// With the real kernel, and the store that workers fill.
pub type Engine = Pager<'static, Live, PageStore>;
