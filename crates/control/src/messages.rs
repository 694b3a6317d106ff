//! What is said to the user: through the process's slot of the run's page.

use crate::line::Line;
use crate::{CONTROL, Order};
use core::fmt::{self, Write};
use core::sync::atomic::Ordering::*;
use memcg::Slot;
use uffd::sys::{self, consts::*};

/// Leaves a message for the user.
pub fn leave_message(text: &str) {
    // SAFETY: null, or of static life.
    if let Some(slot) = unsafe { CONTROL.slot.load(Acquire).as_ref() } {
        slot.say(text);
    }
}

/// Kills the program.
pub fn stop_program() {
    let pid = CONTROL.pid.load(Acquire);
    if pid != 0 {
        let _ = sys::kill(pid, SIGKILL);
    }
}

/// Hands in the slot of a process that has ended, or goes on without an engine. It may be another's at once: nobody
/// here uses it again.
pub fn leave(order: &Order) {
    CONTROL.slot.store(core::ptr::null_mut(), Release);
    order.memcg.release(order.slot, sys::now_ns());
}

/// The program runs on without an engine; says why.
pub fn unmanaged(order: &Order, why: fmt::Arguments<'_>) {
    let mut line = Line::default();
    let _ = line.write_fmt(why);
    order.slot.say(line.as_str());
    order.slot.state.store(memcg::State::Unmanaged as u32, Release);
    // From here on `zfolio run` counts it with those that have no engine.
    order.memcg.publish(order.slot, 0, 0, 0, 0);
    order.memcg.publish_pages(order.slot, [0; 4]);
    order.memcg.managed.fetch_sub(1, Relaxed);
    order.memcg.unmanaged.fetch_add(1, Relaxed);
}

/// A child of a fork cannot take over what is out, and is stopped: says why.
pub fn child_stopped(slot: &Slot, why: fmt::Arguments<'_>) {
    let mut line = Line::default();
    let pid = CONTROL.pid.load(Relaxed);
    let _ = write!(
        line,
        "process {pid}, a child of a fork, was stopped: what is out cannot be restored there: {why}"
    );
    slot.say(line.as_str());
    slot.state.store(memcg::State::Stopped as u32, Release);
}
