//! `--metrics ADDR`: the figures of a run for Prometheus, over HTTP, from `zfolio run`'s own process.
//!
//! ```text
//!   page of the run ── snapshot ──> exposition (text) ──> server (one thread, a few clients) ──> who asks
//! ```
//!
//! - [`exposition`]: the names and the format
//! - [`server`]: what speaks HTTP
//!
//! The thread takes no lock that the coordinator takes. What it reads are atomics of the run page, and it blocks all
//! signals, as it inherits them. It has only its own time to lose by a client.

mod exposition;
mod server;

use crate::snapshot::Snapshot;
use exposition::Labels;
use memcg::{Memcg, Stat};
use server::Server;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

/// Bytes of the thread's stack: it has a page's counters on it, and calls little.
const STACK: usize = 512 << 10;

/// What `--metrics` takes, for messages.
const FORMS: &str = "an address with a port such as 127.0.0.1:9464 or [::1]:9464, or a port alone";

/// An address that answers as soon as it is served.
pub struct Metrics {
    listener: TcpListener,
    /// Where it listens.
    pub address: SocketAddr,
    /// The user has asked for any free port.
    pub is_any: bool,
}

impl Metrics {
    /// Takes the address. An error is one line for the user.
    pub fn bind(text: &str) -> Result<Metrics, String> {
        let asked = parse(text).ok_or_else(|| format!("--metrics {text}: {FORMS} is needed"))?;
        let bound = TcpListener::bind(asked).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        });
        let (address, listener) = bound.map_err(|error| format!("--metrics {text}: {}", reason(&error)))?;
        Ok(Metrics { listener, address, is_any: asked.port() == 0 })
    }

    /// Serves the figures of this run of `command` from now on, in a thread of its own, until the process ends.
    pub fn serve(self, memcg: &'static Memcg, command: String) -> io::Result<()> {
        let told = Stat::default();
        let labels = Labels { command };
        let render = move || {
            let snapshot = Snapshot::take(memcg, uffd::sys::now_ns());
            // What moves from slot to slot this moment is missing: a counter that falls would be a restart.
            told.raise(&snapshot.stat);
            exposition::text(&snapshot, &told, &labels)
        };
        let thread = thread::Builder::new().name("zfolio-metrics".into()).stack_size(STACK);
        thread.spawn(move || Server::new(self.listener, render).serve()).map(drop)
    }
}

/// Reads an address; a port alone is one of this machine's own.
fn parse(text: &str) -> Option<SocketAddr> {
    let port = || Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), text.parse().ok()?));
    text.parse().ok().or_else(port)
}

/// What is wrong with an address, without the number of the error.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process has this port: choose another one, or 0 for any".into(),
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".into(),
        io::ErrorKind::PermissionDenied => "this user may not take this port: choose one above 1023".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_every_form() {
        for (text, expected) in [
            ("127.0.0.1:9464", "127.0.0.1:9464"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:9464", "[::1]:9464"),
            ("9464", "127.0.0.1:9464"),
            ("0", "127.0.0.1:0"),
        ] {
            assert_eq!(parse(text).map(|address| address.to_string()).as_deref(), Some(expected));
        }
        for text in
            ["", "127.0.0.1", "::1", "localhost:9464", "65536", "-1", "http://127.0.0.1:1", "1.2.3.4:x"]
        {
            assert_eq!(parse(text), None, "{text}");
            let error = Metrics::bind(text).err().unwrap();
            assert!(error.starts_with(&format!("--metrics {text}: an address")), "{error}");
        }
    }

    #[test]
    fn a_port_that_another_has_is_told() {
        let first = Metrics::bind("0").unwrap();
        assert!(first.is_any && first.address.ip().is_loopback());
        let error = Metrics::bind(&first.address.to_string()).err().unwrap();
        assert_eq!(
            error,
            format!(
                "--metrics {}: another process has this port: choose another one, or 0 for any",
                first.address
            )
        );
    }
}
