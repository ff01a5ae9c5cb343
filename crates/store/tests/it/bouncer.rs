//! Through a PgBouncer in transaction mode, with fewer server connections than
//! clients, so that every transaction may land on another one.

use std::process::{Child, Command};
use std::time::Duration;

use anyhow::Result;
use svc_sandbox::{eventually, free_port, test_database};
use svc_store::{Bulkhead, LeaseClaim, LeaseRenewal, NewInstance, SchemaState, Store, Type};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::{PATIENCE, open, options, text};
use crate::telling::{DAY, after, hours_ago, sample, teller};

const OUTAGE_GRACE: Duration = Duration::from_secs(150);

struct Bouncer(Child);

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `server` is the port of PostgreSQL, `port` the one to listen on.
fn start(folder: &std::path::Path, server: u16, port: u16) -> Result<Bouncer> {
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={server} user=svc\n[pgbouncer]\n\
         listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
         pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 200\n"
    );
    let file = folder.join("pgbouncer.ini");
    std::fs::write(&file, settings)?;
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
    command
        .args(["--pdeathsig=KILL", "pgbouncer", "-q"])
        .arg(&file);
    Ok(Bouncer(command.spawn()?))
}

#[tokio::test]
#[ignore = "needs pgbouncer, and root to start it as nobody"]
async fn everything_works_through_a_pgbouncer_in_transaction_mode() -> Result<()> {
    let database = test_database("bounced", async |_| Ok(())).await?;
    let server = svc_sandbox::shared_postgres().await?.port();
    let folder = std::path::PathBuf::from(format!("/tmp/svc-bouncer-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let port = free_port()?;
    let _bouncer = start(&folder, server, port)?;
    let url = format!("postgres://svc@127.0.0.1:{port}/{}", database.name());
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
    std::fs::remove_dir_all(&folder)?;
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
