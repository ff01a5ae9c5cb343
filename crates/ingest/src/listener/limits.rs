//! What one client, and all together, may take of the gRPC port.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of all clients, from accept to close.
    pub connections: usize,
    pub connections_per_key: usize,
    /// Handshakes that may compete with live streams for the CPU at one time.
    pub handshakes: usize,
    /// How long a handshake keeps its place among those: one that takes longer
    /// waits for its client, not for the CPU.
    pub handshake_turn: Duration,
    /// For the first byte, and again for the whole TLS handshake.
    pub handshake_deadline: Duration,
    /// From the end of the handshake to the first complete request headers.
    pub first_request_deadline: Duration,
    /// From a request's headers to the headers of its response.
    pub response_deadline: Duration,
    /// How long a connection may be without a request.
    pub idle: Duration,
    /// A connection's age, give or take a fifth: rebalances a load-balanced fleet.
    pub age: Duration,
    /// How long a connection that was told to go may take to finish its streams.
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
    pub const STREAM_WINDOW: u32 = 64 * 1024;
    pub const CONNECTION_WINDOW: u32 = 256 * 1024;
    pub const SEND_BUFFER: usize = 64 * 1024;
    pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
    pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
    pub const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);
}

impl Limits {
    pub fn new(connections: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            connections,
            connections_per_key: 4,
            handshakes: 64 * cores,
            handshake_turn: Duration::from_millis(250),
            handshake_deadline: Duration::from_secs(10),
            first_request_deadline: Duration::from_secs(10),
            response_deadline: Duration::from_secs(10),
            idle: Duration::from_mins(1),
            age: Duration::from_hours(2),
            farewell: Duration::from_secs(30),
            streams_per_connection: 16,
            backlog: 4096,
        }
    }
}
