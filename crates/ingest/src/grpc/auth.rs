//! Authentication of a heartbeat stream: the client must present a valid JWT over a key of its agent, the present one or the next.
//! Without the agent's private key a stolen JWT opens nothing, and takes nothing from its owner or from others.
//!
//! That the agent is active is checked in the database when the session is opened, for many sessions in one statement.

use std::time::Duration;

use jiff::Timestamp;
use svc_store::{AgentId, KeyStanding};
use tokio::time::Instant;
use tonic::{Request, metadata::MetadataMap};
use uuid::Uuid;

use super::{Context, Refusal, heartbeat::Authenticated, peer};
use crate::signing::{JwtError, Verified};

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

/// Refuses a client whose key is not the agent's, and limits how often the agent opens streams. A thief is refused
/// before the agent is charged. A deleted agent has no owner: every client that presents its JWT is charged. An instance that is cut
/// off from its database refuses at once, so that the agent tries another.
pub(super) async fn admit(context: &Context, client: &Authenticated) -> Result<(), Refusal> {
    if !context.freshness.is_fresh() {
        return Err(Refusal::DatabaseUnavailable);
    }
    let peer = &client.peer;
    let standing = context.pins.of(client.agent, peer.key, peer.ip()).await?;
    match standing {
        Some(KeyStanding::Unknown) => return Err(Refusal::KeyMismatch),
        Some(KeyStanding::Retired) => return Err(Refusal::RetiredKey),
        Some(KeyStanding::Present | KeyStanding::Next) | None => {}
    }
    let opening = context.openings.take(client.agent, Instant::now());
    opening.map_err(|retry| Refusal::RateLimited { retry })?;
    standing.map(drop).ok_or(Refusal::AgentDeleted)
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
