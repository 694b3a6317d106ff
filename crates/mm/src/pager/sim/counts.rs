//! What is counted of pages that go out.

use super::program::BASE;
use super::scene::{Scene, pages};
use memcg::Counts;
use vmscan::PAGE;

/// A page is stored in an object, or one word fills it: it is never counted as both, whatever lies beside it.
#[test]
fn what_one_word_fills_is_counted_as_that_alone() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    for page in 16..48 {
        let word = if page < 32 { 7 } else { 0 };
        scene.touch(BASE + page * PAGE, Some(word));
    }
    scene.touch(BASE + 3 * PAGE, Some(8));
    scene.go_on();
    assert_eq!(scene.pager.stored_bytes(), 48 * PAGE);
    let counts = Counts::from(scene.pager.stat);
    assert_eq!((counts.zswpout, counts.same_filled), (15, 33));
    let folios: u64 = counts.folios_out.iter().enumerate().map(|(order, folios)| folios << order).sum();
    assert_eq!(folios, counts.zswpout);
}
