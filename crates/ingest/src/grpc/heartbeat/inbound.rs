//! The messages of a client, read from the request's body within the report budget.
//!
//! tonic's `Streaming` is not used for them. It reads a message of any size as soon as it arrives, and keeps a buffer
//! as large as the stream's largest message for the stream's whole life.
//!
//! **Cancellation.** [`Inbound::next`] may be dropped at any await, because a stream also waits for its mail. All that
//! has arrived, and a wait for room, are kept in `self`; the next call continues there.

use std::{
    mem,
    sync::{Arc, Mutex},
};

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use prost::Message;
use svc_pipeline::{
    budget::{Grant, ReportBudget, Room},
    vitals::MOST_PARTS,
};
use svc_proto::{
    contract::{
        HEARTBEAT_PATH,
        limits::{
            MAX_BLOCK_DEVICES, MAX_DISKS, MAX_GAPS, MAX_HEARTBEAT_BYTES, MAX_HELLO_BYTES,
            MAX_INTERFACES, MAX_SAMPLES,
        },
    },
    v1::HeartbeatRequest,
};
use svc_store::{DiskRow, GapRow, OptionalVitals, PartRow, SampleRow};

use super::{StreamEnd, violation};
use crate::{grpc::Refusal, sync::lock};

/// The prefix of each message: a flag and the message's length.
const PREFIX: usize = 5;
/// A disk without values takes two bytes on the wire, and nothing takes more memory for its bytes. The next is a disk with
/// one optional value: four bytes, and beside its row a part and the name of that part.
const DECODED_PER_BYTE: usize = size_of::<DiskRow>() / 2;
/// The most that the optional vitals of a sample take: each disk, interface and block device has one name for its parts.
const MOST_OPTIONAL: usize = {
    let [disk, interface, device, host] = MOST_PARTS;
    let parts = disk * MAX_DISKS + interface * MAX_INTERFACES + device * MAX_BLOCK_DEVICES + host;
    let names = MAX_DISKS + MAX_INTERFACES + MAX_BLOCK_DEVICES + 2;
    let mounts = MAX_DISKS * size_of::<String>();
    size_of::<OptionalVitals>()
        + parts * size_of::<PartRow>()
        + names * 2 * size_of::<Arc<str>>()
        + mounts
};
/// The most that a report within the limits decodes to. Short texts take up to four times their length.
const MOST_DECODED: usize = MAX_SAMPLES
    * (size_of::<SampleRow>() + MAX_DISKS * size_of::<DiskRow>() + MOST_OPTIONAL)
    + MAX_GAPS * size_of::<GapRow>()
    + 4 * MAX_HEARTBEAT_BYTES;

/// The body of a heartbeat call on its way past tonic to the handler.
#[derive(Clone, Debug)]
pub(in crate::grpc) struct RawBody(Arc<Mutex<Option<Body>>>);

impl RawBody {
    /// Gives tonic an empty body, and keeps the real one for the handler.
    pub(in crate::grpc) async fn set_aside(mut request: Request, next: Next) -> Response {
        if request.uri().path() == HEARTBEAT_PATH {
            let body = mem::take(request.body_mut());
            let raw = Self(Arc::new(Mutex::new(Some(body))));
            request.extensions_mut().insert(raw);
        }
        next.run(request).await
    }

    pub(in crate::grpc) fn take(&self) -> Option<Body> {
        lock(&self.0).take()
    }
}

pub(super) struct Inbound {
    body: Body,
    budget: Arc<ReportBudget>,
    /// The part of the last DATA frame that is not used yet.
    rest: Bytes,
    /// The beginning of what [`take`](Self::take) collects, if it comes in several frames.
    partial: Vec<u8>,
    step: Step,
    /// Room for the bytes of the message that is being read.
    reading: Room,
}

/// How far the next message has come.
enum Step {
    Prefix,
    /// Its length is known, and it waits for room.
    WaitToRead(usize, BoxFuture<'static, Room>),
    Read(usize),
    /// It has arrived, and waits for room for its decoded form.
    WaitToDecode(Bytes, BoxFuture<'static, Room>),
}

/// What [`Inbound::next`] returns.
pub(super) enum Read {
    /// A message, and the room for it.
    Message(Box<HeartbeatRequest>, Room),
    /// No message yet: the wait for room has begun or ended.
    Wait,
    End,
}

impl Inbound {
    pub(super) fn new(body: Body, budget: Arc<ReportBudget>) -> Self {
        Self {
            body,
            budget,
            rest: Bytes::new(),
            partial: Vec::new(),
            step: Step::Prefix,
            reading: Room::default(),
        }
    }

    /// Whether nothing is read from the client because there is no room.
    pub(super) fn waits(&self) -> bool {
        matches!(self.step, Step::WaitToRead(..) | Step::WaitToDecode(..))
    }

    /// The first message. It takes no room of reports: a stream opens while all of that is taken. Its own room is returned
    /// when the stream is open and reads on.
    pub(super) async fn first(&mut self) -> Result<Option<HeartbeatRequest>, StreamEnd> {
        let Some(length) = self.length(MAX_HELLO_BYTES).await? else {
            return Ok(None);
        };
        let room = self.budget.to_greet(length).await;
        self.reading = room.ok_or(StreamEnd::Refused(Refusal::Overloaded))?;
        decode(self.message(length).await?).map(Some)
    }

    pub(super) async fn next(&mut self) -> Result<Read, StreamEnd> {
        loop {
            match &mut self.step {
                Step::Prefix => {
                    self.reading = Room::default();
                    let Some(length) = self.length(MAX_HEARTBEAT_BYTES).await? else {
                        return Ok(Read::End);
                    };
                    match self.budget.to_read(length) {
                        Grant::Now(room) => self.read(length, room),
                        Grant::Later(room) => {
                            self.step = Step::WaitToRead(length, room);
                            return Ok(Read::Wait);
                        }
                    }
                }
                Step::WaitToRead(length, room) => {
                    let (length, room) = (*length, room.await);
                    self.read(length, room);
                    return Ok(Read::Wait);
                }
                Step::Read(length) => {
                    let length = *length;
                    let message = self.message(length).await?;
                    match self.budget.to_decode(length, decoded_at_most(length)) {
                        Grant::Now(room) => return self.decoded(message, room),
                        Grant::Later(room) => {
                            self.step = Step::WaitToDecode(message, room);
                            return Ok(Read::Wait);
                        }
                    }
                }
                Step::WaitToDecode(message, room) => {
                    let room = room.await;
                    let message = mem::take(message);
                    return self.decoded(message, room);
                }
            }
        }
    }

    fn read(&mut self, length: usize, room: Room) {
        self.step = Step::Read(length);
        self.reading = room;
    }

    fn decoded(&mut self, message: Bytes, room: Room) -> Result<Read, StreamEnd> {
        self.step = Step::Prefix;
        let request = decode(message)?;
        self.reading = Room::default();
        Ok(Read::Message(Box::new(request), room))
    }

    /// The length of the next message, at most `most`; `None` at the end.
    async fn length(&mut self, most: usize) -> Result<Option<usize>, StreamEnd> {
        let Some(prefix) = self.take(PREFIX).await? else {
            return Ok(None);
        };
        let &[0, a, b, c, d] = &prefix[..] else {
            return Err(undecodable()); // It claims to be compressed.
        };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > most {
            return Err(StreamEnd::Refused(Refusal::MessageTooLarge));
        }
        Ok(Some(length))
    }

    async fn message(&mut self, length: usize) -> Result<Bytes, StreamEnd> {
        self.take(length).await?.ok_or_else(undecodable)
    }

    /// The next `length` bytes; `None` at the end. A message that is in one frame is not copied.
    async fn take(&mut self, length: usize) -> Result<Option<Bytes>, StreamEnd> {
        loop {
            if self.partial.is_empty() && self.rest.len() >= length {
                return Ok(Some(self.rest.split_to(length)));
            }
            let missing = length - self.partial.len();
            let more = self.rest.split_to(missing.min(self.rest.len()));
            if !more.is_empty() {
                self.partial.reserve_exact(missing);
                self.partial.extend_from_slice(&more);
            }
            if self.partial.len() == length {
                return Ok(Some(mem::take(&mut self.partial).into()));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                Some(Err(_)) => return Err(StreamEnd::ClientGone),
                None if self.partial.is_empty() => return Ok(None),
                None => return Err(undecodable()),
            }
        }
    }
}

/// The most memory that a message of this length takes after it is decoded and converted. The decoded message itself
/// lives only inside one poll.
fn decoded_at_most(length: usize) -> usize {
    (length * DECODED_PER_BYTE).min(MOST_DECODED)
}

fn decode(message: Bytes) -> Result<HeartbeatRequest, StreamEnd> {
    HeartbeatRequest::decode(message).map_err(|_| undecodable())
}

fn undecodable() -> StreamEnd {
    violation("a message does not decode")
}
