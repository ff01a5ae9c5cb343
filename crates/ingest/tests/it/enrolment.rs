//! From a token to a JWT, and every way in which that can be refused.

use std::{fs, time::Duration};

use anyhow::{Context, ensure};
use futures_util::future::join_all;
use jiff::Timestamp;
use svc_ingest::{enrol::EnrolmentToken, signing};
use svc_proto::v1::AgentStatus;
use tokio::time::sleep;
use tonic::Code;

use crate::{
    agents::{
        AUTO, FakeAgent, MANUAL, ONE_USE, Refused, TokenRules, hex, is_active, machine, token,
    },
    harness::{Site, eventually, get},
};

#[tokio::test]
async fn an_auto_approve_token_gives_a_jwt_at_once() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let agent = FakeAgent::on(machine(1))?;
    let mut stream = agent
        .open(instance.grpc, &token(&site, AUTO).await?)
        .await??;
    let answer = stream.answer().await?;
    assert!(is_active(&answer));
    assert_eq!(stream.next().await?, None, "the stream ends with OK");

    let credential = answer.credential.context("a credential")?;
    let key = signing::read(&site.path("jwt_key.pem"))?.context("the key")?;
    let claims = key.verify(&credential.jwt, Timestamp::now())?;
    assert_eq!(claims.sub, answer.agent_id);
    assert_eq!(
        claims.exp,
        credential.expires_at.context("an expiry")?.seconds
    );
    let left = claims.exp - Timestamp::now().as_second();
    assert!((86_300..=86_400).contains(&left), "24 hours, not {left} s");

    let row = "SELECT status, token_id IS NOT NULL, decided_by LIKE 'token %', h.hostname, h.labels->>'env'
                 FROM agents JOIN hosts h ON h.id = host_id";
    assert_eq!(site.psql(row).await?, "active|t|t|web-1|test");
    Ok(())
}

#[tokio::test]
async fn a_pending_agent_gets_its_decision_on_whichever_instance_it_waits() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let (one, other) = (
        site.instance().start().await?,
        site.instance().start().await?,
    );
    let secret = token(&site, MANUAL).await?;
    for (number, address, decide) in [
        (
            1,
            one.grpc,
            "SELECT approve_agent(id, 'ann') FROM agents WHERE status = 'pending'",
        ),
        (
            2,
            other.grpc,
            "UPDATE agents SET status = 'active' WHERE status = 'pending'",
        ),
    ] {
        let agent = FakeAgent::on(machine(number))?;
        let mut stream = agent.open(address, &secret).await??;
        let first = stream.answer().await?;
        assert_eq!(first.status(), AgentStatus::Pending);
        assert!(
            first
                .message
                .contains(&format!("agent approve {}", first.agent_id)),
            "{}",
            first.message
        );
        site.psql(decide).await?;
        let decision = stream.answer().await?;
        assert!(is_active(&decision));
        assert_eq!(decision.agent_id, first.agent_id);
        assert_eq!(stream.next().await?, None);
    }
    let actors = "SELECT string_agg(decided_by, ',' ORDER BY decided_at) FROM agents";
    assert_eq!(
        site.psql(actors).await?,
        "ann,svc",
        "the claimed actor, or else the database user"
    );
    Ok(())
}

#[tokio::test]
async fn rejection_revocation_and_deletion_end_the_wait_with_their_status() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let secret = token(&site, MANUAL).await?;
    let agent = FakeAgent::on(machine(1))?;
    let mut stream = agent.open(instance.grpc, &secret).await??;
    stream.answer().await?;
    site.psql("SELECT reject_agent(id, 'ann', 'not ours') FROM agents")
        .await?;
    assert_eq!(stream.answer().await?.status(), AgentStatus::Rejected);
    assert_eq!(stream.next().await?, None);

    let deleted = FakeAgent::on(machine(2))?;
    let mut stream = deleted.open(instance.grpc, &secret).await??;
    stream.answer().await?;
    site.psql("DELETE FROM agents WHERE status = 'pending'")
        .await?;
    assert_eq!(stream.failure().await?.code, Code::NotFound);
    Ok(())
}

#[tokio::test]
async fn a_rejected_or_revoked_key_cannot_come_back_until_it_is_reopened() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let secret = token(&site, AUTO).await?;
    let agent = FakeAgent::on(machine(1))?;
    assert!(is_active(&agent.register(instance.grpc, &secret).await?));
    site.psql("SELECT revoke_agent(id, 'ann', 'stolen') FROM agents")
        .await?;
    for given in [secret.as_str(), ""] {
        let answer = agent.register(instance.grpc, given).await?;
        assert_eq!(answer.status(), AgentStatus::Revoked);
        assert!(!is_active(&answer));
    }
    site.psql("SELECT reopen_agent(id, 'ann', 'found again') FROM agents")
        .await?;
    let mut stream = agent.open(instance.grpc, "").await??;
    assert_eq!(stream.answer().await?.status(), AgentStatus::Pending);
    site.psql("SELECT approve_agent(id, 'ann') FROM agents")
        .await?;
    assert!(is_active(&stream.answer().await?));
    let events =
        "SELECT string_agg(concat(from_status, '>', to_status), ' ' ORDER BY id) FROM agent_events";
    assert_eq!(
        site.psql(events).await?,
        ">active active>revoked revoked>pending pending>active"
    );
    assert_eq!(site.psql("SELECT uses FROM enrolment_tokens").await?, "1");
    Ok(())
}

#[tokio::test]
async fn an_active_agent_needs_no_token_and_a_bad_one_does_it_no_harm() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let secret = token(
        &site,
        TokenRules {
            max_uses: 1,
            ..AUTO
        },
    )
    .await?;
    let agent = FakeAgent::on(machine(1))?;
    let first = agent.register(instance.grpc, &secret).await?;
    let unknown = EnrolmentToken::generate()?.expose().to_owned();
    site.psql("UPDATE enrolment_tokens SET expires_at = now() - interval '1 hour'")
        .await?;
    for given in ["", &secret, &unknown] {
        let again = agent.register(instance.grpc, given).await?;
        assert!(is_active(&again));
        assert_eq!(
            (&again.agent_id, &again.host_id),
            (&first.agent_id, &first.host_id)
        );
    }
    assert_eq!(
        site.psql("SELECT uses, count(*) FROM enrolment_tokens, agents GROUP BY 1")
            .await?,
        "1|1"
    );
    Ok(())
}

#[tokio::test]
async fn a_pending_agent_is_approved_by_a_valid_auto_approve_token_once() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let agent = FakeAgent::on(machine(1))?;
    agent
        .register(instance.grpc, &token(&site, ONE_USE).await?)
        .await?;
    let auto = token(&site, AUTO).await?;
    for _ in 0..3 {
        assert!(is_active(&agent.register(instance.grpc, &auto).await?));
    }
    let uses = "SELECT string_agg(uses::text, ',' ORDER BY auto_approve) FROM enrolment_tokens";
    assert_eq!(site.psql(uses).await?, "1,1");
    Ok(())
}

#[tokio::test]
async fn a_token_that_does_not_admit_says_why_to_who_holds_it() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let secret = token(&site, ONE_USE).await?;
    let agent = FakeAgent::on(machine(1))?;
    let unknown = EnrolmentToken::generate()?.expose().to_owned();
    let refused = agent.refused(instance.grpc, &unknown).await?;
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::Unauthenticated, "TOKEN_UNKNOWN")
    );

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
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::Unauthenticated, reason)
        );
        assert!(
            refused.message.contains("svc-ingest token create"),
            "{}",
            refused.message
        );
        assert!(!refused.message.contains(&secret));
    }
    assert_eq!(site.psql("SELECT count(*) FROM agents").await?, "0");
    assert_eq!(site.psql("SELECT count(*) FROM hosts").await?, "0");
    Ok(())
}

#[tokio::test]
async fn what_is_not_of_a_tokens_form_is_refused_before_the_database_is_asked() -> anyhow::Result<()>
{
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let agent = FakeAgent::on(machine(1))?;
    let good = EnrolmentToken::generate()?.expose().to_owned();
    let wrong_checksum = format!("{}000000", &good[..40]);
    for text in [
        "",
        "nonsense",
        &wrong_checksum,
        &good.replace("svc_enr_", "svc_key_"),
        &"x".repeat(20_000),
    ] {
        let refused = agent.refused(instance.grpc, text).await?;
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::InvalidArgument, "MALFORMED_TOKEN"),
            "{text}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn one_key_that_asks_too_often_is_told_when_to_come_back() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let agent = FakeAgent::on(machine(1))?;
    let unknown = EnrolmentToken::generate()?.expose().to_owned();
    let mut limited = None;
    for _ in 0..60 {
        let refused = agent.refused(instance.grpc, &unknown).await?;
        if refused.reason == "RATE_LIMITED" {
            limited = Some(refused);
            break;
        }
    }
    let limited = limited.context("never limited")?;
    assert_eq!(limited.code, Code::ResourceExhausted);
    assert!(limited.retry, "with RetryInfo");
    let other = FakeAgent::on(machine(2))?;
    assert!(
        is_active(
            &other
                .register(instance.grpc, &token(&site, AUTO).await?)
                .await?
        ),
        "others are not held up"
    );
    Ok(())
}

#[tokio::test]
async fn a_failure_between_token_use_and_agent_leaves_neither() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let secret = token(
        &site,
        TokenRules {
            max_uses: 1,
            ..AUTO
        },
    )
    .await?;
    let agent = FakeAgent::on(machine(1))?;
    site.psql(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'on purpose'; END $$;
         CREATE TRIGGER fail AFTER INSERT ON agents FOR EACH ROW EXECUTE FUNCTION fail();",
    )
    .await?;
    let refused = agent.refused(instance.grpc, &secret).await?;
    assert_eq!(refused.code, Code::Internal);
    assert!(
        !refused.message.contains("on purpose"),
        "the service's insides stay inside"
    );
    let left = "SELECT uses, (SELECT count(*) FROM agents), (SELECT count(*) FROM hosts),
                       (SELECT count(*) FROM agent_events) FROM enrolment_tokens";
    assert_eq!(site.psql(left).await?, "0|0|0|0");
    site.psql("DROP TRIGGER fail ON agents").await?;
    assert!(is_active(&agent.register(instance.grpc, &secret).await?));
    assert_eq!(site.psql(left).await?, "1|1|1|1");
    Ok(())
}

#[tokio::test]
async fn a_lost_signing_key_heals_without_a_token_or_a_person() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let agent = FakeAgent::on(machine(1))?;
    let before = agent
        .register(instance.grpc, &token(&site, AUTO).await?)
        .await?;
    instance.stop().await?;
    fs::remove_file(site.path("jwt_key.pem"))?;
    let instance = site.instance().start().await?;
    let after = agent.register(instance.grpc, "").await?;
    assert!(is_active(&after));
    assert_eq!(after.agent_id, before.agent_id);
    let key = signing::read(&site.path("jwt_key.pem"))?.context("a new key")?;
    key.verify(&after.credential.context("a JWT")?.jwt, Timestamp::now())?;
    let old = before.credential.context("a JWT")?.jwt;
    assert!(
        key.verify(&old, Timestamp::now()).is_err(),
        "the old JWT is void"
    );
    Ok(())
}

#[tokio::test]
async fn waiting_registrations_are_told_of_a_drain_and_take_bounded_places() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site
        .instance()
        .limits(|limits| limits.connections = 20)
        .start()
        .await?;
    let secret = token(&site, MANUAL).await?;
    let mut streams = Vec::new();
    for number in 0..3 {
        let mut stream = FakeAgent::on(machine(number))?
            .open(instance.grpc, &secret)
            .await??;
        assert_eq!(stream.answer().await?.status(), AgentStatus::Pending);
        streams.push(stream);
    }
    let over = streams
        .last_mut()
        .context("the third of two places")?
        .failure()
        .await?;
    assert_eq!(
        (over.code, over.reason.as_str(), over.retry),
        (Code::Unavailable, "OVERLOADED", true)
    );
    let stopping = instance.ask_to_stop();
    let told = streams[0].failure().await?;
    assert_eq!(
        (told.code, told.reason.as_str(), told.retry),
        (Code::Unavailable, "DRAINING", true)
    );
    stopping.ended().await
}

#[tokio::test]
async fn no_secret_reaches_the_log_or_the_database() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let process = site
        .process()
        .set("INGEST_LOG", "trace,h2=info,rustls=info,hyper=info")
        .start()
        .await?;
    let secret = token(&site, AUTO).await?;
    let agent = FakeAgent::on(machine(1))?;
    let jwt = agent
        .register(process.grpc, &secret)
        .await?
        .credential
        .context("a JWT")?
        .jwt;
    agent
        .refused(process.grpc, &format!("{}000000", &secret[..40]))
        .await?;
    FakeAgent::on(machine(2))?
        .register(process.grpc, &secret)
        .await?;
    eventually("the log tells of both", async || {
        process.logs().matches("registered").count() >= 2
    })
    .await?;

    let dump = dump(&site).await?;
    assert!(dump.contains("web-1"), "the dump is one");
    let signing_key = fs::read_to_string(site.path("jwt_key.pem"))?;
    let key_line = signing_key.lines().nth(3).context("a line of the key")?;
    for (what, text) in [("log", process.logs()), ("database", dump)] {
        for needle in [
            &secret[8..40],
            jwt.as_str(),
            jwt.rsplit('.').next().context("a signature")?,
            key_line,
        ] {
            assert!(!text.contains(needle), "a secret in the {what}");
        }
    }
    Ok(())
}

/// Every row of every table, as text.
async fn dump(site: &Site) -> anyhow::Result<String> {
    let tables = site
        .psql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        .await?;
    let mut dump = String::new();
    for table in tables.lines() {
        dump += &site.psql(&format!("SELECT t::text FROM {table} t")).await?;
    }
    Ok(dump + &hex(b"end"))
}

const CROWD: u32 = 40;

#[tokio::test]
async fn a_crowd_waits_for_its_turns_and_not_in_vain_for_connections() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site
        .instance()
        .set("INGEST_DB_POOL_SIZE", "4")
        .start()
        .await?;
    let rules = TokenRules {
        max_uses: CROWD.cast_signed(),
        ..AUTO
    };
    let secret = token(&site, rules).await?;
    // For longer than anybody waits for a connection.
    let stalled = site.psql("BEGIN; LOCK TABLE agents; SELECT pg_sleep(3); COMMIT");
    let crowd = join_all((0..CROWD).map(async |number| {
        let agent = FakeAgent::on(machine(number))?;
        loop {
            match agent.open(instance.grpc, &secret).await? {
                Ok(mut stream) => break stream.answer().await,
                Err(status) => {
                    let refused = Refused::of(&status);
                    ensure!(
                        refused.reason == "RATE_LIMITED" && refused.retry,
                        "{refused:?}"
                    );
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }));
    let (stalled, crowd) = tokio::join!(stalled, crowd);
    stalled?;
    for answer in crowd {
        assert!(is_active(&answer?));
    }
    let page = get(instance.http, "/metrics").await?.body;
    let in_vain = page.lines().find(|line| {
        line.contains("transactions_total{")
            && line.contains("regist")
            && line.contains("unavailable")
    });
    assert_eq!(in_vain, None);
    Ok(())
}
