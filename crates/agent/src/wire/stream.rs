//! `Heartbeat`: a stream from Hello to its end. It knows the protocol's messages,
//! and nothing of where samples come from.

use std::time::{Duration, SystemTime};

use secrecy::ExposeSecret;
use svc_proto::v1::{
    Goodbye, HeartbeatRequest, HeartbeatResponse, Hello, Rejection, Report, Settings, Welcome,
    heartbeat_request::Message as Say, heartbeat_response::Message as Hear,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Streaming,
    metadata::{Ascii, MetadataValue},
};

use super::{Connection, Credential, Refusal};

/// What a report may carry, a little below what the service takes.
pub const MAX_REPORT_SAMPLES: usize = 500;
pub const MAX_REPORT_BYTES: usize = 224 * 1024;

/// A message waits here until HTTP/2 takes it; who says more than the service reads
/// waits in [`Stream::report`].
const OUTBOUND: usize = 2;
/// The service has 10 s for Hello, and may wait for its database.
const WELCOME: Duration = Duration::from_secs(20);

/// What the service says on an open stream.
#[derive(Clone, Debug)]
pub enum Heard {
    Ack {
        up_to: u64,
        rejected: Vec<Rejection>,
    },
    Credential(Credential),
    Settings(Settings),
    Drain {
        reconnect_after: Duration,
    },
}

/// An open stream; dropped, it is gone without a word.
#[derive(Debug)]
pub struct Stream {
    out: mpsc::Sender<HeartbeatRequest>,
    answers: Streaming<HeartbeatResponse>,
    _connection: Connection,
}

/// Opens a stream: Hello out, Welcome in.
pub async fn greet(
    connection: Connection,
    credential: &Credential,
    hello: Hello,
) -> Result<(Stream, Welcome), Refusal> {
    let greeting = say_hello(connection, credential, hello);
    let late = |_| Refusal::lost("no Welcome came in time");
    timeout(WELCOME, greeting).await.map_err(late)?
}

async fn say_hello(
    mut connection: Connection,
    credential: &Credential,
    hello: Hello,
) -> Result<(Stream, Welcome), Refusal> {
    let (out, requests) = mpsc::channel(OUTBOUND);
    let mut request = Request::new(ReceiverStream::new(requests));
    let metadata = request.metadata_mut();
    metadata.insert("authorization", bearer(credential)?);
    say(&out, Say::Hello(hello)).await?;
    let answers = connection.client.heartbeat(request).await?.into_inner();
    let mut stream = Stream {
        out,
        answers,
        _connection: connection,
    };
    match stream.next().await? {
        Hear::Welcome(welcome) => Ok((stream, welcome)),
        _ => Err(Refusal::lost("the service did not begin with Welcome")),
    }
}

/// Marked as sensitive, so that no layer below shows it or puts it into a table of headers.
fn bearer(credential: &Credential) -> Result<MetadataValue<Ascii>, Refusal> {
    let text = format!("Bearer {}", credential.jwt.expose_secret());
    let mut bearer: MetadataValue<Ascii> = text
        .parse()
        .map_err(|_| Refusal::lost("the JWT cannot be sent"))?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

impl Stream {
    /// Waits while the service does not read.
    pub async fn report(&self, report: Report) -> Result<(), Refusal> {
        say(&self.out, Say::Report(report)).await
    }

    /// The next thing that the service says; an end is always an error.
    pub async fn hear(&mut self) -> Result<Heard, Refusal> {
        Ok(match self.next().await? {
            Hear::Ack(ack) => Heard::Ack {
                up_to: ack.up_to_seq,
                rejected: ack.rejected,
            },
            Hear::Credential(credential) => Heard::Credential(credential.into()),
            Hear::Settings(settings) => Heard::Settings(settings),
            Hear::Drain(drain) => Heard::Drain {
                reconnect_after: length(drain.reconnect_after).unwrap_or_default(),
            },
            Hear::Welcome(_) => return Err(Refusal::lost("Welcome came twice")),
        })
    }

    /// Says that the agent stops on purpose, and waits until the service has heard it.
    pub async fn goodbye(mut self, reason: &str) -> Result<(), Refusal> {
        let reason = reason.to_owned();
        say(&self.out, Say::Goodbye(Goodbye { reason })).await?;
        while self.answers.message().await?.is_some() {}
        Ok(())
    }

    async fn next(&mut self) -> Result<Hear, Refusal> {
        loop {
            match self.answers.message().await? {
                None => return Err(Refusal::lost("the service ended the stream")),
                Some(HeartbeatResponse {
                    message: Some(message),
                }) => return Ok(message),
                Some(_) => {} // A message of a later version.
            }
        }
    }
}

async fn say(out: &mpsc::Sender<HeartbeatRequest>, message: Say) -> Result<(), Refusal> {
    let request = HeartbeatRequest {
        message: Some(message),
    };
    let gone = |_| Refusal::lost("the stream has ended");
    out.send(request).await.map_err(gone)
}

/// A length of time off the wire; negative ones are none.
pub(crate) fn length(given: Option<prost_types::Duration>) -> Option<Duration> {
    given.and_then(|given| Duration::try_from(given).ok())
}

/// A time off the wire.
pub(crate) fn time(given: Option<prost_types::Timestamp>) -> Option<SystemTime> {
    given.and_then(|given| SystemTime::try_from(given).ok())
}
