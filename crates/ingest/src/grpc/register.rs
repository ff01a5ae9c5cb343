//! `Register`: the first answer comes at once. While the agent is pending, the response stream stays open,
//! and the decision arrives on it, whichever instance it is made on.
//!
//! **A client that leaves costs no database connection.** A transaction whose future is dropped midway must
//! close its connection, because its state is unknown; a client could do that a thousand times a
//! second by resetting its calls. So everything that asks the database runs in tasks that a cancelled call
//! does not cancel: those of the batches ([`batched`](crate::batched)), and one for each registration that needs a
//! transaction of its own ([`to_its_end`]), which holds a permit. What a task has done when its client is gone is
//! as if the answer were lost on the way: the client registers again with the same key, and gets the same agent.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use svc_front::peer::{ClientKey, Peer};
use svc_proto::v1::{AgentStatus as WireStatus, Move, RegisterRequest, RegisterResponse};
use svc_store::{AgentId, AgentStatus};
use tonic::{Request, Status};

use super::{Context, Refusal, ResponseStream, convert, peer};
use crate::{
    changes::{WaitEnd, Waiting},
    enrol::{
        Admitted, EnrolmentToken, IssueError, Permit, RegisterError, RegisteredAgent, Registration,
        StatusError,
    },
    log_limit::LogLimit,
    signing::Jwt,
};

/// The retry delay for registrations that wait on an instance that stops.
const DRAIN_RETRY: Duration = Duration::from_secs(1);

static REFUSED: LogLimit = LogLimit::new();

pub(super) async fn register(
    context: Arc<Context>,
    request: Request<RegisterRequest>,
) -> Result<ResponseStream<RegisterResponse>, Refusal> {
    let peer = peer(&request)?;
    let trial = peer.standing.trial();
    let (wanted, successor) = parse(request.into_inner(), &peer)?;
    let wanted = Arc::new(wanted);
    let (succeeds, key) = (successor.is_some(), successor.unwrap_or(peer.key));
    let admitted = context.admission.admit(&wanted, succeeds, || trial.vouch());
    let registered = match admitted.await.map_err(|error| refused(error, &peer))? {
        Admitted::Registered(registered) => registered,
        Admitted::Permitted(permit) => {
            let registering = run(context.clone(), peer, wanted, successor);
            to_its_end(permit, registering).await?
        }
    };
    context.pins.learn(registered.agent, key);
    if matches!(
        registered.status,
        AgentStatus::Active | AgentStatus::Pending
    ) {
        trial.succeed();
    }
    let answer = match (registered.status, successor) {
        // The decision about a successor, and its JWT, go to the connection that proves the successor's key.
        (_, Some(_)) => answer(&registered, None),
        (AgentStatus::Pending, None) => return Ok(wait(context, registered)),
        (_, None) => RegisterResponse {
            move_to: move_to(&context, registered.agent).await,
            ..decided(&context, registered).await?
        },
    };
    Ok(Box::pin(stream::iter([Ok(answer)])))
}

/// Runs `work`, even if the call that waits for it is cancelled.
async fn to_its_end<T: Send + 'static>(
    permit: Permit,
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    let task = tokio::spawn(async move {
        let _held_to_the_end = permit;
        work.await
    });
    task.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a registration panicked");
        Err(Refusal::Internal)
    })
}

/// The transaction.
async fn run(
    context: Arc<Context>,
    peer: Peer,
    wanted: Arc<Registration>,
    successor: Option<ClientKey>,
) -> Result<RegisteredAgent, Refusal> {
    let registered = match successor {
        None => context.enrolment.register(&wanted).await,
        Some(key) => context.enrolment.register_successor(&wanted, key).await,
    };
    let registered = registered.map_err(|error| refused(error, &peer))?;
    registered.log(successor.unwrap_or(peer.key), &wanted.facts);
    Ok(registered)
}

/// Bounds and checks everything that the client sent, before the database is asked.
fn parse(
    request: RegisterRequest,
    peer: &Peer,
) -> Result<(Registration, Option<ClientKey>), Refusal> {
    let token = Some(&request.enrolment_token).filter(|text| !text.is_empty());
    let token = token.map(|text| EnrolmentToken::parse(text)).transpose();
    let token = token.map_err(|_| Refusal::MalformedToken)?;
    let successor = convert::successor_key(&request.successor_key)?.map(ClientKey);
    let facts = convert::host_facts(request.host)?;
    let wanted = Registration {
        key: peer.key,
        token: token.map(|token| token.hash()),
        facts,
        agent: convert::agent_facts(request.agent)?,
        address: peer.ip(),
    };
    Ok((wanted, successor))
}

/// Logs the reason for the operator.
fn refused(error: RegisterError, peer: &Peer) -> Refusal {
    match &error {
        // Logged where they become refusals, or for a whole batch.
        RegisterError::Store(_) | RegisterError::Unavailable | RegisterError::LookupFailed => {}
        RegisterError::RateLimited { .. } | RegisterError::Overloaded => {
            tracing::debug!(agent.key = %peer.key, peer = %peer.address, "a registration must retry later");
        }
        reason => REFUSED.line(|suppressed| {
            tracing::warn!(
                %reason, agent.key = %peer.key, peer = %peer.address, suppressed, "a registration was refused"
            );
        }),
    }
    error.into()
}

/// Where the agent is told to be: one that has lost its memory of a move asks here again. A failure says nothing, because the
/// agent is asked again on its stream. The lookup is a task, because its client may leave.
async fn move_to(context: &Arc<Context>, agent: AgentId) -> Option<Move> {
    if !context.moves.cells_exist() {
        return None;
    }
    let context = context.clone();
    let lookup = tokio::spawn(async move { context.enrolment.move_of(agent).await });
    let cell = lookup.await.ok()?.ok()??;
    Some(convert::move_to(&cell))
}

/// Sends PENDING now and the decision when it is made. Without a free place the client must retry.
fn wait(context: Arc<Context>, registered: RegisteredAgent) -> ResponseStream<RegisterResponse> {
    let first = Ok(answer(&registered, None));
    let last = match context.changes.wait_for(registered.agent) {
        Some(waiting) => stream::once(decision(context, registered, waiting)).boxed(),
        None => stream::once(async { Err(Refusal::Overloaded.into()) }).boxed(),
    };
    Box::pin(stream::iter([first]).chain(last))
}

async fn decision(
    context: Arc<Context>,
    mut registered: RegisteredAgent,
    mut waiting: Waiting,
) -> Result<RegisterResponse, Status> {
    let Some(decision) = context.stop.run_until_cancelled(waiting.decision()).await else {
        return Err(Refusal::Draining { retry: DRAIN_RETRY }.into());
    };
    let status = match decision {
        WaitEnd::Decided(status) => status,
        WaitEnd::Deleted => return Err(Refusal::AgentDeleted.into()),
        WaitEnd::Replaced => return Err(Refusal::SessionReplaced.into()),
    };
    registered.status = status;
    Ok(decided(&context, registered).await?)
}

/// The final answer, with a JWT only if the agent is active now.
async fn decided(
    context: &Context,
    mut registered: RegisteredAgent,
) -> Result<RegisterResponse, Refusal> {
    if registered.status != AgentStatus::Active {
        return Ok(answer(&registered, None));
    }
    match context.issuer.issue(registered.agent).await {
        Ok(jwt) => Ok(answer(&registered, Some(jwt))),
        Err(IssueError::NotActive(Some(status))) => {
            registered.status = status;
            Ok(answer(&registered, None))
        }
        Err(IssueError::NotActive(None)) => Err(Refusal::AgentDeleted),
        Err(IssueError::Signing) => {
            tracing::error!("a JWT could not be signed");
            Err(Refusal::Internal)
        }
        Err(IssueError::Status(StatusError::Unavailable)) => Err(Refusal::DatabaseUnavailable),
        Err(IssueError::Status(StatusError::Failed)) => Err(Refusal::Internal),
    }
}

fn answer(registered: &RegisteredAgent, jwt: Option<Jwt>) -> RegisterResponse {
    RegisterResponse {
        agent_id: registered.agent.to_string(),
        host_id: registered.host.to_string(),
        status: wire_status(registered.status).into(),
        message: message(registered),
        credential: jwt.map(convert::credential),
        ..RegisterResponse::default()
    }
}

fn wire_status(status: AgentStatus) -> WireStatus {
    match status {
        AgentStatus::Pending => WireStatus::Pending,
        AgentStatus::Active => WireStatus::Active,
        AgentStatus::Rejected => WireStatus::Rejected,
        AgentStatus::Revoked => WireStatus::Revoked,
    }
}

/// A message for the agent's log, with the next step for an administrator.
fn message(registered: &RegisteredAgent) -> String {
    let agent = registered.agent;
    match (registered.status, registered.conflict_with) {
        (AgentStatus::Active, _) => String::new(),
        (AgentStatus::Pending, None) => {
            format!(
                "waiting for approval: compare this key's fingerprint, then `svc-ingest agent approve {agent}`"
            )
        }
        (AgentStatus::Pending, Some(incumbent)) => format!(
            "waiting for a decision: this machine has the active agent {incumbent}; `svc-ingest agent approve {agent}` \
             with --replace (reinstalled) or --new-host (another machine)"
        ),
        (AgentStatus::Rejected, _) => {
            format!("rejected: `svc-ingest agent reopen {agent}` lets it ask again")
        }
        (AgentStatus::Revoked, _) => {
            format!("revoked: `svc-ingest agent reopen {agent}` lets it ask again")
        }
    }
}
