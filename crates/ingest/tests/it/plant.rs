//! A site with a metrics queue of either kind, for what must hold over both.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use svc_sandbox::{Nats, NatsOptions};
use svc_store::{AgentId, GapRow, HostId, Range, SampleRow};

use crate::{
    fleet::Pace,
    harness::{InstanceBuilder, Process, ProcessBuilder, Site, get},
};

/// As often as an agent may report: faster, and what it has to send would pile up.
pub const BRISK: Pace = Pace {
    every: Duration::from_millis(500),
    patience: Duration::from_secs(10),
    keepalive: Duration::from_secs(30),
    backoff: Duration::from_millis(200),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Nats,
}

pub const BOTH: [Kind; 2] = [Kind::Memory, Kind::Nats];

#[derive(Debug)]
pub struct Plant {
    pub site: Site,
    nats: Option<Nats>,
}

impl Plant {
    pub async fn new(kind: Kind) -> Result<Self> {
        Self::on(Site::new().await?, kind).await
    }

    /// On a PostgreSQL server that may be stopped.
    pub async fn with_own_server(kind: Kind) -> Result<Self> {
        Self::on(Site::with_own_server().await?, kind).await
    }

    pub async fn on(site: Site, kind: Kind) -> Result<Self> {
        let nats = match kind {
            Kind::Memory => None,
            Kind::Nats => Some(Nats::start(NatsOptions::default()).await?),
        };
        Ok(Self { site, nats })
    }

    pub fn nats(&mut self) -> &mut Nats {
        self.nats.as_mut().expect("a plant with NATS")
    }

    pub fn queue_url(&self) -> String {
        let url = self.nats.as_ref().map(Nats::url);
        url.unwrap_or_else(|| "memory:".into())
    }

    pub fn instance(&self) -> InstanceBuilder {
        self.site
            .instance()
            .set("INGEST_QUEUE_URL", self.queue_url())
    }

    pub fn process(&self) -> ProcessBuilder {
        self.site
            .process()
            .set("INGEST_QUEUE_URL", self.queue_url())
            .set("INGEST_HEARTBEAT_INTERVAL", "5s")
            .set("INGEST_LOG", "warn")
    }

    /// `svc-ingest consume`, with nothing in its environment that it does not need.
    pub fn consumer(&self) -> ProcessBuilder {
        let mut builder = self.process().arguments(&["consume"]);
        for name in ["INGEST_TLS_CERT", "INGEST_TLS_KEY", "INGEST_JWT_KEY_FILE"] {
            builder = builder.unset(name);
        }
        builder
    }
}

/// The ports of a process that is gone, for the one that takes its place.
pub fn on_ports_of(builder: ProcessBuilder, gone: &Process) -> ProcessBuilder {
    builder
        .set("INGEST_GRPC_PORT", gone.grpc.port().to_string())
        .set("INGEST_HTTP_PORT", gone.http.port().to_string())
}

/// The value of a metric, summed over its labels; 0 where it is not there.
pub async fn metric(http: SocketAddr, name: &str) -> Result<f64> {
    let page = get(http, "/metrics").await?.body;
    let of_it = |line: &&str| {
        let rest = line.strip_prefix("svc_ingest_");
        let rest = rest.and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with([' ', '{']))
    };
    let value = |line: &str| {
        line.rsplit(' ')
            .next()
            .and_then(|text| text.parse::<f64>().ok())
    };
    Ok(page.lines().filter(of_it).filter_map(value).sum())
}

/// Active agents, each on a host of its own, without the toil of registering them.
pub async fn seed(site: &Site, count: usize) -> Result<Vec<(AgentId, HostId)>> {
    let sql = format!(
        "WITH machines AS (INSERT INTO hosts (hostname) SELECT 'seed-' || n FROM generate_series(1, {count}) n RETURNING id)
         INSERT INTO agents (host_id, key, status) SELECT id, sha256(id::text::bytea), 'active' FROM machines;
         INSERT INTO agent_state (agent_id) SELECT id FROM agents ON CONFLICT DO NOTHING"
    );
    site.psql(&sql).await?;
    let rows = site.psql("SELECT id, host_id FROM agents").await?;
    let ids = |line: &str| {
        let (agent, host) = line.split_once('|').context("two columns")?;
        Ok((AgentId(agent.parse()?), HostId(host.parse()?)))
    };
    rows.lines().map(ids).collect()
}

/// A range of plain samples.
pub fn range((agent_id, host_id): (AgentId, HostId), first_seq: i64, last_seq: i64) -> Range {
    Range {
        agent_id,
        host_id,
        first_seq,
        last_seq,
        samples: (first_seq..=last_seq).map(row).collect(),
        gaps: Vec::<GapRow>::new(),
    }
}

fn row(seq: i64) -> SampleRow {
    SampleRow {
        seq,
        sampled_at: jiff::Timestamp::now(),
        cpu_percent: 1.0,
        load: [0.1, 0.2, 0.3],
        memory_used_bytes: seq,
        memory_total_bytes: 8 << 30,
        swap_used_bytes: 0,
        swap_total_bytes: 0,
        uptime_seconds: seq,
        process_count: 100,
        network_rx_bytes: seq,
        network_tx_bytes: seq,
        disks: vec![],
    }
}
