//! The command: `zfolio run` starts a program under a limit and tells at its end how it went; `zfolio ps` and `zfolio
//! stat` show how it goes; `zfolio set` and `zfolio reclaim` change it; `zfolio doctor` says whether this machine can
//! do it; `zfolio bench` measures it. `zfolio zram` serves compressed block devices.
//!
//! ```text
//!   args, size ──> doctor (probe) ──> program (elf) ──> rundir ──> supervise ──> summary
//!   what is asked  can it be done?    can it be         library,   CMD's life    figures of
//!                                     managed?          page                     the page
//! ```
//!
//! - [`args`], [`size`], [`cgroup`]: the command line, sizes of memory, and what they are a share of
//! - [`probe`], [`doctor`], by [`check`]: what the kernel allows, and what to do about what it does not; [`kernels`]:
//!   what is known of it by its version; [`swap`]: the machine's
//! - [`program`], [`elf`]: CMD, found and looked at before it runs; [`glibc`]: the machine's libc
//! - [`mod@dictionary`]: the one that the user has in a file; [`compressor`]: what makes objects, and has before
//! - [`rundir`]: the directory with the library and the shared page; [`blank`]: a library of nothing, for 32-bit
//!   descendants
//! - [`visible`]: the library that tells programs how much memory they are to see; [`askers`]: which programs go by
//!   that
//! - [`handover`]: what processes of another user are handed
//! - [`backing`], [`areas`]: swap areas as the user gives them, and while the run has them
//! - [`supervise`]: signals, job control, descendants, the end
//! - [`coordinator`], [`descendants`]: the limit divided among the processes, and which there are; [`unmanaged`]: those
//!   without an engine
//! - [`shared`], [`unevictable`], by [`smaps`]: what cannot go out; [`causes`], [`told`]: why, what helps, and when it
//!   is said
//! - [`roster`]: its processes, one by one
//! - [`summary`], [`tree`]: the figures of all together, and of each
//! - [`progress`]: a line of them while CMD runs
//! - [`runs`], [`snapshot`]: runs that go on, found from outside, and their figures; shown by [`ps`] and [`stat`]
//! - [`metrics`]: the same for Prometheus, from inside
//! - [`control_socket`]: the socket by which a run is changed while it goes on; [`client`]: who asks there, for
//!   [`set`] and [`mod@reclaim`]
//! - [`lines`], [`out`]: lines of text for people, and how they are written
//! - [`settings`]: what the command line asks of the engines; [`run`]: all of it in order
//! - [`mod@bench`]: compressors tried on the user's own memory
//! - [`mod@zram`]: compressed block devices
//! - [`sys`]: system calls

#![cfg_attr(not(test), no_main)]

mod accelerator;
mod areas;
mod args;
mod askers;
mod attach;
mod backing;
mod bench;
mod blank;
mod causes;
mod cgroup;
mod check;
mod client;
mod compressor;
mod control_socket;
mod coordinator;
mod cpus;
mod descendants;
mod dictionary;
mod doctor;
mod elf;
mod families;
mod file_room;
mod glibc;
mod growth;
mod handover;
mod kernels;
mod library;
mod lines;
mod metrics;
mod out;
mod probe;
mod program;
mod progress;
mod ps;
mod ptrace;
mod reclaim;
mod roster;
mod run;
mod rundir;
mod runs;
mod set;
mod settings;
mod shared;
mod size;
mod smaps;
mod snapshot;
mod stat;
mod summary;
mod supervise;
mod swap;
mod sys;
mod told;
mod tree;
mod turns;
mod unevictable;
mod unmanaged;
mod visible;
mod zram;

use args::Task;

/// The process's entry, instead of std's own: that one ignores SIGPIPE and opens closed streams for good, and CMD would
/// inherit both.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main(_argc: libc::c_int, _argv: *const *const libc::c_char) -> libc::c_int {
    sys::fill_closed_streams();
    let status = match args::parse(std::env::args_os()) {
        Err(status) => status,
        Ok(cli) => match cli.task {
            Task::Run(run) => run::run(&run),
            Task::Ps => ps::run(),
            Task::Stat(stat) => stat::run(&stat),
            Task::Set(set) => set::run(&set),
            Task::Reclaim(reclaim) => reclaim::run(&reclaim),
            Task::Doctor(doctor) => doctor::run(&doctor),
            Task::Bench(bench) => bench::run(&bench),
            Task::Zram(zram) => zram::run(&zram.task),
        },
    };
    status.into()
}
