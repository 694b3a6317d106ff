//! A client of redis-server: loads records, lets redis-benchmark run, reads all back and asks for the digest.

use crate::text::Text;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How many commands are sent before their replies are read.
const PIPELINE: u64 = 256;

/// How long a server may take to listen, and to give one reply.
const PATIENCE: Duration = Duration::from_secs(120);

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

fn load(server: &mut Connection, records: u64) -> Result<(), Error> {
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
            server.send(&batch)?;
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
