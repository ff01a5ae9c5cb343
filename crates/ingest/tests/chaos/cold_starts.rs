//! Whole services that start at once where nothing is: no key, no schema.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt, time::Instant};

use anyhow::{Result, ensure};

use crate::{
    figures::Latencies,
    harness::{Site, get},
};

const ROUNDS: usize = 20;
const AT_ONCE: usize = 8;

#[tokio::test]
#[ignore = "strict: run by make chaos"]
async fn services_at_once_on_an_empty_path_share_one_key_every_time() -> Result<()> {
    let mut until_all_serve = Vec::new();
    for round in 0..ROUNDS {
        let site = Site::unmigrated().await?;
        let path = site.path("new_key.pem");
        let began = Instant::now();
        let launch = |_| site.process().set("INGEST_JWT_KEY_FILE", &path).launch();
        let mut services = (0..AT_ONCE).map(launch).collect::<Result<Vec<_>>>()?;
        let mut documents = BTreeSet::new();
        for service in &mut services {
            service.serving().await?;
            documents.insert(get(service.http, "/.well-known/jwks.json").await?.body);
        }
        until_all_serve.push(began.elapsed());
        ensure!(documents.len() == 1, "round {round}: {documents:?}");
        let mode = fs::metadata(&path)?.permissions().mode() & 0o7777;
        ensure!(mode == 0o600, "round {round}: mode {mode:o}");
    }
    let latencies = Latencies::of(until_all_serve);
    println!("{AT_ONCE} cold starts to all serving: {latencies}, one key each round");
    Ok(())
}
