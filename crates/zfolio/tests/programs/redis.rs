//! A client of redis-server: loads records, lets redis-benchmark run, reads all back and asks for the digest.

use crate::text::Text;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How many commands are sent before their replies are read.
const PIPELINE: u64 = 256;

/// How long a server may take to listen, to give one reply, and to save itself.
const PATIENCE: Duration = Duration::from_secs(300);

struct Connection {
    stream: BufReader<UnixStream>,
    replies: DefaultHasher,
}

impl Connection {
    fn open(socket: &Path) -> Result<Connection, Error> {
        let started = Instant::now();
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if started.elapsed() > PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection { stream: BufReader::new(stream), replies: DefaultHasher::new() })
    }

    /// Sends commands of words and adds their replies to the hash; returns the last reply's line.
    fn send(&mut self, commands: &[Vec<String>]) -> Result<String, Error> {
        let mut request = String::new();
        for words in commands {
            let _ = write!(request, "*{}\r\n", words.len());
            for word in words {
                let _ = write!(request, "${}\r\n{word}\r\n", word.len());
            }
        }
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut last = String::new();
        for _ in commands {
            last = self.reply()?;
        }
        Ok(last)
    }

    fn one(&mut self, command: &str) -> Result<String, Error> {
        self.send(&[command.split(' ').map(String::from).collect()])
    }

    /// What INFO says; it is no part of the answer that is compared.
    fn info(&mut self, section: &str) -> Result<String, Error> {
        let request = format!("*2\r\n$4\r\nINFO\r\n${}\r\n{section}\r\n", section.len());
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        // LOADING, while the data come in.
        let Some(length) = line.strip_prefix('$').and_then(|l| l.trim_end().parse::<usize>().ok()) else {
            return Ok("loading:1".to_string());
        };
        let mut body = vec![0; length + 2];
        self.stream.read_exact(&mut body)?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    fn reply(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(Error::other("the server closed the connection"));
        }
        self.replies.write(line.as_bytes());
        let line = line.trim_end().to_string();
        match (line.as_bytes()[0], line[1..].parse::<i64>()) {
            (b'-', _) => return Err(Error::other(format!("the server says {line}"))),
            (b'$', Ok(length @ 0..)) => {
                let mut body = vec![0; length as usize + 2];
                self.stream.read_exact(&mut body)?;
                self.replies.write(&body);
            }
            (b'*', Ok(count)) => {
                for _ in 0..count {
                    self.reply()?;
                }
            }
            _ => {}
        }
        Ok(line)
    }
}

/// The whole conversation. `records` strings (named as redis-benchmark names its keys) and an eighth as many hashes,
/// lists and sorted sets; redis-benchmark reads them in random order and writes into a database of its own.
pub fn converse(socket: &Path, records: u64) -> Result<String, String> {
    let mut server = Connection::open(socket).map_err(|error| format!("connect: {error}"))?;
    load(&mut server, records).map_err(|error| format!("loading: {error}"))?;
    let loaded = server.one("DBSIZE").map_err(|error| error.to_string())?;
    let requests = (records / 4).to_string();
    let keys = records.to_string();
    benchmark(socket, &["-r", &keys, "-n", &requests, "-t", "get"])?;
    benchmark(
        socket,
        &["-r", &keys, "-n", &requests, "-d", "200", "--dbnum", "9", "-t", "set,lpush,lpop,sadd,zadd,hset"],
    )?;
    finish(&mut server, records, loaded).map_err(|error| format!("reading back: {error}"))
}

/// Saves and log rewrites by children of forks, while a client writes. What was saved is loaded by a second server,
/// which must have the same.
pub fn persist(socket: &Path, server: &Path, directory: &Path, records: u64) -> Result<String, String> {
    let error = |what: &str| {
        let what = what.to_string();
        move |e: Error| format!("{what}: {e}")
    };
    let mut connection = Connection::open(socket).map_err(error("connect"))?;
    load(&mut connection, records).map_err(error("loading"))?;
    let digest = connection.one("DEBUG DIGEST").map_err(error("digest"))?;
    let mut said = format!("digest {digest}");
    // Into a database of its own, so that what must be equal stands still.
    let writer = ["-r", "5000", "-n", "100000000", "-d", "300", "--dbnum", "9", "-t", "set"];
    let mut writer = Command::new("redis-benchmark")
        .arg("-s")
        .arg(socket)
        .arg("-q")
        .args(writer)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(error("redis-benchmark"))?;
    // And, where it is asked for, what it has already once more, with equal values, so that what the children save is
    // copied.
    let is_saved = AtomicBool::new(false);
    let is_hard = std::env::var_os("ZFOLIO_HARD").is_some();
    let (saved, rewritten) = std::thread::scope(|scope| {
        let again = scope.spawn(|| if is_hard { rewrite(socket, records, &is_saved) } else { Ok(()) });
        let saved = saves(&mut connection);
        is_saved.store(true, Relaxed);
        (saved, again.join().expect("it does not panic"))
    });
    let _ = writer.kill();
    let _ = writer.wait();
    rewritten.map_err(error("writing again"))?;
    saved.map_err(error("saving"))?;
    for file in ["--dbfilename dump.rdb --appendonly no", "--appendonly yes"] {
        let loaded = loaded(server, directory, file).map_err(error(file))?;
        said += &format!(" {loaded}");
        if loaded != digest {
            return Err(format!("{file}: loaded elsewhere it has the digest {loaded} instead of {digest}"));
        }
    }
    let _ = connection.one("SHUTDOWN NOSAVE");
    // A server that is started here next would load them.
    let _ = std::fs::remove_file(directory.join("dump.rdb"));
    let _ = std::fs::remove_dir_all(directory.join("appendonlydir"));
    Ok(said)
}

/// How long the second connection rests between two pipelines: its log is to stay within bounds.
const REST: Duration = Duration::from_millis(5);

/// Sets the strings of [`load`] to what they are, again and again, until `is_done`.
fn rewrite(socket: &Path, records: u64, is_done: &AtomicBool) -> Result<(), Error> {
    let mut server = Connection::open(socket)?;
    while !is_done.load(Relaxed) {
        each_batch(records, |batch| {
            if !is_done.load(Relaxed) {
                let sets: Vec<_> = batch.iter().filter(|words| words[0] == "SET").cloned().collect();
                server.send(&sets)?;
                std::thread::sleep(REST);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// One save and one rewrite, each to its end.
fn saves(server: &mut Connection) -> Result<(), Error> {
    server.one("BGSAVE")?;
    let done = |server: &mut Connection, running: &str, status: &str| -> Result<(), Error> {
        let began = Instant::now();
        while server.info("persistence")?.contains(running) {
            if began.elapsed() > PATIENCE {
                return Err(Error::other(format!("{running} for ever")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let info = server.info("persistence")?;
        if info.contains(status) { Ok(()) } else { Err(Error::other(info)) }
    };
    done(server, "rdb_bgsave_in_progress:1", "rdb_last_bgsave_status:ok")?;
    server.one("CONFIG SET appendonly yes")?;
    done(server, "aof_rewrite_in_progress:1", "aof_last_bgrewrite_status:ok")?;
    server.one("BGREWRITEAOF")?;
    done(server, "aof_rewrite_in_progress:1", "aof_last_bgrewrite_status:ok")
}

/// The digest of what a second server loads from the first one's files, without what was written meanwhile.
fn loaded(server: &Path, directory: &Path, options: &str) -> Result<String, Error> {
    let copy = directory.join("second");
    let _ = std::fs::remove_dir_all(&copy);
    std::fs::create_dir(&copy)?;
    let files = ["dump.rdb", "appendonlydir"].map(|name| directory.join(name));
    if !Command::new("cp").arg("-r").args(&files).arg(&copy).status()?.success() {
        return Err(Error::other("the files were not copied"));
    }
    let socket = copy.join("second-socket");
    let mut second = Command::new(server)
        .args(["--port", "0", "--save", "", "--enable-debug-command", "local", "--unixsocket"])
        .arg(&socket)
        .arg("--dir")
        .arg(&copy)
        .args(options.split(' '))
        .stdout(Stdio::null())
        .spawn()?;
    let answer = (|| {
        let mut connection = Connection::open(&socket)?;
        while connection.info("persistence")?.contains("loading:1") {
            std::thread::sleep(Duration::from_millis(20));
        }
        connection.one("SELECT 9")?;
        connection.one("FLUSHDB SYNC")?;
        connection.one("SELECT 0")?;
        connection.one("DEBUG DIGEST")
    })();
    let _ = second.kill();
    let _ = second.wait();
    answer
}

fn load(server: &mut Connection, records: u64) -> Result<(), Error> {
    each_batch(records, |batch| server.send(batch).map(|_| ()))
}

/// The commands by which all records come about, a pipeline at a time: the same each time.
fn each_batch(records: u64, mut act: impl FnMut(&[Vec<String>]) -> Result<(), Error>) -> Result<(), Error> {
    let mut text = Text::new(5);
    let mut batch = Vec::new();
    for number in 0..records {
        let words = 20 + text.below(100) as usize;
        let value = format!(
            "{{\"id\":{number},\"user\":\"{}\",\"seen\":{},\"text\":\"{}\"}}",
            text.sentence(2),
            1_700_000_000 + text.below(1 << 24),
            text.sentence(words)
        );
        batch.push(vec!["SET".to_string(), format!("key:{number:012}"), value]);
        if number % 8 == 0 {
            let group = number / 64;
            let (field, score) = (text.below(1000).to_string(), text.below(100_000).to_string());
            batch.push(vec!["HSET".into(), format!("hash:{group}"), field, text.sentence(3)]);
            batch.push(vec!["RPUSH".into(), format!("list:{group}"), text.sentence(5)]);
            batch.push(vec!["ZADD".into(), format!("set:{group}"), score, text.sentence(2)]);
        }
        if number % PIPELINE == PIPELINE - 1 || number == records - 1 {
            act(&batch)?;
            batch.clear();
        }
    }
    Ok(())
}

fn finish(server: &mut Connection, records: u64, loaded: String) -> Result<String, Error> {
    server.one("SELECT 9")?;
    server.one("FLUSHDB SYNC")?;
    server.one("SELECT 0")?;
    // Every seventh record is read back, every thirteenth goes.
    for start in (0..records).step_by(7 * PIPELINE as usize) {
        let end = records.min(start + 7 * PIPELINE);
        let gets: Vec<_> =
            (start..end).step_by(7).map(|number| vec!["GET".into(), format!("key:{number:012}")]).collect();
        server.send(&gets)?;
        let dels: Vec<_> =
            (start..end).step_by(13).map(|number| vec!["DEL".into(), format!("key:{number:012}")]).collect();
        server.send(&dels)?;
    }
    server.one("LRANGE list:0 0 -1")?;
    let digest = server.one("DEBUG DIGEST")?;
    let left = server.one("DBSIZE")?;
    let seen =
        format!("loaded {loaded} left {left} replies {:016x} digest {digest}", server.replies.finish());
    // A server that shuts down says nothing: it closes the connection.
    let _ = server.one("SHUTDOWN NOSAVE");
    Ok(seen)
}

fn benchmark(socket: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("redis-benchmark");
    command.arg("-s").arg(socket).arg("-q").args(arguments);
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    if !output.status.success() || said.contains("rror") {
        return Err(format!("{command:?}: {}: {said}", output.status));
    }
    Ok(())
}
