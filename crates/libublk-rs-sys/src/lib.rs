//! The kernel's interface of ublk, for libublk: see decision 74.
//!
//! `ublk_cmd.in` is made by bindgen 0.69 from the header that the published crate libublk-rs-sys 0.1.2 has, which is
//! the kernel's (licence: GPL with the system call note, or MIT). To make it anew, build that crate where there is
//! libclang: its build script leaves the same in its `OUT_DIR`.

#![allow(missing_docs, reason = "names and their meaning are the header's")]
#![allow(non_upper_case_globals, non_camel_case_types, non_snake_case, reason = "names are the header's")]
#![allow(unsafe_op_in_unsafe_fn, clippy::all, clippy::undocumented_unsafe_blocks, reason = "it is bindgen's")]

include!("ublk_cmd.in");

/// The word of a submission that says which buffer is to be registered.
pub fn ublk_auto_buf_reg_to_sqe_addr(buffer: &ublk_auto_buf_reg) -> u64 {
    let ublk_auto_buf_reg { index, flags, reserved0, reserved1 } = *buffer;
    u64::from(index) | u64::from(flags) << 16 | u64::from(reserved0) << 24 | u64::from(reserved1) << 32
}

/// The buffer that such a word names.
pub fn ublk_sqe_addr_to_auto_buf_reg(word: u64) -> ublk_auto_buf_reg {
    let [index, index_high, flags, reserved0, reserved1 @ ..] = word.to_le_bytes();
    let (index, reserved1) = (u16::from_le_bytes([index, index_high]), u32::from_le_bytes(reserved1));
    ublk_auto_buf_reg { index, flags, reserved0, reserved1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_and_its_word_are_one_thing() {
        let buffer =
            ublk_auto_buf_reg { index: 0x1234, flags: 0xab, reserved0: 0xcd, reserved1: 0xdead_beef };
        let word = ublk_auto_buf_reg_to_sqe_addr(&buffer);
        assert_eq!(word, 0xdead_beef_cdab_1234);
        assert_eq!(ublk_auto_buf_reg_to_sqe_addr(&ublk_sqe_addr_to_auto_buf_reg(word)), word);
    }
}
