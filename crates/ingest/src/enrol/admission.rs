//! Admission of registrations: everything that a registration has to pass before it may begin its transaction, in the
//! order of what it costs.
//!
//! 1. The bucket of its client key ([`RegisterLimits::key`]), which costs nothing.
//! 2. Its class, by what the lookup finds: a known key, a valid token that it will spend, or neither
//!    ([`RegisterLimits::class`]). The lookups of all waiting clients are one query ([`Lookups`]).
//! 3. A new key with a valid token is registered in a batch with others ([`Newcomers`]), if that is all there is to it.
//! 4. Every other one needs a permit ([`Permits`]). A client that has no known key and spends no valid token never
//!    gets here, so it cannot take a permit from those that do.

use std::{sync::Arc, time::Duration};

use svc_store::{Bulkhead, Store};
use tokio::time::Instant;

use super::{
    RegisterError, RegisterLimits, RegisteredAgent, Registration,
    lookups::{LookupPart, Lookups},
    newcomers::{NewcomerPart, Newcomers},
    permits::{Permit, Permits},
    register::check_token,
};

/// How long a registration waits for a permit. The listener answers a request that takes longer than its
/// `response_deadline` (10 s) with DEADLINE_EXCEEDED; this leaves 3 s for the lookup, the transaction and the JWT, so
/// a registration that has to wait too long gets a retry delay instead.
const PERMIT_WAIT: Duration = Duration::from_secs(7);
/// How long a newcomer waits for its batch: a crowd of ten thousand takes about 15 s. If it then needs a permit, both waits
/// and those 3 s are what the listener's `vouched_deadline` allows (30 s).
const BATCH_WAIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Admission {
    limits: RegisterLimits,
    lookups: Lookups,
    newcomers: Newcomers,
    permits: Arc<Permits>,
}

/// What admission came to.
#[derive(Debug)]
pub enum Admitted {
    /// A newcomer, which is registered already.
    Registered(RegisteredAgent),
    /// The right to run the registration. The caller holds it until the last query has ended.
    Permitted(Permit),
}

impl Admission {
    pub fn new(store: Store) -> (Self, LookupPart, NewcomerPart) {
        let permits = Permits::for_pool(store.connections(Bulkhead::Auth));
        let (lookups, lookup_part) = Lookups::new(store.clone());
        let (newcomers, newcomer_part) = Newcomers::new(store);
        let admission = Self {
            limits: RegisterLimits::new(Instant::now()),
            lookups,
            newcomers,
            permits: Arc::new(permits),
        };
        (admission, lookup_part, newcomer_part)
    }

    /// Admits a registration of the client's own key, or (`succeeds`) of the key that succeeds it. Calls `vouch` before it waits
    /// with a valid token in a crowd of newcomers.
    pub async fn admit(
        &self,
        wanted: &Arc<Registration>,
        succeeds: bool,
        vouch: impl FnOnce(),
    ) -> Result<Admitted, RegisterError> {
        let limited = |retry| RegisterError::RateLimited { retry };
        let key = self.limits.key(wanted.key, Instant::now());
        key.map_err(limited)?;
        let look = self.lookups.look(wanted.key, wanted.token).await?;
        let class = self.limits.class(&look, succeeds, Instant::now());
        class.map_err(limited)?;
        if !look.key_known {
            if succeeds {
                return Err(RegisterError::NotAnOrigin);
            }
            let token = wanted.token.ok_or(RegisterError::TokenMissing)?;
            check_token(&look.token.ok_or(RegisterError::TokenUnknown)?)?;
            vouch();
            let until = Instant::now() + BATCH_WAIT;
            let newcomers = &self.newcomers;
            let registered = newcomers.register(wanted.clone(), token, until).await?;
            if let Some(registered) = registered {
                return Ok(Admitted::Registered(registered));
            }
        }
        let until = Instant::now() + PERMIT_WAIT;
        let permit = self.permits.admit(look.key_known, until).await;
        Ok(Admitted::Permitted(permit.map_err(limited)?))
    }
}
