//! The compressed cache: store, load, invalidate.
