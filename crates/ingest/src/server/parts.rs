//! The list of the long-lived parts of an instance.

use std::time::Duration;

use super::{GrpcPort, instance::Instance};
use crate::{
    enrol::{Admission, Issuer},
    grpc,
    lease::Lease,
    session::{self, Opener, Orphans, Pins},
    supervise::Parts,
};

/// The time at the end of the drain timeout, after the sessions were ended, in which their last messages
/// are sent.
const LAST_MESSAGES: Duration = Duration::from_secs(1);

pub(super) fn add_all(
    parts: &mut Parts,
    instance: &Instance,
    lease: Lease,
    port: GrpcPort,
) -> anyhow::Result<()> {
    let (stop, last) = (parts.stop.clone(), parts.last.clone());
    let (timing, drain_timeout) = (instance.config.timing, instance.config.drain_timeout);
    let (store, closer, sessions) = (
        instance.store.clone(),
        instance.closer.clone(),
        instance.sessions.clone(),
    );
    let changes = instance.changes();
    let (pins, pin_part) = Pins::new(store.clone());
    let (opener, opener_part) = Opener::new(
        store.clone(),
        instance.id.clone(),
        closer.clone(),
        timing.heard_within(None),
    );
    let (admission, lookup_part, newcomer_part) = Admission::new(store.clone());
    let (issuer, status_part) =
        Issuer::new(store.clone(), instance.keys.clone(), instance.clock.clone());
    let context = instance.grpc_context(
        admission,
        issuer.clone(),
        changes.clone(),
        opener,
        pins,
        stop.clone(),
    );
    let max_watches = instance.max_unauthenticated_streams();
    let routes = grpc::routes(context, instance.health.clone(), max_watches)?;
    let refusals = grpc::listener_refusals();

    let serving = port
        .listener
        .run(port.tls, routes, refusals, stop.clone(), drain_timeout);
    parts.front("the gRPC port", serving);
    parts.front("the drain", async move {
        stop.cancelled().await;
        session::drain(&sessions, drain_timeout.saturating_sub(LAST_MESSAGES)).await;
        Ok(())
    });

    parts.back("the maintenance", instance.maintenance().run(last.clone()));
    parts.back("the compaction", instance.compaction().run(last.clone()));
    let report = instance.fleet_report().run(last.clone());
    parts.back("the gauges of the fleet", report);
    let pictures = instance.fleet_pictures().run(last.clone());
    parts.back("the pictures of the fleet", pictures);
    parts.back("the rollouts", instance.rollouts().run(last.clone()));
    parts.back("the offers of updates", instance.offers().run(last.clone()));
    let settings = instance.settings().run(last.clone());
    parts.back("the settings of agents", settings);
    parts.back(
        "the trust of agents",
        instance.trust_pass().run(last.clone()),
    );
    parts.back(
        "the moves between cells",
        instance.moves().run(last.clone()),
    );
    let reinstalls = instance.reinstalls(&changes);
    parts.back("the reinstalls", reinstalls.run(last.clone()));
    if let Some(expiry) = instance.host_expiry() {
        parts.back("the expiry of hosts", expiry.run(last.clone()));
    }
    parts.back("the lease", lease.run(last.clone()));
    let listen = instance.listen(&changes);
    parts.back("the LISTEN connection", listen.run(last.clone()));
    let orphans = Orphans::new(closer.clone());
    let polling = changes.run(timing.poll, orphans, last.clone());
    parts.back("the change feed", polling);
    parts.back("the lookups of keys", lookup_part.run(last.clone()));
    parts.back("the newcomers", newcomer_part.run(last.clone()));
    parts.back("the statuses for JWTs", status_part.run(last.clone()));
    parts.back("the keys of agents", pin_part.run(last.clone()));
    parts.back("the opening of sessions", opener_part.run(last.clone()));
    parts.back(
        "the upkeep of sessions",
        instance.upkeep(issuer).run(last.clone()),
    );
    for consumer in instance.consumers() {
        parts.back("the consumer", consumer.run(last.clone()));
    }
    if let Some(listener) = instance.hint_listener() {
        parts.back("the commit hints", listener.run(last.clone()));
    }
    parts.back("the backstop", instance.backstop().run(last.clone()));
    parts.back(
        "the queue's depth",
        instance.depth_gauge().run(last.clone()),
    );
    let (reload, stopped) = (port.reload, last.clone());
    let reload = async move {
        reload.run(timing.certificate_poll, stopped).await;
        Ok(())
    };
    parts.back("the certificate reload", reload);
    parts.back("the closing of sessions", async move {
        closer.run(&store, last).await;
        Ok(())
    });
    Ok(())
}
