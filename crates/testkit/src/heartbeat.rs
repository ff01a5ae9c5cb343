//! The client side of a heartbeat stream, under the control of a test.

use std::{net::SocketAddr, ops::RangeInclusive};

use anyhow::{Context, bail};
use jiff::Timestamp;
use svc_proto::{
    ClientMessage, ServerMessage,
    v1::{
        Ack, Disk, Gap, Goodbye, HeartbeatRequest, HeartbeatResponse, Hello, KeyStored, Report,
        Sample, Settings, SettingsState, UpdateOffer, UpdateState, Vitals, Welcome,
        ingest_service_client::IngestServiceClient,
    },
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming, transport::Channel};

use crate::{FakeAgent, PATIENCE, RefusedCall};

/// A stream that the service has welcomed.
#[derive(Debug)]
pub struct HeartbeatCall {
    pub welcome: Welcome,
    out: mpsc::Sender<HeartbeatRequest>,
    responses: Streaming<HeartbeatResponse>,
}

impl FakeAgent {
    pub fn hello(&self) -> Hello {
        Hello {
            agent: self.request("").agent,
            host: Some(self.host.clone()),
            run_id: format!("run-{}", self.host.boot_id),
            sent_at: Some(wire_time(Timestamp::now())),
            update: None,
            ..Hello::default()
        }
    }

    /// Opens a stream with this Hello.
    pub async fn try_heartbeat(
        &self,
        address: SocketAddr,
        jwt: &str,
        hello: Hello,
    ) -> anyhow::Result<Result<HeartbeatCall, RefusedCall>> {
        let client = self.connect(address).await?;
        let opened = HeartbeatCall::open(client, jwt, hello).await?;
        Ok(opened.map_err(|status| RefusedCall::of(&status)))
    }

    pub async fn heartbeat(&self, address: SocketAddr, jwt: &str) -> anyhow::Result<HeartbeatCall> {
        let opened = self.try_heartbeat(address, jwt, self.hello()).await?;
        opened.map_err(|refused| anyhow::anyhow!("{refused:?}"))
    }

    /// Opens a stream without sending Hello.
    pub async fn open_stream(
        &self,
        address: SocketAddr,
        jwt: &str,
    ) -> anyhow::Result<Result<Stream, Status>> {
        open_stream(self.connect(address).await?, jwt).await
    }
}

/// Both halves of a stream.
pub type Stream = (mpsc::Sender<HeartbeatRequest>, Streaming<HeartbeatResponse>);

async fn open_stream(
    mut client: IngestServiceClient<Channel>,
    jwt: &str,
) -> anyhow::Result<Result<Stream, Status>> {
    let (out, requests) = mpsc::channel(32);
    let mut request = Request::new(ReceiverStream::new(requests));
    let bearer = format!("Bearer {jwt}").parse()?;
    request.metadata_mut().insert("authorization", bearer);
    let response = client.heartbeat(request).await;
    Ok(response.map(|response| (out, response.into_inner())))
}

impl HeartbeatCall {
    /// Opens a stream and waits for Welcome.
    pub(crate) async fn open(
        client: IngestServiceClient<Channel>,
        jwt: &str,
        hello: Hello,
    ) -> anyhow::Result<Result<Self, Status>> {
        let (out, mut responses) = match open_stream(client, jwt).await? {
            Ok(stream) => stream,
            Err(status) => return Ok(Err(status)),
        };
        out.send(request(ClientMessage::Hello(hello))).await?;
        let response = match timeout(PATIENCE, responses.message()).await? {
            Ok(response) => response,
            Err(status) => return Ok(Err(status)),
        };
        match response.and_then(|response| response.message) {
            Some(ServerMessage::Welcome(welcome)) => Ok(Ok(Self {
                welcome,
                out,
                responses,
            })),
            other => bail!("not a Welcome: {other:?}"),
        }
    }

    pub async fn send(&self, message: ClientMessage) -> anyhow::Result<()> {
        Ok(timeout(PATIENCE, self.out.send(request(message))).await??)
    }

    /// Reports samples of these numbers and waits until they are acknowledged.
    pub async fn report_acked(&mut self, seqs: RangeInclusive<u64>) -> anyhow::Result<()> {
        let last = *seqs.end();
        self.report(seqs.map(sample).collect(), vec![]).await?;
        self.acked_up_to(last).await
    }

    pub async fn report(&self, samples: Vec<Sample>, gaps: Vec<Gap>) -> anyhow::Result<()> {
        let report = Report {
            samples,
            gaps,
            update: None,
            ..Report::default()
        };
        self.send(ClientMessage::Report(report)).await
    }

    /// Sends a report if the stream's channel has room for one now; `report` is asked only then. Returns whether it did.
    pub(crate) fn try_report(&self, report: impl FnOnce() -> Option<Report>) -> bool {
        let Ok(place) = self.out.try_reserve() else {
            return false;
        };
        let Some(report) = report() else {
            return false;
        };
        place.send(request(ClientMessage::Report(report)));
        true
    }

    /// The next message of the service, however late; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<ServerMessage>, Status> {
        loop {
            match self.responses.message().await? {
                None => return Ok(None),
                Some(HeartbeatResponse { message: None }) => {}
                Some(HeartbeatResponse { message }) => return Ok(message),
            }
        }
    }

    /// The next message of the service, in time; `None` at the end.
    pub async fn receive(&mut self) -> anyhow::Result<Result<Option<ServerMessage>, RefusedCall>> {
        let next = timeout(PATIENCE, self.next()).await;
        let next = next.context("no message in time")?;
        Ok(next.map_err(|status| RefusedCall::of(&status)))
    }

    /// The next message that `wanted` takes; skips others.
    async fn next_of<T>(&mut self, wanted: fn(ServerMessage) -> Option<T>) -> anyhow::Result<T> {
        loop {
            match self.receive().await? {
                Ok(Some(message)) => {
                    if let Some(found) = wanted(message) {
                        return Ok(found);
                    }
                }
                ended => bail!("the stream ended: {ended:?}"),
            }
        }
    }

    /// The next acknowledgement.
    pub async fn next_ack(&mut self) -> anyhow::Result<Ack> {
        self.next_of(|message| match message {
            ServerMessage::Ack(ack) => Some(ack),
            _ => None,
        })
        .await
    }

    /// The next offer of a release.
    pub async fn next_offer(&mut self) -> anyhow::Result<UpdateOffer> {
        self.next_of(|message| match message {
            ServerMessage::Offer(offer) => Some(offer),
            _ => None,
        })
        .await
    }

    /// What became of the key that it announced.
    pub async fn next_key_stored(&mut self) -> anyhow::Result<KeyStored> {
        self.next_of(|message| match message {
            ServerMessage::KeyStored(stored) => Some(stored),
            _ => None,
        })
        .await
    }

    /// The next settings.
    pub async fn next_settings(&mut self) -> anyhow::Result<Settings> {
        self.next_of(|message| match message {
            ServerMessage::Settings(settings) => Some(settings),
            _ => None,
        })
        .await
    }

    /// The next request for another key.
    pub async fn next_change_key(&mut self) -> anyhow::Result<()> {
        self.next_of(|message| match message {
            ServerMessage::ChangeKey(_) => Some(()),
            _ => None,
        })
        .await
    }

    /// Says which settings it runs.
    pub async fn says_settings(&self, settings: SettingsState) -> anyhow::Result<()> {
        let report = Report {
            settings: Some(settings),
            ..Report::default()
        };
        self.send(ClientMessage::Report(report)).await
    }

    /// Says how far its update is.
    pub async fn says(&self, update: UpdateState) -> anyhow::Result<()> {
        let report = Report {
            update: Some(update),
            ..Report::default()
        };
        self.send(ClientMessage::Report(report)).await
    }

    /// The next JWT.
    pub async fn next_credential(&mut self) -> anyhow::Result<String> {
        self.next_of(|message| match message {
            ServerMessage::Credential(credential) => Some(credential.jwt),
            _ => None,
        })
        .await
    }

    /// Waits until everything up to `seq` is acknowledged.
    pub async fn acked_up_to(&mut self, seq: u64) -> anyhow::Result<()> {
        while self.next_ack().await?.up_to_seq < seq {}
        Ok(())
    }

    /// How the stream ends, `None` for OK; skips messages.
    pub async fn end(&mut self) -> anyhow::Result<Option<RefusedCall>> {
        loop {
            match self.receive().await? {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(refused) => return Ok(Some(refused)),
            }
        }
    }

    pub async fn goodbye(self) -> anyhow::Result<()> {
        self.leave(None).await
    }

    /// Leaves, and announces to be back within so many seconds.
    pub async fn goodbye_for(self, seconds: i64) -> anyhow::Result<()> {
        let back_within = prost_types::Duration { seconds, nanos: 0 };
        self.leave(Some(back_within)).await
    }

    async fn leave(mut self, back_within: Option<prost_types::Duration>) -> anyhow::Result<()> {
        self.send(ClientMessage::Goodbye(Goodbye {
            reason: "test".into(),
            back_within,
        }))
        .await?;
        match self.end().await? {
            None => Ok(()),
            Some(refused) => bail!("not OK: {refused:?}"),
        }
    }
}

/// A message as a request of the stream.
pub fn request(message: ClientMessage) -> HeartbeatRequest {
    HeartbeatRequest {
        message: Some(message),
    }
}

pub fn sample(seq: u64) -> Sample {
    let vitals = Vitals {
        cpu_percent: 12.5,
        memory_used_bytes: seq,
        memory_total_bytes: 8 << 30,
        ..Vitals::default()
    };
    Sample {
        seq,
        sampled_at: Some(wire_time(Timestamp::now())),
        vitals: Some(vitals),
    }
}

/// A report of these samples that is as large as backlogs of machines with many disks are.
pub fn large_report(seqs: RangeInclusive<u64>) -> Report {
    let disk = |number| Disk {
        mount_point: format!("/srv/volume-{number}"),
        device: format!("/dev/mapper/volume-{number}"),
        fs_type: "ext4".into(),
        total_bytes: 1 << 40,
        used_bytes: 1 << 39,
        ..Disk::default()
    };
    let samples = seqs.map(|seq| {
        let mut sample = sample(seq);
        let vitals = sample.vitals.get_or_insert_default();
        vitals.disks = (0..6).map(disk).collect();
        sample
    });
    Report {
        samples: samples.collect(),
        gaps: vec![],
        update: None,
        ..Report::default()
    }
}

pub fn wire_time(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: at.as_second(),
        nanos: at.subsec_nanosecond(),
    }
}

/// A message as gRPC frames it, without compression.
pub fn framed(message: &impl prost::Message) -> bytes::Bytes {
    let mut bytes = vec![0];
    let length = u32::try_from(message.encoded_len()).expect("a short message");
    bytes.extend(length.to_be_bytes());
    bytes.extend(message.encode_to_vec());
    bytes.into()
}
