//! Typed wrapper of userfaultfd and the few raw system calls that the engine makes.
