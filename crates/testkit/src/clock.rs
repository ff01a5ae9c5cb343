//! A database whose clock a test can set.
//!
//! The functions for the time are replaced by others, which the search path finds first. They add what a table says.

use anyhow::Result;

use crate::Site;

const SETTABLE: &str = "
    CREATE TABLE clock_ahead (by interval NOT NULL);
    INSERT INTO clock_ahead VALUES ('0');
    GRANT SELECT ON clock_ahead TO PUBLIC;
    CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
        'SELECT pg_catalog.clock_timestamp() + by FROM public.clock_ahead';
    CREATE FUNCTION now() RETURNS timestamptz STABLE LANGUAGE sql AS
        'SELECT pg_catalog.now() + by FROM public.clock_ahead';
    DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$";

impl Site {
    /// Makes [`Site::set_clock`] possible. Only connections that are opened afterwards see the clock, so this comes before
    /// the first instance.
    pub async fn settable_clock(&self) -> Result<()> {
        self.psql(SETTABLE).await.map(drop)
    }

    /// Sets the database's clock to so much more than the true time, such as "-1 hour".
    pub async fn set_clock(&self, ahead: &str) -> Result<()> {
        let set = format!("UPDATE clock_ahead SET by = '{ahead}'");
        self.psql(&set).await.map(drop)
    }

    /// The database's clock, in seconds.
    pub async fn clock(&self) -> Result<i64> {
        let seconds = "SELECT extract(epoch FROM clock_timestamp())::bigint";
        Ok(self.psql(seconds).await?.parse()?)
    }
}
