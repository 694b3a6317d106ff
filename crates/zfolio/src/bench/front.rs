//! The Pareto front: what nothing else is at least as good as in both ways, and better in one.

/// Something with two qualities, of each of which more is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// How dense: bytes of pages for each byte of objects.
    pub ratio: f64,
    /// How fast, in bytes a second.
    pub speed: f64,
}

impl Point {
    fn beats(&self, other: &Point) -> bool {
        self.ratio >= other.ratio && self.speed >= other.speed && self != other
    }
}

/// For each point, whether it is on the front of them all.
pub fn front(points: &[Point]) -> Vec<bool> {
    points.iter().map(|point| !points.iter().any(|other| other.beats(point))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_front(points: &[(f64, f64)]) -> Vec<bool> {
        front(&points.iter().map(|&(ratio, speed)| Point { ratio, speed }).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_beaten_in_both_ways_is_not_on_the_front() {
        assert_eq!(
            on_front(&[(3.0, 1.0), (2.9, 0.9), (4.0, 0.5), (4.1, 0.1), (1.0, 1.0)]),
            [true, false, true, true, false]
        );
    }

    #[test]
    fn the_best_in_one_way_is_on_it_and_equals_do_not_beat_each_other() {
        assert_eq!(on_front(&[(3.0, 1.0)]), [true]);
        assert_eq!(on_front(&[(3.0, 1.0), (3.0, 1.0), (3.0, 0.9)]), [true, true, false]);
        assert!(on_front(&[]).is_empty());
    }
}
