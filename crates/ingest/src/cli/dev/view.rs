//! The view of `svc-ingest dev`: its addresses, and below them the hosts with their latest vitals.
//!
//! On a terminal it is redrawn every second; into a pipe it prints the hosts only when there are new vitals.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use jiff::Timestamp;
use svc_store::{HostFilter, HostRecord, Store};
use tokio::time::sleep;

use crate::cli::{output, resource, terminal::CLEAR};

const REFRESH: Duration = Duration::from_secs(1);
const HOSTS: u32 = 50;

#[derive(Debug)]
pub(super) struct View {
    pub store: Store,
    pub screen: String,
}

/// Whether standard output is a terminal.
pub(super) fn is_drawn() -> bool {
    io::stdout().is_terminal()
}

impl View {
    /// Runs until the reader closes the pipe.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut last = None;
        let mut reading = output::print_while_read(&self.screen)?;
        while reading {
            sleep(REFRESH).await;
            // Without a database, or before its migration, there are no hosts to show.
            let hosts = self.store.hosts_list(&HostFilter::default(), HOSTS).await;
            let hosts = hosts.map(|page| page.rows).unwrap_or_default();
            let newest = hosts.iter().filter_map(|host| host.vitals_at).max();
            reading = match is_drawn() {
                true => self.draw(&hosts)?,
                false if newest > last => output::print_while_read(&resource::table(&hosts))?,
                false => true,
            };
            last = newest.max(last);
        }
        Ok(())
    }

    fn draw(&self, hosts: &[HostRecord]) -> anyhow::Result<bool> {
        let now = Timestamp::now().strftime("%H:%M:%S UTC");
        let table = resource::table(hosts);
        output::print_while_read(&format!(
            "{CLEAR}{}\n  Hosts at {now}:\n\n{table}",
            self.screen
        ))
    }
}
