//! What the summary and the JSON say of each process of a run. No memory goes out here: the engines sleep.

mod until;

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use until::until;

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// A run of a shell script, and where its JSON will be.
struct Run {
    child: Child,
    json: PathBuf,
}

impl Run {
    fn start(test: &str, script: &str) -> Run {
        let json = std::env::temp_dir().join(format!("zfolio-figures-{test}-{}.json", std::process::id()));
        let child = Command::new(ZFOLIO)
            .args(["run", "--memory", "512M", "--json", json.to_str().unwrap(), "--", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Run { child, json }
    }

    fn end(self) -> (Output, Value) {
        let output = self.child.wait_with_output().unwrap();
        let text = fs::read_to_string(&self.json).unwrap();
        fs::remove_file(&self.json).unwrap();
        (output, serde_json::from_str(&text).unwrap())
    }
}

fn of_name<'a>(json: &'a Value, name: &str) -> Vec<&'a Value> {
    json["processes"].as_array().unwrap().iter().filter(|process| process["name"] == name).collect()
}

/// The processes of this parent: number and name.
fn children(parent: u32) -> Vec<(u32, String)> {
    let numbers =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    let child = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.rsplit_once(") ")?;
        let is_child = rest.split(' ').nth(1)? == parent.to_string() && !rest.starts_with('Z');
        is_child.then(|| (pid, name.split_once('(').unwrap().1.to_string()))
    };
    numbers.filter_map(child).collect()
}

/// Kills all of them before anybody can take notice of one.
fn kill(all: [u32; 2]) {
    for pid in all {
        // SAFETY: touches no memory.
        assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
    }
    for pid in all {
        until("it is gone", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z"))
        });
    }
}

/// In a shell: becomes a process of 20 MB, which no engine takes for a small one, and takes a name.
fn grown(name: &str) -> String {
    format!("x=$(printf %020000000d 0); printf {name} > /proc/$$/comm")
}

#[test]
fn every_process_is_told_with_its_name_and_its_time() {
    let (root, child) = (grown("root"), grown("child"));
    let (output, json) = Run::start("names", &format!("{root}; sh -c '{child}; sleep 1.8; :'; :")).end();
    assert!(output.status.success(), "{output:?}");
    let ([root], [child]) = (&of_name(&json, "root")[..], &of_name(&json, "child")[..]) else {
        panic!("{json:#}")
    };
    assert_eq!(child["parent"], root["pid"], "{json:#}");
    for process in [root, child] {
        assert_eq!((&process["state"], &process["words"]), (&"ended".into(), &Value::Null));
        let (began, elapsed) =
            (process["began_ns"].as_u64().unwrap(), process["elapsed_ns"].as_u64().unwrap());
        assert!(elapsed >= 1_800_000_000, "{json:#}");
        assert!(began + elapsed <= json["elapsed_ns"].as_u64().unwrap(), "{json:#}");
        assert!(process["peak_bytes"].as_u64().unwrap() > 20_000_000, "{json:#}");
    }
    let all = json["processes"].as_array().unwrap().len() as u64;
    assert_eq!(json["tree"]["managed"], all, "{json:#}");
    assert_eq!((&json["tree"]["unrecorded"], &json["unmanaged"]), (&0.into(), &Value::Array(vec![])));
}

#[test]
fn a_process_that_is_killed_with_its_engine_is_told() {
    let child = grown("victim");
    let run = Run::start("killed", &format!("sh -c '{child}; sleep 3 >/dev/null 2>&1; :'; sleep 1"));
    let zfolio = run.child.id();
    let program = until("it has begun", || {
        let shell = children(zfolio).into_iter().find(|(_, name)| name == "sh")?.0;
        children(shell).into_iter().find(|(_, name)| name == "victim")
    });
    // The engine reads the name once a second; and those of the shell's children, whose addresses are the same, end
    // meanwhile.
    std::thread::sleep(Duration::from_millis(1600));
    // The same memory, and so the same addresses.
    let maps = |pid: u32| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let first_lines = |pid: u32| maps(pid).lines().take(3).collect::<Vec<_>>().join("\n");
    let engine = until("its engine has begun", || {
        let engines = children(zfolio).into_iter().filter(|(_, name)| name == "zfolio-engine");
        engines.map(|(pid, _)| pid).find(|&pid| first_lines(pid) == first_lines(program.0))
    });
    // (Without its engine alone the program goes on unmanaged.)
    kill([engine, program.0]);
    let (output, json) = run.end();
    assert!(output.status.success(), "{output:?}");
    let [victim] = of_name(&json, "victim")[..] else { panic!("{json:#}") };
    assert_eq!(victim["state"], "killed");
}

#[test]
fn of_a_thousand_processes_none_is_forgotten() {
    // Each maps more than a small process has, and touches little of it.
    let one = "dd if=/dev/null of=/dev/null bs=16M count=1 status=none";
    let script = format!("for i in $(seq 1200); do {one} & [ $((i % 8)) = 0 ] && wait; done; wait");
    let (output, json) = Run::start("many", &script).end();
    assert!(output.status.success(), "{output:?}");
    assert_eq!((of_name(&json, "dd").len(), &json["tree"]["managed"]), (1200, &1200.into()));
    assert_eq!((&json["tree"]["unrecorded"], &json["tree"]["unmanaged"]), (&0.into(), &0.into()));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "nothing went out: {text}");
}
