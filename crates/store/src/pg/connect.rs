//! Opening a connection: which server, and how long it may take.
//!
//! The driver's own loop over several hosts has no limit for a server that accepts the TCP
//! connection and then says nothing, as a frozen one does, and one limit for all addresses of a
//! name. The loop is therefore here: every address of every host gets the whole connection
//! timeout, for TCP, TLS, login and the check of `target_session_attrs` together.
//!
//! The first host to try is the one that worked last. An attempt that is cancelled counts as
//! failed, so the next one begins with the next host: however short the caller's deadline is, every
//! host gets its turn.

use tokio::{net::lookup_host, time::timeout};
use tokio_postgres::{
    Client, Config, Connection, Socket,
    config::{Host, LoadBalanceHosts},
    tls::MakeTlsConnect,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::pg::{
    cancel::Canceller,
    error::{Result, StoreError, Unavailability},
    url::DatabaseUrl,
};

/// A connection to a server.
pub(crate) struct Connected {
    pub(crate) client: Client,
    pub(crate) wire: Wire,
    pub(crate) canceller: Canceller,
}

/// The other half of a client: it sends and receives while it is polled.
pub(crate) type Wire = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Connects to the first server that answers. `options` are startup options, which a pooler may
/// refuse.
pub(crate) async fn connect(url: &DatabaseUrl, options: Option<&str>) -> Result<Connected> {
    let mut failure = StoreError::unavailable(Unavailability::Connect);
    for (at, config) in url.servers() {
        let mut config = config.clone();
        if let Some(options) = options {
            let given = config.get_options().unwrap_or_default();
            config.options(format!("{given} {options}"));
        }
        match connect_to(&config, url).await {
            Ok(connected) => {
                url.prefer(at);
                return Ok(connected);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn connect_to(config: &Config, url: &DatabaseUrl) -> Result<Connected> {
    let mut failure = StoreError::unavailable(Unavailability::Connect);
    for address in addresses(config).await {
        match timeout(url.connect_timeout(), address.connect(url.tls())).await {
            Ok(Ok((client, wire))) => {
                let canceller = Canceller::new(&client, &address, url.tls());
                return Ok(Connected {
                    client,
                    wire,
                    canceller,
                });
            }
            Ok(Err(error)) => failure = StoreError::connect(error),
            Err(_) => failure = StoreError::unavailable(Unavailability::Connect),
        }
    }
    Err(failure)
}

/// One configuration for each address of the server's name. Where the lookup fails, the driver
/// repeats it and reports why.
async fn addresses(config: &Config) -> Vec<Config> {
    let ([Host::Tcp(name)], []) = (config.get_hosts(), config.get_hostaddrs()) else {
        return vec![config.clone()];
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let Ok(found) = lookup_host((name.as_str(), port)).await else {
        return vec![config.clone()];
    };
    let mut found: Vec<_> = found.map(|address| address.ip()).collect();
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        rand::seq::SliceRandom::shuffle(&mut found[..], &mut rand::rng());
    }
    let with = |address| config.clone().hostaddr(address).clone();
    found.into_iter().map(with).collect()
}
