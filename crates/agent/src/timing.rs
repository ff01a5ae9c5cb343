//! Every wait of the agent in one value, so that tests can shorten them together and a
//! reader sees how they fit.

use std::time::Duration;

use svc_proto::contract::{BackoffBounds, limits};

use crate::wire::Timeouts;

#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Without a hint, a retry waits a random time below a bound that grows from
    /// the first of these to the other.
    pub backoff: BackoffBounds,
    /// After a call that lived this long, the next failure counts as the first.
    pub settled: Duration,
    /// How often a rejected or revoked agent asks again.
    pub refused: Duration,
    /// How often an agent retries after its token was refused.
    pub token_refused: Duration,
    /// How long the service must refuse the key as in use before the agent takes another one.
    /// It is longer than every grace of the service, of which 150 s is the longest.
    pub in_use: Duration,
    /// The wait after a newer stream replaced this agent's stream.
    pub replaced: Duration,
    /// At most how long after the service has stored a new key the agent connects with it.
    pub new_key: Duration,
    /// How long the service may take to answer Goodbye.
    pub goodbye: Duration,
    /// The shortest time between two writes of the status file.
    pub status: Duration,
    /// The sampling interval until the service has set one.
    pub interval: Duration,
    /// The average pause after each full report, while old samples are sent.
    pub backfill: Duration,
    /// An agent that is asked to move to another cell begins within this time.
    pub cell_spread: Duration,
    /// How long the old cell may take to acknowledge what was sent, before the agent tries to move later.
    pub cell_settle: Duration,
    /// How long it waits after each failed attempt, from the first bound to the other.
    pub cell_retry: BackoffBounds,
    /// After this time without a cell, the agent asks elsewhere.
    pub cell_lost: Duration,
    pub timeouts: Timeouts,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            backoff: BackoffBounds::STANDARD,
            settled: Duration::from_secs(30),
            refused: limits::NOT_ADMITTED_WAIT,
            token_refused: Duration::from_mins(10),
            in_use: Duration::from_mins(5),
            replaced: limits::REPLACED_WAIT,
            new_key: Duration::from_secs(10),
            goodbye: Duration::from_secs(3),
            status: Duration::from_secs(3),
            interval: Duration::from_secs(30),
            backfill: Duration::from_secs(1),
            cell_spread: Duration::from_secs(10),
            cell_settle: Duration::from_secs(20),
            cell_retry: BackoffBounds {
                first: Duration::from_secs(30),
                most: Duration::from_mins(30),
            },
            cell_lost: Duration::from_hours(6),
            timeouts: Timeouts::default(),
        }
    }
}
