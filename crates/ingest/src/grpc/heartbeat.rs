//! `Heartbeat`: the stream between an agent and this instance, from Hello to its end.
//!
//! In reading order: `conversation` (how the response body runs the handler), `inbound` (the client's
//! messages, within the report budget), `greeting` (Hello, the session's opening, Welcome), `stream` (the
//! loop over reports and mail), `receiving` and `report` (from a message to a range, conversion and
//! bounds), `new_key`, `acknowledging` (what the agent learns about its samples).

mod acknowledging;
mod conversation;
mod greeting;
mod inbound;
mod new_key;
mod receiving;
mod report;
mod stream;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::body::Body;
use futures_util::FutureExt;
use jiff::Timestamp;
use svc_front::peer::Peer;
use svc_store::AgentId;

pub(super) use conversation::Conversation;
use conversation::Outbox;
use inbound::Inbound;
pub(super) use inbound::RawBody;
pub use report::{Rules, Violation, entries};

use super::{Context, Refusal};
use crate::session::EndReason;

/// The client of a heartbeat stream, with a verified JWT over its agent's key.
#[derive(Clone, Debug)]
pub(super) struct Authenticated {
    pub agent: AgentId,
    /// When the JWT is to be renewed.
    pub renew_at: Timestamp,
    pub peer: Peer,
}

/// Why the handler of a stream returns.
enum StreamEnd {
    /// The client has gone away, so no answer can reach it.
    ClientGone,
    /// The agent stops. It starts again by itself within this time, where it has said so.
    Goodbye(Option<Duration>),
    /// The agent has moved to another cell.
    Moved,
    Refused(Refusal),
    /// The instance ended the session.
    Ended(EndReason),
}

/// The response body of a heartbeat call, which runs its stream. A panic ends this stream alone.
pub(super) fn converse(context: Arc<Context>, client: Authenticated, body: Body) -> Conversation {
    let inbound = Inbound::new(body, context.budget.clone());
    Conversation::new(|out| async move {
        // Boxed, because this future would otherwise reserve the space of the awaited one twice.
        let handled = Box::pin(handle(&context, &client, inbound, &out));
        let end = AssertUnwindSafe(handled).catch_unwind().await;
        let end = end.unwrap_or_else(|_| {
            tracing::error!(agent.id = %client.agent, "a stream's handler panicked");
            StreamEnd::Refused(Refusal::Internal)
        });
        finish(&context, &out, end).await;
    })
}

async fn handle(
    context: &Arc<Context>,
    client: &Authenticated,
    mut inbound: Inbound,
    out: &Outbox,
) -> StreamEnd {
    // Boxed: the greeting needs much space for a short time, and a stream may be idle for hours.
    match Box::pin(greeting::greet(context, client, &mut inbound, out)).await {
        Err(end) => end,
        Ok(mut stream) => {
            let end = stream.serve(client, &mut inbound).await;
            stream.close_as(&end);
            end
        }
    }
}

/// Sends the final status: OK after Goodbye, otherwise a refusal.
async fn finish(context: &Context, out: &Outbox, end: StreamEnd) {
    let refusal = match end {
        StreamEnd::ClientGone | StreamEnd::Goodbye(_) | StreamEnd::Moved => return,
        StreamEnd::Refused(refusal) => {
            context.sessions.metrics.refused(refusal.reason_name());
            refusal
        }
        StreamEnd::Ended(reason) => reason.into(),
    };
    out.end(refusal.into()).await;
}

fn violation(what: &str) -> StreamEnd {
    StreamEnd::Refused(Refusal::ProtocolViolation(what.to_owned()))
}
