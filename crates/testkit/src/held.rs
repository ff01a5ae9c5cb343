//! A transaction that a test holds open, with its locks and its snapshot, for as long as it needs it.

use anyhow::{Result, ensure};
use svc_sandbox::query;
use tokio::task::JoinHandle;

use crate::Site;

/// An open transaction on a site's database. It ends by itself only long after any test.
#[derive(Debug)]
pub struct Held<'a> {
    site: &'a Site,
    session: JoinHandle<Result<String>>,
}

impl Site {
    /// Runs SQL in a transaction that stays open, one at a time on a site.
    pub async fn hold(&self, sql: &str) -> Result<Held<'_>> {
        let held = format!("BEGIN; {sql}; SELECT pg_sleep(600)");
        let url = self.database_url();
        let session = tokio::spawn(async move { query(&url, &held).await });
        self.sleeps().await?;
        let site = self;
        Ok(Held { site, session })
    }
}

impl Held<'_> {
    /// Rolls the transaction back. Its locks are free when this returns.
    pub async fn release(self) -> Result<()> {
        let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                      WHERE datname = current_database() AND wait_event = 'PgSleep'";
        self.site.expect(ended, "1").await?;
        ensure!(self.session.await?.is_err(), "the transaction had ended");
        Ok(())
    }
}
