//! Whose the run's page is: processes of the run that have another user have it, and are managed; strangers have
//! nothing. They need root, and /dev/userfaultfd.

mod skip;

use serde_json::Value;
use skip::skip;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// The user whom everybody takes for nobody.
const NOBODY: u32 = 65534;

const SETPRIV: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Python for whom this test's user's own may be hidden.
const PYTHON: &str = "/usr/bin/python3";

fn can_be_tried() -> bool {
    let is_root = fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0");
    let can = is_root && File::options().read(true).write(true).open("/dev/userfaultfd").is_ok();
    if !can {
        skip("this takes root and /dev/userfaultfd");
    }
    can
}

/// Runs a command of the shell as nobody; true when it succeeds.
fn nobody_can(script: &str) -> bool {
    let mut shell = Command::new("/bin/sh");
    let shell = shell.args(["-c", script]).uid(NOBODY).gid(NOBODY).stderr(Stdio::null());
    shell.stdout(Stdio::null()).status().unwrap().success()
}

#[test]
fn a_stranger_opens_neither_the_page_nor_its_settings_and_is_handed_nothing() {
    if !can_be_tried() {
        return;
    }
    let mut run = Command::new(ZFOLIO)
        .args(["run", "--quiet", "--", "sh", "-c", "echo $ZFOLIO_MEMCG; exec sleep 100"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut page = String::new();
    BufReader::new(run.stdout.as_mut().unwrap()).read_line(&mut page).unwrap();
    let dir = Path::new(page.trim()).parent().unwrap().to_str().unwrap();
    assert!(nobody_can(&format!("cat {dir}/libzfolio.so")), "what all load");
    for name in ["memcg", "memcg-0", "memcg-1", "settings"] {
        assert!(!nobody_can(&format!("cat {dir}/{name}")), "{name} is read");
        assert!(!nobody_can(&format!(": >> {dir}/{name}")), "{name} is written");
    }
    assert!(!nobody_can(&format!("rm -f {dir}/memcg")) && !nobody_can(&format!("ls {dir}")));
    // This process has root's rights, and is not of the run.
    let mut socket = UnixStream::connect(format!("{dir}/handover")).unwrap();
    assert_eq!(socket.read(&mut [0; 8]).unwrap(), 0);
    let script = format!(
        "{PYTHON} -c \"import socket as s; c = s.socket(s.AF_UNIX); c.connect('{dir}/handover'); exit(not s.recv_fds(c, 8, 4)[1])\""
    );
    assert!(!nobody_can(&script));
    let pid = run.id();
    assert!(Command::new("kill").arg(pid.to_string()).status().unwrap().success());
    assert_eq!(run.wait().unwrap().code(), Some(143));
    assert!(!Path::new(dir).exists(), "the socket goes with the directory");
}

/// Runs a program as nobody under this limit, by way of a shell that has prepared something and executes `zfolio run`;
/// its figures.
fn as_nobody(test: &str, memory: &str, before: &str, program: &str) -> (Output, Value) {
    run(test, memory, before, &SETPRIV, program)
}

/// The same as this test's user, unless the program or `way` changes that.
fn run(test: &str, memory: &str, before: &str, way: &[&str], program: &str) -> (Output, Value) {
    let (mut command, json) = command(test, memory, before, way, program);
    (command.output().unwrap(), figures(&json))
}

/// What runs it, and where its figures will be.
fn command(test: &str, memory: &str, before: &str, way: &[&str], program: &str) -> (Command, PathBuf) {
    let json: PathBuf = std::env::temp_dir().join(format!("zfolio-users-{test}-{}", std::process::id()));
    let script = format!("{before} {ZFOLIO} run --memory {memory} --json {} -- \"$@\"", json.display());
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "120", "unshare", "-m", "sh", "-c", &script, "sh"]);
    command.args(way).args([PYTHON, "-c", program]);
    (command, json)
}

fn figures(json: &Path) -> Value {
    let figures = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    figures
}

/// The program has more than its limit, forks with much of it out, and parent and children read and write.
const FORKS: &str = "
import os
def ok(x): return sum(map(len, x)) == 300000 * 5 + sum(map(len, map(str, range(300000)))) * 5
x = [str(i) * 5 + 'abcde' for i in range(300000)]
children = []
for k in range(3):
    child = os.fork()
    if child == 0:
        for i in range(0, 300000, 7): x[i] = str(i) * 5 + 'fghij'
        os._exit(0 if ok(x) else 1)
    children.append(child)
print(os.getuid(), [os.waitpid(child, 0)[1] for child in children], ok(x))
";

#[test]
fn who_has_given_up_root_is_managed_and_so_are_its_children() {
    if !can_be_tried() {
        return;
    }
    let (output, figures) = as_nobody("forks", "48M", "exec", FORKS);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, "65534 [0, 0, 0] True\n", "{err}");
    assert_eq!(figures["tree"]["unmanaged"], 0, "{err}");
    let took_over =
        figures["processes"].as_array().unwrap().iter().filter(|p| p["name"] == "python3").count();
    assert_eq!(took_over, 4, "{figures}");
    assert!(figures["counters"]["pgdeactivate"].as_u64().unwrap() > 1000, "{err}");
}

/// The kernel keeps the page tables of such a process and of its children from them: they are `zfolio run`'s to hand
/// over.
#[test]
fn who_gives_up_root_by_itself_has_children_that_are_managed() {
    if !can_be_tried() {
        return;
    }
    let program = FORKS.replacen("import os", "import os; os.setgid(65534); os.setuid(65534)", 1);
    let (output, figures) = run("gives-up", "48M", "exec", &[], &program);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, "65534 [0, 0, 0] True\n", "{err}");
    assert_eq!(figures["tree"]["unmanaged"], 0, "{err}");
    let managed = figures["processes"].as_array().unwrap().iter().filter(|p| p["name"] == "python3").count();
    assert_eq!(managed, 4, "{figures}");
    assert!(figures["counters"]["pgdeactivate"].as_u64().unwrap() > 1000, "{err}");
}

/// What comes with page and settings: what a process is handed that gives up root, what its child is, and what the
/// child's page tables say of a page that is there.
const ASKS: &str = "
import ctypes, os, socket, struct
def ask():
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.path.dirname(os.environ['ZFOLIO_MEMCG']) + '/handover')
    byte, fds, _, _ = socket.recv_fds(s, 8, 8)
    return byte[0], fds
os.setgid(65534)
os.setuid(65534)
page = ctypes.create_string_buffer(b'x' * 8192)
what, fds = ask()
print(what, len(fds))
if os.fork() == 0:
    what, fds = ask()
    at = ctypes.addressof(page) + 4096
    entry = struct.unpack('Q', os.pread(fds[3], 8, at // 4096 * 8))[0]
    print(what, len(fds), os.pread(fds[5], 1, at), entry >> 63, entry & (1 << 55) - 1, flush=True)
    os._exit(0)
os.wait()
";

#[test]
fn only_who_has_not_executed_anything_is_handed_its_own_memory_and_no_physical_address() {
    if !can_be_tried() {
        return;
    }
    let (output, _) = run("asks", "1G", "exec", &[], ASKS);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, "1 3\n3 6 b'x' 1 0\n", "{err}");
}

/// `zfolio run` may have a userfaultfd by its capability, and no device to hand over.
#[test]
fn where_nothing_can_be_handed_over_the_user_is_told_what_helps() {
    if !can_be_tried() {
        return;
    }
    let before = "mount --bind /dev/null /dev/userfaultfd; exec";
    let (mut command, json) = command("remedy", "48M", before, &SETPRIV, &format!("{FORKS}input()"));
    let all = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = all.spawn().unwrap();
    let (mut out, mut err, mut line) = (String::new(), String::new(), String::new());
    let mut stderr = BufReader::new(run.stderr.take().unwrap());
    while !err.contains("cannot go out") && stderr.read_line(&mut line).unwrap() > 0 {
        err += &std::mem::take(&mut line);
    }
    // The program has been told of, and ends.
    run.stdin.take().unwrap().write_all(b"\n").unwrap();
    stderr.read_to_string(&mut err).unwrap();
    run.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(run.wait().unwrap().success(), "{err}");
    assert_eq!(out, "65534 [0, 0, 0] True\n", "{err}");
    let (said, figures) = (err.split_whitespace().collect::<Vec<_>>().join(" "), figures(&json));
    for part in [
        "cannot go out: userfaultfd says EPERM",
        "setfacl -m u:USER:rw /dev/userfaultfd",
        "--device /dev/userfaultfd",
    ] {
        assert!(said.contains(part), "{part:?} in {err}");
    }
    assert!(figures["tree"]["unmanaged"].as_u64().unwrap() > 0, "{figures}");
}

/// The page tables of a process that has given up root are root's, and to open them takes CAP_SYS_PTRACE, which
/// containers do not have.
#[test]
fn where_page_tables_cannot_be_handed_over_the_user_is_told_what_helps() {
    if !can_be_tried() {
        return;
    }
    let program = FORKS.replacen("import os", "import os; os.setgid(65534); os.setuid(65534)", 1);
    let before = "exec setpriv --bounding-set=-sys_ptrace";
    let (output, figures) = run("page-tables", "48M", before, &[], &program);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, "65534 [0, 0, 0] True\n", "{err}");
    assert!(figures["tree"]["unmanaged"].as_u64().unwrap() >= 3, "{figures}");
    let reasons = figures["unmanaged"].to_string();
    for part in ["/proc/self/pagemap says EACCES", "has given up root", "docker run --cap-add SYS_PTRACE"] {
        assert!(reasons.contains(part), "{part:?} in {reasons}");
    }
}
