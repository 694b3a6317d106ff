//! Waiting for what other processes do.

use std::time::{Duration, Instant};

/// Long enough for whatever a test waits for, on a busy machine too.
const LONGEST: Duration = Duration::from_secs(120);

/// What is waited for: something, or that something is so.
pub trait Awaited {
    /// What it is, once it is there.
    type What;

    fn awaited(self) -> Option<Self::What>;
}

impl<T> Awaited for Option<T> {
    type What = T;

    fn awaited(self) -> Option<T> {
        self
    }
}

impl Awaited for bool {
    type What = ();

    fn awaited(self) -> Option<()> {
        self.then_some(())
    }
}

/// Looks again and again until there is something.
pub fn until<A: Awaited>(what: &str, mut look: impl FnMut() -> A) -> A::What {
    let deadline = Instant::now() + LONGEST;
    loop {
        if let Some(found) = look().awaited() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
