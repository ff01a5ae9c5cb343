//! Gauges of the whole fleet. Only the reporter has them (`store/src/service/fleet_gauges.rs`): a scrape of another instance,
//! or of one that has lost the database, shows none rather than old numbers.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};
use svc_store::FleetGauges;
use tokio::time::Instant;

use crate::sync::lock;

/// How long numbers are shown: three periods of the timing `fleet_gauges`.
const LIFE: Duration = Duration::from_mins(3);

#[derive(Clone, Debug, Default)]
pub struct FleetMetrics(Arc<Mutex<Option<(FleetGauges, Instant)>>>);

impl FleetMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    /// `None` on an instance that is not the reporter.
    pub fn set(&self, gauges: Option<FleetGauges>) {
        *lock(&self.0) = gauges.map(|gauges| (gauges, Instant::now()));
    }
}

impl Collector for FleetMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauges = lock(&self.0).clone();
        let Some((gauges, _)) = gauges.filter(|(_, read)| read.elapsed() < LIFE) else {
            return Ok(());
        };
        agents(&mut encoder, &gauges)?;
        let state = gauges.state;
        let mut gauge = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("fleet_instances", "Live instances", state.instances as f64)?;
        let help = "Age of the oldest registration that waits for a decision";
        gauge("fleet_pending_oldest_seconds", help, state.pending_seconds)?;
        let help = "Hosts with a gap recorded in the last 24 hours";
        gauge("fleet_hosts_with_gaps", help, state.hosts_with_gaps as f64)?;
        let help = "Time since the end of the oldest hour that is not compacted";
        let lag = state.compaction_lag_seconds;
        gauge("compaction_lag_seconds", help, lag)?;
        let help = "Hours of hosts that could not be compacted";
        gauge("hosts_set_aside", help, state.hosts_set_aside as f64)?;
        let help = "Compacted hours of arrival that are still there";
        gauge("arrivals_undropped", help, state.hours_undropped as f64)?;
        let help = "Days of samples older than the retention";
        gauge("partitions_undropped", help, state.days_undropped as f64)?;
        let help = "Rollouts of agents' releases that the service has halted";
        gauge("rollouts_halted", help, state.rollouts_halted as f64)?;
        let help = "Active agents that lack a trust anchor in use";
        let without = state.agents_without_anchor as f64;
        gauge("agents_without_anchor", help, without)?;
        let help = "Server processes in a transaction that no client has any more";
        let orphaned = state.backends_orphaned as f64;
        gauge("database_backends_orphaned", help, orphaned)
    }
}

fn agents(encoder: &mut DescriptorEncoder<'_>, gauges: &FleetGauges) -> fmt::Result {
    let (name, help) = ("fleet_agents", "Agents by status and presence");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for group in &gauges.agents {
        let labels = [
            ("status", group.status.as_str()),
            ("presence", group.presence.as_str()),
        ];
        ConstGauge::new(group.count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
