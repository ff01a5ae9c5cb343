//! A harmless call that shows whether the service answers, and returns its time.

use std::time::{Duration, SystemTime};

use jiff::fmt::rfc2822;
use svc_proto::contract::Reason;
use tokio::time::timeout;
use tonic::Status;

use super::{CallFailure, Connection};

/// Opens a heartbeat stream without a JWT. A service that refuses it with JWT_MISSING
/// has accepted the client certificate and understood the call.
pub async fn probe(
    mut connection: Connection,
    deadline: Duration,
) -> Result<Option<SystemTime>, CallFailure> {
    let call = connection.client.heartbeat(tokio_stream::empty());
    match timeout(deadline, call).await {
        Err(_) => Err(CallFailure::lost("the service did not answer in time")),
        Ok(Ok(_)) => Ok(None),
        Ok(Err(status)) => {
            let time = date(&status);
            let failure = CallFailure::from(status);
            match failure.is(Reason::JwtMissing) {
                true => Ok(time),
                false => Err(failure),
            }
        }
    }
}

/// The `Date` header of the response, which has a resolution of one second.
fn date(status: &Status) -> Option<SystemTime> {
    let date = status.metadata().get("date")?.to_str().ok()?;
    let parsed = rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    Some(parsed.into())
}
