//! The cost of a run to the service, by its own metrics before and after: CPU, memory, transactions.

use std::net::SocketAddr;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use svc_harness::metric;

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
            sum.add(*address)
                .await
                .with_context(|| format!("the metrics of {address}"))?;
        }
        Ok(sum)
    }

    async fn add(&mut self, address: SocketAddr) -> anyhow::Result<()> {
        self.cpu_seconds += metric(address, "process_cpu_seconds_total").await?;
        self.resident_bytes += metric(address, "process_resident_memory_bytes").await?;
        self.transactions += metric(address, "database_transactions_total").await?;
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_per_report_and_per_agent() {
        let after = Scrape {
            cpu_seconds: 3.0,
            resident_bytes: 4096.0,
            transactions: 14.0,
        };
        let cost = Scrape::default().cost_until(&after, 10, 2);
        assert_eq!(cost.cpu_us_per_report, 300_000.0);
        assert_eq!(cost.kib_per_agent, 2.0);
        assert_eq!(cost.transactions_per_report, 1.4);
    }
}
