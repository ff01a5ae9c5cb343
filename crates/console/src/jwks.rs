//! The service's public keys, fetched in the background and kept.
//!
//! A request only looks at what is there. An unknown key id wakes the fetcher, at most every
//! [`WAKE_PAUSE`], so that clients cannot make the console call the service at will. While the document
//! cannot be fetched, the last keys stay in use: the agent's status is read from the database anyway.

mod fetch;
mod jwt;

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use jiff::Timestamp;
use svc_common::jwt::JwtError;
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::Jwks;
use fetch::fetch;
use jwt::KeySet;

const REFRESH: Duration = Duration::from_mins(5);
const RETRY: Duration = Duration::from_secs(5);
const WAKE_PAUSE: Duration = Duration::from_secs(10);

/// What is known about the keys.
#[derive(Debug, Default)]
struct Known {
    keys: KeySet,
    fetched_at: Option<Timestamp>,
    problem: Option<String>,
}

/// Verifies JWTs with the keys that are known.
#[derive(Clone, Debug)]
pub struct Verifier {
    known: Arc<RwLock<Known>>,
    wake: Arc<Notify>,
}

/// The state of the keys, for the page of the service.
#[derive(Clone, Debug)]
pub struct KeyState {
    pub ids: Vec<String>,
    pub fetched_at: Option<Timestamp>,
    pub problem: Option<String>,
}

/// The background part that fetches the document.
#[derive(Debug)]
pub struct Keys {
    settings: Jwks,
    verifier: Verifier,
}

impl Verifier {
    pub fn verify(&self, jwt: &str) -> Option<Uuid> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let verified = jwt::verify(jwt, &known.keys, Timestamp::now());
        if verified == Err(JwtError::ForeignKey) {
            self.wake.notify_one();
        }
        verified.ok()
    }

    pub fn state(&self) -> KeyState {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        KeyState {
            ids: known.keys.keys().cloned().collect(),
            fetched_at: known.fetched_at,
            problem: known.problem.clone(),
        }
    }
}

impl Keys {
    pub fn new(settings: Jwks) -> Self {
        let verifier = Verifier {
            known: Arc::default(),
            wake: Arc::default(),
        };
        Self { settings, verifier }
    }

    pub fn verifier(&self) -> Verifier {
        self.verifier.clone()
    }

    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let refreshing = async {
            loop {
                let wait = match self.pass().await {
                    true => REFRESH,
                    false => RETRY,
                };
                sleep(WAKE_PAUSE.min(wait)).await;
                tokio::select! {
                    () = sleep(wait.saturating_sub(WAKE_PAUSE)) => {}
                    () = self.verifier.wake.notified() => {}
                }
            }
        };
        stop.run_until_cancelled(refreshing).await;
        Ok(())
    }

    /// Fetches the document once. A failure leaves the keys as they are.
    async fn pass(&self) -> bool {
        let fetched = fetch(&self.settings).await;
        let keys = fetched.and_then(|json| {
            let keys = jwt::parse_keys(&json);
            keys.ok_or_else(|| anyhow::anyhow!("the document has no RS256 key"))
        });
        let known = &self.verifier.known;
        let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
        match keys {
            Ok(keys) => {
                *known = Known {
                    keys,
                    fetched_at: Some(Timestamp::now()),
                    problem: None,
                };
                true
            }
            Err(error) => {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "cannot fetch the JWKS document"
                );
                known.problem = Some(format!("{error:#}"));
                false
            }
        }
    }
}
