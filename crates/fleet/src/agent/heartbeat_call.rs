//! The client side of one heartbeat stream.

use std::{
    fmt,
    future::poll_fn,
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use h2::{Ping, PingPong};
use svc_proto::{ServerMessage, v1::HeartbeatResponse};

use super::{
    connection::{Call, Connection},
    failure::Failure,
};

/// How long the service may leave a ping unanswered.
const PONG_TIMEOUT: Duration = Duration::from_secs(20);

pub struct HeartbeatCall {
    connection: Connection,
    call: Call,
    pings: Option<PingPong>,
    ping_sent_at: Option<Instant>,
}

impl HeartbeatCall {
    pub fn new(mut connection: Connection, call: Call) -> HeartbeatCall {
        HeartbeatCall {
            pings: connection.ping_pong(),
            connection,
            call,
            ping_sent_at: None,
        }
    }

    /// Waits for the next message of the service. Cancel-safe.
    pub async fn recv(&mut self) -> Result<Option<ServerMessage>, Failure> {
        let response: HeartbeatResponse = self.connection.next(&mut self.call).await?;
        Ok(response.message)
    }

    /// Queues a message; the next `recv` sends it.
    pub fn send(&mut self, framed: Bytes) -> Result<(), Failure> {
        self.call.send(framed, false)
    }

    /// Sends the last message, and waits until the service ends the stream.
    pub async fn close(&mut self, goodbye: Bytes) -> Result<(), Failure> {
        self.call.send(goodbye, true)?;
        while self.recv().await.is_ok() {}
        Ok(())
    }

    /// Checks a connection whose service has not acknowledged anything for long: the first call sends a
    /// ping, later calls look for the pong without waiting.
    pub async fn probe(&mut self) -> Result<(), Failure> {
        let Some(pings) = &mut self.pings else {
            return Ok(());
        };
        let Some(sent_at) = self.ping_sent_at else {
            pings.send_ping(Ping::opaque())?;
            self.ping_sent_at = Some(Instant::now());
            return Ok(());
        };
        match poll_fn(|cx| Poll::Ready(pings.poll_pong(cx))).await {
            Poll::Ready(pong) => {
                pong?;
                self.ping_sent_at = None;
            }
            Poll::Pending if sent_at.elapsed() > PONG_TIMEOUT => return Err(Failure::PingTimeout),
            Poll::Pending => {}
        }
        Ok(())
    }
}

impl fmt::Debug for HeartbeatCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeartbeatCall")
    }
}
