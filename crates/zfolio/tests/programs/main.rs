//! Real, unmodified programs. Each runs twice: alone, which measures the footprint that it wants, then under
//! `zfolio run` in a fraction of that. Exit status, output and results must be the same, and the
//! footprint must stay within the limit and 10 %.
//!
//! ```text
//!   workload ──> alone ────────────> footprint F, answer ───────────────┐
//!            └─> zfolio run --memory F/4..F/2 ──> answer, peak, --json ──┴─> the same answer; peak <= limit + 10 %
//! ```
//!
//! `ZFOLIO_SIZE=full` takes the large sizes (1 GiB and more each, minutes), `ZFOLIO_BIN` another binary than the one
//! just built, `ZFOLIO_SHARE=0.5` gives each that part of its footprint instead of its own, `ZFOLIO_HARD=1` writes all
//! of redis-server's records again while they are saved (not done in two minutes at 0.7 yet), and
//! `ZFOLIO_REQUIRE_ALL=1` makes a program that is not installed a failure instead of a skipped test.
//!
//! - [`workload`]: what is run, at which size, under which limit
//! - [`comparison`]: the two runs and what must hold
//! - [`process`]: one run, watched
//! - [`cgroup`]: the footprint by the kernel's own account
//! - [`tree`]: programs of many processes
//! - [`redis`], [`c_source`], [`text`]: a client, a generator of C and one of text

mod c_source;
mod cgroup;
mod comparison;
mod process;
mod redis;
#[path = "../skip/mod.rs"]
mod skip;
mod text;
mod tree;
mod workload;

use comparison::check;

#[test]
fn python3_sorts_and_hashes_a_dict() {
    check(workload::python3);
}

#[test]
fn sqlite3_queries_a_database_in_memory() {
    check(workload::sqlite3);
}

#[test]
fn redis_server_serves_a_loader_and_redis_benchmark() {
    check(workload::redis);
}

#[test]
fn sort_with_a_large_buffer_and_threads() {
    check(workload::sort);
}

#[test]
fn java_collects_a_heap_of_objects_with_g1() {
    check(workload::java);
}

#[test]
fn node_holds_buffers_and_a_large_map() {
    check(workload::node);
}

#[test]
fn sbcl_fills_an_executable_heap() {
    check(workload::sbcl);
}

#[test]
fn cc1_compiles_a_large_file() {
    check(workload::cc1);
}

#[test]
fn go_with_cgo_fills_maps_and_slices() {
    check(workload::go);
}

#[test]
fn the_kernel_counts_no_more_than_the_limit() {
    cgroup::check();
}

#[test]
fn files_have_room_in_a_full_group() {
    cgroup::check_files();
}

#[test]
fn python_works_in_processes() {
    tree::check(tree::pool);
}

#[test]
fn a_server_forks_before_it_serves() {
    tree::check(tree::prefork);
}

#[test]
fn sort_in_a_pipeline() {
    tree::check(tree::pipeline);
}

#[test]
fn two_thousand_short_processes() {
    tree::check(tree::short);
}

#[test]
fn many_small_processes_at_once() {
    tree::check(tree::small);
}

#[test]
fn gcc_and_what_it_starts() {
    tree::check(tree::gcc);
}

#[test]
fn bash_controls_its_jobs() {
    tree::check(tree::jobs);
}

#[test]
fn every_generation_of_a_deep_chain_of_forks_writes() {
    tree::check(tree::chain);
}

#[test]
fn make_builds_a_library() {
    tree::check(tree::make);
}

#[test]
fn redis_saves_itself_under_load() {
    tree::check(tree::persistence);
}

#[test]
fn postgres_as_another_user_has_thirty_connections() {
    let Some(summary) = tree::check(tree::postgres) else { return };
    assert_eq!(summary["tree"]["unmanaged"], 0, "{summary}");
}

#[test]
fn thirty_processes_that_start_at_once_stay_within_the_limit() {
    cgroup::check_crowd();
}

#[test]
fn thirty_processes_on_half_a_cpu_stay_near_the_limit() {
    cgroup::check_crowd_on_half_a_cpu();
}
