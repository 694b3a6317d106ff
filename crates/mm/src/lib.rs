//! A live process: regions, eviction, the pager.
