//! Points between two accesses to what processes share. In the product there is nothing here. In tests another actor
//! may go on at such a point, or the actor may die.

/// Comes before each access.
#[cfg(not(test))]
#[inline(always)]
pub fn step() {}

#[cfg(test)]
pub use gate::step;

/// What a step does in a test: whatever the thread has been told.
#[cfg(test)]
pub mod gate {
    use std::cell::RefCell;

    thread_local! {
        static EACH: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    }

    /// Has `each` called at each step of this thread.
    pub fn at_each(each: impl FnMut() + 'static) {
        EACH.with(|own| *own.borrow_mut() = Some(Box::new(each)));
    }

    /// Has nothing called any more.
    pub fn at_none() {
        EACH.with(|own| *own.borrow_mut() = None);
    }

    /// What is thrown by an actor that dies.
    pub struct Killed;

    /// Ends the actor where it is, as SIGKILL does.
    pub fn die() -> ! {
        std::panic::resume_unwind(Box::new(Killed))
    }

    /// Comes before each access.
    pub fn step() {
        EACH.with(|own| {
            if let Some(each) = own.borrow_mut().as_mut() {
                each();
            }
        });
    }
}
