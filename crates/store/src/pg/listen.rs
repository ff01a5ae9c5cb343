//! The LISTEN connection: one channel, on a connection of its own.
//!
//! It must reach the server directly, because LISTEN is session state. Notifications that are
//! sent while it is down are lost. After a lost connection the caller therefore connects
//! again and reads the whole state once.
//!
//! After a failover the old server may live on and never notify again. The listener therefore ends
//! when the connections of the pools are discarded, and when it is as old as they may become.

use std::{
    fmt,
    future::poll_fn,
    task::{Context, Poll, ready},
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tokio_postgres::{AsyncMessage, Client};

use crate::pg::{
    connect::{Connected, Wire, connect},
    connections::max_age,
    error::{Result, StoreError, Unavailability},
    url::DatabaseUrl,
};

/// Receives notifications. It buffers nothing: unread notifications wait in the socket.
pub struct Listener {
    /// The connection closes when its client is dropped.
    _client: Client,
    wire: Wire,
    discards: watch::Receiver<Instant>,
    expires: Instant,
}

impl Listener {
    pub(crate) async fn connect(
        url: &DatabaseUrl,
        channel: &str,
        mut discards: watch::Receiver<Instant>,
    ) -> Result<Listener> {
        discards.mark_unchanged();
        let subscribing = Listener::subscribe(url, channel);
        let (client, wire) = subscribing.await?;
        Ok(Listener {
            _client: client,
            wire,
            discards,
            expires: Instant::now() + max_age(),
        })
    }

    /// The payload of the next notification; `None` once a new listener should take over. Cancel-safe:
    /// a dropped future loses none.
    pub async fn recv(&mut self) -> Result<Option<String>> {
        let Listener { wire, discards, .. } = self;
        tokio::select! {
            payload = poll_fn(|cx| poll_payload(wire, cx)) => payload.map(Some),
            _ = discards.changed() => Ok(None),
            () = sleep_until(self.expires) => Ok(None),
        }
    }

    /// No task drives the connection, so the `select!` polls it while LISTEN is under way.
    async fn subscribe(url: &DatabaseUrl, channel: &str) -> Result<(Client, Wire)> {
        let connected = Box::pin(connect(url, None)).await?;
        let Connected {
            client, mut wire, ..
        } = connected;
        let sql = format!("LISTEN \"{}\"", channel.replace('"', "\"\""));
        let listening = async {
            tokio::select! {
                subscribed = client.batch_execute(&sql) => Ok(subscribed?),
                lost = poll_fn(|cx| poll_lost(&mut wire, cx)) => Err(lost),
            }
        };
        let late = |_| StoreError::unavailable(Unavailability::Connect);
        let listening = timeout(url.connect_timeout(), listening);
        listening.await.map_err(late)??;
        Ok((client, wire))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// Ready with the next payload. Other messages, such as notices, are skipped; the loop polls
/// again after each, so that the wire has registered the waker when this returns `Pending`.
fn poll_payload(wire: &mut Wire, cx: &mut Context<'_>) -> Poll<Result<String>> {
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
