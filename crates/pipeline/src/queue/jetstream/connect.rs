//! The connection to NATS: servers, credentials and timeouts.
//!
//! The service waits for NATS at the start and reconnects without end, as it does with the database. The configuration
//! has removed the credentials from the URLs, because the NATS client logs its servers.

use std::time::Duration;

use async_nats::{
    ConnectOptions, Event,
    jetstream::context::{Context, ContextBuilder},
};
use secrecy::ExposeSecret;
use svc_common::error_chain::chain;

use super::{OpenError, streams};
use crate::queue::{NatsAuth, NatsServers, QueueSettings, QueueUnavailable};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The client closes a connection when two pings stay unanswered.
const PING: Duration = Duration::from_secs(10);
const MAX_WAIT: Duration = Duration::from_secs(10);
const RECONNECT: Duration = Duration::from_millis(100);
const MAX_RECONNECT: Duration = Duration::from_secs(2);
/// For responses of JetStream.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Unacknowledged publishes at once; further ones wait.
const IN_FLIGHT: usize = 1024;
/// Messages that the client buffers for a subscription: more than a batch. The client drops what exceeds it; JetStream
/// delivers dropped messages again, and the backstop finds what dropped hints were about.
const SUBSCRIPTION_CAPACITY: usize = 8192;

/// Waits until NATS answers and its streams are as they should be.
pub(super) async fn open(
    servers: &NatsServers,
    settings: &QueueSettings,
) -> Result<Context, OpenError> {
    let mut wait = Duration::from_millis(500);
    loop {
        match try_open(servers, settings).await {
            Err(error @ OpenError::Unavailable(_)) => {
                tracing::warn!(reason = chain(&error), retry_in = ?wait, "waiting for NATS");
            }
            outcome => return outcome,
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(MAX_WAIT);
    }
}

async fn try_open(servers: &NatsServers, settings: &QueueSettings) -> Result<Context, OpenError> {
    let context = connect(servers, settings).await?;
    check_payload(&context)?;
    streams::ensure(&context).await?;
    Ok(context)
}

/// Whether the stream exists. It is an error if it has other settings than ours. Changes nothing.
pub(super) async fn check(
    servers: &NatsServers,
    settings: &QueueSettings,
) -> Result<bool, OpenError> {
    let context = connect(servers, settings).await?;
    check_payload(&context)?;
    streams::check(&context).await
}

fn check_payload(context: &Context) -> Result<(), OpenError> {
    match context.client().max_payload() {
        limit if limit < streams::MIN_PAYLOAD => Err(OpenError::Payload { limit }),
        _ => Ok(()),
    }
}

async fn connect(servers: &NatsServers, settings: &QueueSettings) -> Result<Context, OpenError> {
    let options = options(servers, settings)?;
    let addresses: Vec<String> = servers.urls.iter().map(ToString::to_string).collect();
    let client = options.connect(addresses).await;
    let client = client.map_err(QueueUnavailable::new)?;
    Ok(ContextBuilder::new()
        .timeout(RESPONSE_TIMEOUT)
        .ack_timeout(RESPONSE_TIMEOUT)
        .max_ack_inflight(IN_FLIGHT)
        .backpressure_on_inflight(true)
        .build(client))
}

fn options(servers: &NatsServers, settings: &QueueSettings) -> Result<ConnectOptions, OpenError> {
    let mut options = ConnectOptions::new()
        .name("svc-ingest")
        .connection_timeout(CONNECT_TIMEOUT)
        .ping_interval(PING)
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
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
        Event::SlowConsumer(_) => tracing::warn!("NATS sends faster than this process reads"),
        other => tracing::debug!(event = %other, "NATS"),
    }
}
