//! What a program can tell zfolio about its memory, and ask: `include/zfolio.h` and zfolio(3), for Rust.
//!
//! Under `zfolio run` the functions are found in the library that is preloaded. Without it advice goes to the kernel,
//! and [`pin`] and [`range`] are unsupported.
//!
//! ```
//! let index = vec![7u64; 100_000];
//! // No touch of it waits until the pin is dropped.
//! let _pin = zfolio_api::pin(&index);
//! let log = vec![0u8; 1 << 20];
//! zfolio_api::pageout(&log)?;
//! # std::io::Result::Ok(())
//! ```

use std::ffi::{CStr, c_void};
use std::io::{self, ErrorKind};
use std::mem::size_of_val;

/// Bytes of a range, by where its pages are. What was never touched is in none of them, nor are pages of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Range {
    /// In the program.
    pub resident_bytes: u64,
    /// In RAM as they are; a touch brings them back.
    pub inactive_bytes: u64,
    /// In the pool.
    pub stored_bytes: u64,
    /// What those take there, compressed.
    pub pool_bytes: u64,
    /// In swap areas alone.
    pub swapped_bytes: u64,
    /// Out, and all zeros or one repeated word: stored without data.
    pub filled_bytes: u64,
    /// That stay ([`pin`]).
    pub pinned_bytes: u64,
}

/// Addresses whose memory stays in the program as long as this lives. It borrows nothing: the memory can be written to.
/// What is freed meanwhile leaves the pin to who has the addresses next.
#[derive(Debug)]
pub struct Pin {
    at: usize,
    bytes: usize,
}

impl Drop for Pin {
    fn drop(&mut self) {
        // Where there are too many ranges it stays pinned.
        let _ = call(c"zfolio_unpin", self.at, self.bytes);
    }
}

/// True under `zfolio run`.
pub fn is_there() -> bool {
    function(c"zfolio_pin").is_some()
}

/// The whole pages of `memory` go out, now. Errors: those of madvise(2).
pub fn pageout<T>(memory: &[T]) -> io::Result<()> {
    let (start, end) = addresses(memory);
    advise(start.next_multiple_of(page()), end & !(page() - 1), libc::MADV_PAGEOUT)
}

/// The whole pages of `memory` go before all others, when memory must go. Errors: those of madvise(2).
pub fn cold<T>(memory: &[T]) -> io::Result<()> {
    let (start, end) = addresses(memory);
    advise(start.next_multiple_of(page()), end & !(page() - 1), libc::MADV_COLD)
}

/// What is out of the pages of `memory` comes in, without a fault for each. Errors: those of madvise(2).
pub fn willneed<T>(memory: &[T]) -> io::Result<()> {
    let (start, end) = addresses(memory);
    advise(start & !(page() - 1), end.next_multiple_of(page()), libc::MADV_WILLNEED)
}

/// The pages of `memory` come in, and stay as long as the result lives. Pins do not nest: what two of them have in
/// common may go out when the first is dropped.
///
/// # Errors
/// It is unsupported without zfolio; ENOMEM: there are too many ranges, or more than half of the limit would be pinned.
pub fn pin<T>(memory: &[T]) -> io::Result<Pin> {
    let (at, bytes) = (memory.as_ptr() as usize, size_of_val(memory));
    call(c"zfolio_pin", at, bytes)?;
    Ok(Pin { at, bytes })
}

/// Where the pages of `memory` are.
///
/// # Errors
/// It is unsupported without zfolio.
pub fn range<T>(memory: &[T]) -> io::Result<Range> {
    let function = function(c"zfolio_range").ok_or(ErrorKind::Unsupported)?;
    // SAFETY: the function's type, as include/zfolio.h has it.
    let call: extern "C" fn(*const c_void, usize, *mut Range, usize) -> i32 =
        unsafe { std::mem::transmute(function) };
    let mut told = Range::default();
    match call(memory.as_ptr().cast(), size_of_val(memory), &mut told, size_of_val(&told)) {
        0 => Ok(told),
        _ => Err(io::Error::last_os_error()),
    }
}

fn addresses<T>(memory: &[T]) -> (usize, usize) {
    let start = memory.as_ptr() as usize;
    (start, start + size_of_val(memory))
}

fn page() -> usize {
    // SAFETY: changes nothing.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

fn advise(start: usize, end: usize, advice: i32) -> io::Result<()> {
    // SAFETY: advice that changes no contents.
    if start >= end || unsafe { libc::madvise(start as *mut c_void, end - start, advice) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// A function of the library that `zfolio run` preloads.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks a name up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn call(name: &CStr, at: usize, bytes: usize) -> io::Result<()> {
    let function = function(name).ok_or(ErrorKind::Unsupported)?;
    // SAFETY: the type of zfolio_pin and zfolio_unpin, as include/zfolio.h has it.
    let call: extern "C" fn(usize, usize) -> i32 = unsafe { std::mem::transmute(function) };
    if call(at, bytes) == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_zfolio_advice_goes_to_the_kernel_and_the_rest_is_refused() {
        let memory = vec![1u64; 100_000];
        assert!(!is_there());
        for advise in [pageout, cold, willneed] {
            advise(&memory).unwrap();
        }
        assert_eq!(pin(&memory).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(range(&memory).unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(pageout(&memory[..10]).is_ok(), "no whole page");
        assert!(memory.iter().all(|&word| word == 1));
    }
}
