//! What AddressSanitizer asks before it starts. Its shared runtime ends a program in whose list of libraries another
//! one is first, since the interceptors of that one would be found before its own. The library is first. It stands
//! before no function that the runtime needs first, and calls the next definition of each: the runtime's. So the
//! runtime need not look.
//!
//! The runtime asks the first definition of a function for its defaults. A program's own definition is found before
//! this one, and ASAN_OPTIONS counts for more than both.

/// `__asan_default_options`: a text of options, with its NUL.
#[cfg_attr(panic = "abort", unsafe(no_mangle))]
#[unsafe(link_section = ".text.startup.zfolio")]
pub extern "C" fn __asan_default_options() -> *const u8 {
    OPTIONS.as_ptr()
}

const OPTIONS: &[u8] = b"verify_asan_link_order=0\0";
