//! Releases and rollouts: which agents are meant, what is counted, and what people may do.

use std::time::Duration;

use anyhow::{Context, Result};
use svc_store::{
    AgentId, Hours, Labels, NewRelease, NewRollout, RolloutState, RolloutStep, Stage, UpdateReport,
    UpdateStep,
};

use crate::{fixtures::*, leases::claimed, support::*};

const MINUTE: Duration = Duration::from_mins(1);

fn report(serial: i64, step: UpdateStep) -> UpdateReport {
    UpdateReport {
        step,
        serial,
        version: String::new(),
        platform: "linux/x86_64".into(),
        reason: String::new(),
        log_tail: String::new(),
    }
}

async fn say(store: &TestStore, agents: &[AgentId], serial: i64, step: UpdateStep) -> Result<()> {
    let reports: Vec<_> = agents
        .iter()
        .map(|id| (*id, report(serial, step)))
        .collect();
    Ok(store.updates_report(&reports).await?)
}

async fn release(store: &TestStore, serial: i64, version: &str) -> Result<()> {
    let release = NewRelease {
        serial,
        version,
        platforms: &["linux/x86_64"],
        manifest: version.as_bytes(),
        signature: &[7; 64],
    };
    Ok(store.release_add(&release, "ann").await?)
}

async fn start(store: &TestStore, serial: i64, selector: &str, stages: &[Stage]) -> Result<()> {
    let rollout = NewRollout {
        serial,
        selector: &selector.parse::<Labels>()?,
        stages,
        soak: Duration::ZERO,
        hours: Hours::default(),
        undoes: None,
    };
    Ok(store.rollout_start(&rollout, "ann").await?)
}

/// A database with so many agents that are online, update themselves, and have the label site=ams.
async fn fleet(count: usize) -> Result<(TestStore, Vec<AgentId>)> {
    let store = migrated().await?;
    let agents = TestAgent::many(&store, count).await?;
    let sql = "UPDATE hosts SET labels = '{\"site\": \"ams\"}';
               UPDATE agents SET version = '1.0.0';
               UPDATE agent_state SET presence = 'online', cause = 'connected', presence_since = now() - interval '1 day'";
    store.sql(sql).await?;
    let ids: Vec<AgentId> = agents.iter().map(|agent| agent.id).collect();
    say(&store, &ids, 0, UpdateStep::None).await?;
    Ok((store, ids))
}

#[tokio::test]
async fn a_share_of_the_places_is_that_share_of_the_agents_and_each_release_has_its_own()
-> Result<()> {
    let store = migrated().await?;
    let shares = "SELECT bool_and(share BETWEEN 0.09 AND 0.11) FROM (
        SELECT avg((rollout_place(md5(n::text)::uuid, serial) < 100000)::int) AS share
          FROM generate_series(1, 20000) n, generate_series(1, 3) serial GROUP BY serial) shares";
    assert_eq!(store.sql(shares).await?, "t");
    let both = "SELECT avg((rollout_place(md5(n::text)::uuid, 2) < 100000)::int) BETWEEN 0.07 AND 0.13
                  FROM generate_series(1, 20000) n WHERE rollout_place(md5(n::text)::uuid, 1) < 100000";
    assert_eq!(
        store.sql(both).await?,
        "t",
        "the same hosts come first again"
    );
    let known = "SELECT rollout_place('00000000-0000-4000-8000-000000000001', 7) =
                        (('x' || left(md5('00000000-0000-4000-8000-000000000001/7'), 8))::bit(32)::bigint % 1000000)";
    assert_eq!(store.sql(known).await?, "t");
    Ok(())
}

#[tokio::test]
async fn only_agents_that_a_selector_names_and_that_update_themselves_are_offered_a_release()
-> Result<()> {
    let (store, ids) = fleet(6).await?;
    release(&store, 1, "1.1.0").await?;
    start(&store, 1, "site=ams", &[Stage::Percent(100)]).await?;
    store.rollout_reach(1, Stage::Percent(100)).await?;
    let host = format!("(SELECT host_id FROM agents WHERE id = '{}')", ids[0]);
    let sql = format!(
        "UPDATE hosts SET labels = '{{\"site\": \"ber\"}}' WHERE id = {host};
         DELETE FROM agent_updates WHERE agent_id = '{}';
         UPDATE agent_updates SET platform = 'linux/riscv64' WHERE agent_id = '{}';
         UPDATE agents SET version = '1.1.0' WHERE id = '{}'",
        ids[1], ids[2], ids[3]
    );
    store.sql(&sql).await?;
    let skipped: uuid::Uuid = store
        .sql(&format!(
            "SELECT host_id FROM agents WHERE id = '{}'",
            ids[4]
        ))
        .await?
        .parse()?;
    store
        .rollout_skip(1, svc_store::HostId(skipped), "ann", "")
        .await?;
    assert_eq!(store.updates_offer(&ids, &[1]).await?, [(ids[5], 1)]);
    say(&store, &ids[5..], 1, UpdateStep::Approved).await?;
    assert_eq!(store.updates_offer(&ids, &[1]).await?, []);
    let figures = store.rollout_figures(1, MINUTE).await?;
    assert_eq!((figures.offered, figures.approved, figures.due), (1, 1, 0));
    Ok(())
}

#[tokio::test]
async fn the_newest_release_is_offered_and_a_refused_one_never_again() -> Result<()> {
    let (store, ids) = fleet(2).await?;
    for (serial, version) in [(1, "1.1.0"), (2, "1.2.0")] {
        release(&store, serial, version).await?;
        start(&store, serial, "site=ams", &[Stage::Percent(100)]).await?;
        store.rollout_reach(serial, Stage::Percent(100)).await?;
    }
    let mut offers = store.updates_offer(&ids, &[1, 2]).await?;
    offers.sort_unstable();
    let mut expected = vec![(ids[0], 2), (ids[1], 2)];
    expected.sort_unstable();
    assert_eq!(offers, expected);
    say(&store, &ids[..1], 2, UpdateStep::Refused).await?;
    say(&store, &ids[1..], 2, UpdateStep::Unable).await?;
    assert_eq!(store.updates_offer(&ids, &[1, 2]).await?, [(ids[1], 2)]);
    let figures = store.rollout_figures(2, MINUTE).await?;
    assert_eq!((figures.offered, figures.refused), (1, 1));
    Ok(())
}

#[tokio::test]
async fn a_stage_of_hosts_reaches_so_many_and_does_not_replace_those_that_go_offline() -> Result<()>
{
    let (store, ids) = fleet(40).await?;
    release(&store, 1, "1.1.0").await?;
    start(&store, 1, "", &[Stage::Hosts(5), Stage::Percent(100)]).await?;
    store.rollout_reach(1, Stage::Hosts(5)).await?;
    assert_eq!(store.updates_offer(&ids, &[1]).await?.len(), 5);
    let away = "UPDATE agent_state SET presence = 'offline', presence_since = clock_timestamp()
                 WHERE agent_id IN (SELECT agent_id FROM agent_updates WHERE offered_serial = 1 LIMIT 2)";
    store.sql(away).await?;
    store.rollout_reach(1, Stage::Hosts(5)).await?;
    assert_eq!(store.updates_offer(&ids, &[1]).await?.len(), 5);
    let figures = store.rollout_figures(1, MINUTE).await?;
    assert_eq!(
        (figures.dark, figures.others, figures.others_dark),
        (0, 35, 0)
    );
    let figures = store.rollout_figures(1, Duration::ZERO).await?;
    assert_eq!(
        (figures.offered, figures.dark, figures.in_doubt),
        (5, 2, false)
    );
    let pause = "UPDATE sweep_pause SET since = now(), until = now() + interval '1 minute'";
    store.sql(pause).await?;
    assert!(store.rollout_figures(1, MINUTE).await?.in_doubt);
    Ok(())
}

#[tokio::test]
async fn a_stage_of_hosts_does_not_replace_one_that_is_back_before_its_report_is_stored()
-> Result<()> {
    let (store, ids) = fleet(10).await?;
    release(&store, 1, "1.1.0").await?;
    start(&store, 1, "", &[Stage::Hosts(5), Stage::Percent(100)]).await?;
    store.rollout_reach(1, Stage::Hosts(5)).await?;
    let offered = store.updates_offer(&ids, &[1]).await?;
    let back = offered[0].0;
    let runs = format!("UPDATE agents SET version = '1.1.0' WHERE id = '{back}'");
    store.sql(&runs).await?;
    store.rollout_reach(1, Stage::Hosts(5)).await?;
    assert_eq!(store.updates_offer(&ids, &[1]).await?.len(), 5);
    let figures = store.rollout_figures(1, MINUTE).await?;
    assert_eq!((figures.offered, figures.approved), (5, 0));
    say(&store, &[back], 1, UpdateStep::Approved).await?;
    let figures = store.rollout_figures(1, MINUTE).await?;
    assert_eq!((figures.offered, figures.approved), (5, 1));
    Ok(())
}

#[tokio::test]
async fn a_step_is_taken_once_and_only_where_the_rollout_was_judged() -> Result<()> {
    let (store, _) = fleet(1).await?;
    let (reporter, other) = (claimed(&store, "a").await?, claimed(&store, "a").await?);
    release(&store, 1, "1.1.0").await?;
    start(&store, 1, "", &[Stage::Hosts(1), Stage::Percent(100)]).await?;
    assert!(store.rollouts_running(other.id).await?.is_empty());
    let judged = store.rollouts_running(reporter.id).await?.remove(0);
    assert!(store.rollout_step(&judged, &RolloutStep::Advance).await?);
    assert!(!store.rollout_step(&judged, &RolloutStep::Advance).await?);
    let judged = store.rollouts_running(reporter.id).await?.remove(0);
    assert_eq!(judged.stage, 1);
    let halt = RolloutStep::Halt("1 of 5 agents refused the release".into());
    assert!(store.rollout_step(&judged, &halt).await?);
    store.rollout_set(1, true, "ben", "a bad disk").await?;
    let judged = store.rollouts_running(reporter.id).await?.remove(0);
    assert!(store.rollout_step(&judged, &RolloutStep::Advance).await?);
    let shown = store.rollout_show(1).await?.context("the rollout")?.rollout;
    assert_eq!((shown.state, shown.stage), (RolloutState::Done, 1));
    let events = "SELECT string_agg(kind || ' by ' || actor, ', ' ORDER BY id) FROM rollout_events WHERE db_user = session_user";
    assert_eq!(
        store.sql(events).await?,
        "release added by ann, rollout started by ann, rollout advanced by svc-ingest, rollout halted by svc-ingest, \
         rollout resumed by ben, rollout done by svc-ingest"
    );
    Ok(())
}

#[tokio::test]
async fn a_release_is_taken_back_from_those_that_had_it_alone() -> Result<()> {
    let (store, ids) = fleet(3).await?;
    release(&store, 1, "1.1.0").await?;
    start(&store, 1, "site=ams", &[Stage::Hosts(1)]).await?;
    store.rollout_reach(1, Stage::Hosts(1)).await?;
    let offered = store.updates_offer(&ids, &[1]).await?;
    let had = offered[0].0;
    say(&store, &[had], 1, UpdateStep::Approved).await?;
    let runs = format!("UPDATE agents SET version = '1.1.0' WHERE id = '{had}'");
    store.sql(&runs).await?;
    release(&store, 2, "1.0.0").await?;
    store.rollout_back(1, 2, "ann", "harm").await?;
    store.rollout_reach(2, Stage::Percent(100)).await?;
    assert_eq!(store.updates_offer(&ids, &[1, 2]).await?, [(had, 2)]);
    let states = "SELECT string_agg(state, ' ' ORDER BY serial) FROM rollouts";
    assert_eq!(store.sql(states).await?, "paused running");
    Ok(())
}

#[tokio::test]
async fn what_an_agent_says_again_is_not_written_again() -> Result<()> {
    let (store, ids) = fleet(1).await?;
    let version = "SELECT xmin || ' ' || since FROM agent_updates";
    let before = store.sql(version).await?;
    say(&store, &ids, 0, UpdateStep::None).await?;
    assert_eq!(store.sql(version).await?, before);
    say(&store, &ids, 1, UpdateStep::Trying).await?;
    assert_ne!(store.sql(version).await?, before);
    Ok(())
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() -> Result<()> {
    let (store, _) = fleet(1).await?;
    release(&store, 1, "1.1.0").await?;
    release(&store, 1, "1.1.0").await?;
    let error = release(&store, 1, "9.9.9").await.unwrap_err();
    assert!(format!("{error:#}").contains("serial"), "{error:#}");
    start(&store, 1, "", &[Stage::Percent(100)]).await?;
    for sql in [
        "SELECT start_rollout(1, '{}', '{100%}', 0, '', NULL, 'ann')",
        "SELECT start_rollout(2, '{}', '{100%}', 0, '', NULL, 'ann')",
        "SELECT set_rollout(1, 'running', 'ann', '')",
        "SELECT set_rollout(1, 'done', 'ann', '')",
        "SELECT set_rollout(9, 'paused', 'ann', '')",
        "SELECT skip_host(1, gen_random_uuid(), 'ann')",
    ] {
        let error = store.sql(sql).await.expect_err(sql);
        assert!(sqlstate(&error)?.starts_with("SV4"), "{sql}: {error:#}");
    }
    Ok(())
}
