//! Every lease, poll, deadline and grace in one value, so that tests can shrink
//! them together and a reader can see how they fit.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How often an agent reports; everything that concerns silence follows from it.
    pub heartbeat_interval: Duration,
    /// How often an instance renews its lease, and how long a lease lives.
    pub lease_renewal: Duration,
    pub lease_ttl: Duration,
    /// How long the database may be away before `/healthz` says so.
    pub health_grace: Duration,
    /// For a stream's Hello.
    pub hello_deadline: Duration,
    /// How long before its end a JWT is renewed over the stream: over a quarter of its life.
    pub renew_before: Duration,
    /// How long after its last look at the database an instance still acknowledges and issues.
    pub freshness: Duration,
    /// How long an instance keeps its streams without seeing the database.
    pub blind_patience: Duration,
    /// How often certificate files are looked at.
    pub certificate_poll: Duration,
    /// What every lapsed lease is given after an outage of all instances or of the database.
    pub outage_grace: Duration,
    /// How long a stream waits for a commit before it is looked for in the database, and how often.
    pub ack_backstop: Duration,
    /// How often everything that is waited for is looked up, notifications or not.
    pub poll: Duration,
    /// How long a machine's agent must have been offline before a token may replace it unseen.
    pub reinstall_quiet: Duration,
    /// How long somebody else may take to migrate the schema, where this instance may not.
    pub schema_patience: Duration,
    /// How often the hours that changed are rolled up.
    pub rollup: Duration,
}

impl Timing {
    pub fn new(heartbeat_interval: Duration) -> Self {
        Self {
            heartbeat_interval,
            lease_renewal: Duration::from_secs(5),
            lease_ttl: Duration::from_secs(15),
            health_grace: Duration::from_secs(60),
            hello_deadline: Duration::from_secs(10),
            renew_before: Duration::from_hours(7),
            freshness: Duration::from_secs(10),
            blind_patience: Duration::from_secs(60),
            certificate_poll: Duration::from_secs(10),
            outage_grace: Duration::from_secs(150),
            ack_backstop: Duration::from_secs(1),
            poll: Duration::from_secs(5),
            reinstall_quiet: Duration::from_mins(10),
            schema_patience: Duration::from_mins(1),
            rollup: Duration::from_mins(5),
        }
    }
}

impl Timing {
    /// How long a stream may be silent.
    pub fn silence(&self) -> Duration {
        self.heartbeat_interval * 2 + Duration::from_secs(10)
    }

    /// What a lapsed lease is given for its agents to reappear elsewhere.
    pub fn sweep_grace(&self) -> Duration {
        (self.heartbeat_interval * 2).max(Duration::from_secs(10))
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::new(Duration::from_secs(30))
    }
}
