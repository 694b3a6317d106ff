//! What speaks HTTP: one thread, a few clients at a time, one answer for each connection.
//!
//! ```text
//!   accepted ──> Reading, up to REQUEST_BYTES ──> Writing ──> closed
//!      └── PATIENCE over, nonsense, or the oldest when a client more comes than there is room for ──> closed
//! ```
//!
//! Nothing waits for a client: all sockets are non-blocking, and one poll(2) waits for all of them. A client that is
//! slow or says nothing has its place until it is too old, or until another one needs it. The text is made no more
//! often than every [`FRESH`], however often it is asked for, and its memory is shared by all who get it.

use super::exposition::CONTENT_TYPE;
use httparse::{EMPTY_HEADER, Request, Status};
use rustix::event::{self, PollFd, PollFlags};
use rustix::time::Timespec;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Clients at a time.
const CLIENTS: usize = 8;

/// A longer request is nonsense, in bytes and in headers.
const REQUEST_BYTES: usize = 8 << 10;
const HEADERS: usize = 64;

/// How long a client may take in all.
const PATIENCE: Duration = Duration::from_secs(5);

/// For so long the same text is given to all.
const FRESH: Duration = Duration::from_millis(100);

/// The pause where no connection can be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The path of the figures.
const PATH: &str = "/metrics";

/// The server.
pub struct Server<F> {
    listener: TcpListener,
    render: F,
    /// The text, and when it was made.
    text: Option<(Instant, Rc<String>)>,
    clients: Vec<Client>,
    /// No connection is taken before.
    paused_until: Option<Instant>,
}

/// Who has connected, oldest first.
struct Client {
    socket: TcpStream,
    until: Instant,
    state: State,
}

enum State {
    /// What it has sent.
    Reading(Vec<u8>),
    Writing(Answer),
}

/// What is sent, and how much of it was.
struct Answer {
    head: String,
    body: Rc<String>,
    sent: usize,
}

/// What becomes of a client.
#[derive(PartialEq, Eq)]
enum Fate {
    Stays,
    Goes,
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// There is more to come.
    More,
    Figures {
        is_head: bool,
    },
    /// This page alone, which says where they are.
    Root,
    /// A status that says what is wrong.
    Wrong(&'static str),
}

/// Reads a request, as far as it has come.
fn asked(bytes: &[u8]) -> Asked {
    let mut headers = [EMPTY_HEADER; HEADERS];
    let mut request = Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Partial) if bytes.len() < REQUEST_BYTES => Asked::More,
        Ok(Status::Partial) => Asked::Wrong("431 Request Header Fields Too Large"),
        Err(_) => Asked::Wrong("400 Bad Request"),
        Ok(Status::Complete(_)) => {
            let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
            match (request.method.unwrap_or_default(), path) {
                (method @ ("GET" | "HEAD"), PATH) => Asked::Figures { is_head: method == "HEAD" },
                ("GET" | "HEAD", "/") => Asked::Root,
                ("GET" | "HEAD", _) => Asked::Wrong("404 Not Found"),
                _ => Asked::Wrong("405 Method Not Allowed"),
            }
        }
    }
}

impl Answer {
    fn new(status: &str, content_type: &str, body: Rc<String>, is_head: bool) -> Answer {
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
            body.len()
        );
        Answer { head, body: if is_head { Rc::default() } else { body }, sent: 0 }
    }

    /// A status or a hint, in a line.
    fn plain(status: &str, line: &str) -> Answer {
        Answer::new(status, "text/plain; charset=utf-8", Rc::new(format!("{line}\n")), false)
    }

    /// What is still to be sent, in one piece or the first of two.
    fn rest(&self) -> &[u8] {
        match self.head.as_bytes().get(self.sent..) {
            Some(rest @ [_, ..]) => rest,
            _ => &self.body.as_bytes()[self.sent - self.head.len()..],
        }
    }
}

impl<F: FnMut() -> String> Server<F> {
    /// One that listens at a socket that does not wait, and makes its text so.
    pub fn new(listener: TcpListener, render: F) -> Server<F> {
        Server { listener, render, text: None, clients: Vec::new(), paused_until: None }
    }

    /// Serves without an end.
    pub fn serve(&mut self) {
        loop {
            self.wait();
            self.turn();
        }
    }

    /// Waits until somebody comes, one can be served, or one is too old.
    fn wait(&self) {
        let now = Instant::now();
        let due = self.clients.iter().map(|client| client.until).chain(self.paused_until).min();
        let timeout = due
            .map(|due| due.saturating_duration_since(now))
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        let wanted = |client: &Client| match client.state {
            State::Reading(_) => PollFlags::IN,
            State::Writing(_) => PollFlags::OUT,
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
        clients.retain_mut(|client| now < client.until && self.attend(client, now) == Fate::Stays);
        self.clients = clients;
    }

    /// Takes who has come. No more at a time than there is room for: they are served before others come.
    fn accept(&mut self, now: Instant) {
        for _ in 0..CLIENTS {
            match self.listener.accept() {
                Ok((socket, _)) if socket.set_nonblocking(true).is_ok() => {
                    if self.clients.len() == CLIENTS {
                        self.clients.remove(0);
                    }
                    let state = State::Reading(Vec::new());
                    self.clients.push(Client { socket, until: now + PATIENCE, state });
                }
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

    /// Reads from a client and writes to it, as far as that goes.
    fn attend(&mut self, client: &mut Client, now: Instant) -> Fate {
        if let State::Reading(bytes) = &mut client.state {
            let asked = match read(&mut client.socket, bytes) {
                Fate::Goes => return Fate::Goes,
                Fate::Stays => asked(bytes),
            };
            let answer = match asked {
                Asked::More => return Fate::Stays,
                Asked::Figures { is_head } => Answer::new("200 OK", CONTENT_TYPE, self.text(now), is_head),
                Asked::Root => Answer::plain("200 OK", "the figures of a run of zfolio are at /metrics"),
                Asked::Wrong(status) => Answer::plain(status, status),
            };
            client.state = State::Writing(answer);
        }
        let State::Writing(answer) = &mut client.state else { return Fate::Stays };
        while !answer.rest().is_empty() {
            match client.socket.write(answer.rest()) {
                Ok(len @ 1..) => answer.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Fate::Stays,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return Fate::Goes,
            }
        }
        let _ = client.socket.shutdown(Shutdown::Write);
        Fate::Goes
    }

    fn text(&mut self, now: Instant) -> Rc<String> {
        if let Some((_, text)) = self.text.as_ref().filter(|(made, _)| now.duration_since(*made) < FRESH) {
            return Rc::clone(text);
        }
        let text = Rc::new((self.render)());
        self.text = Some((now, Rc::clone(&text)));
        text
    }
}

/// Takes what a client has sent, up to the longest request.
fn read(socket: &mut TcpStream, bytes: &mut Vec<u8>) -> Fate {
    let mut piece = [0; 1024];
    while bytes.len() < REQUEST_BYTES {
        let most = piece.len().min(REQUEST_BYTES - bytes.len());
        match socket.read(&mut piece[..most]) {
            Ok(0) => return Fate::Goes,
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Fate::Stays,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Fate::Goes,
        }
    }
    Fate::Stays
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::net::SocketAddr;

    /// One whose text has so many lines of 8 bytes.
    fn server(lines: usize) -> (Server<impl FnMut() -> String>, SocketAddr, Rc<Cell<u32>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, made) = (listener.local_addr().unwrap(), Rc::new(Cell::new(0)));
        let count = Rc::clone(&made);
        let render = move || {
            count.set(count.get() + 1);
            "figures\n".repeat(lines)
        };
        (Server::new(listener, render), address, made)
    }

    /// Gives the server turns until something is so.
    fn turns<F: FnMut() -> String>(server: &mut Server<F>, mut is_so: impl FnMut(&Server<F>) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so(server) {
            assert!(Instant::now() < deadline, "it never is");
            server.turn();
        }
    }

    /// What a client gets, while the server has its turns.
    fn get(server: &mut Server<impl FnMut() -> String>, address: SocketAddr, request: &[u8]) -> String {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(request).unwrap();
        socket.set_nonblocking(true).unwrap();
        let (mut got, mut piece) = (Vec::new(), [0; 65536]);
        turns(server, |_| match socket.read(&mut piece) {
            Ok(0) => true,
            Ok(len) => {
                got.extend_from_slice(&piece[..len]);
                false
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => panic!("{error}: {} bytes", got.len()),
        });
        String::from_utf8(got).unwrap()
    }

    #[test]
    fn who_asks_gets_the_figures_whole() {
        let (mut server, address, made) = server(100_000);
        let answer = get(&mut server, address, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains(CONTENT_TYPE), "{head}");
        assert!(head.contains("Content-Length: 800000\r\n") && body.len() == 800_000, "{head}");
        let answer = get(&mut server, address, b"HEAD /metrics?a=b HTTP/1.0\r\n\r\n");
        assert!(answer.ends_with("Content-Length: 800000\r\nConnection: close\r\n\r\n"), "{answer}");
        assert!(made.get() <= 2, "it is made no more often than it is asked for");
    }

    #[test]
    fn what_is_asked_for() {
        for (request, expected) in [
            (&b""[..], Asked::More),
            (b"GET /metrics HTTP/1.1\r\nHost: a\r\n", Asked::More),
            (b"GET / HTTP/1.1\r\n\r\n", Asked::Root),
            (b"GET /metrics HTTP/1.1\r\n\r\n", Asked::Figures { is_head: false }),
            (b"GET /x HTTP/1.1\r\n\r\n", Asked::Wrong("404 Not Found")),
            (b"POST /metrics HTTP/1.1\r\n\r\n", Asked::Wrong("405 Method Not Allowed")),
            (b"\x16\x03\x01\x02\x00\x01", Asked::Wrong("400 Bad Request")),
            (b"GET /metrics\r\n\r\n", Asked::Wrong("400 Bad Request")),
        ] {
            assert_eq!(asked(request), expected, "{}", String::from_utf8_lossy(request));
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS + 1));
        assert_eq!(asked(many.as_bytes()), Asked::Wrong("400 Bad Request"));
        let long = format!("GET / HTTP/1.1\r\na: {}", "b".repeat(REQUEST_BYTES));
        assert_eq!(
            asked(&long.as_bytes()[..REQUEST_BYTES]),
            Asked::Wrong("431 Request Header Fields Too Large")
        );
    }

    #[test]
    fn nonsense_is_answered_with_a_line_and_dropped() {
        let (mut server, address, made) = server(100_000);
        let answer = get(&mut server, address, b"nonsense\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        assert_eq!((server.clients.len(), made.get()), (0, 0));
    }

    #[test]
    fn clients_that_say_nothing_keep_nobody_out() {
        let (mut server, address, _) = server(100_000);
        let silent: Vec<TcpStream> = (0..3 * CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
        turns(&mut server, |server| server.clients.len() == CLIENTS);
        let answer = get(&mut server, address, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{}", &answer[..40]);
        assert!(server.clients.len() <= CLIENTS, "{} clients", server.clients.len());
        // Who reads nothing, too, is dropped in time.
        server.clients.iter_mut().for_each(|client| client.until = Instant::now());
        server.turn();
        assert!(server.clients.is_empty());
        drop(silent);
    }

    #[test]
    fn clients_that_read_nothing_keep_their_places_and_nobody_out() {
        // More than the kernel takes for a socket.
        let (mut server, address, made) = server(8_000_000);
        let mut slow: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
        slow.iter_mut().for_each(|socket| socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap());
        let is_writing = |client: &&Client| matches!(client.state, State::Writing(_));
        turns(&mut server, |server| server.clients.iter().filter(is_writing).count() == 4);
        let answer = get(&mut server, address, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.len() > 64_000_000 && made.get() <= 5, "{} bytes", answer.len());
        assert_eq!(server.clients.iter().filter(is_writing).count(), 4);
    }
}
