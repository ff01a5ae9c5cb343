//! The cost of a run to the service, by its own metrics before and after: CPU, memory, transactions.

use std::net::SocketAddr;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::lab::http;

/// The sums of all instances.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scrape {
    cpu_seconds: f64,
    resident_bytes: f64,
    transactions: f64,
}

/// The cost of a run to the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceCost {
    /// Includes connecting and registering.
    pub cpu_us_per_report: f64,
    pub kib_per_agent: f64,
    pub transactions_per_report: f64,
}

impl Scrape {
    pub async fn of(addresses: &[SocketAddr]) -> anyhow::Result<Scrape> {
        let mut sum = Scrape::default();
        for address in addresses {
            let page = http::get(*address, "/metrics").await;
            let (_, page) = page.with_context(|| format!("the metrics of {address}"))?;
            sum.add(&page);
        }
        Ok(sum)
    }

    fn add(&mut self, page: &str) {
        for (name, value) in page.lines().filter_map(sample) {
            match name {
                "process_cpu_seconds_total" => self.cpu_seconds += value,
                "process_resident_memory_bytes" => self.resident_bytes += value,
                "svc_ingest_database_transactions_total" => self.transactions += value,
                _ => {}
            }
        }
    }

    pub fn cost_until(&self, after: &Scrape, reports: u64, agents: u32) -> ServiceCost {
        let each = |amount: f64| amount / reports.max(1) as f64;
        let bytes = after.resident_bytes - self.resident_bytes;
        ServiceCost {
            cpu_us_per_report: each((after.cpu_seconds - self.cpu_seconds) * 1e6),
            kib_per_agent: bytes / 1024.0 / f64::from(agents.max(1)),
            transactions_per_report: each(after.transactions - self.transactions),
        }
    }
}

/// A metric's name without its labels, and its value.
fn sample(line: &str) -> Option<(&str, f64)> {
    let (name, value) = line.rsplit_once(' ')?;
    let name = name.split('{').next()?;
    Some((name, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_over_labels_and_instances() {
        let page = "# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total 1.5\n\
            process_resident_memory_bytes 2048\n\
            svc_ingest_database_transactions_total{name=\"a b\",outcome=\"ok\"} 3\n\
            svc_ingest_database_transactions_total{name=\"c\",outcome=\"ok\"} 4\n# EOF\n";
        let mut scrape = Scrape::default();
        scrape.add(page);
        scrape.add(page);
        let cost = Scrape::default().cost_until(&scrape, 10, 2);
        assert_eq!(cost.cpu_us_per_report, 300_000.0);
        assert_eq!(cost.kib_per_agent, 2.0);
        assert_eq!(cost.transactions_per_report, 1.4);
    }
}
