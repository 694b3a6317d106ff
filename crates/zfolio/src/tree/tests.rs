//! Tests of the tables of processes.

use super::*;
use crate::lines::WIDTH;
use memcg::Counts;
use memcg::{Memcg, NAME_BYTES, Settings};

fn process(pid: u32, name: &str, peak: u64) -> Entry {
    // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
    let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
    memcg.init(1 << 30, Settings::default());
    let slot = memcg.claim(pid).unwrap();
    let mut bytes = [0; NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    slot.introduce(1, &bytes, 2_000_000_000);
    slot.begin(pid, 1);
    memcg.publish(slot, peak, 4 * peak, 2 * peak, peak / 2);
    let add = |counter: &std::sync::atomic::AtomicU64, value| {
        counter.fetch_add(value, std::sync::atomic::Ordering::Relaxed);
    };
    add(&slot.stat.zswpout, peak >> 12);
    add(&slot.stat.zswpin, peak >> 13);
    add(&slot.stat.faults, peak >> 12);
    add(&slot.stat.stall_ns, peak);
    memcg.release(slot, 7_000_000_000);
    Entry { process: slot.process(), words: None }
}

fn figures(processes: Vec<Entry>) -> Figures {
    let managed = processes.len() as u64;
    Figures {
        max_bytes: 1 << 30,
        peak_bytes: 1 << 29,
        counts: Counts { pgdeactivate: 1, ..Counts::default() },
        began_ns: 1_000_000_000,
        elapsed_ns: 9_000_000_000,
        managed,
        processes,
        ..Figures::default()
    }
}

fn listing(figures: &Figures) -> String {
    let mut text = String::new();
    figures.write_processes(&mut text).unwrap();
    figures.write_unmanaged(&mut text).unwrap();
    for line in text.lines() {
        assert!(line.width() <= WIDTH, "{} columns: {line}", line.width());
        assert!(!line.ends_with(' ') && !line.contains(char::is_control), "{line:?}");
    }
    text
}

#[test]
fn processes_are_listed_by_their_size() {
    let mut two = figures(vec![process(17, "sort", 12 << 20), process(4_194_304, "python3", 512 << 20)]);
    assert_eq!(
        listing(&two),
        "
  processes   2 managed
      pid name                peak   wanted      out       in    faults waited
  4194304 python3          512 MiB    2 GiB  512 MiB  256 MiB   131,072  537ms
       17 sort              12 MiB   48 MiB   12 MiB    6 MiB     3,072 12.6ms
"
        .trim_start_matches('\n')
    );
    two.small = 1200;
    two.unmanaged = 3;
    two.add_unmanaged("busybox", "statically linked", Cause::Engine, 0);
    two.add_unmanaged(
        "go",
        "the engine could not be started: clone says EAGAIN (Resource temporarily unavailable)",
        Cause::Engine,
        0,
    );
    two.add_unmanaged("busybox", "statically linked", Cause::Engine, 0);
    assert!(listing(&two).starts_with("  processes   2 managed, 1,200 small, 3 unmanaged\n"));
    assert!(
        listing(&two).ends_with(
            "
  unmanaged   3 of 1,205 processes
              2 x busybox: statically linked
              1 x go: the engine could not be started: clone says EAGAIN
                (Resource temporarily unavailable)
"
        ),
        "{}",
        listing(&two)
    );
}

#[test]
fn one_process_and_a_few_small_ones_are_not_listed() {
    let mut one = figures(vec![process(17, "sort", 12 << 20)]);
    one.small = 2;
    assert_eq!(listing(&one), "");
    one.small = 3;
    assert_eq!(listing(&one), "  processes   1 managed, 3 small\n");
}

#[test]
fn those_next_to_nothing_are_not_listed() {
    let mut all = figures(vec![process(1, "sort", 99 << 20), process(2, "cat", 1 << 20)]);
    all.processes[1].process.pages_out = 0;
    all.managed = 9;
    assert!(listing(&all).ends_with("          and 1 more, none larger than 1 MiB\n"), "{}", listing(&all));
    all.processes[0].process.pages_out = 0;
    all.peak_bytes = (99 * 50) << 20;
    assert_eq!(listing(&all), "  processes   9 managed\n");
}

#[test]
fn of_many_processes_the_largest_are_listed() {
    let mut many = figures((1..=1234).map(|pid| process(pid, "cc1", (pid as u64) << 16)).collect());
    many.unrecorded = 7;
    let text = listing(&many);
    assert!(text.starts_with("  processes   1,234 managed\n"), "{text}");
    assert_eq!(text.matches("cc1").count(), 10);
    assert!(text.contains("   1234 cc1") && text.contains("   1225 cc1") && !text.contains("   1224 cc1"));
    assert!(text.ends_with(
        "          and 1,224 more, none larger than 76.5 MiB\n          and 7 of which there is no record\n"
    ), "{text}");
}

#[test]
fn names_of_all_kinds_keep_the_columns() {
    let names = ["", "プロセス名", "naïve-café", "\x1b[2Jboo\r\n", "a\u{202e}b", "fifteen-letters"];
    let all = names.iter().zip(1..).map(|(name, pid)| process(pid, name, 999 << 20)).collect();
    let text = listing(&figures(all));
    let ends: Vec<_> = text.lines().skip(1).map(|line| line.width()).collect();
    assert_eq!(ends, [78; 7], "{text}");
    for shown in ["プロセス名", "naïve-café", "\\u{1b}[2Jboo\\r…", "a\\u{202e}b", "fifteen-letters"]
    {
        assert!(text.contains(shown), "{shown}: {text}");
    }
}

#[test]
fn the_unmanaged_stay_within_the_columns_whatever_they_are() {
    let mut all = figures(Vec::new());
    all.unmanaged = 40;
    for n in 1..=30 {
        all.add_unmanaged(&"名".repeat(n), &"very-long-words".repeat(n), Cause::Engine, 0);
    }
    let text = listing(&all);
    assert!(text.contains("\n              20 others\n"), "{text}");
    assert!(text.ends_with("              10 found no place among the run's 512 processes\n"), "{text}");
}

#[test]
fn messages_and_warnings_cannot_write_to_the_terminal_as_they_like() {
    let mut entries = vec![process(9, "x", 1 << 20); 13];
    for (n, entry) in entries.iter_mut().enumerate() {
        // The first two say the same.
        entry.words = Some(format!("stopped \x1b]0;evil\x07 {}", n.saturating_sub(1)));
    }
    let mut all = figures(entries);
    all.add_unmanaged("a\nb", "why", Cause::Engine, 7);
    all.add_unmanaged("a\nb", "why", Cause::Engine, 7);
    let words = all.last_words();
    assert!(words.starts_with("zfolio: stopped \\u{1b}]0;evil\\u{7} 0 (2 times)\n"), "{words}");
    assert!(words.ends_with("zfolio: and 2 messages more; --json has all\n"), "{words}");
    assert_eq!(all.unmanaged_warnings(), "zfolio: warning: a\\nb ran without a limit (2 times): why\n");
}

#[test]
fn the_json_has_every_process_and_the_unmanaged() {
    let mut two = figures(vec![process(17, "sort", 12 << 20), process(18, "tab\there", 64 << 20)]);
    two.processes[1].words = Some("stopped".into());
    two.processes[1].process.state = State::Stopped;
    two.processes[1].process.ended_ns = 0;
    two.add_unmanaged("sh", "why", Cause::Engine, 7);
    let json = two.processes_json();
    assert_eq!(
        json[0],
        json!({
            "pid": 17, "parent": 1, "name": "sort", "state": "ended",
            "began_ns": 1_000_000_000u64, "elapsed_ns": 5_000_000_000u64,
            "peak_bytes": 12 << 20, "wanted_peak_bytes": 48 << 20,
            "stored_peak_bytes": 24 << 20, "pool_at_peak_bytes": 6 << 20,
            "pages_out": 3072, "pages_in": 1536, "faults": 3072,
            "stall_ns": 12 << 20, "parked_ns": 0, "engine_cpu_ns": 0, "words": null,
        })
    );
    assert_eq!((&json[1]["name"], &json[1]["state"]), (&json!("tab\there"), &json!("stopped")));
    assert_eq!((&json[1]["words"], &json[1]["elapsed_ns"]), (&json!("stopped"), &json!(8_000_000_000u64)));
    assert_eq!(
        two.unmanaged_json(),
        json!([{ "name": "sh", "reason": "why", "cause": "engine", "remedy": "", "count": 1, "peak_bytes": 7 }])
    );
}
