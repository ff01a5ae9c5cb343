//! What agents are told is on the standby: every call that returns numbers waits for it.

use std::{slice, time::Duration};

use anyhow::{Context, Result};
use svc_sandbox::{Postgres, eventually};
use svc_store::{GapKind, Store, StoreError, StoreOptions};
use tokio::time::timeout;
use uuid::Uuid;

use crate::{fixtures::*, leases::claimed, support::*};

const HOUR: Duration = Duration::from_hours(1);

/// Commits wait from now on: there is no such standby.
async fn lose_the_standby(server: &Postgres) -> Result<()> {
    let lost = "ALTER SYSTEM SET synchronous_standby_names = 'nobody'";
    server.psql("postgres", lost).await?;
    server.psql("postgres", "SELECT pg_reload_conf()").await?;
    let commit = "SELECT pg_logical_emit_message(true, 'test', '')";
    eventually("commits wait", PATIENCE, async || {
        let commit = server.psql("postgres", commit);
        timeout(Duration::from_millis(500), commit).await.is_err()
    })
    .await
}

async fn open(store: &Store, instance: Uuid, agent: TestAgent) -> Result<(), StoreError> {
    let session = [agent.session()];
    let opened = store.sessions_open(instance, &session, HOUR);
    opened.await.map(drop)
}

#[tokio::test]
async fn every_call_that_returns_an_agents_numbers_waits_for_the_standby() -> Result<()> {
    let (server, setup) = own_server(&[]).await?;
    setup.partitions_create(DAY).await?;
    let (agent, other) = (TestAgent::new(&setup).await?, TestAgent::new(&setup).await?);
    let stored = agent.range(&samples(1..=1), &[gap(2..=2, GapKind::DeadLetter)]);
    setup.samples_append(slice::from_ref(&stored)).await?;
    let mine = claimed(&setup, "a").await?;
    lose_the_standby(&server).await?;

    let store = Store::new(setup.direct()?, StoreOptions::for_service(16))?;
    let (letters, agents) = ([(agent.id, 2)], [agent.id]);
    let (watermarks, letters, resent, opened) = tokio::join!(
        store.watermarks(&agents),
        store.dead_letters_confirm(&letters),
        store.samples_append(slice::from_ref(&stored)),
        open(&store, mine.id, other),
    );
    let waited = |error: Option<StoreError>, call| {
        let error = error.with_context(|| format!("{call} did not wait"))?;
        assert!(error.is_timeout(), "{call}: {error:?}");
        anyhow::Ok(())
    };
    waited(watermarks.err(), "watermarks")?;
    waited(letters.err(), "dead_letters_confirm")?;
    waited(resent.err(), "samples_append")?;
    waited(opened.err(), "sessions_open")?;
    store.ping().await?;
    Ok(())
}
