//! The LISTEN connection: one channel, on a connection of its own.
//!
//! It must reach the server directly, since LISTEN is session state. A loss is
//! an error that the caller answers by connecting anew; what was notified
//! meanwhile is gone, so the caller looks at everything once after connecting.

use std::future::poll_fn;
use std::task::{Context, Poll};

use tokio::time::timeout;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{StoreError, Unavailability};
use crate::url::DatabaseUrl;

type Wire = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Nothing is buffered here: what is not received yet waits in the socket.
pub struct Listener {
    /// Kept because the connection ends with its client.
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

    /// The payload of the next notification. Dropping the future loses none.
    pub async fn recv(&mut self) -> Result<String, StoreError> {
        poll_fn(|cx| poll_payload(&mut self.wire, cx)).await
    }

    async fn open(url: &DatabaseUrl, channel: &str) -> Result<Listener, StoreError> {
        let connecting = url.config().connect(url.tls());
        let (client, mut wire) = connecting.await.map_err(|source| StoreError::Unavailable {
            reason: Unavailability::Connect,
            source: Some(source),
        })?;
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

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

fn poll_payload(wire: &mut Wire, cx: &mut Context<'_>) -> Poll<Result<String, StoreError>> {
    loop {
        let message = std::task::ready!(wire.poll_message(cx)).transpose()?;
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

/// Drives the wire until it breaks. A notification that arrives here, before
/// `connect` has returned, is covered by the caller's look at everything.
fn poll_lost(wire: &mut Wire, cx: &mut Context<'_>) -> Poll<StoreError> {
    loop {
        if let Err(lost) = std::task::ready!(poll_payload(wire, cx)) {
            return Poll::Ready(lost);
        }
    }
}
