//! `Heartbeat`: the client side of one heartbeat stream, from Hello to its end.
//!
//! This module knows the messages of the protocol. Where samples come from, and what
//! the agent does with a message, is decided by its caller.

use std::{sync::Arc, time::Duration};

use secrecy::ExposeSecret;
use svc_proto::{
    ClientMessage, ServerMessage,
    contract::limits,
    v1::{
        CellState, Goodbye, HeartbeatRequest, HeartbeatResponse, Hello, NewKey, Report,
        SettingsState, TrustState, UpdateState, Welcome,
    },
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Streaming,
    metadata::{Ascii, MetadataValue},
};

use super::{CallFailure, Connection, Credential, connect::Server};

/// The most samples, and the most gaps, of one report.
pub const MAX_REPORT_SAMPLES: usize = limits::MAX_SAMPLES;
/// The size of a report is estimated while it is built, so it stays below the limit of a
/// message.
pub const MAX_REPORT_BYTES: usize = 224 * 1024;
const _: () = assert!(MAX_REPORT_BYTES < limits::MAX_HEARTBEAT_BYTES);
const _: () = assert!(MAX_REPORT_SAMPLES <= limits::MAX_GAPS);

/// Messages that wait until HTTP/2 sends them. A full channel means that the service does
/// not read: [`HeartbeatCall::report`] then waits.
const OUTBOUND: usize = 2;

/// An open heartbeat stream. Dropping it closes the connection without a Goodbye.
#[derive(Debug)]
pub struct HeartbeatCall {
    out: mpsc::Sender<HeartbeatRequest>,
    answers: Streaming<HeartbeatResponse>,
    /// What the service knows of an update.
    told: Option<UpdateState>,
    /// What it knows of settings.
    told_settings: Option<SettingsState>,
    /// What it knows of the agent's trust.
    told_trust: Option<TrustState>,
    /// Why the agent does not move to another cell, as the service knows.
    told_problem: String,
    connection: Connection,
}

impl HeartbeatCall {
    /// Opens the stream, sends Hello, and returns with the service's Welcome.
    pub async fn open(
        connection: Connection,
        credential: &Credential,
        hello: Hello,
        deadline: Duration,
    ) -> Result<(Self, Welcome), CallFailure> {
        let opening = Self::exchange_hello(connection, credential, hello);
        let late = |_| CallFailure::lost("the service did not send Welcome in time");
        timeout(deadline, opening).await.map_err(late)?
    }

    async fn exchange_hello(
        mut connection: Connection,
        credential: &Credential,
        hello: Hello,
    ) -> Result<(Self, Welcome), CallFailure> {
        let (out, requests) = mpsc::channel(OUTBOUND);
        let mut request = Request::new(ReceiverStream::new(requests));
        let metadata = request.metadata_mut();
        metadata.insert("authorization", bearer(credential)?);
        let told = hello.update.clone();
        let told_settings = hello.settings.clone();
        let told_trust = hello.trust.clone();
        let told_problem = hello.cell.as_ref().map(|cell| cell.problem.clone());
        send(&out, ClientMessage::Hello(hello)).await?;
        let answers = connection.client.heartbeat(request).await?.into_inner();
        let mut call = Self {
            out,
            answers,
            told,
            told_settings,
            told_trust,
            told_problem: told_problem.unwrap_or_default(),
            connection,
        };
        match call.next().await? {
            ServerMessage::Welcome(welcome) => Ok((call, welcome)),
            _ => Err(CallFailure::lost("the service did not begin with Welcome")),
        }
    }

    /// Queues a report. It waits while the service does not read.
    pub async fn report(&self, report: Report) -> Result<(), CallFailure> {
        send(&self.out, ClientMessage::Report(report)).await
    }

    /// Shows that the agent lives, with an empty report. Messages that wait already show it, too.
    pub fn alive(&self) {
        let message = Some(ClientMessage::Report(Report::default()));
        drop(self.out.try_send(HeartbeatRequest { message }));
    }

    /// Says how far an update is, unless the service knows it. While other messages wait, it is not said; call this again.
    pub fn tell(&mut self, state: &UpdateState) {
        if self.told.as_ref() == Some(state) {
            return;
        }
        let update = Some(state.clone());
        let message = Some(ClientMessage::Report(Report {
            update: update.clone(),
            ..Report::default()
        }));
        if self.out.try_send(HeartbeatRequest { message }).is_ok() {
            self.told = update;
        }
    }

    /// Announces a new key. Returns whether it did: while other messages wait, it does not.
    pub fn announce(&self, new_key: &NewKey) -> bool {
        let message = Some(ClientMessage::NewKey(new_key.clone()));
        self.out.try_send(HeartbeatRequest { message }).is_ok()
    }

    /// Says which settings are in force, in the same way.
    pub fn tell_settings(&mut self, state: &SettingsState) {
        if self.told_settings.as_ref() == Some(state) {
            return;
        }
        let settings = Some(state.clone());
        let message = Some(ClientMessage::Report(Report {
            settings: settings.clone(),
            ..Report::default()
        }));
        if self.out.try_send(HeartbeatRequest { message }).is_ok() {
            self.told_settings = settings;
        }
    }

    /// Says what the agent trusts, in the same way.
    pub fn tell_trust(&mut self, state: &TrustState) {
        if self.told_trust.as_ref() == Some(state) {
            return;
        }
        let trust = Some(state.clone());
        let message = Some(ClientMessage::Report(Report {
            trust: trust.clone(),
            ..Report::default()
        }));
        if self.out.try_send(HeartbeatRequest { message }).is_ok() {
            self.told_trust = trust;
        }
    }

    /// The server at the other end.
    pub fn server(&self) -> Arc<Server> {
        self.connection.server.clone()
    }

    /// Says why the agent does not move from `cell` to another one, in the same way.
    pub fn tell_cell(&mut self, cell: &str, problem: &str) {
        if self.told_problem == problem {
            return;
        }
        let cell = Some(CellState {
            cell: cell.to_owned(),
            problem: problem.to_owned(),
            acked_elsewhere: 0,
        });
        let message = Some(ClientMessage::Report(Report {
            cell,
            ..Report::default()
        }));
        if self.out.try_send(HeartbeatRequest { message }).is_ok() {
            problem.clone_into(&mut self.told_problem);
        }
    }

    /// The next message of the service, never a second Welcome. The end of the stream is
    /// always an error. Cancel-safe: a message is either returned or still in the stream.
    pub async fn message(&mut self) -> Result<ServerMessage, CallFailure> {
        match self.next().await? {
            ServerMessage::Welcome(_) => Err(CallFailure::lost("the service sent Welcome twice")),
            message => Ok(message),
        }
    }

    /// Announces that the agent stops on purpose, and when it is back, and waits until the service has
    /// ended the stream in response.
    pub async fn goodbye(
        mut self,
        reason: &str,
        back_within: Option<Duration>,
    ) -> Result<(), CallFailure> {
        let goodbye = Goodbye {
            reason: reason.to_owned(),
            back_within: back_within.and_then(|time| time.try_into().ok()),
        };
        send(&self.out, ClientMessage::Goodbye(goodbye)).await?;
        while self.answers.message().await?.is_some() {}
        Ok(())
    }

    async fn next(&mut self) -> Result<ServerMessage, CallFailure> {
        loop {
            match self.answers.message().await? {
                None => return Err(CallFailure::lost("the service ended the stream")),
                Some(HeartbeatResponse {
                    message: Some(message),
                }) => return Ok(message),
                Some(_) => {} // A message of a later version of the protocol.
            }
        }
    }
}

/// The header is marked as sensitive, so that no layer below logs it or indexes it in the
/// HPACK table.
fn bearer(credential: &Credential) -> Result<MetadataValue<Ascii>, CallFailure> {
    let text = format!("Bearer {}", credential.jwt.expose_secret());
    let mut bearer: MetadataValue<Ascii> = text
        .parse()
        .map_err(|_| CallFailure::lost("the JWT is not a valid header value"))?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

async fn send(
    out: &mpsc::Sender<HeartbeatRequest>,
    message: ClientMessage,
) -> Result<(), CallFailure> {
    let request = HeartbeatRequest {
        message: Some(message),
    };
    let ended = |_| CallFailure::lost("the stream has ended");
    out.send(request).await.map_err(ended)
}
