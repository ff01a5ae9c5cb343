//! Limits and failures of registration, and its secrets.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use svc_ingest::{enrol::EnrolmentToken, signing};
use svc_proto::v1::AgentStatus;
use svc_testkit::{
    AUTO, FakeAgent, MANUAL, ONE_USE, RefusedCall, Site, eventually,
    faults::{registrations_behind_a_lock, registrations_reset},
    is_active, machine, token, transactions,
};
use tonic::Code;

use super::dump;

/// From now on registrations fail in the database.
const FAIL: &str = "
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'on purpose'; END $$;
    CREATE TRIGGER fail AFTER INSERT ON agents FOR EACH ROW EXECUTE FUNCTION fail()";

#[tokio::test]
async fn a_key_that_registers_too_often_gets_a_retry_delay() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let agent = FakeAgent::on(machine(1))?;
    let unknown = EnrolmentToken::generate()?.expose().to_owned();
    let mut refused = agent.refused(instance.grpc, &unknown).await?;
    for _ in 0..60 {
        if refused.reason == "RATE_LIMITED" {
            break;
        }
        refused = agent.refused(instance.grpc, &unknown).await?;
    }
    refused.assert_with_delay(Code::ResourceExhausted, "RATE_LIMITED");
    let other = FakeAgent::on(machine(2))?;
    let auto = token(&site, AUTO).await?;
    let answer = other.register(instance.grpc, &auto).await?;
    assert!(is_active(&answer), "other keys are not limited");
    Ok(())
}

#[tokio::test]
async fn a_failed_registration_spends_no_token_use() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, AUTO.uses(1)).await?;
    let agent = FakeAgent::on(machine(1))?;
    site.psql(FAIL).await?;
    let refused = agent.refused(instance.grpc, &secret).await?;
    assert_eq!(refused.code, Code::Internal);
    assert!(
        !refused.message.contains("on purpose"),
        "the answer has no internals"
    );
    let left = "SELECT uses, (SELECT count(*) FROM agents), (SELECT count(*) FROM hosts),
                       (SELECT count(*) FROM agent_events) FROM enrolment_tokens";
    site.expect(left, "0|0|0|0").await?;
    site.psql("DROP TRIGGER fail ON agents").await?;
    assert!(is_active(&agent.register(instance.grpc, &secret).await?));
    site.expect(left, "1|1|1|1").await
}

#[tokio::test]
async fn agents_get_new_jwts_without_a_token_after_the_signing_key_is_lost() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
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
    let key = signing::read(&site.path("jwt_key.pem"))?.context("no key")?;
    let keys = signing::Keyring::new(key, []);
    keys.verify(&after.credential.context("no JWT")?.jwt, Timestamp::now())?;
    let old = before.credential.context("no JWT")?.jwt;
    assert!(
        keys.verify(&old, Timestamp::now()).is_err(),
        "the old JWT is void"
    );
    Ok(())
}

#[tokio::test]
async fn pending_registrations_are_bounded_and_end_with_a_drain() -> Result<()> {
    let site = Site::new().await?;
    let builder = site.instance().limits(|limits| limits.connections = 20);
    let instance = builder.start().await?;
    let secret = token(&site, MANUAL).await?;
    let mut streams = Vec::new();
    for number in 0..3 {
        let agent = FakeAgent::on(machine(number))?;
        streams.push(agent.pending(instance.grpc, &secret).await?);
    }
    let third = streams[2].failure().await?;
    third.assert_with_delay(Code::Unavailable, "OVERLOADED");
    let stopping = instance.ask_to_stop();
    let drained = streams[0].failure().await?;
    drained.assert_with_delay(Code::Unavailable, "DRAINING");
    stopping.ended().await
}

#[tokio::test]
async fn a_pending_agent_has_one_waiting_place_which_its_newest_call_takes() -> Result<()> {
    let site = Site::new().await?;
    let builder = site.instance().limits(|limits| limits.connections = 20);
    let instance = builder.start().await?;
    let secret = token(&site, MANUAL).await?;
    let greedy = FakeAgent::on(machine(1))?;
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(greedy.pending(instance.grpc, &secret).await?);
    }
    let other = FakeAgent::on(machine(2))?;
    let mut waiting = other.pending(instance.grpc, &secret).await?;
    let mut newest = calls.pop().context("three calls")?;
    for mut older in calls {
        let replaced = older.failure().await?;
        replaced.assert_with_delay(Code::Aborted, "SESSION_REPLACED");
    }
    site.decide_all("approve").await?;
    assert!(is_active(&newest.answer().await?));
    assert!(is_active(&waiting.answer().await?));
    Ok(())
}

/// Only an active agent's key can ask for a successor, and a refused request does not spend the token.
#[tokio::test]
async fn a_token_that_a_request_does_not_spend_gives_it_no_transaction() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, ONE_USE).await?;
    for number in 1..=5 {
        let stranger = FakeAgent::on(machine(number))?;
        let mut client = stranger.connect(instance.grpc).await?;
        let mut request = stranger.request(&secret);
        request.successor_key = vec![7; 32];
        for _ in 0..8 {
            let refused = client.register(request.clone()).await;
            let refused = RefusedCall::of(&refused.expect_err("an unknown key"));
            refused.assert(Code::InvalidArgument, "MALFORMED_REQUEST");
        }
    }
    let ran = transactions(&[instance.http]).await?;
    ensure!(!ran.contains_key("register_successor"), "{ran:?}");
    site.expect("SELECT uses FROM enrolment_tokens", "0")
        .await?;
    let answer = FakeAgent::on(machine(9))?
        .register(instance.grpc, &secret)
        .await?;
    assert_eq!(answer.status(), AgentStatus::Pending);
    Ok(())
}

#[tokio::test]
async fn refused_registrations_write_a_few_log_lines_and_the_number_of_the_rest() -> Result<()> {
    let (_site, process) = Site::with_process().await?;
    let unknown = EnrolmentToken::generate()?.expose().to_owned();
    let lines = || -> Vec<String> {
        let logs = process.logs();
        let refused = logs.lines().filter(|line| line.contains("was refused"));
        refused.map(str::to_owned).collect()
    };
    let began = Instant::now();
    for number in 1..=80 {
        let stranger = FakeAgent::on(machine(number))?;
        let refused = stranger.refused(process.grpc, &unknown).await?;
        refused.assert(Code::Unauthenticated, "TOKEN_UNKNOWN");
    }
    let (count, most) = (lines().len() as u64, 6 + began.elapsed().as_secs() / 10);
    ensure!((1..=most).contains(&count), "{count} lines, at most {most}");
    eventually("a line has the number of the others", async || {
        if let Ok(stranger) = FakeAgent::on(machine(1)) {
            drop(stranger.refused(process.grpc, &unknown).await);
        }
        lines().iter().any(|line| !line.contains("suppressed=0"))
    })
    .await?;
    process.stop().await.map(drop)
}

/// 60 calls each: rejected agents ask again, and registrations fail in the database.
#[tokio::test]
async fn calls_that_change_nothing_write_few_log_lines_of_any_kind() -> Result<()> {
    let (site, process) = Site::with_process().await?;
    let secret = token(&site, MANUAL.uses(100)).await?;
    let agents: Vec<FakeAgent> = (1..=72)
        .map(|number| FakeAgent::on(machine(number)))
        .collect::<Result<_>>()?;
    let (rejected, new) = agents.split_at(12);
    for agent in rejected {
        agent.register(process.grpc, &secret).await?;
    }
    let lines = || process.logs().lines().count();
    site.decide_all("reject").await?;
    let (began, before) = (Instant::now(), lines());
    for _ in 0..5 {
        for agent in rejected {
            let answer = agent.register(process.grpc, "").await?;
            assert_eq!(answer.status(), AgentStatus::Rejected);
        }
    }
    site.psql(FAIL).await?;
    for agent in new {
        let refused = agent.refused(process.grpc, &secret).await?;
        assert_eq!(refused.code, Code::Internal);
    }
    let most = 2 * (6 + began.elapsed().as_secs() as usize / 10) + 4;
    let written = lines() - before;
    ensure!(written <= most, "{written} lines:\n{}", process.logs());
    process.stop().await.map(drop)
}

#[tokio::test]
async fn no_secret_reaches_the_log_or_the_database() -> Result<()> {
    let site = Site::new().await?;
    let process = site
        .process()
        .set("INGEST_LOG", "trace,h2=info,rustls=info,hyper=info");
    let process = process.start().await?;
    let secret = token(&site, AUTO).await?;
    let agent = FakeAgent::on(machine(1))?;
    let jwt = agent.jwt(process.grpc, &secret).await?;
    agent
        .refused(process.grpc, &format!("{}000000", &secret[..40]))
        .await?;
    FakeAgent::on(machine(2))?
        .register(process.grpc, &secret)
        .await?;
    eventually("both registrations are logged", async || {
        process.logs().matches("registered").count() >= 2
    })
    .await?;

    let dump = dump(&site).await?;
    assert!(dump.contains("web-1"), "the dump has rows");
    let signing_key = fs::read_to_string(site.path("jwt_key.pem"))?;
    let key_line = signing_key.lines().nth(3).context("no such line")?;
    for (what, text) in [("log", process.logs()), ("database", dump)] {
        for needle in [
            &secret[8..40],
            jwt.as_str(),
            jwt.rsplit('.').next().context("no signature")?,
            key_line,
        ] {
            assert!(!text.contains(needle), "a secret in the {what}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn registrations_that_are_reset_cost_no_database_connection() -> Result<()> {
    let seen = registrations_reset(100, Duration::from_secs(4)).await?;
    ensure!(seen.resets >= 100, "{seen:?}");
    ensure!(seen.connections <= seen.allowed, "{seen:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_registers_behind_a_locked_table_is_admitted() -> Result<()> {
    registrations_behind_a_lock().await?;
    Ok(())
}
