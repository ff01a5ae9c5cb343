//! Who opens a heartbeat stream: a valid JWT, of an ACTIVE agent, over that
//! agent's own key. A stolen JWT is useless here without the agent's private key.

use jiff::Timestamp;
use svc_store::{AgentId, AgentStatus};
use tonic::{Request, metadata::MetadataMap};
use uuid::Uuid;

use super::Ingest;
use crate::{grpc::Refusal, listener::Peer, signing::JwtError};

pub(super) async fn authenticate<T>(
    ingest: &Ingest,
    request: &Request<T>,
) -> Result<AgentId, Refusal> {
    let peer = request
        .extensions()
        .get::<Peer>()
        .copied()
        .ok_or(Refusal::Internal)?;
    let token = bearer(request.metadata())?;
    let agent = verified(ingest, token).inspect_err(|refusal| {
        tracing::debug!(?refusal, key = %peer.key, "a JWT was refused");
    })?;
    let Some((key, status)) = ingest.store.agent_pin(agent).await? else {
        return Err(Refusal::AgentDeleted);
    };
    if key != peer.key.0 {
        return Err(Refusal::KeyMismatch);
    }
    match status {
        AgentStatus::Active => Ok(agent),
        AgentStatus::Pending => Err(Refusal::AgentPending),
        AgentStatus::Rejected => Err(Refusal::AgentRejected),
        AgentStatus::Revoked => Err(Refusal::AgentRevoked),
    }
}

/// The one `authorization: Bearer …`; the scheme's case does not matter (RFC 9110).
fn bearer(metadata: &MetadataMap) -> Result<&str, Refusal> {
    let mut values = metadata.get_all("authorization").iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(Refusal::JwtMissing);
    };
    let text = value.to_str().map_err(|_| Refusal::JwtInvalid)?;
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token),
        _ => Err(Refusal::JwtInvalid),
    }
}

/// The reason goes to the log alone: outside, a JWT is valid, expired or not valid.
fn verified(ingest: &Ingest, token: &str) -> Result<AgentId, Refusal> {
    let claims = ingest
        .key
        .verify(token, Timestamp::now())
        .map_err(|error| {
            tracing::debug!(%error, "a JWT does not verify");
            match error {
                JwtError::Expired => Refusal::JwtExpired,
                _ => Refusal::JwtInvalid,
            }
        })?;
    Uuid::parse_str(&claims.sub)
        .map(AgentId)
        .map_err(|_| Refusal::JwtInvalid)
}

#[cfg(test)]
mod tests {
    use tonic::metadata::MetadataValue;

    use super::*;

    fn metadata(values: &[&str]) -> MetadataMap {
        let mut map = MetadataMap::new();
        for value in values {
            map.append("authorization", MetadataValue::try_from(*value).unwrap());
        }
        map
    }

    #[test]
    fn exactly_one_bearer_token_is_taken() {
        assert_eq!(bearer(&metadata(&["Bearer abc"])), Ok("abc"));
        assert_eq!(bearer(&metadata(&["bEARER abc"])), Ok("abc"));
        assert_eq!(bearer(&metadata(&[])), Err(Refusal::JwtMissing));
        assert_eq!(
            bearer(&metadata(&["Bearer abc", "Bearer abc"])),
            Err(Refusal::JwtMissing)
        );
        for value in ["Bearer", "abc", "Basic abc", "Bearerabc", ""] {
            assert_eq!(
                bearer(&metadata(&[value])),
                Err(Refusal::JwtInvalid),
                "{value}"
            );
        }
        assert_eq!(
            bearer(&metadata(&["Bearer  abc"])),
            Ok(" abc"),
            "the rest is the token's to be refused"
        );
    }
}
