//! This instance's lease: a row that says it lives, renewed on the database's clock.
//!
//! A lease is claimed only beside siblings that sign with the same key. An
//! instance that was fenced, because it could not renew in time, is a new one
//! from then on: it takes a new id, claims again, and takes over those of its
//! streams that nobody has replaced. Only who holds its lease may sweep others.

use std::sync::Arc;

use svc_store::{LeaseClaim, LeaseRenewal, NewInstance, Store, StoreError};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::sweep;
use crate::{
    config::{Problems, Timing},
    session::{Ending, Sessions},
    startup::{self, StartError},
};

/// Streams taken over in one statement.
const BATCH: usize = 1000;

#[derive(Debug)]
pub struct Lease {
    store: Store,
    instance: NewInstance,
    timing: Timing,
    sessions: Arc<Sessions>,
    /// Tells everybody else which id this instance has now.
    id: watch::Sender<Uuid>,
    /// The streams stand under an old id until they are taken over.
    takeover: bool,
}

impl Lease {
    /// Claims the lease. A sibling with another key may be this instance's own
    /// dead predecessor, so it is given one term to expire.
    pub async fn claim(
        store: Store,
        instance: NewInstance,
        timing: Timing,
        sessions: Arc<Sessions>,
    ) -> Result<Self, StartError> {
        let patience = Instant::now() + startup::lease_patience(&timing);
        let id = watch::Sender::new(instance.id);
        let mut lease = Self {
            store,
            instance,
            timing,
            sessions,
            id,
            takeover: false,
        };
        loop {
            let Err(problems) = lease.try_claim().await? else {
                return Ok(lease);
            };
            if Instant::now() >= patience {
                return Err(problems.into());
            }
            tracing::warn!(reason = %problems, "waiting one lease term for the other key to go");
            tokio::time::sleep(timing.lease_renewal.min(patience - Instant::now())).await;
        }
    }

    pub fn id(&self) -> watch::Receiver<Uuid> {
        self.id.subscribe()
    }

    /// Renews until `stop`, then gives the lease back.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(self.timing.lease_renewal);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            self.pass().await?;
        }
        match self.store.lease_release(self.instance.id).await {
            Ok(_) => tracing::debug!(instance.id = %self.instance.id, "the lease was given back"),
            Err(error) => tracing::warn!(%error, "the lease was not given back: it will expire"),
        }
        Ok(())
    }

    /// An unreachable database is no reason to end: the lease lapses, and is claimed anew.
    async fn pass(&mut self) -> anyhow::Result<()> {
        match self
            .store
            .lease_renew(self.instance.id, self.timing.lease_ttl)
            .await
        {
            Ok(LeaseRenewal::Renewed) => {
                self.sessions.metrics.lease.set(1);
                self.after_renewal().await;
            }
            Ok(LeaseRenewal::Fenced | LeaseRenewal::Gone) => return self.claim_anew().await,
            Err(error) => {
                self.sessions.metrics.lease.set(0);
                tracing::warn!(%error, "the lease could not be renewed");
            }
        }
        Ok(())
    }

    async fn after_renewal(&mut self) {
        let done = match self.takeover {
            true => self.take_over().await,
            false => {
                let (me, metrics) = (self.instance.id, &self.sessions.metrics);
                sweep::pass(&self.store, me, &self.timing, metrics).await
            }
        };
        if let Err(error) = done {
            tracing::warn!(%error, "could not sweep: the next pass will");
        }
    }

    /// Streams whose epoch is still the newest are ours again; the others were replaced.
    async fn take_over(&mut self) -> Result<(), StoreError> {
        let held = self.sessions.epochs();
        for batch in held.chunks(BATCH) {
            let ours = self.store.sessions_reclaim(self.instance.id, batch).await?;
            for (agent, epoch) in batch.iter().filter(|(agent, _)| !ours.contains(agent)) {
                self.sessions.end(*agent, *epoch, Ending::Replaced);
            }
        }
        self.takeover = false;
        Ok(())
    }

    /// What was lost meanwhile may have gone to another key, so siblings are looked at again.
    async fn claim_anew(&mut self) -> anyhow::Result<()> {
        let old = self.instance.id;
        match self.try_claim().await {
            Ok(Ok(())) => {
                tracing::warn!(instance.old = %old, instance.id = %self.instance.id, "the lease was lost and claimed anew");
                self.takeover = old != self.instance.id;
                if self.takeover {
                    self.after_renewal().await;
                }
                Ok(())
            }
            Ok(Err(problems)) => Err(problems.into()),
            Err(error) => {
                tracing::warn!(%error, "the lease could not be claimed anew");
                Ok(())
            }
        }
    }

    /// Under the same id if that can be: a lease that has ended needs a new one.
    async fn try_claim(&mut self) -> Result<Result<(), Problems>, StoreError> {
        match self
            .store
            .lease_claim(
                &self.instance,
                self.timing.lease_ttl,
                self.timing.outage_grace,
            )
            .await?
        {
            LeaseClaim::Claimed => {
                self.id.send_replace(self.instance.id);
                Ok(Ok(()))
            }
            LeaseClaim::KidMismatch { kid, hostname, .. } => Ok(Err(startup::foreign_key(
                &self.instance.kid,
                &kid,
                &hostname,
            ))),
            LeaseClaim::Ended => {
                self.instance.id = Uuid::now_v7();
                Box::pin(self.try_claim()).await
            }
        }
    }
}
