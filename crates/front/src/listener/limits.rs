//! Limits of the gRPC port: for one client, and for all clients together.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of all clients, from accept to close.
    pub connections: usize,
    /// How many of them may be unproven: without a successful Register or Heartbeat.
    pub unproven: usize,
    /// How long a connection may stay unproven, from the end of its handshake, unless a call with a valid token is in progress.
    /// Longer than the deadlines of a first request together, so that a slow agent can use all of them.
    pub unproven_life: Duration,
    /// Calls that an unproven connection may have in progress. Each may take the memory of a small message; an agent needs
    /// one or two.
    pub unproven_calls: usize,
    /// How many connections one key may have. A further one replaces the oldest that has no call in progress, or is refused.
    pub connections_per_key: usize,
    /// Handshakes that may compete with live streams for the CPU at one time.
    pub handshakes: usize,
    /// From accept to the end of the TLS handshake.
    pub handshake_deadline: Duration,
    /// From the end of the handshake to the first complete request headers.
    pub first_request_deadline: Duration,
    /// From a request's headers to the headers of its response.
    pub response_deadline: Duration,
    /// The response deadline of a registration with a valid token, which may wait for a crowd of others.
    pub vouched_deadline: Duration,
    /// How long a response may wait for the client to read.
    pub send_deadline: Duration,
    /// How long a connection may have no request in progress.
    pub idle: Duration,
    /// The maximum age of a connection, plus or minus a fifth: rebalances a load-balanced fleet.
    pub age: Duration,
    /// How long a connection may take to finish its streams after GOAWAY.
    pub farewell: Duration,
    pub streams_per_connection: u32,
    pub backlog: i32,
}

/// HTTP/2 settings, the same in every deployment.
pub(super) mod http2 {
    use std::time::Duration;

    pub const PENDING_ACCEPT_RESETS: usize = 20;
    pub const LOCAL_ERROR_RESETS: usize = 128;
    pub const HEADER_LIST: u32 = 8 * 1024;
    pub const FRAME: u32 = 16 * 1024;
    /// What a client may send before the service reads it. Together with one frame it is what a stream that waits
    /// for room holds (docs/sizing.md). Enough for a week's backlog in two minutes over a round trip of 200 ms.
    pub const STREAM_WINDOW: u32 = 16 * 1024;
    /// The least that HTTP/2 allows.
    pub const CONNECTION_WINDOW: u32 = 64 * 1024 - 1;
    pub const SEND_BUFFER: usize = 16 * 1024;
    /// Longer than the default report interval, so that only agents that have missed a report are pinged.
    /// Together with the timeout a dead connection is found within 50 s.
    pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(40);
    pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
    /// Ends a client that leaves data unread that fits the kernel's buffers, which the send deadline does not see. Less
    /// than the 30 s within which such a client must be closed, because the kernel looks only at its next probe.
    pub const TCP_USER_TIMEOUT: Duration = Duration::from_secs(25);
}

/// The part of all connections that may be unproven. A fleet that fails over arrives unproven, all at once.
const UNPROVEN_PART: usize = 4;
const LEAST_UNPROVEN: usize = 16;

/// How much plaintext TLS buffers while the socket cannot be written.
pub(super) const TLS_BUFFER: usize = 16 * 1024;

/// Kernel buffers of one connection.
pub(super) mod tcp {
    /// Enough for 512 KiB/s over a round trip of 200 ms.
    pub const RECEIVE_BUFFER: usize = 128 * 1024;
    pub const SEND_BUFFER: usize = 64 * 1024;
}

impl Limits {
    pub fn new(connections: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            connections,
            unproven: (connections / UNPROVEN_PART).max(LEAST_UNPROVEN),
            unproven_life: Duration::from_secs(30),
            unproven_calls: 4,
            connections_per_key: 4,
            handshakes: 64 * cores,
            handshake_deadline: Duration::from_secs(10),
            first_request_deadline: Duration::from_secs(10),
            response_deadline: Duration::from_secs(10),
            vouched_deadline: Duration::from_secs(30),
            send_deadline: Duration::from_secs(10),
            idle: Duration::from_mins(1),
            age: Duration::from_hours(2),
            farewell: Duration::from_secs(30),
            streams_per_connection: 16,
            backlog: 4096,
        }
    }
}
