//! How a stream begins: its Hello, its opening in the database, and its Welcome.

use std::{collections::VecDeque, sync::Arc};

use jiff::Timestamp;
use svc_proto::v1::{
    HeartbeatRequest, Hello, heartbeat_request::Message as Said,
    heartbeat_response::Message as Saying,
};
use svc_store::{CloseCause, Opened, SessionOpen};
use tokio::time::{Instant, timeout};
use tonic::Streaming;

use super::{Authenticated, Over, Stream, StreamContext, undecodable, violation};
use crate::{
    grpc::{Refusal, convert},
    session::{Held, Inbox, Numbering, Outbox},
};

const MAX_RUN_ID: usize = 255;

/// Hello in, the stream opened, Welcome out.
pub(super) async fn greet(
    context: &Arc<StreamContext>,
    who: &Authenticated,
    inbound: &mut Streaming<HeartbeatRequest>,
    out: &Outbox,
) -> Result<Stream, Over> {
    let hello = match timeout(context.timing.hello_deadline, inbound.message()).await {
        Err(_) => return Err(Over::Refused(Refusal::HelloTimeout)),
        Ok(Err(status)) => return Err(undecodable(&status)),
        Ok(Ok(None)) => return Err(Over::Gone),
        Ok(Ok(Some(request))) => match request.message {
            Some(Said::Hello(hello)) => hello,
            _ => return Err(violation("the first message is not Hello")),
        },
    };
    let open = session_open(context, who, hello).map_err(Over::Refused)?;
    if !context.watch.is_fresh() {
        return Err(Over::Refused(Refusal::DatabaseUnavailable));
    }
    let opened = context
        .opener
        .open(open)
        .await
        .map_err(|error| Over::Refused(error.into()))?;
    let (epoch, acked, host) = match opened {
        Opened::Open {
            epoch,
            acked_seq,
            host_id,
        } => (epoch, acked_seq, host_id),
        refused => return Err(Over::Refused(refused.into())),
    };
    let inbox = Arc::new(Inbox::default());
    context.sessions.insert(Held {
        agent: who.agent,
        epoch,
        jwt_expires_at: who.jwt_expires_at,
        inbox: inbox.clone(),
    });
    context.sessions.metrics.opened.inc();
    context.sessions.metrics.streams.inc();
    let stream = Stream {
        context: context.clone(),
        agent: who.agent,
        host,
        epoch,
        inbox,
        out: out.clone(),
        numbering: Numbering::after(acked),
        in_flight: VecDeque::new(),
        rejected: VecDeque::new(),
        acked,
        told: acked,
        owed: false,
        reports_full_at: Instant::now(),
        slowed_until: None,
        aged: false,
        cause: CloseCause::Lost,
        ending: "lost",
    };
    stream.out.say(Saying::Welcome(stream.welcome())).await;
    Ok(stream)
}

fn session_open(
    context: &StreamContext,
    who: &Authenticated,
    hello: Hello,
) -> Result<SessionOpen, Refusal> {
    if hello.run_id.is_empty()
        || hello.run_id.len() > MAX_RUN_ID
        || hello.run_id.chars().any(char::is_control)
    {
        return Err(Refusal::MalformedRequest(
            "run_id is missing, too long, or holds a control character".into(),
        ));
    }
    let skew = hello
        .sent_at
        .and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
    let skew_ms = skew.map(|at| at.duration_since(context.clock.now()).as_millis());
    let agent = convert::agent_facts(hello.agent)?;
    let facts = convert::host_facts(hello.host)?;
    Ok(SessionOpen {
        agent_id: who.agent,
        key: who.peer.key.to_string(),
        boot_id: facts.boot_id.clone(),
        run_id: hello.run_id,
        version: agent.version,
        capabilities: agent.capabilities,
        facts,
        skew_ms: skew_ms.and_then(|skew| i64::try_from(skew).ok()),
    })
}
