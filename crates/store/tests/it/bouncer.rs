//! Through a PgBouncer in transaction mode, with fewer server connections than
//! clients, so that every transaction may land on another one.

use std::time::Duration;

use anyhow::Result;
use svc_sandbox::{PgBouncer, eventually, shared_postgres, test_database};
use svc_store::{Bulkhead, LeaseClaim, LeaseRenewal, NewInstance, SchemaState, Store, Type};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::{PATIENCE, open, options, text};
use crate::telling::{DAY, after, hours_ago, sample, teller};

const OUTAGE_GRACE: Duration = Duration::from_secs(150);

#[tokio::test]
async fn everything_works_through_a_pgbouncer_in_transaction_mode() -> Result<()> {
    let database = test_database("bounced", async |_| Ok(())).await?;
    let bouncer = PgBouncer::start(shared_postgres().await?.port()).await?;
    let url = bouncer.url(database.name());
    let stores = [open(&url, options(16))?, open(&url, options(16))?];
    eventually("PgBouncer answers", PATIENCE, async || {
        stores[0].ping().await.is_ok()
    })
    .await?;
    let (one, two) = tokio::join!(stores[0].migrate(), stores[1].migrate());
    assert_eq!(
        (one?.state, two?.state),
        (SchemaState::Current, SchemaState::Current)
    );
    stores[0].samples_prepare(DAY).await?;
    let mut tasks = JoinSet::new();
    for n in 0..400 {
        tasks.spawn(mixture(stores[n % 2].clone()));
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome??;
    }
    while stores[0].rollups_gather().await?.more || stores[0].rollups_compute().await?.more {}
    let rolled_up = "SELECT concat(count(*), ' ', sum(sample_count)) FROM host_metrics_hourly";
    assert_eq!(text(&stores[1], rolled_up).await?, "400 1200");
    Ok(())
}

async fn mixture(store: Store) -> Result<()> {
    let ttl = Duration::from_secs(60);
    let instance = NewInstance {
        id: Uuid::now_v7(),
        kid: "k".into(),
        hostname: "h".into(),
        version: "v".into(),
        grpc_address: "g".into(),
        http_address: "w".into(),
    };
    assert_eq!(
        store.lease_claim(&instance, ttl, OUTAGE_GRACE).await?,
        LeaseClaim::Claimed
    );
    assert_eq!(
        store.lease_renew(instance.id, ttl).await?,
        LeaseRenewal::Renewed
    );
    store.live_siblings().await?;
    let teller = teller(&store).await?;
    for seq in 1..=3 {
        let range = teller.range(&[sample(seq, after(hours_ago(2), seq))], &[]);
        assert_eq!(store.samples_append(&[range]).await?.len(), 1);
    }
    let words = vec!["a".to_owned()];
    let sql = "SELECT cardinality($1), current_setting('statement_timeout')";
    let row = store.run("mix", Bulkhead::Ingest, async |tx| {
        tx.query_one(sql, &[(&words, Type::TEXT_ARRAY)]).await
    });
    let row = row.await?;
    assert_eq!((row.try_get(0)?, row.try_get(1)?), (1, "30s"));
    Ok(())
}
