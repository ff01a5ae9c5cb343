//! Every lease, poll, deadline and grace of the service in one value, so that a reader can see how they fit
//! together and tests can shrink them together.
//!
//! Three kinds of durations are elsewhere on purpose. Limits of the gRPC port, which protect it from clients,
//! are in [`Limits`](svc_front::listener::Limits). Deadlines of the protocol, which clients rely on, are in
//! `svc_proto::contract`. And constants that pace a loop (pauses between batches, retries after an error) are
//! beside their loop: they trade latency for load, and nothing else depends on them.

use std::time::Duration;

use svc_pipeline::consumer::Waits;

#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How often an agent reports. The limits for silence follow from it.
    pub heartbeat_interval: Duration,
    /// How long a stream may be silent beyond two intervals.
    pub silence_margin: Duration,
    /// How often an instance renews its lease.
    pub lease_renewal: Duration,
    /// How long a lease lives after its renewal.
    pub lease_ttl: Duration,
    /// How long the database may be away before `/healthz` reports it.
    pub health_grace: Duration,
    /// The deadline for a stream's Hello.
    pub hello_deadline: Duration,
    /// How long before its expiry a JWT is renewed over the stream: more than a quarter of its life.
    pub renew_before: Duration,
    /// How long after the last complete comparison with the database an instance still acknowledges
    /// reports, opens streams and issues JWTs.
    pub freshness: Duration,
    /// How long an instance without the database keeps its agents before it sends them elsewhere.
    pub blind_patience: Duration,
    /// How often the certificate files are read.
    pub certificate_poll: Duration,
    /// How long an agent that was heard until its connection broke may take to come back before it counts as offline. The end of a proxy or a network that
    /// blinks says nothing of a host. An outage of the database that lasts longer lapses the leases too, which pauses the sweep.
    pub lost_grace: Duration,
    /// The grace of every expired lease after an outage of all instances or of the database. PostgreSQL has the same
    /// (`outage_grace()`).
    pub outage_grace: Duration,
    /// The longest time for which a consumer gathers reports before it stores them. Clients are promised their
    /// acknowledgements within a second while the database keeps up; this leaves time for the commit.
    pub batch_wait: Duration,
    /// How long a report waits for its commit before the backstop looks for it, and how often it looks. Longer than
    /// `batch_wait` and a commit, so that the backstop finds only what was lost.
    pub ack_backstop: Duration,
    /// How long a report is put back while it waits for an earlier report of its agent. After that it is dropped; the agent
    /// sends it again. The time in the queue before its first delivery, as in an outage, does not count.
    pub order_patience: Duration,
    /// How often sessions and waiting registrations are compared with the database.
    pub poll: Duration,
    /// How long a host's agent must have been offline before a token may replace it by itself.
    pub reinstall_quiet: Duration,
    /// How long an instance that may not migrate waits for the schema to be migrated.
    pub schema_patience: Duration,
    /// How often hours that are over are compacted.
    pub compaction: Duration,
    /// How often the reporter reads the gauges of the whole fleet.
    pub fleet_gauges: Duration,
    /// How often the pictures of the whole fleet are counted, by one of the instances.
    pub fleet_pictures: Duration,
    /// How often what agents say about updates and trust is stored, and offers and trust anchors are looked for.
    pub offers: Duration,
    /// How often rollouts are judged.
    pub rollouts: Duration,
    /// How long an agent must have been offline to count against the rollout that it is in.
    pub dark_after: Duration,
    /// How often hosts that are offline for long are looked for, and how long an instance has run before.
    pub host_expiry: Duration,
}

impl Timing {
    pub fn new(heartbeat_interval: Duration) -> Self {
        Self {
            heartbeat_interval,
            silence_margin: Duration::from_secs(10),
            lease_renewal: Duration::from_secs(5),
            lease_ttl: Duration::from_secs(15),
            health_grace: Duration::from_secs(60),
            hello_deadline: Duration::from_secs(10),
            renew_before: Duration::from_hours(7),
            freshness: Duration::from_secs(10),
            blind_patience: Duration::from_secs(60),
            certificate_poll: Duration::from_secs(10),
            lost_grace: Duration::from_secs(30),
            outage_grace: Duration::from_secs(150),
            batch_wait: Duration::from_millis(900),
            ack_backstop: Duration::from_secs(2),
            order_patience: Duration::from_mins(1),
            poll: Duration::from_secs(5),
            reinstall_quiet: Duration::from_mins(10),
            schema_patience: Duration::from_mins(1),
            compaction: Duration::from_mins(5),
            fleet_gauges: Duration::from_mins(1),
            fleet_pictures: Duration::from_mins(1),
            offers: Duration::from_secs(3),
            rollouts: Duration::from_mins(1),
            dark_after: Duration::from_mins(5),
            host_expiry: Duration::from_hours(1),
        }
    }

    /// How long a stream may be silent whose agent has an interval of its own, or that of all.
    pub fn silence(&self, own: Option<Duration>) -> Duration {
        own.unwrap_or(self.heartbeat_interval) * 2 + self.silence_margin
    }

    /// How recent a message proves that a stream is live whose agent has an interval of its own, or that of all. An instance
    /// answers for its streams once in each poll, so what it says may be one poll old.
    pub fn heard_within(&self, own: Option<Duration>) -> Duration {
        own.unwrap_or(self.heartbeat_interval) + self.poll
    }

    /// How long reports may wait in a consumer.
    pub fn consumer_waits(&self) -> Waits {
        Waits {
            batch: self.batch_wait,
            order: self.order_patience,
        }
    }

    /// How long the agents of a fenced instance may take to reappear elsewhere.
    pub fn sweep_grace(&self) -> Duration {
        (self.heartbeat_interval * 2).max(Duration::from_secs(10))
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::new(Duration::from_secs(30))
    }
}
