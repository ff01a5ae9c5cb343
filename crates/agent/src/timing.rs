//! Every wait of the agent in one value, so that tests can shrink them together
//! and a reader can see how they fit.

use std::time::Duration;

use crate::wire::Patience;

#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Between attempts without a hint: full jitter below a bound that grows from
    /// `backoff_first` to `backoff_most`.
    pub backoff_first: Duration,
    pub backoff_most: Duration,
    /// How long a stream must have lived for its end to count as the first failure.
    pub settled: Duration,
    /// How often a rejected or revoked agent asks again.
    pub refused: Duration,
    /// How often an agent asks again whose token admits nobody.
    pub token_refused: Duration,
    /// How long an agent waits that was replaced by a newer stream of its own.
    pub replaced: Duration,
    /// How long the service may take to hear Goodbye.
    pub goodbye: Duration,
    /// How often at most the status file is written.
    pub status: Duration,
    /// How often samples are taken until the service has said so.
    pub interval: Duration,
    /// Between full reports, on average, while old samples are sent.
    pub backfill: Duration,
    pub patience: Patience,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            backoff_first: Duration::from_secs(1),
            backoff_most: Duration::from_secs(120),
            settled: Duration::from_secs(30),
            refused: Duration::from_hours(1),
            token_refused: Duration::from_mins(10),
            replaced: Duration::from_secs(30),
            goodbye: Duration::from_secs(3),
            status: Duration::from_secs(3),
            interval: Duration::from_secs(30),
            backfill: Duration::from_secs(1),
            patience: Patience::default(),
        }
    }
}
