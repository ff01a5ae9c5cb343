//! What `svc-ingest dev` shows while it runs: its screen, and below it the hosts with
//! their vitals as they come. On a terminal it is drawn again and again; elsewhere
//! only what is new is printed.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use jiff::Timestamp;
use svc_store::{HostFilter, HostRecord, Store};
use tokio::time::sleep;

use crate::cli::{host, output, terminal::CLEAR};

const LOOK: Duration = Duration::from_secs(1);
const HOSTS: u32 = 50;

#[derive(Debug)]
pub(super) struct View {
    pub store: Store,
    pub screen: String,
}

/// Whether there is a terminal to draw on.
pub(super) fn draws() -> bool {
    io::stdout().is_terminal()
}

impl View {
    /// Until nobody reads any more.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut last = None;
        let mut reading = output::is_read(&self.screen)?;
        while reading {
            sleep(LOOK).await;
            // A database that is away, or not migrated yet, has nothing to show.
            let hosts = self.store.hosts_list(&HostFilter::default(), HOSTS).await;
            let hosts = hosts.map(|page| page.rows).unwrap_or_default();
            let newest = hosts.iter().filter_map(|host| host.vitals_at).max();
            reading = match draws() {
                true => self.draw(&hosts)?,
                false if newest > last => output::is_read(&host::table(&hosts))?,
                false => true,
            };
            last = newest.max(last);
        }
        Ok(())
    }

    fn draw(&self, hosts: &[HostRecord]) -> anyhow::Result<bool> {
        let now = Timestamp::now().strftime("%H:%M:%S UTC");
        let table = host::table(hosts);
        output::is_read(&format!(
            "{CLEAR}{}\n  Hosts at {now}:\n\n{table}",
            self.screen
        ))
    }
}
