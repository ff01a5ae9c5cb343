//! The protocol's limits. The service enforces them; a client that exceeds one is
//! refused, held back by flow control, or has the one sample rejected, as each line says.

use std::time::Duration;

/// The largest `RegisterRequest`. A larger one is refused with MESSAGE_TOO_LARGE.
pub const MAX_REGISTER_BYTES: usize = 64 * 1024;
/// The largest `HeartbeatRequest`. A larger one ends the stream with MESSAGE_TOO_LARGE.
pub const MAX_HEARTBEAT_BYTES: usize = 256 * 1024;
/// The largest `HeartbeatRequest` with a Hello. All its fields at their limits fit. A larger one ends the stream
/// with MESSAGE_TOO_LARGE.
pub const MAX_HELLO_BYTES: usize = 64 * 1024;
/// The service sends no larger message, so a client may treat one as a fault.
pub const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Samples in one `Report`. More are a PROTOCOL_VIOLATION.
pub const MAX_SAMPLES: usize = 500;
/// Gaps in one `Report`. More are a PROTOCOL_VIOLATION.
pub const MAX_GAPS: usize = 500;
/// Disks of one sample. A sample with more is rejected.
pub const MAX_DISKS: usize = 64;
/// Network interfaces of one sample. A sample with more is rejected.
pub const MAX_INTERFACES: usize = 64;
/// Block devices of one sample. A sample with more is rejected.
pub const MAX_BLOCK_DEVICES: usize = 64;
/// Bytes of any text field. Control characters are not allowed either.
pub const MAX_TEXT_BYTES: usize = 255;
/// Entries of a repeated text field, such as the IP addresses of a host.
pub const MAX_LIST_ENTRIES: usize = 64;
/// Bytes of `Hello.run_id`, which must not be empty.
pub const MAX_RUN_ID_BYTES: usize = MAX_TEXT_BYTES;
/// Bytes of `RegisterRequest.successor_key`: a SHA-256 digest.
pub const SUCCESSOR_KEY_BYTES: usize = 32;

/// The largest integer of a sample: bytes, seconds, milliseconds and counts. A sample with a larger one is rejected. The
/// sum or the difference of two such numbers fits a signed 64-bit integer.
pub const MAX_NUMBER: u64 = 1 << 62;

/// The highest sequence number. PostgreSQL stores it as a signed 64-bit integer, and
/// the number after the last one must fit as well.
pub const MAX_SEQ: u64 = i64::MAX as u64 - 1;
/// How far `Sample.sampled_at` may be ahead of the database's clock. A sample that is
/// further ahead is rejected.
pub const MAX_CLOCK_AHEAD: Duration = Duration::from_mins(5);
/// Rejections in one `Ack`. The following acknowledgements name the remaining ones.
pub const MAX_REJECTIONS_PER_ACK: usize = 100;

/// Reports of one stream that may wait for their acknowledgement. The service reads no
/// further report until it has acknowledged one of them.
pub const MAX_REPORTS_IN_FLIGHT: usize = 2;
/// The service reads one message of an agent in this time, after [`REPORT_BURST`] at any
/// speed, whichever stream brings them. Flow control holds a faster client back.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// How many messages of an agent the service reads without delay.
pub const REPORT_BURST: u32 = 20;
/// The service takes one row (a sample or a gap) of an agent in this time, after [`ROW_BURST`] rows at any speed. It
/// reads no report of an agent that is ahead of that.
pub const ROW_INTERVAL: Duration = Duration::from_millis(10);
/// How many rows of an agent the service takes without delay. A backlog of a week at an interval of 30 s has 20,160.
pub const ROW_BURST: u32 = 12_000;
/// The time for the first message, Hello. A later one is refused with HELLO_TIMEOUT.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(10);

/// The wait before an agent reconnects whose stream ended with SESSION_REPLACED. Two
/// copies of one agent would otherwise replace each other in a tight loop.
pub const REPLACED_WAIT: Duration = Duration::from_secs(30);
/// The wait before a rejected or revoked agent registers again: only a person can change
/// the decision.
pub const NOT_ADMITTED_WAIT: Duration = Duration::from_hours(1);
