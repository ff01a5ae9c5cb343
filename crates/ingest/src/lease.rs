//! This instance's lease: a row in the database that says the instance is alive.
//!
//! **Renewal.** The lease is renewed every few seconds on the database's clock. Other instances trust it
//! until it expires; nothing else tells them that this instance lives.
//!
//! **Fencing.** When a lease has expired, any other instance may *fence* it: it marks the row as ended for
//! good, and after a grace it declares the agents of that instance offline unless they have reappeared
//! elsewhere. The fenced instance may still be running, for example after it was suspended or cut off
//! from the database. The danger is that it then goes on writing as if it still owned its agents. It
//! cannot: every write that concerns an agent's presence names the session's epoch, only the newest epoch
//! of an agent has any effect, and a fenced id can never be renewed.
//!
//! **Claiming again.** An instance that finds itself fenced takes a new id, claims a new lease, and takes
//! over those of its sessions that no newer session has replaced. The others end when it next compares its
//! sessions with the database.
//!
//! **Sweeping.** Only an instance that holds its own lease may fence others: an instance that could not
//! renew cannot tell whether the others or itself are cut off.
//!
//! A lease is claimed only beside siblings that accept this instance's JWTs, and whose JWTs it accepts.

mod sweep;

use std::sync::Arc;

use svc_store::{LeaseClaim, LeaseRenewal, NewInstance, Store, StoreError};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    clock::DatabaseClock,
    config::Timing,
    load::LoadGauge,
    periodic::Periodic,
    session::{SessionTable, held},
    startup::{self, KeyMismatch, StartError},
};

#[derive(Debug)]
pub struct Lease {
    store: Store,
    instance: NewInstance,
    timing: Timing,
    sessions: Arc<SessionTable>,
    /// Announces the instance's current id to the other parts.
    id: watch::Sender<Uuid>,
    load: LoadGauge,
    clock: DatabaseClock,
    /// The sessions are still recorded under an earlier id.
    takeover_pending: bool,
}

impl Lease {
    /// Claims the lease. A sibling with another key may be this instance's own dead predecessor, so it
    /// gets one lease term to expire.
    pub async fn claim(
        store: Store,
        instance: NewInstance,
        timing: Timing,
        sessions: Arc<SessionTable>,
        load: LoadGauge,
        clock: DatabaseClock,
    ) -> Result<Self, StartError> {
        let deadline = Instant::now() + startup::lease_patience(&timing);
        let id = watch::Sender::new(instance.id);
        let mut lease = Self {
            store,
            instance,
            timing,
            sessions,
            id,
            load,
            clock,
            takeover_pending: false,
        };
        loop {
            let Err(mismatch) = lease.try_claim().await? else {
                return Ok(lease);
            };
            if Instant::now() >= deadline {
                return Err(mismatch.into());
            }
            tracing::warn!(reason = %mismatch, "waiting one lease term for the instance with the other key to expire");
            tokio::time::sleep(timing.lease_renewal.min(deadline - Instant::now())).await;
        }
    }

    pub fn id(&self) -> watch::Receiver<Uuid> {
        self.id.subscribe()
    }

    /// Renews until `stop`, then releases the lease.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.timing.lease_renewal, stop);
        while periodic.tick().await {
            self.pass().await?;
        }
        match self.store.lease_release(self.instance.id).await {
            Ok(_) => tracing::debug!(instance.id = %self.instance.id, "the lease was released"),
            Err(error) => tracing::warn!(%error, "the lease was not released: it will expire"),
        }
        Ok(())
    }

    /// An unreachable database does not end the instance: the lease expires, and is claimed again later.
    async fn pass(&mut self) -> anyhow::Result<()> {
        let (id, ttl) = (self.instance.id, self.timing.lease_ttl);
        let (load, grace) = (self.load.read(), self.timing.sweep_grace());
        match self.store.lease_renew(id, ttl, &load, grace).await {
            Ok(LeaseRenewal::Renewed {
                sweep_is_due,
                clock,
            }) => {
                self.sessions.metrics.lease.set(1);
                self.clock.read(clock);
                self.after_renewal(sweep_is_due).await;
            }
            Ok(LeaseRenewal::Fenced | LeaseRenewal::Gone) => return self.claim_again().await,
            Err(error) => {
                self.sessions.metrics.lease.set(0);
                tracing::warn!(%error, "the lease could not be renewed");
            }
        }
        Ok(())
    }

    /// Takes over its own sessions first; sweeps other instances only when that is done.
    async fn after_renewal(&mut self, sweep_is_due: bool) {
        let done = match (self.takeover_pending, sweep_is_due) {
            (true, _) => self.take_over().await,
            (false, true) => {
                let (own_id, metrics) = (self.instance.id, &self.sessions.metrics);
                sweep::pass(&self.store, own_id, &self.timing, metrics).await
            }
            (false, false) => Ok(()),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "could not sweep: the next pass retries");
        }
    }

    /// Records the sessions whose epoch is still the newest under the new id. The next comparison with the database
    /// ends those that were replaced, and claims those that were locked.
    async fn take_over(&mut self) -> Result<(), StoreError> {
        let held = self.sessions.epochs();
        held::claim(&self.store, self.instance.id, &held).await?;
        self.takeover_pending = false;
        Ok(())
    }

    /// Siblings may have started with another key meanwhile, so their keys are compared again.
    async fn claim_again(&mut self) -> anyhow::Result<()> {
        let old = self.instance.id;
        match self.try_claim().await {
            Ok(Ok(())) => {
                tracing::warn!(instance.old = %old, instance.id = %self.instance.id, "the lease was lost and claimed again");
                self.takeover_pending = old != self.instance.id;
                if self.takeover_pending {
                    self.after_renewal(false).await;
                }
                Ok(())
            }
            Ok(Err(mismatch)) => Err(mismatch.into()),
            Err(error) => {
                tracing::warn!(%error, "the lease could not be claimed again");
                Ok(())
            }
        }
    }

    /// Claims under the current id if possible. A lease that has ended needs a new id.
    async fn try_claim(&mut self) -> Result<Result<(), KeyMismatch>, StoreError> {
        let (ttl, grace) = (self.timing.lease_ttl, self.timing.outage_grace);
        match self.store.lease_claim(&self.instance, ttl, grace).await? {
            LeaseClaim::Claimed => {
                self.id.send_replace(self.instance.id);
                Ok(Ok(()))
            }
            LeaseClaim::KidMismatch { kid, hostname, .. } => Ok(Err(KeyMismatch {
                ours: self.instance.kid.clone(),
                theirs: kid,
                hostname,
            })),
            LeaseClaim::Ended => {
                self.instance.id = Uuid::now_v7();
                Box::pin(self.try_claim()).await
            }
        }
    }
}
