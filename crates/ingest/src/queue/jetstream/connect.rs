//! The connection to NATS: where to, as whom, and what is said when it is lost.
//!
//! A NATS that is away is waited for, at the start and ever after, as the database
//! is. Credentials are taken out of the URL before the client sees it, because the
//! client names its servers in its log.

use std::time::Duration;

use async_nats::{
    Client, ConnectError, ConnectOptions, Event,
    jetstream::context::{Context, ContextBuilder},
};
use secrecy::ExposeSecret;

use super::{OpenError, streams};
use crate::queue::{NatsAuth, NatsServers, QueueSettings};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that is silent for two of these is gone.
const PING: Duration = Duration::from_secs(10);
const MAX_WAIT: Duration = Duration::from_secs(10);
const RECONNECT: Duration = Duration::from_millis(100);
const MAX_RECONNECT: Duration = Duration::from_secs(2);
/// For an answer of JetStream.
const ANSWER: Duration = Duration::from_secs(5);
/// Publishes on their way at once; who comes later waits.
const IN_FLIGHT: usize = 1024;
/// Messages that a subscription holds for us: more than a batch. What comes on top
/// is dropped, and delivered again or found by the backstop.
const SUBSCRIPTION: usize = 8192;

/// Waits until NATS answers and its streams are as they should be.
pub(super) async fn open(
    servers: &NatsServers,
    settings: &QueueSettings,
) -> Result<Context, OpenError> {
    let mut wait = Duration::from_millis(500);
    loop {
        let reason = match connect(servers, settings).await? {
            Err(error) => format!("{:#}", anyhow::Error::from(error)),
            Ok(client) => {
                let context = context(client);
                match streams::ensure(&context).await? {
                    Ok(()) => return Ok(context),
                    Err(unanswered) => format!("{:#}", anyhow::Error::from(unanswered)),
                }
            }
        };
        tracing::warn!(reason, retry_in = ?wait, "waiting for NATS");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(MAX_WAIT);
    }
}

/// Looks, and changes nothing: whether the stream is there, as it should be.
pub(super) async fn check(
    servers: &NatsServers,
    settings: &QueueSettings,
) -> Result<bool, OpenError> {
    let client = connect(servers, settings).await?;
    let client = client.map_err(|error| OpenError::Away(error.into()))?;
    let found = streams::check(&context(client)).await?;
    found.map_err(|unanswered| OpenError::Away(unanswered.into()))
}

async fn connect(
    servers: &NatsServers,
    settings: &QueueSettings,
) -> Result<Result<Client, ConnectError>, OpenError> {
    let options = options(servers, settings)?;
    let addresses: Vec<String> = servers.urls.iter().map(ToString::to_string).collect();
    Ok(options.connect(addresses).await)
}

fn options(servers: &NatsServers, settings: &QueueSettings) -> Result<ConnectOptions, OpenError> {
    let mut options = ConnectOptions::new()
        .name("svc-ingest")
        .connection_timeout(CONNECT_TIMEOUT)
        .ping_interval(PING)
        .subscription_capacity(SUBSCRIPTION)
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(|event| async move { report(&event) });
    options = match &servers.auth {
        None => options,
        Some(NatsAuth::Token(token)) => options.token(token.expose_secret().to_owned()),
        Some(NatsAuth::Password { user, password }) => {
            options.user_and_password(user.clone(), password.expose_secret().to_owned())
        }
    };
    if let Some(ca) = &settings.nats_ca {
        options = options.add_root_certificates(ca.clone());
    }
    match &settings.nats_creds {
        None => Ok(options),
        Some(path) => {
            let unreadable = |error| OpenError::Credentials(path.display().to_string(), error);
            let text = std::fs::read_to_string(path).map_err(unreadable)?;
            options.credentials(&text).map_err(unreadable)
        }
    }
}

fn context(client: Client) -> Context {
    ContextBuilder::new()
        .timeout(ANSWER)
        .ack_timeout(ANSWER)
        .max_ack_inflight(IN_FLIGHT)
        .backpressure_on_inflight(true)
        .build(client)
}

fn reconnect_delay(attempts: usize) -> Duration {
    match attempts {
        0 | 1 => Duration::ZERO,
        more => MAX_RECONNECT.min(RECONNECT * u32::try_from(more).unwrap_or(u32::MAX)),
    }
}

fn report(event: &Event) {
    match event {
        Event::Disconnected => tracing::warn!("the connection to NATS was lost"),
        Event::Connected => tracing::info!("connected to NATS"),
        Event::SlowConsumer(_) => tracing::warn!("NATS sends faster than we take"),
        other => tracing::debug!(event = %other, "NATS"),
    }
}
