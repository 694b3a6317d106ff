//! Which memory goes out, and how much comes back: policies without system calls.
