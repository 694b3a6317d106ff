//! Compression algorithms behind one batch interface.
