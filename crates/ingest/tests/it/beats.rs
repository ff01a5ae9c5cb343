//! A heartbeat stream, as the tests hold one: Hello and reports out, answers in.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use jiff::Timestamp;
use svc_proto::v1::{
    Ack, Gap, Goodbye, HeartbeatRequest, HeartbeatResponse, Hello, Report, Sample, Vitals, Welcome,
    heartbeat_request::Message as Say, heartbeat_response::Message as Hear,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use crate::{
    agents::{FakeAgent, Refused},
    harness::PATIENCE,
};

#[derive(Debug)]
pub struct Beat {
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
        }
    }

    /// A JWT for this agent, which is known to the service.
    pub async fn jwt(&self, address: SocketAddr, token: &str) -> anyhow::Result<String> {
        let answer = self.register(address, token).await?;
        Ok(answer.credential.context("a credential")?.jwt)
    }

    /// Opens a stream and says `hello`.
    pub async fn beat_with(
        &self,
        address: SocketAddr,
        jwt: &str,
        hello: Hello,
    ) -> anyhow::Result<Result<Beat, Refused>> {
        let (out, mut responses) = match self.stream(address, jwt).await? {
            Ok(stream) => stream,
            Err(status) => return Ok(Err(Refused::of(&status))),
        };
        out.send(saying(Say::Hello(hello))).await?;
        match timeout(PATIENCE, responses.message()).await? {
            Err(status) => Ok(Err(Refused::of(&status))),
            Ok(Some(HeartbeatResponse {
                message: Some(Hear::Welcome(welcome)),
            })) => Ok(Ok(Beat {
                welcome,
                out,
                responses,
            })),
            Ok(other) => bail!("not a welcome: {other:?}"),
        }
    }

    pub async fn beat(&self, address: SocketAddr, jwt: &str) -> anyhow::Result<Beat> {
        let opened = self.beat_with(address, jwt, self.hello()).await?;
        opened.map_err(|refused| anyhow::anyhow!("{refused:?}"))
    }

    /// The bare stream, before Hello.
    pub async fn stream(
        &self,
        address: SocketAddr,
        jwt: &str,
    ) -> anyhow::Result<
        Result<(mpsc::Sender<HeartbeatRequest>, Streaming<HeartbeatResponse>), Status>,
    > {
        let mut client = self.connect(address).await?;
        let (out, requests) = mpsc::channel(32);
        let mut request = Request::new(ReceiverStream::new(requests));
        request
            .metadata_mut()
            .insert("authorization", format!("Bearer {jwt}").parse()?);
        Ok(client
            .heartbeat(request)
            .await
            .map(|response| (out, response.into_inner())))
    }
}

impl Beat {
    pub async fn say(&self, message: Say) -> anyhow::Result<()> {
        Ok(timeout(PATIENCE, self.out.send(saying(message))).await??)
    }

    pub async fn report(&self, samples: Vec<Sample>, gaps: Vec<Gap>) -> anyhow::Result<()> {
        self.say(Say::Report(Report { samples, gaps })).await
    }

    /// What the service says next; `None` at the end.
    pub async fn hear(&mut self) -> anyhow::Result<Result<Option<Hear>, Refused>> {
        let response = timeout(PATIENCE, self.responses.message())
            .await
            .context("it says nothing")?;
        Ok(response
            .map(|said| said.and_then(|said| said.message))
            .map_err(|status| Refused::of(&status)))
    }

    /// The next acknowledgement; whatever else is said before it is passed over.
    pub async fn ack(&mut self) -> anyhow::Result<Ack> {
        loop {
            match self.hear().await? {
                Ok(Some(Hear::Ack(ack))) => return Ok(ack),
                Ok(Some(_)) => {}
                Ok(None) => bail!("the stream ended"),
                Err(refused) => bail!("the stream was refused: {refused:?}"),
            }
        }
    }

    /// Waits for everything up to `seq` to be acknowledged.
    pub async fn acked(&mut self, seq: u64) -> anyhow::Result<()> {
        while self.ack().await?.up_to_seq < seq {}
        Ok(())
    }

    /// How the stream ends; whatever is said before it is passed over.
    pub async fn end(&mut self) -> anyhow::Result<Option<Refused>> {
        loop {
            match self.hear().await? {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(refused) => return Ok(Some(refused)),
            }
        }
    }

    pub async fn goodbye(mut self) -> anyhow::Result<()> {
        self.say(Say::Goodbye(Goodbye {
            reason: "test".into(),
        }))
        .await?;
        match self.end().await? {
            None => Ok(()),
            Some(refused) => bail!("not OK: {refused:?}"),
        }
    }
}

pub fn saying(message: Say) -> HeartbeatRequest {
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

pub fn wire_time(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: at.as_second(),
        nanos: at.subsec_nanosecond(),
    }
}
