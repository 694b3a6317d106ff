//! Objects and their clean copies, beside a store that only notes what is freed.

use super::*;

/// Handles in the order in which they were freed.
#[derive(Default)]
struct Freed(Vec<u32>);

impl Contents for Freed {
    fn free(&mut self, body: Body) {
        if let Body::Blob { handle, .. } = body {
            self.0.push(handle);
        }
    }

    fn freeze(&mut self) {}

    fn thaw(&mut self) {}

    fn pool_bytes(&self) -> usize {
        0
    }
}

#[test]
fn of_clean_copies_those_past_due_go_first_and_then_the_newest() {
    let mut objects = Objects::new(Freed::default());
    let ids: Vec<u32> = (0..4)
        .map(|n| {
            objects.set_clock(n as usize * 10);
            let id = objects.insert(Body::Blob { handle: n, fingerprint: 0, bytes: 1000 }, 16, 0);
            objects.retain(id, true);
            objects.clean(id);
            id
        })
        .collect();
    assert_eq!(objects.clean_bytes(), 4000);
    // Clean since 0, 10, 20 and 30 evictions, after 30 of them.
    assert!(objects.drop_clean(25));
    assert!(objects.drop_clean(25));
    assert_eq!(objects.store().0, [0, 3]);
    // Wanted in between, it is as young as the last time that it was given back.
    objects.depend(ids[1]);
    objects.set_clock(60);
    objects.clean(ids[1]);
    assert!(objects.drop_clean(35));
    assert_eq!(objects.store().0, [0, 3, 2]);
    assert!(objects.drop_clean(35));
    assert_eq!((&objects.store().0, objects.clean_bytes()), (&Vec::from([0, 3, 2, 1]), 0));
    assert!(!objects.drop_clean(35));
}

#[test]
fn what_is_frozen_is_no_copy_to_give_up_until_it_is_thawed() {
    let mut objects = Objects::new(Freed::default());
    let make = |objects: &mut Objects<Freed>, handle| {
        let id = objects.insert(Body::Blob { handle, fingerprint: 0, bytes: 1000 }, 16, 0);
        objects.retain(id, true);
        id
    };
    let (clean, stored) = (make(&mut objects, 1), make(&mut objects, 2));
    objects.clean(clean);
    objects.freeze();
    let new = make(&mut objects, 3);
    objects.clean(stored);
    objects.clean(new);
    assert_eq!(objects.clean_bytes(), 1000, "the new one alone");
    assert!(objects.drop_clean(100) && !objects.drop_clean(100));
    assert_eq!(objects.store().0, [3]);
    objects.depend(clean);
    objects.thaw();
    assert_eq!(objects.clean_bytes(), 1000, "that on which nobody depends");
    assert!(objects.drop_clean(100));
    assert_eq!((&objects.store().0, objects.clean_bytes()), (&Vec::from([3, 2]), 0));
}
