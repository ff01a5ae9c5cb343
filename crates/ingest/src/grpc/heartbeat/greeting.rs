//! The beginning of a stream: Hello from the client, the session opened in the database, Welcome to the client.

use std::sync::Arc;

use jiff::Timestamp;
use svc_proto::{
    ClientMessage, ServerMessage,
    contract::limits::MAX_RUN_ID_BYTES,
    v1::{Hello, Welcome},
};
use svc_store::{Opened, SessionOpen};
use tokio::time::timeout;

use super::{
    Authenticated, Outbox, StreamEnd, inbound::Inbound, stream::HeartbeatStream, violation,
};
use crate::{
    grpc::{Context, Refusal, convert, settings, trust},
    session::{Inbox, OPEN_TOLERANCE, OPEN_VALIDITY, Said, Session, SessionKey, settings_said},
};

pub(super) async fn greet(
    context: &Arc<Context>,
    client: &Authenticated,
    inbound: &mut Inbound,
    out: &Outbox,
) -> Result<HeartbeatStream, StreamEnd> {
    let standing = &client.peer.standing;
    standing.awaited(); // It is the client's turn, so the connection can be evicted.
    let hello = hello(context, inbound).await;
    let hello = hello.inspect_err(|_| standing.answered())?;
    let trial = standing.trial();
    let stream = open(context, client, hello, out)
        .await
        .map_err(StreamEnd::Refused)?;
    trial.succeed();
    let welcome = welcome(context, &stream);
    stream.out.send(ServerMessage::Welcome(welcome)).await;
    Ok(stream)
}

async fn hello(context: &Context, inbound: &mut Inbound) -> Result<Hello, StreamEnd> {
    let first = timeout(context.timing.hello_deadline, inbound.first());
    let first = first
        .await
        .map_err(|_| StreamEnd::Refused(Refusal::HelloTimeout))??;
    match first.ok_or(StreamEnd::ClientGone)?.message {
        Some(ClientMessage::Hello(hello)) => Ok(hello),
        _ => Err(violation("the first message is not Hello")),
    }
}

/// Opens the session in the database and adds it to the table.
async fn open(
    context: &Arc<Context>,
    client: &Authenticated,
    mut hello: Hello,
    out: &Outbox,
) -> Result<HeartbeatStream, Refusal> {
    let update = hello.update.take().map(convert::update);
    let settings = hello.settings.take().map(settings::said);
    let trust = hello.trust.take().map(trust::report);
    let cell = hello.cell.take();
    let mut open = session_open(context, client, hello)?;
    convert::cell(cell.as_ref(), &mut open)?;
    if !context.freshness.is_fresh() {
        return Err(Refusal::DatabaseUnavailable);
    }
    let agent = client.agent;
    let (epoch, acked, host, change_key) = match context.opener.open(open).await? {
        Opened::Open {
            epoch,
            acked_seq,
            host_id,
            change_key,
        } => (epoch, acked_seq, host_id, change_key),
        Opened::RetiredKey => {
            context.pins.forget(agent);
            return Err(Refusal::RetiredKey);
        }
        refused => return Err(refused.into()),
    };
    let inbox = Arc::new(Inbox::default());
    context.pins.learn(agent, client.peer.key);
    if change_key {
        inbox.ask_for_key();
    }
    let key = SessionKey { agent, epoch };
    if update.is_some() {
        inbox.take_offers();
    }
    if trust.is_some() {
        inbox.take_trust();
    }
    context.sessions.insert(Session {
        key,
        renew_at: client.renew_at,
        inbox: inbox.clone(),
    });
    if let Some(cell) = cell.filter(|cell| !cell.problem.is_empty()) {
        let problem = convert::problem(&cell.problem);
        context.moves.problem(agent, problem);
    }
    if let Some(update) = update {
        context.updates.put(agent, update, Said::InHello);
    }
    if let Some(said) = settings {
        settings_said(&inbox, &context.settings, agent, said);
    }
    context.trust.put(agent, trust);
    context.sessions.metrics.opened.inc();
    context.sessions.metrics.streams.inc();
    let (context, out) = (context.clone(), out.clone());
    Ok(HeartbeatStream::new(context, key, host, acked, inbox, out))
}

fn session_open(
    context: &Context,
    client: &Authenticated,
    hello: Hello,
) -> Result<SessionOpen, Refusal> {
    if hello.run_id.is_empty()
        || hello.run_id.len() > MAX_RUN_ID_BYTES
        || hello.run_id.chars().any(char::is_control)
    {
        return Err(Refusal::MalformedRequest(
            "run_id is missing, too long, or holds a control character".into(),
        ));
    }
    let sent_at = hello
        .sent_at
        .and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
    let now = context.clock.now();
    // The earliest, so that a session opened after this Hello is never taken for an older one.
    let requested_at = context.clock.earliest_now();
    let skew_ms = sent_at.map(|at| at.duration_since(now).as_millis());
    let agent = convert::agent_facts(hello.agent)?;
    let facts = convert::host_facts(hello.host)?;
    Ok(SessionOpen {
        agent_id: client.agent,
        key: client.peer.key.to_string(),
        boot_id: facts.boot_id.clone(),
        run_id: hello.run_id,
        version: agent.version,
        capabilities: agent.capabilities,
        facts,
        address: client.peer.ip(),
        skew_ms: skew_ms.and_then(|skew| i64::try_from(skew).ok()),
        requested_at: requested_at - OPEN_TOLERANCE,
        valid_until: requested_at + OPEN_VALIDITY,
        elsewhere: None,
    })
}

fn welcome(context: &Context, stream: &HeartbeatStream) -> Welcome {
    Welcome {
        agent_id: stream.session.agent.to_string(),
        server_time: Some(convert::timestamp(context.clock.now())),
        settings: Some(settings::message(&context.agents, None)),
        acked_seq: stream.acked.cast_unsigned(),
        nonce: stream.nonce.to_vec(),
    }
}
