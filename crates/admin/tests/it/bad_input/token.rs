//! Malformed enrolment tokens.

use std::time::Duration;

use anyhow::Result;
use svc_ingest::enrol::EnrolmentToken;
use svc_testkit::{FakeAgent, Site, machine};
use tokio::time::timeout;
use tonic::Code;

/// The unit tests of the token have many more.
fn malformed(good: &str) -> [String; 6] {
    [
        format!("{}\0{}", &good[..20], &good[21..]),
        good.replacen('s', "\u{455}", 1),
        String::new(),
        format!("{}000000", &good[..40]),
        good.replace("svc_enr_", "svc_key_"),
        "x".repeat(20_000),
    ]
}

#[tokio::test]
async fn a_malformed_token_is_refused() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let agent = FakeAgent::on(machine(1))?;
    let good = EnrolmentToken::generate()?.expose().to_owned();
    for text in malformed(&good) {
        let refused = agent.refused(instance.grpc, &text).await?;
        refused.assert(Code::InvalidArgument, "MALFORMED_TOKEN");
        assert!(!refused.message.contains(&good[8..]));
    }
    Ok(())
}

/// The table of tokens is locked, and the service still answers.
#[tokio::test]
async fn a_malformed_token_is_refused_without_a_query() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let agent = FakeAgent::on(machine(1))?;
    let good = EnrolmentToken::generate()?.expose().to_owned();
    let lock = site.hold("LOCK TABLE enrolment_tokens").await?;
    let mistyped = format!("{}000000", &good[..40]);
    let refused = agent.refused(instance.grpc, &mistyped).await?;
    assert_eq!(refused.reason, "MALFORMED_TOKEN");
    let unknown = agent.refused(instance.grpc, &good);
    let unknown = timeout(Duration::from_secs(1), unknown).await;
    assert!(unknown.is_err(), "a well-formed token needs the table");
    lock.release().await
}
