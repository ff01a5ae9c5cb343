//! The rotation of the signing key under a connected fleet, as `svc-ingest key rotate` describes it.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::{task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    Fleet, Pace, PresenceSampler, ServiceBuilder, ServiceProcess, Site, Verifier, get, kid,
    times_offline,
};

/// What was seen during a rotation.
#[derive(Debug)]
pub struct KeyRotation {
    /// How many JWTs a third party has verified. None was refused.
    pub verified: usize,
    /// How long the last agent still waited for a JWT of the new key when, after the last restart, all agents were
    /// connected and acknowledged again.
    pub renewed_after: Duration,
    /// The lines of `svc-ingest status` about keys, before the new key signs and after it does.
    pub status: [String; 2],
}

/// Rotates the key of two instances, one after the other, while a fleet reports and a third party verifies all JWTs with
/// a copy of the JWKS document that is up to `cache` old.
pub async fn key_rotated(
    site: &Site,
    agents: u32,
    cache: Duration,
    pace: Pace,
) -> Result<KeyRotation> {
    let mut instances = site.server_process().start_pair().await?;
    let (grpc, http) = (
        instances.each_ref().map(|instance| instance.grpc),
        instances.each_ref().map(|instance| instance.http),
    );
    let fleet = Arc::new(Fleet::reporting(site, &grpc, agents, pace).await?);
    let presence = PresenceSampler::start(site);
    let verifying = Verifying::start(fleet.clone(), &http, cache);
    let (old, new, new_kid) = next_key(site).await?;
    let mut both = old.into_os_string();
    both.push(",");
    both.push(&new);

    let published = || site.server_process().set(EXTRA, &both);
    restart_each(&mut instances, published, &fleet).await?;
    let before = key_lines(site).await?;
    sleep(cache + Duration::from_secs(1)).await;

    let signing = || published().set("INGEST_JWT_KEY_FILE", &new);
    restart_each(&mut instances, signing, &fleet).await?;
    let renewed_after = all_renewed(&fleet, &new_kid).await?;
    let after = key_lines(site).await?;

    let alone = || signing().unset(EXTRA);
    restart_each(&mut instances, alone, &fleet).await?;
    for address in http {
        ensure!(published_keys(address).await? == [new_kid.as_str()]);
    }
    let verified = verifying.stop().await?;
    let (samples, offline) = presence.stop().await?;
    ensure!(samples > 0 && offline == 0, "{offline} agents were offline");
    ensure!(times_offline(site).await? == 0, "agents were offline");
    ensure!(fleet.refused_jwts() == 0, "an instance refused a JWT");
    fleet.audit(site).await?;
    Ok(KeyRotation {
        verified,
        renewed_after,
        status: [before, after],
    })
}

const EXTRA: &str = "INGEST_JWT_EXTRA_KEY_FILES";

/// Both paths, and the id of the new key.
async fn next_key(site: &Site) -> Result<(PathBuf, PathBuf, String)> {
    let command = ["key", "rotate", "--output", "json"];
    let made = site.process().arguments(&command).exits(0).await?;
    let made: Value = serde_json::from_str(&made.stdout)?;
    let text = |name: &str| made[name].as_str().context("no such member");
    let (old, new) = (text("old_file")?, text("file")?);
    Ok((old.into(), new.into(), text("kid")?.to_owned()))
}

async fn restart_each(
    instances: &mut [ServiceProcess; 2],
    builder: impl Fn() -> ServiceBuilder,
    fleet: &Fleet,
) -> Result<()> {
    for instance in instances {
        instance.stop().await?;
        *instance = builder().on_ports_of(instance).start().await?;
        fleet.all_connected().await?;
        fleet.all_acked_again().await?;
    }
    Ok(())
}

/// Waits until every agent has a JWT of the new key.
async fn all_renewed(fleet: &Fleet, new: &str) -> Result<Duration> {
    let began = Instant::now();
    let is_new = |jwt: &String| kid(jwt).is_some_and(|kid| kid == new);
    let patience = Duration::from_mins(1);
    svc_sandbox::eventually("all JWTs are renewed", patience, async || {
        fleet.jwts().iter().all(is_new)
    })
    .await?;
    Ok(began.elapsed())
}

async fn published_keys(http: SocketAddr) -> Result<Vec<String>> {
    let document = get(http, "/.well-known/jwks.json").await?.body;
    let document: Value = serde_json::from_str(&document)?;
    let keys = document["keys"].as_array().context("no keys")?.iter();
    let kids = keys.filter_map(|key| key["kid"].as_str());
    Ok(kids.map(str::to_owned).collect())
}

/// What `status` says about the keys.
async fn key_lines(site: &Site) -> Result<String> {
    let status = site.command_process(&["status"]).run().await?;
    let lines = status.stdout.lines();
    let keys = lines.skip_while(|line| !line.starts_with("KEY "));
    Ok(keys.collect::<Vec<_>>().join("\n"))
}

/// A third party that verifies the JWTs of a fleet all the time.
struct Verifying {
    stop: CancellationToken,
    task: JoinHandle<Result<usize>>,
}

impl Verifying {
    fn start(fleet: Arc<Fleet>, http: &[SocketAddr], cache: Duration) -> Self {
        let stop = CancellationToken::new();
        let verifier = Verifier::new(http, cache);
        let task = tokio::spawn(verify(fleet, verifier, stop.clone()));
        Self { stop, task }
    }

    /// How many JWTs it has verified; fails if it has refused one.
    async fn stop(self) -> Result<usize> {
        self.stop.cancel();
        self.task.await?
    }
}

async fn verify(
    fleet: Arc<Fleet>,
    mut verifier: Verifier,
    stop: CancellationToken,
) -> Result<usize> {
    let mut verified = 0;
    while !stop.is_cancelled() {
        let results = verifier.verify(&fleet.jwts()).await?;
        let refused = results.iter().filter(|valid| !**valid).count();
        ensure!(refused == 0, "the third party refused {refused} JWTs");
        verified += results.len();
        sleep(Duration::from_millis(200)).await;
    }
    Ok(verified)
}
