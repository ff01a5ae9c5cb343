//! Presence as PostgreSQL has it, while faults happen.

use std::time::Duration;

use anyhow::Result;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::Site;

const PAUSE: Duration = Duration::from_millis(100);
const DEADLINE: Duration = Duration::from_secs(2);

/// Counts the agents that are offline, ten times a second whenever the database answers.
#[derive(Debug)]
pub struct PresenceSampler {
    stop: CancellationToken,
    sampling: JoinHandle<(usize, u64)>,
}

impl PresenceSampler {
    pub fn start(site: &Site) -> Self {
        let stop = CancellationToken::new();
        let sampling = tokio::spawn(sample(site.database_url(), stop.clone()));
        Self { stop, sampling }
    }

    /// The number of samples, and the most agents that were offline in one.
    pub async fn stop(self) -> Result<(usize, u64)> {
        self.stop.cancel();
        Ok(self.sampling.await?)
    }
}

async fn sample(url: String, stop: CancellationToken) -> (usize, u64) {
    let sql = "SELECT count(*) FROM agent_state WHERE presence = 'offline'";
    let (mut samples, mut worst) = (0, 0);
    while !stop.is_cancelled() {
        let answer = timeout(DEADLINE, svc_sandbox::query(&url, sql)).await;
        let count = answer.ok().and_then(Result::ok);
        if let Some(offline) = count.and_then(|text| text.parse().ok()) {
            samples += 1;
            worst = worst.max(offline);
        }
        sleep(PAUSE).await;
    }
    (samples, worst)
}

/// A digest of all columns of presence, and the last event.
pub async fn presence_digest(site: &Site) -> Result<String> {
    let sql = "SELECT md5(string_agg(concat(agent_id, epoch, presence, cause, presence_since, connected_at, last_seen_at), ';'
                                     ORDER BY agent_id)),
                      (SELECT max(id) FROM agent_events) FROM agent_state";
    site.psql(sql).await
}

/// How often agents have gone offline: every change of presence is an event.
pub async fn times_offline(site: &Site) -> Result<u64> {
    let sql = "SELECT count(*) FROM agent_events WHERE kind = 'presence' AND to_status = 'offline'";
    Ok(site.psql(sql).await?.parse()?)
}
