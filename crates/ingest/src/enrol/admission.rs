//! Admission of registrations: everything that a registration has to pass before it may begin its transaction, in the
//! order of what it costs.
//!
//! 1. The bucket of its client key ([`RegisterLimits::key`]), which costs nothing.
//! 2. Its class, by what the lookup finds: a known key, a valid token, or neither ([`RegisterLimits::class`]). The
//!    lookups of all waiting clients are one query ([`Lookups`]).
//! 3. A permit ([`Permits`]). A client without a known key or a valid token never gets here, so it cannot take a permit
//!    from those that have one.

use std::{sync::Arc, time::Duration};

use svc_store::{Bulkhead, Store};
use tokio::time::Instant;

use super::{
    RegisterError, RegisterLimits, Registration,
    lookups::{LookupPart, Lookups},
    permits::{Permit, Permits},
    register::check_token,
};

#[derive(Debug)]
pub struct Admission {
    limits: RegisterLimits,
    lookups: Lookups,
    permits: Arc<Permits>,
}

impl Admission {
    pub fn new(store: Store) -> (Self, LookupPart) {
        let permits = Permits::for_pool(store.connections(Bulkhead::Auth));
        let (lookups, part) = Lookups::new(store);
        let admission = Self {
            limits: RegisterLimits::new(Instant::now()),
            lookups,
            permits: Arc::new(permits),
        };
        (admission, part)
    }

    /// The permit to run this registration. The caller holds it until its last query has ended.
    pub async fn admit(&self, wanted: &Registration) -> Result<Permit, RegisterError> {
        let limited = |retry| RegisterError::RateLimited { retry };
        let key = self.limits.key(wanted.key, Instant::now());
        key.map_err(limited)?;
        let look = self.lookups.look(wanted.key, wanted.token).await?;
        let class = self.limits.class(&look, Instant::now());
        class.map_err(limited)?;
        if !look.key_known {
            match (wanted.token, look.token) {
                (None, _) => return Err(RegisterError::TokenMissing),
                (Some(_), None) => return Err(RegisterError::TokenUnknown),
                (Some(_), Some(state)) => check_token(&state)?,
            }
        }
        self.permits.admit(look.key_known).await.map_err(limited)
    }

    /// The permit to answer an agent that waited for a decision. The error is the delay after which it should retry.
    pub async fn admit_decided(&self) -> Result<Permit, Duration> {
        self.permits.admit(true).await
    }
}
