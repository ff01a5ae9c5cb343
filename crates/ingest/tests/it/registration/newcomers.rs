//! New agents that are registered in batches, beside those that are registered step by step.

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use svc_testkit::{AUTO, FakeAgent, MANUAL, Site, is_active, machine, token, transactions};

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_new_agents_is_registered_in_few_transactions() -> Result<()> {
    const CROWD: u32 = 100;
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, AUTO.uses(CROWD.cast_signed())).await?;
    // The crowd gathers behind the lock, so that it does not depend on the speed of the machine.
    let lock = site.psql("BEGIN; LOCK TABLE enrolment_tokens; SELECT pg_sleep(2); COMMIT");
    let crowd = try_join_all((0..CROWD).map(async |number| {
        let agent = FakeAgent::on(machine(number))?;
        agent.register(instance.grpc, &secret).await
    }));
    let (locked, answers) = tokio::join!(lock, crowd);
    locked?;
    ensure!(answers?.iter().all(is_active), "all are active at once");
    let counts = transactions(&[instance.http]).await?;
    let count = |name| counts.get(name).copied().unwrap_or_default();
    assert_eq!(count("register"), 0, "none was registered step by step");
    for name in [
        "registrations_lookup",
        "registrations_admit",
        "agents_statuses",
    ] {
        let most = u64::from(CROWD / 2);
        ensure!((1..=most).contains(&count(name)), "{name}: {}", count(name));
    }
    let stored =
        "SELECT count(*), (SELECT uses FROM enrolment_tokens), (SELECT count(*) FROM hosts),
                         (SELECT count(*) FROM enrolment_token_uses) FROM agents";
    site.expect(stored, "100|100|100|100").await
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
                       '\"(id|[a-z]+_id|[a-z]+_at|at|presence_since|[a-z]+_no)\": [^,}]*', '', 'g')
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
