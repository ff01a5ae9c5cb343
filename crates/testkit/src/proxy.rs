//! A TCP proxy that injects the faults of a network while it runs.
//!
//! Invariant: a setting applies from the moment its method returns, to the connections that the
//! proxy has accepted and to later ones (`cut_after` to later ones only). All settings but the
//! listener are one `watch` value, so every connection sees every change. The port is from
//! `free_port`, outside the kernel's range of source ports, because `refuse` closes it for a while
//! and must get it back.

mod connection;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context as TaskContext, Poll, Waker},
    time::Duration,
};

use anyhow::Context;
use svc_sandbox::free_port;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::watch,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The settings that connections watch.
#[derive(Debug, Clone, Default)]
struct Settings {
    targets: Vec<SocketAddr>,
    black_hole: bool,
    /// Bytes to the client.
    cut_after: Option<u64>,
    /// How long each piece takes, in either direction.
    delay: Duration,
    /// Cuts the connection of the first client that sends these bytes.
    trigger: Option<Arc<Trigger>>,
    /// How often `cut_all` was called: a connection ends when this changes.
    cuts: u64,
}

#[derive(Debug)]
struct Trigger {
    bytes: Vec<u8>,
    seen: AtomicBool,
}

/// A running proxy; dropping it ends all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    settings: watch::Sender<Settings>,
    door: Arc<Mutex<Door>>,
    accepted: Arc<AtomicU64>,
    runtime: Handle,
    _stop: DropGuard,
}

impl Proxy {
    /// Starts a proxy on 127.0.0.1 that connects to the targets in turn and skips those that do
    /// not answer.
    pub async fn start(targets: Vec<SocketAddr>) -> anyhow::Result<Proxy> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let door = Arc::new(Mutex::new(Door {
            listener: Some(listen(address)?),
            waker: None,
        }));
        let (settings, watched) = watch::channel(Settings {
            targets,
            ..Settings::default()
        });
        let stop = CancellationToken::new();
        let accepted = Arc::new(AtomicU64::new(0));
        let accepting = accept_until(stop.clone(), door.clone(), watched, accepted.clone());
        tokio::spawn(accepting);
        Ok(Proxy {
            address,
            settings,
            door,
            accepted,
            runtime: Handle::current(),
            _stop: stop.drop_guard(),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections it has accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Changes the targets of new connections.
    pub fn set_targets(&self, targets: Vec<SocketAddr>) {
        self.change(|settings| settings.targets = targets);
    }

    /// Ends all connections: the client gets a reset, the target an end of stream.
    pub fn cut_all(&self) {
        self.change(|settings| settings.cuts += 1);
    }

    /// Passes nothing on: connections stay open, new ones are accepted, and no byte and no end of a
    /// stream arrives. What was sent meanwhile arrives once this is switched off.
    pub fn black_hole(&self, lost: bool) {
        self.change(|settings| settings.black_hole = lost);
    }

    /// Delays everything that passes, in either direction.
    pub fn delay(&self, delay: Duration) {
        self.change(|settings| settings.delay = delay);
    }

    /// Cuts each new connection after so many bytes to the client.
    pub fn cut_after(&self, bytes: Option<u64>) {
        self.change(|settings| settings.cut_after = bytes);
    }

    /// Cuts the next connection whose client sends `bytes`, right after the proxy has passed them on:
    /// the server acts on them, and the client never learns the result. Bytes that arrive in two
    /// pieces are not recognised.
    pub fn cut_once_sent(&self, bytes: &[u8]) {
        let trigger = Trigger {
            bytes: bytes.to_vec(),
            seen: AtomicBool::new(false),
        };
        self.change(|settings| settings.trigger = Some(Arc::new(trigger)));
    }

    /// Whether `cut_once_sent` has cut a connection.
    pub fn has_cut(&self) -> bool {
        let settings = self.settings.borrow();
        let trigger = settings.trigger.as_ref();
        trigger.is_some_and(|trigger| trigger.seen.load(Ordering::Relaxed))
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

    /// Ends all faults; connections that were cut stay cut.
    pub fn heal(&self) -> anyhow::Result<()> {
        self.change(|settings| {
            settings.black_hole = false;
            settings.delay = Duration::ZERO;
            settings.cut_after = None;
            settings.trigger = None;
        });
        self.refuse(false)
    }

    fn change(&self, change: impl FnOnce(&mut Settings)) {
        self.settings.send_modify(change);
    }
}

/// The listener, which `refuse` closes at once, even while a task waits for it.
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
    settings: watch::Receiver<Settings>,
    accepted: Arc<AtomicU64>,
) {
    for turn in 0.. {
        let accept = std::future::poll_fn(|context| held(&door).poll_accept(context));
        let Some(client) = stop.run_until_cancelled(accept).await else {
            return;
        };
        accepted.fetch_add(1, Ordering::Relaxed);
        let (stop, settings) = (stop.clone(), settings.clone());
        tokio::spawn(async move {
            stop.run_until_cancelled(connection::serve(client, turn, settings))
                .await
        });
    }
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address).with_context(|| address.to_string())?;
    listener.set_nonblocking(true)?;
    Ok(TcpListener::from_std(listener)?)
}

impl Trigger {
    /// Whether `sent` has the bytes, for the first time.
    fn fires(&self, sent: &[u8]) -> bool {
        let mut places = sent.windows(self.bytes.len());
        places.any(|place| place == self.bytes) && !self.seen.swap(true, Ordering::Relaxed)
    }
}

fn held(door: &Mutex<Door>) -> MutexGuard<'_, Door> {
    door.lock().unwrap_or_else(PoisonError::into_inner)
}
