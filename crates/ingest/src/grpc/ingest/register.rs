//! `Register`: the first answer at once; while the agent is pending the stream
//! stays open, and the decision arrives on it, on whichever instance it waits.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use svc_proto::v1::{AgentStatus as WireStatus, Credential, RegisterRequest, RegisterResponse};
use svc_store::AgentStatus;
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Request, Status};

use super::{Ingest, ResponseStream};
use crate::{
    enrol::{EnrolmentToken, IssueError, RegisterError, Registration, Standing},
    grpc::{Refusal, convert},
    listener::{ClientKey, Peer},
    signing::Jwt,
    watch::Decision,
};

/// For registrations that wait on an instance that stops.
const DRAIN_RETRY: Duration = Duration::from_secs(1);

pub(super) async fn register(
    ingest: Arc<Ingest>,
    request: Request<RegisterRequest>,
) -> Result<ResponseStream<RegisterResponse>, Refusal> {
    let peer = request
        .extensions()
        .get::<Peer>()
        .cloned()
        .ok_or(Refusal::Internal)?;
    let (wanted, successor) = parse(request.into_inner(), peer.key)?;
    let turn = ingest.turns.take().await;
    let turn = turn.map_err(|retry| refused(RegisterError::RateLimited { retry }, &peer))?;
    let registered = match successor {
        None => ingest.enrolment.register(&wanted).await,
        Some(successor) => {
            ingest
                .enrolment
                .register_successor(&wanted, successor)
                .await
        }
    };
    let standing = registered.map_err(|error| refused(error, &peer))?;
    tracing::info!(
        agent.id = %standing.agent, agent.status = standing.status.as_str(), agent.key = %successor.unwrap_or(peer.key),
        host.id = %standing.host, host.name = wanted.facts.hostname, "registered"
    );
    match (standing.status, successor) {
        // A successor's decision, and its JWT, are for the connection that proves its key.
        (_, Some(_)) => Ok(Box::pin(stream::iter([Ok(answer(&standing, None))]))),
        (AgentStatus::Pending, None) => {
            drop(turn);
            Ok(wait(ingest, standing))
        }
        (_, None) => Ok(Box::pin(stream::iter([decided(&ingest, standing).await]))),
    }
}

/// Everything a client sends is bounded and checked here, before the database is asked.
fn parse(
    request: RegisterRequest,
    key: ClientKey,
) -> Result<(Registration, Option<ClientKey>), Refusal> {
    let token = match request.enrolment_token.as_str() {
        "" => None,
        text => Some(
            EnrolmentToken::parse(text)
                .map_err(|_| Refusal::MalformedToken)?
                .hash(),
        ),
    };
    let successor = convert::successor_key(&request.successor_key)?.map(ClientKey);
    let facts = convert::host_facts(request.host)?;
    let agent = convert::agent_facts(request.agent)?;
    Ok((
        Registration {
            key,
            token,
            facts,
            agent,
        },
        successor,
    ))
}

/// Logged for the operator, whoever is told what outside.
fn refused(error: RegisterError, peer: &Peer) -> Refusal {
    match &error {
        RegisterError::Store(_) => {} // Logged where it is converted.
        RegisterError::RateLimited { .. } => {
            tracing::debug!(agent.key = %peer.key, peer = %peer.address, "a registration was put off");
        }
        reason => {
            tracing::warn!(%reason, agent.key = %peer.key, peer = %peer.address, "a registration was refused");
        }
    }
    error.into()
}

/// PENDING now, the decision when it is made. Without a free place the client is asked to come back.
fn wait(ingest: Arc<Ingest>, standing: Standing) -> ResponseStream<RegisterResponse> {
    let first = Ok(answer(&standing, None));
    let last = match ingest.waiting.clone().try_acquire_owned() {
        Ok(place) => stream::once(decision(ingest, standing, place)).boxed(),
        Err(_) => stream::once(async { Err(Refusal::Overloaded.into()) }).boxed(),
    };
    Box::pin(stream::iter([first]).chain(last))
}

async fn decision(
    ingest: Arc<Ingest>,
    standing: Standing,
    _place: OwnedSemaphorePermit,
) -> Result<RegisterResponse, Status> {
    let mut waiting = ingest.watch.wait_for(standing.agent);
    let Some(decision) = ingest.stop.run_until_cancelled(waiting.decision()).await else {
        return Err(Refusal::Draining { retry: DRAIN_RETRY }.into());
    };
    let turn = ingest.turns.take().await;
    let _turn = turn.map_err(|retry| Refusal::RateLimited { retry })?;
    match decision {
        Decision::Decided(status) => decided(&ingest, Standing { status, ..standing }).await,
        Decision::Deleted => Err(Refusal::AgentDeleted.into()),
    }
}

/// The answer to an agent that waits no longer: with a JWT only if it is active now.
async fn decided(ingest: &Ingest, standing: Standing) -> Result<RegisterResponse, Status> {
    if standing.status != AgentStatus::Active {
        return Ok(answer(&standing, None));
    }
    match ingest.issuer.issue(standing.agent).await {
        Ok(jwt) => Ok(answer(&standing, Some(jwt))),
        Err(IssueError::NotActive(Some(status))) => {
            Ok(answer(&Standing { status, ..standing }, None))
        }
        Err(IssueError::NotActive(None)) => Err(Refusal::AgentDeleted.into()),
        Err(IssueError::Signing) => {
            tracing::error!("a JWT could not be signed");
            Err(Refusal::Internal.into())
        }
        Err(IssueError::Store(error)) => Err(Refusal::from(error).into()),
    }
}

fn answer(standing: &Standing, jwt: Option<Jwt>) -> RegisterResponse {
    RegisterResponse {
        agent_id: standing.agent.to_string(),
        host_id: standing.host.to_string(),
        status: wire_status(standing.status).into(),
        message: message(standing),
        credential: jwt.map(credential),
    }
}

pub(super) fn credential(jwt: Jwt) -> Credential {
    let expires_at = prost_types::Timestamp {
        seconds: jwt.expires_at.as_second(),
        nanos: 0,
    };
    Credential {
        jwt: jwt.text,
        expires_at: Some(expires_at),
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

/// For whoever reads the agent's log.
fn message(standing: &Standing) -> String {
    let agent = standing.agent;
    match (standing.status, standing.conflict_with) {
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
