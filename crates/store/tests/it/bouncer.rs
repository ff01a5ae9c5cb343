//! The store behind a PgBouncer in transaction mode, which has fewer server connections
//! than the store, so that every transaction may run on another server session.

use anyhow::Result;
use svc_sandbox::{PgBouncer, eventually, shared_postgres, test_database};
use svc_store::{LeaseRenewal, SchemaState};
use tokio::task::JoinSet;

use crate::{
    fixtures::*,
    leases::{claimed, renew},
    support::*,
};

#[tokio::test]
async fn everything_works_behind_a_pgbouncer_in_transaction_mode() -> Result<()> {
    let database = test_database("bounced", async |_| Ok(())).await?;
    let bouncer = PgBouncer::start(shared_postgres().await?.port()).await?;
    let url = bouncer.url(database.name());
    let stores = [TestStore::open(&url, 16)?, TestStore::open(&url, 16)?];
    eventually("PgBouncer answers", PATIENCE, async || {
        stores[0].ping().await.is_ok()
    })
    .await?;
    let (one, two) = tokio::join!(stores[0].migrate(), stores[1].migrate());
    assert_eq!(one?.state, SchemaState::Current);
    assert_eq!(two?.state, SchemaState::Current);
    stores[0].partitions_create(DAY).await?;
    let mut tasks = JoinSet::new();
    let direct = TestStore::open(database.url(), 3)?;
    for n in 0..400 {
        let agent = TestAgent::new(&direct).await?;
        tasks.spawn(work(stores[n % 2].clone(), agent));
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome??;
    }
    let rolled_up = "SELECT concat(count(*), ' ', sum(sample_count)) FROM host_metrics_hourly";
    assert_eq!(direct.sql(rolled_up).await?, "400 1200", "on demand");
    hour_passes(&direct).await?;
    stores[0].hours_create().await?;
    let (one, two) = tokio::join!(stores[0].hours_seal(), stores[1].hours_seal());
    one?;
    two?;
    let (one, two) = tokio::join!(
        compact_sealed(&stores[0], 100),
        compact_sealed(&stores[1], 100)
    );
    let rest = compact_sealed(&stores[0], 100).await?;
    assert_eq!(one? + two? + rest, 1200);
    assert_eq!(direct.sql(rolled_up).await?, "400 1200", "compacted");
    let stored = "SELECT sum(samples) FROM sample_chunks";
    assert_eq!(direct.sql(stored).await?, "1200");
    hours_are_dropped_without_a_direct_connection(&stores[0], &direct).await
}

/// What cannot be dropped at once is left to the next pass, so nobody waits behind it.
async fn hours_are_dropped_without_a_direct_connection(
    store: &TestStore,
    direct: &TestStore,
) -> Result<()> {
    let url = store.direct()?;
    let reader = direct.connect().await?;
    let reading = "BEGIN; SELECT count(*) FROM samples_open";
    reader.batch_execute(reading).await?;
    assert_eq!(store.hours_drop(&url).await?.len(), 0);
    let agent = TestAgent::new(direct).await?;
    agent.store(direct, &[sample(1, hours_ago(1))]).await?;
    reader.batch_execute("COMMIT").await?;
    assert_eq!(store.hours_drop(&url).await?.len(), 1);
    Ok(())
}

/// What one instance with one agent does.
async fn work(store: TestStore, agent: TestAgent) -> Result<()> {
    let instance = claimed(&store, "k").await?;
    let renewal = renew(&store, instance.id).await?;
    assert!(matches!(renewal, LeaseRenewal::Renewed { .. }));
    store.instances_live().await?;
    for seq in 1..=3 {
        let range = agent.range(&[sample(seq, after(hours_ago(2), seq))], &[]);
        assert_eq!(store.samples_append(&[range]).await?.len(), 1);
    }
    Ok(())
}
