//! `zfolio zram`, with the clients that users have.

mod clients;
mod control;
mod ends;
mod machines;
mod nbd;
#[path = "../pty/mod.rs"]
mod pty;
mod served;
#[path = "../skip/mod.rs"]
mod skip;
#[path = "../until/mod.rs"]
mod until;
