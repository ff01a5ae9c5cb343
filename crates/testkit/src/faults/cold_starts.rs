//! Services that start at once where there is no signing key and no schema.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{ServiceProcess, Site, get};

const SERVICES: usize = 8;

/// Starts eight services at once in each round. All must publish the same key. Returns how long each
/// round took until all served.
pub async fn cold_starts(rounds: usize) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    for round in 0..rounds {
        let site = Site::unmigrated().await?;
        fs::create_dir(site.path("keys"))?;
        let path = site.path("keys/key.pem");
        let began = Instant::now();
        let launch = |_| site.process().set("INGEST_JWT_KEY_FILE", &path).launch();
        let services: Vec<ServiceProcess> = (0..SERVICES).map(launch).collect::<Result<_>>()?;
        let mut documents = BTreeSet::new();
        for service in &services {
            service.serving().await?;
            documents.insert(get(service.http, "/.well-known/jwks.json").await?.body);
        }
        took.push(began.elapsed());
        ensure!(documents.len() == 1, "round {round}: {documents:?}");
        assert_one_private_file(&path)?;
        let kids = "SELECT count(*), count(DISTINCT kid) FROM ingest_instances";
        site.expect(kids, &format!("{SERVICES}|1")).await?;
    }
    Ok(took)
}

/// Starts three services at once on an empty database in each round, all with the same web role. Each of
/// them must serve, and the role must have its rights. Returns how long each round took until all served.
pub async fn first_starts_with_web_role(rounds: usize) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    for round in 0..rounds {
        let site = Site::unmigrated().await?;
        let role = site.psql("SELECT 'web_' || current_database()").await?;
        site.psql(&format!("CREATE ROLE {role}")).await?;
        let began = Instant::now();
        let launch = |_| site.process().set("INGEST_WEB_ROLE", &role).launch();
        let services: Vec<ServiceProcess> = (0..3).map(launch).collect::<Result<_>>()?;
        for service in &services {
            let served = service.serving().await;
            served.with_context(|| format!("round {round}"))?;
        }
        took.push(began.elapsed());
        let granted = format!("SELECT has_table_privilege('{role}', 'hosts', 'SELECT')");
        site.expect(&granted, "t").await?;
    }
    Ok(took)
}

/// Fails unless only its owner may read the file, and its folder has no other.
pub fn assert_one_private_file(path: &Path) -> Result<()> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
    ensure!(mode == 0o600, "mode {mode:o}");
    let folder = path.parent().context("no folder")?;
    let files: Vec<_> = fs::read_dir(folder)?.collect();
    ensure!(files.len() == 1, "{files:?}");
    Ok(())
}
