//! Registration: from a token to a JWT, and every refusal.

mod limits;
mod newcomers;

use anyhow::{Context, Result};
use jiff::Timestamp;
use svc_ingest::{enrol::EnrolmentToken, signing};
use svc_proto::v1::AgentStatus;
use svc_testkit::{
    AUTO, FakeAgent, MANUAL, ONE_USE, PATIENCE, Site, assert_contains, is_active, machine, token,
};
use tonic::Code;

/// Every row of every table as text. Partitions are read with their tables: they may be dropped at any time.
pub async fn dump(site: &Site) -> Result<String> {
    let tables = "SELECT oid::regclass FROM pg_class
                   WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition";
    let tables = site.psql(tables).await?;
    let mut dump = String::new();
    for table in tables.lines() {
        dump += &site.psql(&format!("SELECT t::text FROM {table} t")).await?;
    }
    Ok(dump)
}

#[tokio::test]
async fn an_auto_approve_token_returns_a_jwt_at_once() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let agent = FakeAgent::on(machine(1))?;
    let mut stream = agent
        .open(instance.grpc, &token(&site, AUTO).await?)
        .await??;
    let answer = stream.answer().await?;
    assert!(is_active(&answer));
    assert_eq!(stream.next().await?, None, "the stream ends with OK");

    let credential = answer.credential.context("no credential")?;
    let key = signing::read(&site.path("jwt_key.pem"))?.context("no key")?;
    let keys = signing::Keyring::new(key, []);
    let claims = keys.verify(&credential.jwt, Timestamp::now())?.claims;
    assert_eq!(claims.sub, answer.agent_id);
    let expires_at = credential.expires_at.context("no expiry")?;
    assert_eq!(claims.exp, expires_at.seconds);
    let left = claims.exp - Timestamp::now().as_second();
    assert!((86_300..=86_400).contains(&left), "24 hours, not {left} s");

    let row = "SELECT status, token_id IS NOT NULL, decided_by LIKE 'token %', h.hostname, h.labels->>'env'
                 FROM agents JOIN hosts h ON h.id = host_id";
    site.expect(row, "active|t|t|web-1|test").await
}

#[tokio::test]
async fn a_notification_carries_an_approval_to_a_pending_agent_on_any_instance() -> Result<()> {
    let site = Site::new().await?;
    // The poll is far away, so notifications carry the decision.
    let builder = site.instance().timing(|timing| timing.poll = PATIENCE * 10);
    let instances = builder.start_pair().await?;
    let secret = token(&site, MANUAL).await?;
    let decisions = [
        "SELECT approve_agent(id, 'ann') FROM agents WHERE status = 'pending'",
        "UPDATE agents SET status = 'active' WHERE status = 'pending'",
    ];
    for (number, decide) in decisions.into_iter().enumerate() {
        let agent = FakeAgent::on(machine(u32::try_from(number)?))?;
        let mut stream = agent.open(instances[number].grpc, &secret).await??;
        let first = stream.answer().await?;
        assert_eq!(first.status(), AgentStatus::Pending);
        let advice = format!("agent approve {}", first.agent_id);
        assert_contains(&first.message, &advice);
        site.psql(decide).await?;
        let decision = stream.answer().await?;
        assert!(is_active(&decision));
        assert_eq!(decision.agent_id, first.agent_id);
        assert_eq!(stream.next().await?, None);
    }
    // The claimed actor, or the database user.
    let actors = "SELECT string_agg(decided_by, ',' ORDER BY decided_at) FROM agents";
    site.expect(actors, "ann,svc").await
}

#[tokio::test]
async fn a_rejection_or_deletion_ends_a_pending_registration_with_its_status() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, MANUAL).await?;
    let agent = FakeAgent::on(machine(1))?;
    let mut stream = agent.pending(instance.grpc, &secret).await?;
    site.decide_all("reject").await?;
    assert_eq!(stream.answer().await?.status(), AgentStatus::Rejected);
    assert_eq!(stream.next().await?, None);

    let deleted = FakeAgent::on(machine(2))?;
    let mut stream = deleted.pending(instance.grpc, &secret).await?;
    site.psql("DELETE FROM agents WHERE status = 'pending'")
        .await?;
    assert_eq!(stream.failure().await?.code, Code::NotFound);
    Ok(())
}

#[tokio::test]
async fn a_revoked_key_stays_revoked_until_it_is_reopened() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, AUTO).await?;
    let agent = FakeAgent::on(machine(1))?;
    assert!(is_active(&agent.register(instance.grpc, &secret).await?));
    site.decide_all("revoke").await?;
    for given in [secret.as_str(), ""] {
        let answer = agent.register(instance.grpc, given).await?;
        assert_eq!(answer.status(), AgentStatus::Revoked);
        assert!(!is_active(&answer));
    }
    site.decide_all("reopen").await?;
    let mut stream = agent.pending(instance.grpc, "").await?;
    site.decide_all("approve").await?;
    assert!(is_active(&stream.answer().await?));
    let events =
        "SELECT string_agg(concat(from_status, '>', to_status), ' ' ORDER BY id) FROM agent_events";
    site.expect(
        events,
        ">active active>revoked revoked>pending pending>active",
    )
    .await?;
    site.expect("SELECT uses FROM enrolment_tokens", "1").await
}

#[tokio::test]
async fn a_reopened_agent_waits_for_a_person_whatever_token_it_presents() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let first = token(&site, AUTO.uses(2)).await?;
    let other = token(&site, AUTO).await?;
    let agent = FakeAgent::on(machine(1))?;
    assert!(is_active(&agent.register(instance.grpc, &first).await?));
    for decide in ["revoke_agent", "reopen_agent"] {
        let sql = format!("SELECT {decide}(id, 'ann') FROM agents");
        site.psql(&sql).await?;
    }
    for given in [&first, &other] {
        let answer = agent.register(instance.grpc, given).await?;
        assert_eq!(answer.status(), AgentStatus::Pending);
    }
    let uses = "SELECT string_agg(uses::text, ',' ORDER BY max_uses) FROM enrolment_tokens";
    site.expect(uses, "1,0").await
}

#[tokio::test]
async fn a_key_spends_a_token_once_whatever_happens_in_between() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, MANUAL.uses(2)).await?;
    let agent = FakeAgent::on(machine(1))?;
    agent.register(instance.grpc, &secret).await?;
    let uses = "SELECT uses FROM enrolment_tokens";
    // The token that left it pending approves it now.
    site.psql("UPDATE enrolment_tokens SET auto_approve = true")
        .await?;
    assert!(is_active(&agent.register(instance.grpc, &secret).await?));
    site.expect(uses, "1").await?;
    // Its row was deleted: it registers as a new agent.
    site.psql("DELETE FROM agents").await?;
    assert!(is_active(&agent.register(instance.grpc, &secret).await?));
    site.expect(uses, "1").await?;
    let other = FakeAgent::on(machine(2))?;
    assert!(is_active(&other.register(instance.grpc, &secret).await?));
    site.expect(uses, "2").await
}

/// The test vectors of docs/enrolment.md: tokens and their hashes.
#[tokio::test]
async fn a_token_that_another_program_made_admits_an_agent() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let guide = include_str!("../../../../docs/enrolment.md");
    let vectors: Vec<(&str, &str)> = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| `svc_enr_")?.split_once("` | `"))
        .map(|(token, hash)| (token, hash.trim_end_matches("` |")))
        .collect();
    assert!(vectors.len() >= 3, "docs/enrolment.md has test vectors");
    for (number, (token, hash)) in (1..).zip(vectors) {
        let add = format!("SELECT add_enrolment_token('\\x{hash}', 'portal', 'ann')");
        site.psql(&add).await?;
        let agent = FakeAgent::on(machine(number))?;
        let answer = agent
            .register(instance.grpc, &format!("svc_enr_{token}"))
            .await?;
        assert_eq!(answer.status(), AgentStatus::Pending, "{token}");
    }
    Ok(())
}

#[tokio::test]
async fn an_active_agent_needs_no_token_and_a_bad_one_changes_nothing() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, AUTO.uses(1)).await?;
    let agent = FakeAgent::on(machine(1))?;
    let first = agent.register(instance.grpc, &secret).await?;
    let unknown = EnrolmentToken::generate()?.expose().to_owned();
    site.psql("UPDATE enrolment_tokens SET expires_at = now() - interval '1 hour'")
        .await?;
    for given in ["", &secret, &unknown] {
        let again = agent.register(instance.grpc, given).await?;
        assert!(is_active(&again));
        assert_eq!(again.agent_id, first.agent_id);
        assert_eq!(again.host_id, first.host_id);
    }
    site.expect(
        "SELECT uses, count(*) FROM enrolment_tokens, agents GROUP BY 1",
        "1|1",
    )
    .await
}

#[tokio::test]
async fn a_pending_agent_is_approved_by_a_valid_auto_approve_token_once() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let agent = FakeAgent::on(machine(1))?;
    agent
        .register(instance.grpc, &token(&site, ONE_USE).await?)
        .await?;
    let auto = token(&site, AUTO).await?;
    for _ in 0..3 {
        assert!(is_active(&agent.register(instance.grpc, &auto).await?));
    }
    let uses = "SELECT string_agg(uses::text, ',' ORDER BY auto_approve) FROM enrolment_tokens";
    site.expect(uses, "1,1").await
}

#[tokio::test]
async fn a_token_that_does_not_admit_is_refused_with_its_reason() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, ONE_USE).await?;
    let agent = FakeAgent::on(machine(1))?;
    let unknown = EnrolmentToken::generate()?.expose().to_owned();
    let refused = agent.refused(instance.grpc, &unknown).await?;
    refused.assert(Code::Unauthenticated, "TOKEN_UNKNOWN");

    for (change, reason) in [
        ("expires_at = now() - interval '1 hour'", "TOKEN_EXPIRED"),
        (
            "expires_at = NULL, uses = 1, last_used_at = now()",
            "TOKEN_EXHAUSTED",
        ),
        ("revoked_at = now()", "TOKEN_REVOKED"),
    ] {
        site.psql(&format!("UPDATE enrolment_tokens SET {change}"))
            .await?;
        let refused = agent.refused(instance.grpc, &secret).await?;
        refused.assert(Code::Unauthenticated, reason);
        assert_contains(&refused.message, "svc-ingest token create");
        assert!(!refused.message.contains(&secret));
    }
    site.expect("SELECT count(*) FROM agents", "0").await?;
    site.expect("SELECT count(*) FROM hosts", "0").await
}
