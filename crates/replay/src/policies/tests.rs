use super::*;
use crate::trace::Page;
use base::Random;

const COSTS: Costs =
    Costs { touch_us: [0.0, 7.0, 12.0, 30.0, 110.0], bring_us: 2.0, work_us: [0.0, 0.5, 1.0, 3.0, 3.0] };

/// A trace of so many pages, each compressed to a third or a fifth; `touch` says which is touched at each step.
fn trace_of(pages: u64, steps: usize, mut touch: impl FnMut(usize) -> PageId) -> Trace {
    let pages = (0..pages).map(|number| Page { number: 4096 + number, alone_bytes: 1400, dense_bytes: 800 });
    let events = (0..steps).flat_map(|step| {
        let ran = (step % 20 == 0).then_some(Event::Ran { us: 1000 });
        ran.into_iter().chain([Event::Touch { page: touch(step), is_write: false }])
    });
    Trace { pages: pages.collect(), events: events.collect() }
}

/// Nine touches of ten are of a tenth of the pages; the others go round.
fn skewed(seed: u64) -> Trace {
    let mut random = Random(seed);
    trace_of(1000, 60_000, |step| {
        let page = if random.one_in(10) { step / 10 % 1000 } else { random.below(100) };
        page as PageId
    })
}

#[test]
fn every_policy_keeps_the_limit_and_misses_nothing_where_all_fits() {
    let trace = skewed(3);
    for (name, _) in NAMES {
        let figures = play(&trace, name, COSTS, 100).unwrap().expect("it fits");
        assert_eq!((figures.misses(), figures.stall_us), (0, 0.0), "{name}");
        let fresh = figures.fresh;
        let figures = play(&trace, name, COSTS, 60).unwrap().expect("it fits");
        assert!(figures.misses() > 0, "{name}");
        assert_eq!(figures.fresh, fresh, "{name}");
    }
}

#[test]
fn nobody_has_fewer_misses_than_belady_at_pages_of_one_size() {
    for seed in 0..5 {
        let trace = skewed(seed);
        let misses = |name| play(&trace, name, COSTS, 50).unwrap().expect("it fits").misses();
        let least = misses("belady");
        for name in ["zram", "clock"] {
            assert!(misses(name) >= least, "seed {seed}: {name}");
        }
        assert!(misses("zram") < 3 * least, "seed {seed}");
    }
}

/// The traces of a directory, by name.
fn recorded(directory: &str) -> Vec<(String, Trace)> {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("traces").join(directory);
    let paths = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let mut traces: Vec<_> =
        paths.map(|path| (path.display().to_string(), Trace::read(&path).unwrap())).collect();
    traces.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(traces.len() >= 4, "{}", directory.display());
    traces
}

/// How long programs take under a policy, as times what they take under the best of those with fixed tiers: the mean.
fn times_of_best(directory: &str, name: &str) -> f64 {
    let mut ratios = Vec::new();
    for (path, trace) in recorded(directory) {
        for percent in [75, 50] {
            let time_us = |name: &str| {
                let figures = play(&trace, name, COSTS, percent).unwrap();
                figures.map_or(f64::INFINITY, |figures| trace.ran_us() as f64 + figures.stall_us)
            };
            let ratio = time_us(name) / fixed().map(time_us).fold(f64::INFINITY, f64::min);
            assert!(ratio < 1.25, "{path} at {percent} %: {ratio}");
            ratios.push(ratio.ln());
        }
    }
    (ratios.iter().sum::<f64>() / ratios.len() as f64).exp()
}

#[test]
fn by_the_price_programs_are_nearly_as_fast_as_by_the_best_tiers_with_every_touch_seen() {
    for name in ["price", "price+area", "price+area+beside"] {
        let [tuned, held_out] = ["tuning", "held-out"].map(|directory| times_of_best(directory, name));
        assert!(
            tuned < 1.05 && held_out < 1.1 * tuned,
            "{name}: {tuned} and, of what was not tuned on, {held_out}"
        );
    }
}

/// How long programs take with so large a pool, as times what they take with the better of two: the mean of all.
fn times_of_better(name: &str, area_us: f32) -> f64 {
    let costs = Costs { touch_us: [0.0, 25.0, 30.0, 45.0, area_us], ..COSTS };
    let mut ratios = Vec::new();
    for (path, trace) in ["tuning", "held-out"].into_iter().flat_map(recorded) {
        for percent in [75, 50] {
            let time_us = |name: &str| {
                let figures = play(&trace, name, costs, percent).unwrap().expect("there is an area");
                trace.ran_us() as f64 + figures.stall_us
            };
            let ratio = time_us(name) / time_us("pager+area:20").min(time_us("pager+area:60"));
            assert!(name != "pager+area" || ratio < 1.15, "{path} at {percent} %, {area_us} us: {ratio}");
            ratios.push(ratio.ln());
        }
    }
    (ratios.iter().sum::<f64>() / ratios.len() as f64).exp()
}

#[test]
fn the_pool_that_is_weighed_is_nearly_the_better_one_however_slow_the_area_is() {
    let worst =
        |name| [60.0, 120.0, 300.0].map(|us| times_of_better(name, us)).into_iter().fold(0.0, f64::max);
    let [weighed, fifth, most] = ["pager+area", "pager+area:20", "pager+area:60"].map(worst);
    assert!(
        weighed < 1.025 && weighed < fifth.min(most),
        "{weighed}; {fifth} with a fifth, {most} with three"
    );
}

#[test]
fn what_does_not_fit_is_said() {
    let trace = skewed(1);
    for (name, fits) in [
        ("zram", false),
        ("clock", false),
        ("belady", false),
        ("dense", true),
        ("swap", true),
        ("price", true),
    ] {
        assert_eq!(play(&trace, name, COSTS, 25).unwrap().is_some(), fits, "{name}");
    }
    assert!(play(&trace, "nobody", COSTS, 50).is_err());
}

#[test]
fn random_traces_with_discards_keep_every_policy_whole() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut trace = trace_of(200, 5000, |_| random.below(200) as PageId);
        let mut random = Random(seed + 1000);
        for _ in 0..50 {
            let first = random.below(190) as PageId;
            let at = random.below(trace.events.len());
            trace.events.insert(at, Event::Discard { first, count: random.below(10) as u32 });
        }
        for (name, _) in NAMES {
            let figures = play(&trace, name, COSTS, 60).unwrap();
            let figures = figures.unwrap_or_else(|| panic!("seed {seed}: {name} does not fit"));
            assert!(figures.fresh >= 200, "seed {seed}: {name}");
        }
    }
}
