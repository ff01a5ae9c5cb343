//! The console as a whole: what is opened at start, the list of long-lived parts, how they end.

use std::{io, net::SocketAddr, time::Duration};

use anyhow::{Context, bail};
use svc_common::{http::Port, tls::Reload};
use svc_store::{SchemaError, SchemaState, Store, StoreOptions};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    error::SCHEMA_BEHIND,
    feed::Feed,
    http,
    jwks::Keys,
    routes,
    state::{App, ServiceSchema},
};

/// How often the files of the certificate are read.
const CERTIFICATE_POLL: Duration = Duration::from_secs(10);
const SCHEMA_RETRY: Duration = Duration::from_secs(2);

/// A bound console, before it serves.
#[derive(Debug)]
pub struct Server {
    port: Port,
    store: Store,
    config: Config,
}

impl Server {
    /// Opens the port. The database may be away: the console says so until it is back.
    pub async fn bind(config: Config) -> anyhow::Result<Self> {
        let options = StoreOptions::for_service(config.database.pool_size);
        let store = Store::new(config.database.url.clone(), options)?;
        let address = config.listening.address;
        let port = Port::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address}"))?;
        Ok(Self {
            port,
            store,
            config,
        })
    }

    /// The real address, where port 0 was requested.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.port.address()
    }

    /// Serves until `stop`, or until a part fails.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        tracing::info!(address = %self.address()?, version = crate::VERSION, "serving");
        self.config.listening.explain();
        let stop = stop.child_token();
        let (config, store) = (self.config, self.store);
        let feed = Feed::new(store.clone(), config.database.listen_url.clone());
        let keys = Keys::new(config.jwks.clone());
        let app = App::new(&config, store, feed.watch(), keys.verifier(), stop.clone())?;
        let mut parts = JoinSet::new();
        parts.spawn(schema(app.clone(), config.database.auto_migrate));
        parts.spawn(service_schema(app.clone()));
        let router = routes::router(&app)?;
        let mut tls = None;
        if let Some(pair) = config.listening.tls {
            let reload = Reload::new(pair, app.metrics.certificate_expiry());
            tls = Some(http::acceptor(reload.current())?);
            let stop = stop.clone();
            parts.spawn(async move {
                reload.run(CERTIFICATE_POLL, stop).await;
                Ok(())
            });
        }
        parts.spawn(http::serve(self.port, tls, router, app));
        parts.spawn(feed.run(stop.clone()));
        parts.spawn(keys.run(stop.clone()));
        let mut outcome = Ok(());
        while let Some(ended) = parts.join_next().await {
            outcome = outcome.and(ended.unwrap_or_else(|panic| Err(panic.into())));
            stop.cancel(); // Whatever ends first ends the rest.
        }
        outcome
    }
}

/// Brings the console's schema up to date, and waits for the stop. While the database is away it
/// tries again; any other failure needs an administrator and ends the process.
async fn schema(app: App, migrate: bool) -> anyhow::Result<()> {
    loop {
        let state = match migrate {
            true => app.store.console_migrate().await.map(|report| report.state),
            false => app.store.console_schema_check().await,
        };
        match state {
            Ok(SchemaState::Behind { missing }) => bail!(
                "the schema console lacks {}: run svc-console migrate",
                missing.join(", ")
            ),
            Ok(SchemaState::Altered { migration }) => bail!(SchemaError::Altered { migration }),
            Ok(SchemaState::Unreleased) => bail!(SchemaError::Unreleased),
            Ok(_) => break,
            Err(error) if error.is_unavailable() => {
                tracing::warn!(%error, "waiting for the database");
            }
            Err(error) => return Err(error).context("cannot prepare the schema console"),
        }
        let wait = tokio::time::sleep(SCHEMA_RETRY);
        if app.stop.run_until_cancelled(wait).await.is_none() {
            return Ok(());
        }
    }
    app.schema_ready();
    app.stop.cancelled().await;
    Ok(())
}

/// Waits until the service's schema has what the pages need, and then for the stop. A console that was upgraded before
/// the service says so meanwhile, and needs no restart.
async fn service_schema(app: App) -> anyhow::Result<()> {
    loop {
        match app.store.schema_check().await {
            Ok(SchemaState::Behind { missing }) => {
                let missing = missing.join(", ");
                tracing::warn!(missing, "{SCHEMA_BEHIND}");
                app.set_service_schema(ServiceSchema::Behind);
            }
            Ok(_) => break,
            Err(error) => tracing::debug!(%error, "cannot read the version of the schema"),
        }
        let wait = tokio::time::sleep(SCHEMA_RETRY);
        if app.stop.run_until_cancelled(wait).await.is_none() {
            return Ok(());
        }
    }
    app.set_service_schema(ServiceSchema::Ready);
    app.stop.cancelled().await;
    Ok(())
}
