//! A question that changes nothing: whether the service answers, and what time it is.

use std::time::SystemTime;

use jiff::fmt::rfc2822;
use tonic::Status;

use super::{Connection, Refusal};

/// Asks for a stream without showing a JWT. Whoever refuses it for that reason has
/// taken our certificate and understood the call.
pub async fn probe(mut connection: Connection) -> Result<Option<SystemTime>, Refusal> {
    match connection.client.heartbeat(tokio_stream::empty()).await {
        Ok(_) => Ok(None),
        Err(status) => {
            let time = date(&status);
            let refusal = Refusal::from(status);
            match refusal.name.as_str() {
                "JWT_MISSING" => Ok(time),
                _ => Err(refusal),
            }
        }
    }
}

/// To the second, as every HTTP answer says it.
fn date(status: &Status) -> Option<SystemTime> {
    let date = status.metadata().get("date")?.to_str().ok()?;
    let parsed = rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    Some(parsed.into())
}
