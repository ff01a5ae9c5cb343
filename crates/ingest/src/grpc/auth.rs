//! Authentication of a heartbeat stream: the client must present a valid JWT.
//!
//! That the agent is active, and that the connection's key is the agent's own, is checked in the database
//! when the session is opened, for many sessions in one statement. Without the agent's private key a
//! stolen JWT opens nothing.

use std::time::Duration;

use jiff::Timestamp;
use svc_store::AgentId;
use tokio::time::Instant;
use tonic::{Request, metadata::MetadataMap};
use uuid::Uuid;

use super::{Context, Refusal, heartbeat::Authenticated, peer};
use crate::{
    peer::ClientKey,
    signing::{JwtError, Verified},
};

pub(super) fn authenticate<T>(
    context: &Context,
    request: &Request<T>,
) -> Result<Authenticated, Refusal> {
    let peer = peer(request)?;
    let jwt = verify(context, bearer(request.metadata())?).inspect_err(|refusal| {
        tracing::debug!(?refusal, key = %peer.key, "a JWT was refused");
    })?;
    let agent = Uuid::parse_str(&jwt.claims.sub)
        .map(AgentId)
        .map_err(|_| Refusal::JwtInvalid)?;
    limit_openings(context, agent, peer.key)?;
    Ok(Authenticated {
        agent,
        renew_at: renewal(&jwt, context.timing.renew_before),
        peer,
    })
}

/// A JWT of another key than the signing key is renewed at once, because that key is being replaced.
fn renewal(jwt: &Verified, renew_before: Duration) -> Timestamp {
    let expires_at = Timestamp::from_second(jwt.claims.exp).unwrap_or(Timestamp::MAX);
    match jwt.by_signing_key {
        true => expires_at - renew_before,
        false => Timestamp::UNIX_EPOCH,
    }
}

/// Refuses a key that is known to be wrong, and limits how often the right one opens streams. Client keys cost
/// nothing, so they have no buckets of their own. While the agent's pin is not known, nothing is charged to the
/// agent, because the client may be a thief; the opener then holds one place for all requests of the agent.
fn limit_openings(context: &Context, agent: AgentId, key: ClientKey) -> Result<(), Refusal> {
    match context.pins.matches(agent, key) {
        None => Ok(()),
        Some(false) => Err(Refusal::KeyMismatch),
        Some(true) => {
            let opening = context.openings.take(agent, Instant::now());
            opening.map_err(|retry| Refusal::RateLimited { retry })
        }
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

/// The exact reason goes to the log only. The client learns that its JWT has expired or is not valid.
fn verify(context: &Context, token: &str) -> Result<Verified, Refusal> {
    let verified = context.keys.verify(token, context.clock.now());
    verified.map_err(|error| {
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
    fn exactly_one_bearer_token_is_accepted() {
        assert_eq!(bearer(&metadata(&["Bearer abc"])), Ok("abc"));
        assert_eq!(bearer(&metadata(&["bEARER abc"])), Ok("abc"));
        assert_eq!(bearer(&metadata(&[])), Err(Refusal::JwtMissing));
        let two = metadata(&["Bearer abc", "Bearer abc"]);
        assert_eq!(bearer(&two), Err(Refusal::JwtMissing));
        for value in ["Bearer", "abc", "Basic abc", "Bearerabc", ""] {
            let metadata = metadata(&[value]);
            assert_eq!(bearer(&metadata), Err(Refusal::JwtInvalid), "{value}");
        }
        // A second space belongs to the token, which does not verify then.
        assert_eq!(bearer(&metadata(&["Bearer  abc"])), Ok(" abc"));
    }
}
