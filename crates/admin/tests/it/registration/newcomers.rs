//! New agents that are registered in batches, beside those that are registered step by step.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use svc_proto::v1::RegisterResponse;
use svc_testkit::{
    AUTO, FakeAgent, Instance, MANUAL, Site, is_active, machine, token, transactions,
};
use tokio::time::timeout;
use tonic::Code;

const CROWD: u32 = 100;

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_new_agents_is_registered_in_few_transactions() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, AUTO.uses(CROWD.cast_signed())).await?;
    let answers = crowd(&site, &instance, &secret).await?;
    ensure!(answers.iter().all(is_active), "all are active at once");
    let counts = transactions(&[instance.http]).await?;
    let count = |name| counts.get(name).copied().unwrap_or_default();
    assert_eq!(count("register"), 0, "none was registered step by step");
    for name in ["registrations_lookup", "registrations_admit"] {
        let most = u64::from(CROWD / 2);
        ensure!((1..=most).contains(&count(name)), "{name}: {}", count(name));
    }
    let stored =
        "SELECT count(*), (SELECT uses FROM enrolment_tokens), (SELECT count(*) FROM hosts),
                         (SELECT count(*) FROM enrolment_token_uses) FROM agents";
    site.expect(stored, "100|100|100|100").await
}

/// Registers `CROWD` machines at once. They gather behind a lock, so that batches do not depend on the speed of the machine.
/// It is held for half of the time that the service waits for a lock.
async fn crowd(site: &Site, instance: &Instance, secret: &str) -> Result<Vec<RegisterResponse>> {
    let lock = site.psql("BEGIN; LOCK TABLE enrolment_tokens; SELECT pg_sleep(1); COMMIT");
    let crowd = try_join_all((0..CROWD).map(async |number| {
        let agent = FakeAgent::on(machine(number))?;
        agent.register(instance.grpc, secret).await
    }));
    let (locked, answers) = tokio::join!(lock, crowd);
    locked?;
    answers
}

/// A batch writes the same rows as the steps. A machine whose host was retired is registered in steps.
#[tokio::test]
async fn a_newcomer_leaves_the_same_records_as_a_registration_in_steps() -> Result<()> {
    for (rules, status) in [(AUTO, "active"), (MANUAL, "pending")] {
        let (site, instance) = Site::with_instance().await?;
        let secret = token(&site, rules).await?;
        let register = async |number| {
            let mut host = machine(number);
            host.hostname = "same".into();
            host.mac_addresses = vec![format!("00:1b:21:00:00:{number:02x}")];
            let opened = FakeAgent::on(host)?.open(instance.grpc, &secret).await??;
            anyhow::Ok(opened)
        };
        let mut streams = vec![register(1).await?];
        streams[0].answer().await?;
        site.psql("SELECT retire_host(id, 'ann') FROM hosts")
            .await?;
        for number in [1, 2] {
            streams.push(register(number).await?);
            streams.last_mut().context("a stream")?.answer().await?;
        }
        let counts = transactions(&[instance.http]).await?;
        assert_eq!(counts.get("register"), Some(&1), "one in steps");
        let masked = "
            SELECT regexp_replace(regexp_replace(row::text,
                       '(4c4c4544[0-9a-f]*|[0-9a-f]{32}|boot-[0-9]|00:1b:21:[0-9a-f:]*|\\\\x[0-9a-f]{64})', '?', 'g'),
                       '\"(id|[a-z]+_id|[a-z]+_at|at|[a-z]+_since|[a-z]+_no)\": [^,}]*', '', 'g')
              FROM (SELECT jsonb_build_array(to_jsonb(a), to_jsonb(h), to_jsonb(s),
                           (SELECT jsonb_agg(to_jsonb(i) ORDER BY i.kind) FROM host_identifiers i WHERE i.host_id = h.id),
                           (SELECT jsonb_agg(to_jsonb(e) ORDER BY e.id) FROM agent_events e WHERE e.agent_id = a.id),
                           (SELECT count(*) FROM enrolment_token_uses u WHERE u.key = a.key)) AS row, a.created_at
                      FROM agents a JOIN hosts h ON h.id = a.host_id JOIN agent_state s ON s.agent_id = a.id
                     WHERE h.retired_at IS NULL) rows
             ORDER BY created_at";
        let rows = site.psql(masked).await?;
        let rows: Vec<&str> = rows.lines().collect();
        ensure!(rows.len() == 2 && rows[0].contains(status), "{rows:#?}");
        assert_eq!(rows[0], rows[1]);
    }
    Ok(())
}

/// A rule of the database that the service does not know: it refuses one machine.
const POISON: &str = "
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = 'check_violation'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON hosts FOR EACH ROW WHEN (NEW.hostname = 'poison') EXECUTE FUNCTION refuse()";

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_that_the_database_refuses_does_not_fail_its_batch() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, AUTO.uses(1000)).await?;
    site.psql(POISON).await?;
    let poisoned = async {
        let mut host = machine(1_000_000);
        host.hostname = "poison".into();
        FakeAgent::on(host)?.refused(instance.grpc, &secret).await
    };
    let (answers, refused) = tokio::try_join!(crowd(&site, &instance, &secret), poisoned)?;
    refused.assert(Code::Internal, "");
    ensure!(answers.iter().all(is_active), "all others are active");
    let stored = "SELECT count(*), (SELECT uses FROM enrolment_tokens) FROM agents";
    site.expect(stored, "100|100").await
}

/// Half of the crowd leaves while the batches wait for a lock. Those who come again find themselves registered, or are
/// registered then; in either case once.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_leave_while_their_batch_runs_are_registered_once() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, AUTO.uses(1000)).await?;
    let agents = (0..CROWD).map(|number| FakeAgent::on(machine(number)));
    let agents: Vec<FakeAgent> = agents.collect::<Result<_>>()?;
    let lock = site.psql("BEGIN; LOCK TABLE hosts; SELECT pg_sleep(1); COMMIT");
    let crowd = try_join_all(agents.iter().enumerate().map(async |(number, agent)| {
        let registering = agent.register(instance.grpc, &secret);
        match number % 2 {
            0 => match timeout(Duration::from_millis(500), registering).await {
                Ok(answer) => answer.map(drop),
                Err(_) => Ok(()), // It has left.
            },
            _ => registering.await.map(drop),
        }
    }));
    let (locked, answers) = tokio::join!(lock, crowd);
    locked?;
    answers?;
    for agent in &agents {
        ensure!(is_active(&agent.register(instance.grpc, &secret).await?));
    }
    let stored = "SELECT count(*), (SELECT uses FROM enrolment_tokens), (SELECT count(*) FROM hosts) FROM agents";
    site.expect(stored, "100|100|100").await
}

/// The batch waits for the first token's row until its time is over, and is then repeated in steps.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_somebody_locks_does_not_stop_newcomers_with_other_tokens() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let [locked, free] = [token(&site, AUTO).await?, token(&site, AUTO).await?];
    let first = "SELECT FROM enrolment_tokens ORDER BY created_at LIMIT 1";
    let lock = site.hold(&format!("{first} FOR UPDATE")).await?;
    let unlucky = FakeAgent::on(machine(1))?;
    let unlucky = async { unlucky.open(instance.grpc, &locked).await.map(drop) };
    let lucky = FakeAgent::on(machine(2))?;
    let lucky = lucky.register(instance.grpc, &free);
    let (answer, ()) = tokio::try_join!(lucky, unlucky)?;
    ensure!(is_active(&answer));
    lock.release().await
}
