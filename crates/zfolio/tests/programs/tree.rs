//! Trees of processes: they fork, share what they have, and start others. Alone and under `zfolio run`, both in a memory cgroup, since what the
//! tree holds together is what counts.

use crate::cgroup::Cgroup;
use crate::comparison::{self, assert_within, one_at_a_time, print_row, run_limited, skip, tell};
use crate::workload::{self, Make, Missing, Size, Workload, installed};

const MIB: u64 = 1 << 20;

/// The smallest limit that is tried.
const LEAST_BYTES: u64 = 32 * MIB;

/// As `comparison::check`, with the group's memory instead of the largest process's.
pub fn check(make: Make) {
    let _alone = one_at_a_time();
    let size = Size::from_env();
    let workload = match make(size) {
        Ok(workload) => workload,
        Err(missing) => return skip(missing),
    };
    let group = match Cgroup::new() {
        Ok(group) => group,
        Err(why) => return tell(&format!("skipped: no memory cgroup can be made here ({why})")),
    };
    let (wanted, answer) = comparison::run_alone_in(&workload, size, &group.launcher(), |_| group.bytes());
    // zfolio itself is in the group too, and wants no less than this.
    let limit_bytes =
        ((wanted.peak_bytes as f64 * workload.share) as u64).max(LEAST_BYTES).next_multiple_of(MIB);
    let (got, same_answer, summary) =
        run_limited(&workload, size, limit_bytes, &group.launcher(), |_| group.bytes());
    let name = workload.name;
    assert_eq!(got.status, wanted.status, "{name}: exit status; stderr: {:?}", got.stderr);
    assert_eq!(got.stdout, wanted.stdout, "{name}: stdout");
    assert_eq!(got.stderr, wanted.stderr, "{name}: stderr");
    assert_eq!(got.client, wanted.client, "{name}: what the client saw");
    assert_eq!(same_answer, answer, "{name}: result file");
    assert_eq!(wanted.status, 0, "{name}: fails without zfolio too: {wanted:?}");
    let told = summary["memory"]["peak_bytes"].as_u64().expect("memory.peak_bytes");
    print_row(name, &wanted, limit_bytes, &got, told);
    assert_within(name, "the group's anonymous memory", got.peak_bytes, limit_bytes);
}

/// Two thousand processes that are gone as soon as they are there.
pub fn short(_: Size) -> Result<Workload, Missing> {
    let sh = installed("sh", "dash")?;
    let script = "i=0; while [ $i -lt 2000 ]; do /bin/echo $i; i=$((i + 1)); done | md5sum";
    Ok(Workload::new("short", 1.0, &[&sh, "-c", script]))
}

/// gcc's driver, the compiler, the assembler and the linker.
pub fn gcc(size: Size) -> Result<Workload, Missing> {
    let gcc = installed("gcc", "gcc")?;
    let mut workload = Workload::new("gcc", 0.6, &[&gcc, "-O1", "-shared", "-fPIC", "-Wl,--build-id=none"]);
    let (input, object) = (workload.directory.file("large.c"), workload.directory.file("large.so"));
    workload::write(&input, |out| crate::c_source::write(out, size.pick(800, 5_000)));
    workload.command.extend([input, "-o".into(), object.clone()]);
    workload.result = Some(object.into());
    Ok(workload)
}
