//! Racing TCP connections to the addresses of one name (RFC 8305, "Happy Eyeballs").
//!
//! A resolver may return addresses that do not answer: a broken IPv6 network, a record of a
//! machine that is gone. Attempts therefore overlap. The next one starts [`STAGGER`] after
//! the one before it, or as soon as one fails, and each has a time budget of its own. So an
//! address that drops packets delays the connection by a quarter of a second, and cannot use
//! up the time of the others.
//!
//! Only TCP is raced. A TLS handshake costs the service a signature, and a fleet that
//! returns after an outage must not ask for twice as many of them because they are slow.

use std::{collections::VecDeque, io, net::SocketAddr, time::Duration};

use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

/// The delay that RFC 8305 recommends.
const STAGGER: Duration = Duration::from_millis(250);

/// An attempt that has ended.
pub(super) struct Attempt {
    pub peer: SocketAddr,
    pub connected: io::Result<TcpStream>,
}

#[derive(Debug)]
pub(super) struct Race {
    waiting: VecDeque<SocketAddr>,
    running: JoinSet<Attempt>,
    budget: Duration,
    next_start: Instant,
}

impl Race {
    /// `budget` is the time of each attempt.
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>, budget: Duration) -> Self {
        Self {
            waiting: addresses.into_iter().collect(),
            running: JoinSet::new(),
            budget,
            next_start: Instant::now(),
        }
    }

    /// The next attempt that ends, well or badly; `None` when all have. The remaining
    /// attempts go on until the race is dropped, so the caller may come back for another
    /// address if the first one fails later.
    pub async fn next(&mut self) -> Option<Attempt> {
        loop {
            if self.waiting.is_empty() && self.running.is_empty() {
                return None;
            }
            tokio::select! {
                Some(ended) = self.running.join_next() => {
                    if let Ok(attempt) = ended {
                        if attempt.connected.is_err() {
                            self.next_start = Instant::now();
                        }
                        return Some(attempt);
                    }
                }
                () = sleep_until(self.next_start), if !self.waiting.is_empty() => self.start(),
            }
        }
    }

    fn start(&mut self) {
        self.next_start = Instant::now() + STAGGER;
        if let Some(peer) = self.waiting.pop_front() {
            self.running.spawn(attempt(peer, self.budget));
        }
    }
}

async fn attempt(peer: SocketAddr, budget: Duration) -> Attempt {
    let connected = timeout(budget, TcpStream::connect(peer)).await;
    let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    if let Ok(stream) = &connected {
        drop(stream.set_nodelay(true)); // Only an optimisation.
    }
    Attempt { peer, connected }
}

/// Alternates between the families, from that of the first address on. The order within a
/// family stays.
pub(super) fn interleaved(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<SocketAddr>, Vec<SocketAddr>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == first_is_v6);
    let mut second = second.into_iter();
    let mut mixed = Vec::new();
    for address in first {
        mixed.push(address);
        mixed.extend(second.next());
    }
    mixed.extend(second);
    mixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate_from_the_first_one_on() {
        let parse = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let found = parse(&["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1"]);
        let mixed = parse(&["[::1]:1", "10.0.0.1:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(interleaved(found), mixed);
        let found = parse(&["10.0.0.1:1", "[::1]:1", "[::2]:1"]);
        assert_eq!(interleaved(found.clone()), found);
        assert!(interleaved(Vec::new()).is_empty());
    }
}
