//! Who opens a heartbeat stream: the holder of a valid JWT. That its agent is
//! active, and that the connection's key is the agent's own, is asked of the
//! database when the stream is opened, for many streams at once. A stolen JWT is
//! useless here without the agent's private key.

use jiff::Timestamp;
use svc_store::AgentId;
use tokio::time::Instant;
use tonic::{Request, metadata::MetadataMap};
use uuid::Uuid;

use super::Ingest;
use crate::{
    grpc::Refusal,
    listener::Peer,
    session::Authenticated,
    signing::{Claims, JwtError},
};

pub(super) fn authenticate<T>(
    ingest: &Ingest,
    request: &Request<T>,
) -> Result<Authenticated, Refusal> {
    let peer = request
        .extensions()
        .get::<Peer>()
        .cloned()
        .ok_or(Refusal::Internal)?;
    let claims = verified(ingest, bearer(request.metadata())?).inspect_err(|refusal| {
        tracing::debug!(?refusal, key = %peer.key, "a JWT was refused");
    })?;
    let agent = Uuid::parse_str(&claims.sub)
        .map(AgentId)
        .map_err(|_| Refusal::JwtInvalid)?;
    // By key too, so that a stolen JWT does not use up its owner's openings.
    let opening = ingest.openings.take((agent, peer.key), Instant::now());
    opening.map_err(|retry| Refusal::RateLimited { retry })?;
    let jwt_expires_at = Timestamp::from_second(claims.exp).unwrap_or(Timestamp::MAX);
    Ok(Authenticated {
        agent,
        jwt_expires_at,
        peer,
    })
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
fn verified(ingest: &Ingest, token: &str) -> Result<Claims, Refusal> {
    ingest.key.verify(token, Timestamp::now()).map_err(|error| {
        tracing::debug!(%error, "a JWT does not verify");
        match error {
            JwtError::Expired => Refusal::JwtExpired,
            _ => Refusal::JwtInvalid,
        }
    })
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
