//! What has become of pages that came before anybody asked for them.

/// How many were asked for afterwards, and how many went again unasked; of late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    wanted: u32,
    vain: u32,
}

impl Fates {
    /// So many pages were asked for, and so many went unasked; what is older than `memory` of them counts half.
    pub fn add(&mut self, wanted: usize, vain: usize, memory: u32) {
        self.wanted += wanted as u32;
        self.vain += vain as u32;
        while self.known() > memory {
            self.wanted /= 2;
            self.vain /= 2;
        }
    }

    /// Of how many the fate is known.
    pub fn known(&self) -> u32 {
        self.wanted + self.vain
    }

    /// The part that was wanted; 0 where nothing is known.
    pub fn wanted_part(&self) -> f32 {
        self.wanted as f32 / self.known().max(1) as f32
    }

    /// True where one of so many was wanted, or more.
    pub fn is_one_in(&self, count: u32) -> bool {
        self.wanted * count >= self.known()
    }

    /// True where no more than one of so many was in vain.
    pub fn is_vain_in(&self, count: u32) -> bool {
        self.vain * count <= self.known()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_all_and_what_is_old_fades() {
        let mut fates = Fates::default();
        assert_eq!(
            (fates.known(), fates.is_one_in(2), fates.is_vain_in(8)),
            (0, true, true),
            "nothing is known"
        );
        fates.add(25, 75, 1000);
        assert_eq!([3, 4].map(|count| fates.is_one_in(count)), [false, true]);
        assert_eq!((fates.wanted_part(), Fates::default().wanted_part()), (0.25, 0.0));
        fates.add(500, 0, 1000);
        assert_eq!([8, 9].map(|count| fates.is_vain_in(count)), [true, false]);
        fates.add(0, 100_000, 1000);
        assert!(fates.known() <= 1000 && !fates.is_one_in(100));
    }
}
