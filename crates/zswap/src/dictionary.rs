//! What objects say of the dictionary that they were compressed with, and what new ones are compressed with.

use crate::chooser::Way;

/// A dictionary's name in its process: each object bears that of its own. 0 is none, and no other is ever used twice.
pub type Name = u32;

/// The name of the dictionary that the user has in a file. All processes of the run have it.
pub const FILE: Name = 1;

/// The name of one that is being tried, and that no object bears.
pub const CANDIDATE: Name = Name::MAX;

/// How many dictionaries a codec can have.
pub const PLACES: usize = acomp::TRAINED_MAX;

/// What new objects are compressed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct With {
    /// The dictionary's name.
    pub name: Name,
    /// Which objects it is for.
    pub uses: Uses,
    /// Which of two compressors, where there are two: these know no dictionaries.
    pub way: Way,
}

/// Which objects a dictionary is good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Those of a single page.
    pub pages: bool,
    /// Those of several pages.
    pub windows: bool,
}

impl Uses {
    /// For all objects.
    pub const ALL: Uses = Uses { pages: true, windows: true };

    /// True when it is for none.
    pub fn is_none(self) -> bool {
        self == Uses::default()
    }
}

impl With {
    /// The user's dictionary, for all objects.
    pub const FILE: With = With { name: FILE, uses: Uses::ALL, way: Way::Only };

    /// The dictionary for an object of so many pages; 0 for none.
    pub fn name_for(self, pages: usize) -> Name {
        let is_used = if pages == 1 { self.uses.pages } else { self.uses.windows };
        if is_used { self.name } else { 0 }
    }
}
