//! The thread behind the socket: a few clients at a time, one request and one answer each.
//!
//! ```text
//!   accepted ──> Reading, up to LINE_BYTES ──> Working, until that is done ──> Writing ──> closed
//!      │               └─────────────────────────────────────────────────────────^
//!      └── PATIENCE over, or the oldest that has asked nothing when one more comes than there is room for ──> closed
//! ```
//!
//! Nothing waits for a client: all sockets are non-blocking, and one poll(2) waits for all of them. A client that goes
//! withdraws the work that it has asked for.

use crate::answer::{Answer, LINE_BYTES};
use rustix::event::{self, PollFd, PollFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::time::Timespec;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Clients at a time.
const CLIENTS: usize = 8;

/// How long a client may take to ask, and then to go on with reading its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often it is looked how far work is.
const LOOK: Duration = Duration::from_millis(20);

/// The pause where no connection can be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Makes the socket of an owner, who alone may connect, in a directory of the owner's alone.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Work that takes a while. Dropped, it is withdrawn.
pub trait Work {
    /// Looks how far it is. The answer when it is at its end.
    fn look(&mut self, now: Instant) -> Option<Answer>;
}

/// What comes of a line.
pub enum Act<W> {
    /// It is done, or refused.
    Done(Answer),
    /// It takes a while.
    Begun(W),
}

/// The server; `act` does what a line asks for.
pub struct Server<F, W> {
    listener: UnixListener,
    owner: u32,
    act: F,
    clients: Vec<Client<W>>,
    /// No connection is taken before.
    paused_until: Option<Instant>,
}

/// Who has connected, oldest first.
struct Client<W> {
    socket: UnixStream,
    until: Instant,
    state: State<W>,
}

enum State<W> {
    /// What it has sent.
    Reading(Vec<u8>),
    /// What is done for it.
    Working(W),
    /// What it is sent, and how much of it was.
    Writing(Vec<u8>, usize),
}

/// What becomes of a client.
#[derive(PartialEq, Eq)]
enum Fate {
    Stays,
    Goes,
}

impl<W> State<W> {
    fn answer(answer: &Answer) -> State<W> {
        State::Writing(answer.line().into_bytes(), 0)
    }
}

impl<W: Work, F: FnMut(&[u8]) -> Act<W>> Server<F, W> {
    /// One that listens at a socket that does not wait. Beside root only the user `owner` is served.
    pub fn new(listener: UnixListener, owner: u32, act: F) -> Server<F, W> {
        Server { listener, owner, act, clients: Vec::new(), paused_until: None }
    }

    /// Serves without an end.
    pub fn serve(&mut self) -> ! {
        loop {
            self.wait();
            self.turn();
        }
    }

    /// Waits until somebody comes, one can be served, or one is too old.
    fn wait(&self) {
        let now = Instant::now();
        let due = |client: &Client<W>| match client.state {
            State::Working(_) => now + LOOK,
            _ => client.until,
        };
        let due = self.clients.iter().map(due).chain(self.paused_until).min();
        let timeout = due
            .map(|due| due.saturating_duration_since(now))
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        let wanted = |client: &Client<W>| match client.state {
            State::Reading(_) => PollFlags::IN,
            // That it goes is seen without being asked for.
            State::Working(_) => PollFlags::empty(),
            State::Writing(..) => PollFlags::OUT,
        };
        let mut asked: Vec<PollFd> =
            self.clients.iter().map(|client| PollFd::new(&client.socket, wanted(client))).collect();
        if self.paused_until.is_none() {
            asked.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        // An error is a signal, or no memory: the next turn finds what there is.
        let _ = event::poll(&mut asked, timeout.as_ref());
    }

    /// Does all that can be done without waiting.
    fn turn(&mut self) {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| now < *until);
        if self.paused_until.is_none() {
            self.accept(now);
        }
        let mut clients = std::mem::take(&mut self.clients);
        clients.retain_mut(|client| self.attend(client, now) == Fate::Stays);
        self.clients = clients;
    }

    /// Takes who has come. No more at a time than there is room for: they are served before others come.
    fn accept(&mut self, now: Instant) {
        for _ in 0..CLIENTS {
            match self.listener.accept() {
                Ok((socket, _)) if socket.set_nonblocking(true).is_ok() => self.admit(socket, now),
                // One that has gone again.
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.paused_until = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    /// Gives a client a place: that of the oldest one for whom nothing is done, if all are taken.
    fn admit(&mut self, socket: UnixStream, now: Instant) {
        if self.clients.len() == CLIENTS {
            let is_idle = |client: &Client<W>| !matches!(client.state, State::Working(_));
            // With work for all, this one finds the connection closed.
            let Some(oldest) = self.clients.iter().position(is_idle) else { return };
            self.clients.remove(oldest);
        }
        let is_known =
            socket_peercred(&socket).is_ok_and(|peer| peer.uid.is_root() || peer.uid.as_raw() == self.owner);
        let state = match is_known {
            true => State::Reading(Vec::new()),
            false => State::answer(&Answer::error(1, "this is another user's")),
        };
        self.clients.push(Client { socket, until: now + PATIENCE, state });
    }

    /// Reads from a client and writes to it, as far as that goes.
    fn attend(&mut self, client: &mut Client<W>, now: Instant) -> Fate {
        if !matches!(client.state, State::Working(_)) && now >= client.until {
            return Fate::Goes;
        }
        if let State::Reading(bytes) = &mut client.state {
            match read_line(&mut client.socket, bytes) {
                Taken::More => return Fate::Stays,
                Taken::End => return Fate::Goes,
                Taken::TooLong => {
                    let error = format!("a request of more than {LINE_BYTES} bytes");
                    client.state = State::answer(&Answer::error(2, error));
                }
                Taken::Line => {
                    client.state = match (self.act)(bytes) {
                        Act::Done(answer) => State::answer(&answer),
                        Act::Begun(work) => State::Working(work),
                    }
                }
            }
            client.until = now + PATIENCE;
        }
        if let State::Working(work) = &mut client.state {
            let Some(answer) = work.look(now) else { return has_gone(&mut client.socket) };
            (client.state, client.until) = (State::answer(&answer), now + PATIENCE);
        }
        let State::Writing(bytes, sent) = &mut client.state else { return Fate::Stays };
        while *sent < bytes.len() {
            match client.socket.write(&bytes[*sent..]) {
                Ok(len @ 1..) => {
                    *sent += len;
                    // Who reads on has time for the rest: an answer may be long.
                    client.until = now + PATIENCE;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Fate::Stays,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return Fate::Goes,
            }
        }
        let _ = client.socket.shutdown(Shutdown::Write);
        forget(&mut client.socket);
        Fate::Goes
    }
}

/// Takes what a client has sent that nobody reads, as far as a request goes: where something is left at the end it gets
/// an error beside its answer.
fn forget(socket: &mut UnixStream) {
    let _ = socket.read(&mut [0; 2 * LINE_BYTES]);
}

/// What came of reading.
enum Taken {
    More,
    Line,
    TooLong,
    /// It has gone.
    End,
}

/// Takes what a client has sent, up to the end of its line, which is left out.
fn read_line(socket: &mut UnixStream, bytes: &mut Vec<u8>) -> Taken {
    let mut piece = [0; 1024];
    loop {
        match socket.read(&mut piece) {
            Ok(0) => return Taken::End,
            Ok(len) => {
                let end = piece[..len].iter().position(|byte| *byte == b'\n');
                bytes.extend_from_slice(&piece[..end.unwrap_or(len)]);
                if bytes.len() > LINE_BYTES {
                    return Taken::TooLong;
                }
                if end.is_some() {
                    return Taken::Line;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Taken::More,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Taken::End,
        }
    }
}

/// Looks whether a client that waits for work has gone. What it sends meanwhile is nobody's.
fn has_gone(socket: &mut UnixStream) -> Fate {
    match socket.read(&mut [0; 1024]) {
        Ok(1..) => Fate::Stays,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Fate::Stays,
        _ => Fate::Goes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// Work that there is none of.
    enum Nothing {}

    impl Work for Nothing {
        fn look(&mut self, _: Instant) -> Option<Answer> {
            match *self {}
        }
    }

    type Echo = Server<Box<dyn FnMut(&[u8]) -> Act<Nothing>>, Nothing>;

    /// One that answers each line with itself, and a number of how often it was asked; and where it listens.
    fn server(name: &str, owner: u32) -> (Echo, std::path::PathBuf, Rc<Cell<u32>>) {
        let path = std::env::temp_dir().join(format!("zfolio-socket-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = listen(&path).unwrap();
        let asked = Rc::new(Cell::new(0));
        let count = Rc::clone(&asked);
        let act = move |line: &[u8]| {
            count.set(count.get() + 1);
            Act::Done(Answer::lines(vec![String::from_utf8_lossy(line).into_owned()]))
        };
        (Server::new(listener, owner, Box::new(act)), path, asked)
    }

    /// What a client gets that sends this, while the server has its turns.
    fn get(server: &mut Echo, path: &Path, request: &[u8]) -> Vec<u8> {
        let mut socket = UnixStream::connect(path).unwrap();
        // What is refused while it is still being sent is refused.
        let _ = socket.write_all(request);
        socket.set_nonblocking(true).unwrap();
        let (mut got, mut piece) = (Vec::new(), [0; 4096]);
        for _ in 0..100_000 {
            server.turn();
            match socket.read(&mut piece) {
                Ok(0) => return got,
                Ok(len) => got.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return got,
            }
        }
        panic!("it is never answered: {got:?}");
    }

    #[test]
    fn a_line_is_answered_and_one_that_is_too_long_refused() {
        let own = rustix::process::geteuid().as_raw();
        let (mut server, path, asked) = server("lines", own);
        let answer = get(&mut server, &path, b"hello\nand more");
        assert_eq!(Answer::parse(&answer), Some(Answer::lines(vec!["hello".into()])));
        let answer = get(&mut server, &path, &[b'x'; LINE_BYTES + 1]);
        assert_eq!(Answer::parse(&answer).unwrap().error.unwrap(), "a request of more than 4096 bytes");
        assert_eq!((asked.get(), server.clients.len()), (1, 0));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn silent_clients_keep_nobody_out_and_are_dropped_in_time() {
        let own = rustix::process::geteuid().as_raw();
        let (mut server, path, asked) = server("silent", own);
        let connect = || UnixStream::connect(&path).unwrap();
        let mut silent = Vec::new();
        for _ in 0..10 * CLIENTS {
            silent.push(connect());
            server.turn();
            assert!(server.clients.len() <= CLIENTS);
        }
        assert!(!get(&mut server, &path, b"hello\n").is_empty());
        assert_eq!(asked.get(), 1);
        server.clients.iter_mut().for_each(|client| client.until = Instant::now());
        server.turn();
        assert!(server.clients.is_empty());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_stranger_is_refused_and_asks_for_nothing() {
        // Root is served in any case.
        if rustix::process::geteuid().as_raw() == 0 {
            return eprintln!("skipped: this is root");
        }
        let (mut server, path, asked) = server("stranger", 0);
        let answer = get(&mut server, &path, b"hello\n");
        assert_eq!(Answer::parse(&answer).unwrap().error.unwrap(), "this is another user's");
        assert_eq!(asked.get(), 0);
        std::fs::remove_file(path).unwrap();
    }
}
