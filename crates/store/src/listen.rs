//! The LISTEN connection: one channel, on a connection of its own.
//!
//! It must reach the server directly, because LISTEN is session state. Notifications that are
//! sent while it is down are lost. After a lost connection the caller therefore connects
//! again and reads the whole state once.

use std::{
    fmt,
    future::poll_fn,
    task::{Context, Poll, ready},
};

use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Connection, Socket, tls::MakeTlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    error::{StoreError, Unavailability},
    url::DatabaseUrl,
};

type Wire = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Receives notifications. It buffers nothing: unread notifications wait in the socket.
pub struct Listener {
    /// The connection closes when its client is dropped.
    _client: Client,
    wire: Wire,
}

impl Listener {
    /// Connects and subscribes, or fails within the connection timeout.
    pub async fn connect(url: &DatabaseUrl, channel: &str) -> Result<Listener, StoreError> {
        let connecting = Listener::open(url, channel);
        match url.config().get_connect_timeout() {
            Some(limit) => timeout(*limit, connecting)
                .await
                .map_err(|_| StoreError::unavailable(Unavailability::Connect))?,
            None => connecting.await,
        }
    }

    /// The payload of the next notification. Cancel-safe: a dropped future loses none.
    pub async fn recv(&mut self) -> Result<String, StoreError> {
        poll_fn(|cx| poll_payload(&mut self.wire, cx)).await
    }

    /// No task drives the connection, so the `select!` polls it while LISTEN is under way.
    async fn open(url: &DatabaseUrl, channel: &str) -> Result<Listener, StoreError> {
        let connecting = url.config().connect(url.tls());
        let (client, mut wire) = connecting.await.map_err(StoreError::connect)?;
        let sql = format!("LISTEN \"{}\"", channel.replace('"', "\"\""));
        tokio::select! {
            subscribed = client.batch_execute(&sql) => subscribed?,
            lost = poll_fn(|cx| poll_lost(&mut wire, cx)) => return Err(lost),
        }
        Ok(Listener {
            _client: client,
            wire,
        })
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// Ready with the next payload. Other messages, such as notices, are skipped; the loop polls
/// again after each, so that the wire has registered the waker when this returns `Pending`.
fn poll_payload(wire: &mut Wire, cx: &mut Context<'_>) -> Poll<Result<String, StoreError>> {
    loop {
        let message = ready!(wire.poll_message(cx)).transpose()?;
        match message {
            Some(AsyncMessage::Notification(note)) => {
                return Poll::Ready(Ok(note.payload().to_owned()));
            }
            Some(_) => {}
            None => {
                let lost = StoreError::unavailable(Unavailability::ConnectionLost);
                return Poll::Ready(Err(lost));
            }
        }
    }
}

/// Drives the wire until it breaks. It drops notifications that arrive before `connect`
/// returns. That is safe, because the caller reads the whole state after connecting.
fn poll_lost(wire: &mut Wire, cx: &mut Context<'_>) -> Poll<StoreError> {
    loop {
        if let Err(lost) = ready!(poll_payload(wire, cx)) {
            return Poll::Ready(lost);
        }
    }
}
