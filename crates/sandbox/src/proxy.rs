//! A TCP proxy whose behaviour can change while it runs: the network between two parts, with its
//! faults.
//!
//! Invariant: a knob holds from the moment its method returns, for the connections that the proxy
//! has accepted and for those to come (`cut_after` for those to come alone). All knobs but the
//! listener are one watched value, so that every connection sees every change. Its port is from
//! `free_port`, because `refuse` gives it up for a while and wants it back.

mod connection;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use anyhow::Context;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::ports::free_port;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToClient,
    ToServer,
}

/// What connections look at.
#[derive(Debug, Clone, Default)]
struct Knobs {
    targets: Vec<SocketAddr>,
    delay: Duration,
    black_hole: bool,
    cut_after: Option<(Direction, u64)>,
    /// What a client says just before its connection is cut, once.
    last_words: Option<Arc<LastWords>>,
    /// How often `cut_all` was called: a connection ends when it is no longer what it was at its
    /// start.
    cuts: u64,
    /// The same for `half_close`.
    half_closes: u64,
}

#[derive(Debug)]
struct LastWords {
    words: Vec<u8>,
    said: AtomicBool,
}

/// A running proxy; dropping it ends all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    knobs: watch::Sender<Knobs>,
    door: Arc<Mutex<Door>>,
    runtime: Handle,
    _stop: DropGuard,
}

impl Proxy {
    /// A proxy on 127.0.0.1 that gives its connections to the targets in turn, passing over those
    /// that do not answer.
    pub async fn start(targets: Vec<SocketAddr>) -> anyhow::Result<Proxy> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let door = Arc::new(Mutex::new(Door {
            listener: Some(listen(address)?),
            waker: None,
        }));
        let (knobs, watched) = watch::channel(Knobs {
            targets,
            ..Knobs::default()
        });
        let stop = CancellationToken::new();
        tokio::spawn(accept_until(stop.clone(), Arc::clone(&door), watched));
        Ok(Proxy {
            address,
            knobs,
            door,
            runtime: Handle::current(),
            _stop: stop.drop_guard(),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where new connections go; open ones stay where they are.
    pub fn set_targets(&self, targets: Vec<SocketAddr>) {
        self.turn(|knobs| knobs.targets = targets);
    }

    /// Holds every piece of up to 64 KiB back for so long, both ways.
    pub fn delay(&self, delay: Duration) {
        self.turn(|knobs| knobs.delay = delay);
    }

    /// Ends all connections: the client sees a reset, the target an end.
    pub fn cut_all(&self) {
        self.turn(|knobs| knobs.cuts += 1);
    }

    /// Shuts the side towards the client of all connections; what clients send still arrives.
    pub fn half_close(&self) {
        self.turn(|knobs| knobs.half_closes += 1);
    }

    /// A network that lost its way: connections stay, new ones are accepted, and no byte and no end
    /// of a stream gets through. As on such a network, what was sent arrives late when the way is
    /// found again.
    pub fn black_hole(&self, lost: bool) {
        self.turn(|knobs| knobs.black_hole = lost);
    }

    /// Cuts each new connection after so many bytes from the server to the client.
    pub fn cut_after(&self, bytes: Option<u64>) {
        self.cut_after_in(Direction::ToClient, bytes);
    }

    /// The same for a direction of choice; the bytes before the cut arrive.
    pub fn cut_after_in(&self, direction: Direction, bytes: Option<u64>) {
        self.turn(|knobs| knobs.cut_after = bytes.map(|bytes| (direction, bytes)));
    }

    /// Cuts the next connection whose client says `words`, right after they have gone on to the
    /// server: it hears them, and the client never learns what came of it. Words that a client
    /// sends in two pieces are not recognised.
    pub fn cut_once_said(&self, words: &[u8]) {
        let last_words = LastWords {
            words: words.to_vec(),
            said: AtomicBool::new(false),
        };
        self.turn(|knobs| knobs.last_words = Some(Arc::new(last_words)));
    }

    /// Whether the words of `cut_once_said` have been said.
    pub fn was_said(&self) -> bool {
        let knobs = self.knobs.borrow();
        let last_words = knobs.last_words.as_ref();
        last_words.is_some_and(|last_words| last_words.said.load(Ordering::Relaxed))
    }

    /// Stops listening, so that connecting is refused, or listens again; open connections stay.
    pub fn refuse(&self, refuse: bool) -> anyhow::Result<()> {
        let mut door = held(&self.door);
        if refuse {
            door.listener = None;
        } else if door.listener.is_none() {
            let _context = self.runtime.enter();
            door.listener = Some(listen(self.address)?);
            door.waker.take().into_iter().for_each(Waker::wake);
        }
        Ok(())
    }

    /// A good network again; what was cut stays cut.
    pub fn heal(&self) -> anyhow::Result<()> {
        self.turn(|knobs| {
            knobs.delay = Duration::ZERO;
            knobs.black_hole = false;
            knobs.cut_after = None;
            knobs.last_words = None;
        });
        self.refuse(false)
    }

    fn turn(&self, change: impl FnOnce(&mut Knobs)) {
        self.knobs.send_modify(change);
    }
}

/// The listener, which `refuse` takes away at once, even while it is being waited on.
#[derive(Debug)]
struct Door {
    listener: Option<TcpListener>,
    waker: Option<Waker>,
}

impl Door {
    fn poll_accept(&mut self, context: &mut TaskContext<'_>) -> Poll<TcpStream> {
        self.waker = Some(context.waker().clone());
        while let Some(listener) = &self.listener {
            match listener.poll_accept(context) {
                Poll::Ready(Ok((client, _))) => return Poll::Ready(client),
                Poll::Ready(Err(error)) => tracing::warn!(%error, "proxy could not accept"),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Pending
    }
}

async fn accept_until(
    stop: CancellationToken,
    door: Arc<Mutex<Door>>,
    knobs: watch::Receiver<Knobs>,
) {
    for turn in 0.. {
        let accept = std::future::poll_fn(|context| held(&door).poll_accept(context));
        let Some(client) = stop.run_until_cancelled(accept).await else {
            return;
        };
        let (stop, knobs) = (stop.clone(), knobs.clone());
        tokio::spawn(async move {
            stop.run_until_cancelled(connection::serve(client, turn, knobs))
                .await
        });
    }
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address).with_context(|| address.to_string())?;
    listener.set_nonblocking(true)?;
    Ok(TcpListener::from_std(listener)?)
}

impl LastWords {
    /// Whether these are the words, for the first time.
    fn are(&self, said: &[u8]) -> bool {
        let mut places = said.windows(self.words.len());
        places.any(|place| place == self.words) && !self.said.swap(true, Ordering::Relaxed)
    }
}

fn held(door: &Mutex<Door>) -> MutexGuard<'_, Door> {
    door.lock().unwrap_or_else(PoisonError::into_inner)
}
