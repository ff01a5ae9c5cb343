//! Enrolment tokens that are not of a token's form.

use std::time::Duration;

use anyhow::Result;
use svc_ingest::enrol::EnrolmentToken;
use tokio::time::timeout;
use tonic::Code;

use crate::{
    agents::{FakeAgent, machine},
    harness::{Site, eventually},
};

fn lookalikes(good: &str) -> [String; 8] {
    let (head, tail) = good.split_at(20);
    [
        format!("{head}\0{}", &tail[1..]),
        format!("{good}\0"),
        good.replacen('s', "\u{455}", 1),
        good.replacen("enr", "\u{435}nr", 1),
        format!("{head}\u{ff11}{}", &tail[1..]),
        format!("{head}\u{200b}{tail}"),
        format!("{good}\n"),
        good.to_ascii_uppercase(),
    ]
}

#[tokio::test]
async fn a_token_that_only_looks_like_one_is_refused() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let agent = FakeAgent::on(machine(1))?;
    let good = EnrolmentToken::generate()?.expose().to_owned();
    for text in lookalikes(&good) {
        let refused = agent.refused(instance.grpc, &text).await?;
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::InvalidArgument, "MALFORMED_TOKEN"),
            "{text:?}"
        );
        assert!(!refused.message.contains(&good[8..]));
    }
    Ok(())
}

/// While nobody can read the table of tokens, who sends a malformed one is answered all the same.
#[tokio::test]
async fn a_malformed_token_is_refused_before_the_database_is_asked() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let agent = FakeAgent::on(machine(1))?;
    let good = EnrolmentToken::generate()?.expose().to_owned();
    let locked = site.psql("BEGIN; LOCK TABLE enrolment_tokens; SELECT pg_sleep(60)");
    let asked = async {
        let waits = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND wait_event = 'PgSleep'";
        eventually("the table is locked", async || {
            site.psql(waits).await.is_ok_and(|count| count == "1")
        })
        .await?;
        let mistyped = format!("{}000000", &good[..40]);
        let refused = agent.refused(instance.grpc, &mistyped).await?;
        assert_eq!(refused.reason, "MALFORMED_TOKEN");
        let unknown = agent.refused(instance.grpc, &good);
        let unknown = timeout(Duration::from_secs(1), unknown).await;
        assert!(unknown.is_err(), "the lock holds up who does ask it");
        Ok(())
    };
    tokio::select! {
        asked = asked => asked,
        locked = locked => anyhow::bail!("the lock ended: {locked:?}"),
    }
}
