//! Scripted scenes of memory that moves: whose events come late, and who has the place meanwhile.

use super::memory::{Access, Vma};
use super::program::BASE;
use super::scene::{SOMEBODY, Scene, pages};
use crate::kernel::Message;
use vmscan::PAGE;

#[test]
fn an_unmap_that_is_read_after_its_address_was_given_away_spares_the_new_owner() {
    // Also where nothing of the first thread's part was ever out.
    for written in [0..32, 20..32] {
        let mut scene = Scene::new();
        scene.write(pages(written.clone()));
        scene.go_on();
        // One thread unmaps pages 0 to 16, and before its event comes another's mremap is given that address.
        {
            let memory = &mut scene.world.borrow_mut().memory;
            memory.unmap(pages(0..16));
            memory.remap(pages(16..32), BASE, 16 * PAGE, false);
        }
        scene.raise(Message::Remap { from: pages(16..32), to: BASE });
        scene.turn();
        scene.raise(Message::Unmap(pages(0..16)));
        scene.raise(Message::Unmap(pages(16..32)));
        scene.reads_back(pages(written.start.max(16) - 16..16), -16 * PAGE as isize);
        assert!(!scene.pager.regions.has_displaced());
        assert_eq!(
            scene.pager.stored_bytes() + scene.pager.usage().inactive,
            0,
            "what the first thread had is gone"
        );
    }
}

/// Two threads' mremaps make one mapping together, of which the second's part looks as if the first's call had
/// added it; and the second unmaps it before all events are read.
#[test]
fn who_has_moved_beside_another_and_unmaps_that_has_it_no_longer() {
    let mut scene = Scene::new();
    scene.world.borrow_mut().memory.unmap(pages(32..128));
    scene.write(pages(0..32));
    scene.go_on();
    scene.pager.regions.unregister(&pages(32..128));
    let [first, second] = [64..80, 80..96].map(pages);
    let fresh = scene.world.borrow().memory.vma(BASE).map(|(_, vma)| vma.clone());
    {
        let memory = &mut scene.world.borrow_mut().memory;
        memory.remap(pages(0..16), first.start, 16 * PAGE, false);
        memory.remap(pages(16..32), second.start, 16 * PAGE, false);
        memory.changing += 1;
        assert_eq!(memory.vma(first.start).map(|(whole, _)| whole), Some(pages(64..96)));
    }
    for (from, to) in [(0..16, &first), (16..32, &second)] {
        scene.raise(Message::Remap { from: pages(from), to: to.start });
        scene.turn();
    }
    scene.raise(Message::Unmap(pages(0..16)));
    scene.raise(Message::Unmap(pages(16..32)));
    scene.turn();
    scene.world.borrow_mut().memory.unmap(second.clone());
    scene.raise(Message::Unmap(second.clone()));
    scene.turn();
    {
        let memory = &mut scene.world.borrow_mut().memory;
        memory.changing = 0;
        memory.map(second.clone(), Vma { registered: false, ..fresh.unwrap() });
    }
    assert!(!scene.pager.regions.registered().contains(second.start), "it is not registered");
    scene.write(second.clone());
    scene.go_on();
    scene.reads_back(second, 0);
    scene.reads_back(first, 64 * PAGE as isize);
}

#[test]
fn what_mremap_added_is_known_although_it_changes_before_the_call_ends() {
    let mut scene = Scene::new();
    scene.world.borrow_mut().memory.unmap(pages(32..128));
    scene.write(pages(0..4));
    scene.go_on();
    scene.pager.pause(true);
    {
        let memory = &mut scene.world.borrow_mut().memory;
        memory.remap(pages(16..20), pages(64..65).start, 8 * PAGE, false);
        memory.changing = 2;
    }
    scene.raise(Message::Remap { from: pages(16..20), to: pages(64..65).start });
    scene.turn();
    scene.world.borrow_mut().memory.change(pages(66..72), |vma| vma.writable = false);
    scene.raise(Message::Unmap(pages(16..20)));
    scene.turn();
    scene.world.borrow_mut().memory.changing = 0;
    scene.turn();
    assert!(scene.pager.regions.registered().covers(&pages(64..72)));
}

/// mremap fills what it adds to a locked mapping before it sends its event, and nothing can be put there until that
/// is read.
#[test]
fn what_mremap_added_to_a_locked_mapping_is_there_known_and_part_of_it() {
    let mut scene = Scene::new();
    scene.world.borrow_mut().memory.unmap(pages(32..128));
    scene.write(pages(0..20));
    scene.go_on();
    scene.pager.pause(true);
    scene.reads_back(pages(16..20), 0);
    {
        let memory = &mut scene.world.borrow_mut().memory;
        memory.change(pages(16..20), |vma| (vma.locked, vma.filled) = (true, true));
        memory.remap(pages(16..20), pages(64..65).start, 8 * PAGE, false);
        memory.changing = 2;
        assert_eq!(memory.access(SOMEBODY, pages(68..69).start, Some(0)), Access::Fault);
    }
    scene.turn();
    scene.raise(Message::Remap { from: pages(16..20), to: pages(64..65).start });
    scene.turn();
    scene.raise(Message::Unmap(pages(16..20)));
    scene.turn();
    scene.world.borrow_mut().memory.changing = 0;
    scene.turn();
    assert!(scene.pager.regions.registered().covers(&pages(64..72)));
    {
        let memory = &scene.world.borrow().memory;
        assert_eq!(memory.vma(pages(64..65).start).map(|(whole, _)| whole), Some(pages(64..72)));
        assert!(pages(64..72).step_by(PAGE).all(|at| memory.page(at).is_some()));
    }
    scene.reads_back(pages(64..68), 48 * PAGE as isize);
}

#[test]
fn a_mapping_that_an_event_is_about_is_not_taken_for_known() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    // mremap has moved pages to where nothing was registered; its event is under way.
    {
        let memory = &mut scene.world.borrow_mut().memory;
        memory.unmap(pages(64..128));
        memory.remap(pages(0..16), pages(64..65).start, 16 * PAGE, false);
        memory.changing += 2;
    }
    scene.pager.regions.unregister(&pages(64..128));
    scene.turn();
    assert!(!scene.pager.regions.registered().contains(pages(64..65).start));
    scene.raise(Message::Remap { from: pages(0..16), to: pages(64..65).start });
    scene.raise(Message::Unmap(pages(0..16)));
    scene.pager.pause(true);
    scene.turn();
    scene.world.borrow_mut().memory.changing = 0;
    scene.reads_back(pages(64..80), 64 * PAGE as isize);
}
