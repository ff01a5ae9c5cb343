//! Registrations that arrive while a table is locked.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use tokio::time::sleep;

use crate::{AUTO, FakeAgent, RefusedCall, Site, get, is_active, machine, token};

const CROWD: u32 = 40;

/// How registrations fared behind a lock.
#[derive(Debug)]
pub struct LockedOut {
    /// What was refused before all of them were admitted. Each refusal asked the client to retry.
    pub refused: Vec<RefusedCall>,
    /// The metric of registrations that got no connection or ran out of time, where there were any.
    pub failed: Option<String>,
}

/// Forty agents register at once, with a pool of four connections, while `hosts` is locked again and again. No
/// transaction waits too long for the lock, but whoever waited for a connection instead of a permit would wait longer
/// than the pool allows. Returns when all agents are admitted.
pub async fn registrations_behind_a_lock() -> Result<LockedOut> {
    let site = Site::new().await?;
    let builder = site.instance().set("INGEST_DB_POOL_SIZE", "4");
    let instance = builder.start().await?;
    let secret = token(&site, AUTO.uses(CROWD.cast_signed())).await?;
    let locks = "BEGIN; LOCK TABLE hosts; SELECT pg_sleep(1.5); COMMIT;".repeat(3);
    let lock = site.psql(&locks);
    let crowd = try_join_all((0..CROWD).map(async |number| {
        let agent = FakeAgent::on(machine(number))?;
        let mut refused = Vec::new();
        loop {
            match agent.open(instance.grpc, &secret).await? {
                Ok(mut stream) => {
                    ensure!(is_active(&stream.answer().await?));
                    return anyhow::Ok(refused);
                }
                Err(status) => {
                    let refusal = RefusedCall::of(&status);
                    ensure!(refusal.retry, "{refusal:?}");
                    refused.push(refusal);
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }));
    let (locked, refused) = tokio::join!(lock, crowd);
    locked?;
    let page = get(instance.http, "/metrics").await?.body;
    let failed = page.lines().find(|line| {
        line.contains("transactions_total{")
            && line.contains("regist")
            && line.contains("unavailable")
    });
    Ok(LockedOut {
        refused: refused?.concat(),
        failed: failed.map(str::to_owned),
    })
}
