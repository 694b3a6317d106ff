//! What a program needs in its environment to be managed: the library in LD_PRELOAD, and the path of the run's page.
//!
//! All of it may run in a child of vfork and in a signal handler: it calls nothing, allocates nothing, and writes only
//! where it is told to.

use control::run::{Name, RunFiles};
use core::ffi::CStr;

/// An array of strings that ends with NULL, as exec takes it.
pub type Vector = *const *const u8;

const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// How an environment is to be changed before a program gets it.
pub struct EnvironmentChange<'a> {
    run: &'a RunFiles,
    strings: Vector,
    /// How many strings there are.
    count: usize,
    /// To put library and page in, the library by this name; or to take them out.
    put_in: Option<Name>,
    /// The LD_PRELOAD that counts: its index and value.
    preload: Option<(usize, &'a [u8])>,
    /// The index of ZFOLIO_MEMCG.
    page: Option<usize>,
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b':')
}

impl<'a> EnvironmentChange<'a> {
    /// Looks at the environment `strings` (NULL is an empty one). None when nothing is to be changed: what is to be put
    /// in is there, the library by this name and no other; where nothing is to be, nothing is; or it belongs to another
    /// run, one inside this.
    ///
    /// # Safety
    /// `strings` must be an environment as exec takes it, and stay as it is for `'a`.
    pub unsafe fn new(
        run: &'a RunFiles,
        strings: Vector,
        put_in: Option<Name>,
    ) -> Option<EnvironmentChange<'a>> {
        let mut plan = EnvironmentChange { run, strings, count: 0, put_in, preload: None, page: None };
        let name = &run.variable()[..memcg::ENV.len() + 1];
        // SAFETY: the caller's contract: there are strings up to NULL.
        while let Some(string) = unsafe { plan.string(plan.count) } {
            // SAFETY: each ends with NUL.
            let (is_preload, is_page) = unsafe { (begins_with(string, PRELOAD), begins_with(string, name)) };
            if is_preload {
                // SAFETY: as above. Of several the loader takes the last.
                let text = unsafe { CStr::from_ptr(string.cast()) }.to_bytes();
                plan.preload = Some((plan.count, &text[PRELOAD.len()..]));
            }
            if is_page && plan.page.is_none() {
                // SAFETY: as above.
                if unsafe { CStr::from_ptr(string.cast()) }.to_bytes_with_nul() != run.variable() {
                    return None;
                }
                plan.page = Some(plan.count);
            }
            plan.count += 1;
        }
        let is_named = |name| plan.libraries().all(|entry| entry == run.name(name));
        let has_library = plan.libraries().next().is_some();
        let as_it_should_be = match put_in {
            Some(name) => has_library && plan.page.is_some() && is_named(name),
            None => !has_library && plan.page.is_none(),
        };
        (!as_it_should_be).then_some(plan)
    }

    /// The string at an index up to the end.
    ///
    /// # Safety
    /// As for [`EnvironmentChange::new`], and there must be as many strings.
    unsafe fn string(&self, index: usize) -> Option<*const u8> {
        if self.strings.is_null() {
            return None;
        }
        // SAFETY: the caller's contract.
        Some(unsafe { *self.strings.add(index) }).filter(|string| !string.is_null())
    }

    /// What else is preloaded, and our library.
    fn preloaded(&self) -> &'a [u8] {
        self.preload.map_or(b"", |(_, value)| value)
    }

    /// The entries of LD_PRELOAD that are our library.
    fn libraries(&self) -> impl Iterator<Item = &'a [u8]> {
        self.preloaded().split(is_blank).filter(|entry| self.run.is_library(entry))
    }

    /// How much room [`EnvironmentChange::write`] needs, in bytes.
    pub fn room_bytes(&self) -> usize {
        self.pointers_bytes() + self.text_bytes()
    }

    /// Of the array: what is there, two variables, and NULL.
    fn pointers_bytes(&self) -> usize {
        (self.count + 3) * size_of::<*const u8>()
    }

    /// Of a new LD_PRELOAD: what is there, with the longer of the names for each of ours; or the variable, ours, `:`,
    /// theirs; and NUL.
    fn text_bytes(&self) -> usize {
        PRELOAD.len()
            + self.preloaded().len()
            + self.libraries().count().max(1) * self.run.name(Name::Platform).len()
            + 2
    }

    /// Writes the new environment, which goes on using strings of the old one and of the run.
    ///
    /// # Safety
    /// `room` must be that many bytes to write, aligned for a pointer.
    pub unsafe fn write(&self, room: *mut u8) -> Vector {
        // SAFETY: the caller's contract: the array first, the text behind it.
        let text =
            unsafe { core::slice::from_raw_parts_mut(room.add(self.pointers_bytes()), self.text_bytes()) };
        let preload = self.write_preload(text);
        let mut end = room.cast::<*const u8>();
        let mut push = |string: *const u8| {
            // SAFETY: there is room for all strings of the old array, for two more, and for NULL.
            unsafe {
                end.write(string);
                end = end.add(1);
            }
        };
        for index in 0..self.count {
            // SAFETY: the contract of `new`; there are `count` of them.
            let string = unsafe { *self.strings.add(index) };
            if self.preload.is_some_and(|(at, _)| at == index) {
                preload.into_iter().for_each(&mut push);
            } else if self.put_in.is_some() || self.page != Some(index) {
                push(string);
            }
        }
        if self.put_in.is_some() {
            preload.into_iter().filter(|_| self.preload.is_none()).for_each(&mut push);
            Some(self.run.variable().as_ptr())
                .filter(|_| self.page.is_none())
                .into_iter()
                .for_each(&mut push);
        }
        push(core::ptr::null());
        room as Vector
    }

    /// Writes the new LD_PRELOAD; none where there is nothing left to be preloaded.
    fn write_preload(&self, text: &mut [u8]) -> Option<*const u8> {
        let mut len = 0;
        let mut push = |part: &[u8]| {
            text[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        };
        push(PRELOAD);
        let ours = self.put_in.map_or(&b""[..], |name| self.run.name(name));
        if self.libraries().next().is_none() {
            push(ours);
            push(if ours.is_empty() || self.preloaded().is_empty() { b"" } else { b":" });
        }
        // Each entry with the character behind it, so that theirs stay as they were written.
        for part in self.preloaded().split_inclusive(is_blank) {
            let entry = part.strip_suffix(b":").or(part.strip_suffix(b" ")).unwrap_or(part);
            if !self.run.is_library(entry) {
                push(part);
            } else if self.put_in.is_some() {
                push(ours);
                push(&part[entry.len()..]);
            }
        }
        push(b"\0");
        let is_empty = len == PRELOAD.len() + 1;
        (!is_empty).then_some(text.as_ptr())
    }
}

/// Reads no further than the first byte that differs.
///
/// # Safety
/// `string` must end with NUL.
unsafe fn begins_with(string: *const u8, prefix: &[u8]) -> bool {
    // SAFETY: the prefix holds no NUL, so that the string's own ends the comparison.
    prefix.iter().enumerate().all(|(index, byte)| unsafe { *string.add(index) } == *byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    const OURS: &str = "LD_PRELOAD=/run/a/$PLATFORM/libzfolio.so";
    const SHORT: &str = "LD_PRELOAD=/run/a/libzfolio.so";
    const PAGE: &str = "ZFOLIO_MEMCG=/run/a/memcg-8";

    /// What a program gets that is started with these variables; none where they are passed as they are.
    fn changed(variables: &[&str], put_in: Option<Name>) -> Option<Vec<String>> {
        let run = RunFiles::new(b"/run/a/memcg-8").unwrap();
        let texts: Vec<CString> = variables.iter().map(|text| CString::new(*text).unwrap()).collect();
        let mut vector: Vec<*const u8> = texts.iter().map(|text| text.as_ptr().cast()).collect();
        vector.push(core::ptr::null());
        // SAFETY: a NULL-terminated array of C strings.
        let plan = unsafe { EnvironmentChange::new(&run, vector.as_ptr(), put_in) }?;
        // A word behind the room, to see that it is not written.
        let words = plan.room_bytes().div_ceil(8);
        let mut room = vec![!0u64; words + 1];
        let mut result = Vec::new();
        // SAFETY: the room is aligned and as large as asked for; what was written is a NULL-terminated array of C
        // strings.
        unsafe {
            let mut at = plan.write(room.as_mut_ptr().cast());
            while !(*at).is_null() {
                result.push(CStr::from_ptr((*at).cast()).to_str().unwrap().to_string());
                at = at.add(1);
            }
        }
        assert_eq!(room[words], !0);
        Some(result)
    }

    fn put_in(variables: &[&str]) -> Option<Vec<String>> {
        changed(variables, Some(Name::Platform))
    }

    fn put_in_short(variables: &[&str]) -> Option<Vec<String>> {
        changed(variables, Some(Name::File))
    }

    fn taken_out(variables: &[&str]) -> Option<Vec<String>> {
        changed(variables, None)
    }

    #[test]
    fn an_environment_that_has_both_or_must_have_neither_is_passed_as_it_is() {
        assert_eq!(put_in(&["A=1", OURS, PAGE]), None);
        assert_eq!(put_in(&[PAGE, &format!("{OURS}:x.so"), "B=2"]), None);
        assert_eq!(put_in(&["LD_PRELOAD=x.so /run/a/$PLATFORM/libzfolio.so", PAGE]), None);
        assert_eq!(put_in_short(&["A=1", SHORT, PAGE]), None);
        assert_eq!(put_in_short(&["LD_PRELOAD=x.so:/run/a/libzfolio.so y.so", PAGE]), None);
        assert_eq!(taken_out(&["A=1", "LD_PRELOAD=x.so"]), None);
        assert_eq!(taken_out(&[]), None);
    }

    #[test]
    fn what_is_missing_is_put_in() {
        assert_eq!(put_in(&[]).unwrap(), [OURS, PAGE]);
        assert_eq!(put_in(&["A=1", "B=2"]).unwrap(), ["A=1", "B=2", OURS, PAGE]);
        assert_eq!(put_in(&[PAGE, "A=1"]).unwrap(), [PAGE, "A=1", OURS]);
        assert_eq!(put_in(&[OURS, "A=1"]).unwrap(), [OURS, "A=1", PAGE]);
    }

    #[test]
    fn what_is_there_by_the_other_name_gets_the_right_one() {
        assert_eq!(put_in_short(&["A=1", "B=2"]).unwrap(), ["A=1", "B=2", SHORT, PAGE]);
        for (theirs_before, theirs_behind) in [("", ""), ("x.so ", ""), ("", ":x.so"), ("x.so:", "  y.so:")] {
            let with = |name: &str| format!("LD_PRELOAD={theirs_before}/run/a/{name}{theirs_behind}");
            let (short, long) = (with("libzfolio.so"), with("$PLATFORM/libzfolio.so"));
            assert_eq!(put_in_short(&["A=1", &long, PAGE]).unwrap(), ["A=1", &short, PAGE]);
            assert_eq!(put_in(&["A=1", &short, PAGE]).unwrap(), ["A=1", &long, PAGE]);
            assert_eq!(put_in(&[&short]).unwrap(), [&long, PAGE]);
        }
        // Each of several: a shell's text may have been added to itself.
        let (short, long) = ("/run/a/libzfolio.so", "/run/a/$PLATFORM/libzfolio.so");
        let mixed = format!("LD_PRELOAD={short}:{long}:x.so:{short}");
        assert_eq!(
            put_in(&[&mixed, PAGE]).unwrap(),
            [&format!("LD_PRELOAD={long}:{long}:x.so:{long}"), PAGE]
        );
        assert_eq!(
            put_in_short(&[&mixed, PAGE]).unwrap(),
            [&format!("LD_PRELOAD={short}:{short}:x.so:{short}"), PAGE]
        );
        assert_eq!(taken_out(&[&mixed, PAGE]).unwrap(), ["LD_PRELOAD=x.so:"]);
    }

    #[test]
    fn ours_comes_before_what_a_program_preloads_itself() {
        let both = format!("{OURS}:x.so y.so");
        assert_eq!(
            put_in(&["A=1", "LD_PRELOAD=x.so y.so", "B=2", PAGE]).unwrap(),
            ["A=1", &both, "B=2", PAGE]
        );
        assert_eq!(put_in(&["LD_PRELOAD="]).unwrap(), [OURS, PAGE]);
        // A name that ours is a part of is another's.
        let other = format!("{OURS}.so");
        let both = format!("{OURS}:{}", &other["LD_PRELOAD=".len()..]);
        assert_eq!(put_in(&[&other]).unwrap(), [&both, PAGE]);
    }

    #[test]
    fn of_several_the_last_is_the_loaders() {
        let both = format!("{OURS}:x.so");
        assert_eq!(put_in(&[OURS, "LD_PRELOAD=x.so", PAGE]).unwrap(), [OURS, &both, PAGE]);
        assert_eq!(put_in(&["LD_PRELOAD=x.so", OURS, PAGE]), None);
    }

    #[test]
    fn what_cannot_be_opened_is_taken_out() {
        assert_eq!(taken_out(&["A=1", OURS, PAGE, "B=2"]).unwrap(), ["A=1", "B=2"]);
        assert_eq!(taken_out(&[PAGE]).unwrap(), [""; 0]);
        for (with, without) in [
            (format!("{OURS}:x.so y.so"), "LD_PRELOAD=x.so y.so"),
            ("LD_PRELOAD=x.so /run/a/$PLATFORM/libzfolio.so y.so".into(), "LD_PRELOAD=x.so y.so"),
            ("LD_PRELOAD=x.so:/run/a/$PLATFORM/libzfolio.so".into(), "LD_PRELOAD=x.so:"),
            (format!("{SHORT} x.so"), "LD_PRELOAD=x.so"),
        ] {
            assert_eq!(taken_out(&[&with, "A=1"]).unwrap(), [without, "A=1"]);
        }
    }

    #[test]
    fn a_run_inside_this_one_keeps_its_own() {
        let inner = ["LD_PRELOAD=/run/b/$PLATFORM/libzfolio.so", "ZFOLIO_MEMCG=/run/b/memcg-1"];
        assert_eq!(put_in(&inner), None);
        assert_eq!(taken_out(&inner), None);
    }

    #[test]
    fn no_environment_is_an_empty_one() {
        let run = RunFiles::new(b"/run/a/memcg-8").unwrap();
        // SAFETY: NULL is allowed.
        unsafe {
            assert!(EnvironmentChange::new(&run, core::ptr::null(), None).is_none());
            assert_eq!(
                EnvironmentChange::new(&run, core::ptr::null(), Some(Name::Platform)).unwrap().count,
                0
            );
        }
    }

    #[test]
    fn a_path_that_is_no_pages_or_too_long_is_no_run() {
        assert!(RunFiles::new(b"/run/a/page").is_none());
        assert!(RunFiles::new(b"memcg-8").is_none());
        let path = |bytes: usize| format!("/{}/memcg-8", "x".repeat(bytes - "//memcg-8".len()));
        let run = RunFiles::new(path(memcg::PATH_BYTES).as_bytes()).unwrap();
        assert_eq!(run.file().last(), Some(&0));
        assert!(RunFiles::new(path(memcg::PATH_BYTES + 64).as_bytes()).is_none());
    }
}
