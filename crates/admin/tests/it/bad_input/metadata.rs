//! Heartbeat calls without exactly one `authorization: Bearer <jwt>`.

use anyhow::Result;
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Code;

use super::{Enrolled, HEARTBEAT, admitted, authorization};

#[tokio::test]
async fn a_stream_needs_exactly_one_bearer_token() -> Result<()> {
    let mut enrolled = Enrolled::new().await?;
    let jwt = enrolled.active.jwt.clone();
    let bearer = format!("Bearer {jwt}").into_bytes();
    let basic = format!("Basic {jwt}").into_bytes();
    for (values, reason) in [
        (&[][..], "JWT_MISSING"),
        (&[&bearer[..], b"Bearer x"], "JWT_MISSING"),
        (&[b""], "JWT_INVALID"),
        (&[&basic], "JWT_INVALID"),
        (&[b"Bearer \xff\xfe\x80"], "JWT_INVALID"),
    ] {
        let headers = authorization(values)?;
        let refused = enrolled.connection.heartbeat(headers).await?;
        refused.assert(Code::Unauthenticated, reason);
    }
    let headers = authorization(&[format!("bEaReR {jwt}").as_bytes()])?;
    let end = enrolled.connection.heartbeat(headers).await?;
    assert!(admitted(&end), "{end:?}");
    Ok(())
}

#[tokio::test]
async fn unknown_headers_are_ignored() -> Result<()> {
    let mut enrolled = Enrolled::new().await?;
    let bearer = format!("Bearer {}", enrolled.active.jwt);
    for (name, value) in [
        ("x-junk", &b"\xff\xfe\x80"[..]),
        ("x-junk-bin", b"this is not base64!"),
        ("grpc-timeout", b"soon"),
        ("x-forwarded-for", b"10.0.0.1"),
    ] {
        let mut headers = authorization(&[bearer.as_bytes()])?;
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_bytes(value)?,
        );
        let end = enrolled.connection.heartbeat(headers).await?;
        assert!(admitted(&end), "{name}: {end:?}");
    }
    Ok(())
}

/// HTTP itself refuses them (431), before gRPC sees the call.
#[tokio::test]
async fn headers_over_8_kib_are_refused_and_the_connection_stays_usable() -> Result<()> {
    let mut enrolled = Enrolled::new().await?;
    for (values, name) in [(1, "authorization"), (300, "x-many")] {
        let mut headers = HeaderMap::new();
        let value = format!("Bearer {}", "x".repeat(9 * 1024 / values));
        for _ in 0..values {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_str(&value)?,
            );
        }
        let connection = &mut enrolled.connection.connection;
        let answer = connection.ask(HEARTBEAT, headers, vec![]).await;
        let refused = answer.map_or(true, |headers| !headers.contains_key("grpc-status"));
        assert!(refused, "{name}");
        enrolled.connection.assert_usable().await?;
    }
    Ok(())
}
