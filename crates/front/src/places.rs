//! The places of connections: how many there are, who holds one, and who loses it when they run out.
//!
//! A connection is *proven* once a Register or a Heartbeat over it has succeeded. Any client with a self-made
//! certificate can open connections, so until then a connection holds its place on sufferance: unproven
//! connections have a quota of their own, and when the quota or all places are used up, one of them is evicted
//! for the new one. A proven connection is never evicted.
//!
//! **Who is evicted.** The one that got least far, and of those the oldest ([`Stage`]): first connections that
//! have had an answer and proved nothing, then those that keep us waiting. A connection that waits for *us*, for
//! a handshake's signature or in a call that may prove it, is not evicted, because that would let a crowd of
//! agents that reconnect throw each other out just before they succeed. If all are in that stage, the new
//! connection is shed and its client retries. How long that stage lasts depends on the service alone: a client
//! that stalls leaves it.
//!
//! **A valid token vouches for a connection.** A fleet that is rolled out arrives all at once, and its registrations wait
//! for each other. Once such a call is known to have a valid token, its connection is outside the quota until the call
//! ends; otherwise the quota would turn away those that come later.
//!
//! **One lock.** All changes of a place happen under the lock of `Table`. A number is in at most one stage. It
//! leaves the table by eviction, by proof or when its connection ends, whichever comes first, and each later
//! attempt finds nothing. The token `proven` is cancelled under the lock too, so that the end of the connection
//! knows which count to lower.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use svc_common::sync::lock;
use tokio_util::sync::CancellationToken;

use crate::metrics::ListenerMetrics;

/// How far an unproven connection has got, in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has had an answer that proved nothing.
    Answered,
    /// It is accepted, and its ClientHello has not arrived.
    Accepted,
    /// The server has signed the handshake; the client has to send the rest, a whole request, or the Hello of a stream.
    Secured,
    /// The service is working for it. Not evicted.
    Served,
    /// The service is working on a call with a valid token. Not evicted, and outside the quota.
    Vouched,
}

const STAGES: usize = 5;

/// All places of the port.
#[derive(Debug)]
pub struct Places {
    total: usize,
    quota: usize,
    table: Mutex<Table>,
    metrics: ListenerMetrics,
}

#[derive(Debug, Default)]
struct Table {
    /// The unproven connections of each stage in order of arrival, with the token that evicts them. Bounded by
    /// the quota, except those of the last stage.
    unproven: [BTreeMap<u64, CancellationToken>; STAGES],
    proven: usize,
    arrivals: u64,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub struct Place {
    standing: Standing,
    evicted: CancellationToken,
}

/// What a connection has proven. It does not hold the place: after the connection's end it does nothing.
#[derive(Clone, Debug)]
pub struct Standing {
    places: Arc<Places>,
    number: u64,
    proven: CancellationToken,
}

/// A call that proves its connection if it succeeds. The connection is not evicted while it is in progress.
#[derive(Debug)]
pub struct Trial(Standing);

impl Places {
    /// `quota` of the `total` places may be held by unproven connections.
    pub fn new(total: usize, quota: usize, metrics: ListenerMetrics) -> Self {
        Self {
            total,
            quota,
            table: Mutex::default(),
            metrics,
        }
    }

    /// A place for a new connection, or `None` when there is none and no connection gives way.
    pub fn enter(self: &Arc<Self>) -> Option<Place> {
        let mut table = lock(&self.table);
        let unproven = table.unproven();
        if unproven >= self.quota || unproven + table.vouched() + table.proven >= self.total {
            let Some(evicted) = table.worst() else {
                self.metrics.shed.inc();
                return None;
            };
            evicted.cancel();
            self.metrics.evicted.inc();
        }
        table.arrivals += 1;
        let number = table.arrivals;
        let evicted = CancellationToken::new();
        table.unproven[Stage::Accepted as usize].insert(number, evicted.clone());
        self.metrics.unproven.set(gauge(table.unproven()));
        self.metrics.connections.inc();
        let standing = Standing {
            places: self.clone(),
            number,
            proven: CancellationToken::new(),
        };
        Some(Place { standing, evicted })
    }
}

impl Table {
    /// How many connections the quota counts.
    fn unproven(&self) -> usize {
        let counted = &self.unproven[..Stage::Vouched as usize];
        counted.iter().map(BTreeMap::len).sum()
    }

    fn vouched(&self) -> usize {
        self.unproven[Stage::Vouched as usize].len()
    }

    /// Takes the connection that has to give way.
    fn worst(&mut self) -> Option<CancellationToken> {
        let evictable = &mut self.unproven[..Stage::Served as usize];
        let (_, evicted) = evictable.iter_mut().find_map(BTreeMap::pop_first)?;
        Some(evicted)
    }

    fn take(&mut self, number: u64) -> Option<CancellationToken> {
        let stages = &mut self.unproven;
        stages.iter_mut().find_map(|stage| stage.remove(&number))
    }
}

impl Place {
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Returns when the connection has to give way.
    pub async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Standing {
            places,
            number,
            proven,
        } = &self.standing;
        let mut table = lock(&places.table);
        if table.take(*number).is_none() && proven.is_cancelled() {
            table.proven -= 1;
        }
        places.metrics.unproven.set(gauge(table.unproven()));
        places.metrics.connections.dec();
    }
}

impl Standing {
    /// Notes how far the connection has got, if it is unproven.
    pub fn reach(&self, stage: Stage) {
        let mut table = lock(&self.places.table);
        if let Some(evicted) = table.take(self.number) {
            table.unproven[stage as usize].insert(self.number, evicted);
            self.places.metrics.unproven.set(gauge(table.unproven()));
        }
    }

    /// A request was answered. While a trial is in progress this changes nothing.
    pub fn answered(&self) {
        self.shift(Stage::Secured, Stage::Answered);
    }

    /// The answer to a request has begun, and the client has to send more before the call can prove anything.
    pub fn awaited(&self) {
        self.shift(Stage::Answered, Stage::Secured);
    }

    fn shift(&self, from: Stage, to: Stage) {
        let mut table = lock(&self.places.table);
        if let Some(evicted) = table.unproven[from as usize].remove(&self.number) {
            table.unproven[to as usize].insert(self.number, evicted);
        }
    }

    /// Begins a call that may prove the connection.
    pub fn trial(&self) -> Trial {
        self.reach(Stage::Served);
        Trial(self.clone())
    }

    pub fn is_vouched(&self) -> bool {
        let table = lock(&self.places.table);
        table.unproven[Stage::Vouched as usize].contains_key(&self.number)
    }

    pub fn is_proven(&self) -> bool {
        self.proven.is_cancelled()
    }

    /// Returns when the connection is proven.
    pub async fn proven(&self) {
        self.proven.cancelled().await;
    }
}

impl Trial {
    /// The call has a valid token.
    pub fn vouch(&self) {
        self.0.reach(Stage::Vouched);
    }

    /// The call has succeeded: from now on the connection keeps its place.
    pub fn succeed(self) {
        let Standing {
            places,
            number,
            proven,
        } = &self.0;
        let mut table = lock(&places.table);
        if table.take(*number).is_some() {
            table.proven += 1;
            proven.cancel();
            places.metrics.unproven.set(gauge(table.unproven()));
        }
    }
}

/// Without success, the connection has had its answer.
impl Drop for Trial {
    fn drop(&mut self) {
        self.0.reach(Stage::Answered);
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(total: usize, quota: usize) -> Arc<Places> {
        Arc::new(Places::new(total, quota, ListenerMetrics::default()))
    }

    fn counts(places: &Places) -> [i64; 2] {
        [&places.metrics.connections, &places.metrics.unproven].map(|gauge| gauge.get())
    }

    #[test]
    fn the_connection_that_got_least_far_gives_way_and_of_those_the_oldest() {
        let places = places(10, 5);
        let held: Vec<Place> = (0..5).filter_map(|_| places.enter()).collect();
        held[0].standing.reach(Stage::Secured);
        for answered in [3, 2] {
            held[answered].standing.reach(Stage::Secured);
            held[answered].standing.answered();
        }
        let trial = held[4].standing.trial();
        let mut others = Vec::new();
        for worst in [2, 3, 1] {
            assert!(!held[worst].evicted.is_cancelled(), "{worst} went too soon");
            let other = places.enter().expect("somebody gives way");
            other.standing.reach(Stage::Served);
            others.push(other);
            assert!(
                held[worst].evicted.is_cancelled(),
                "{worst} still has its place"
            );
        }
        let last = places.enter().expect("the secured one gives way");
        last.standing.reach(Stage::Served);
        assert!(held[0].evicted.is_cancelled());
        assert!(places.enter().is_none(), "all others are served");
        drop(trial);
        assert!(places.enter().is_some(), "the trial is over");
        assert!(held[4].evicted.is_cancelled());
    }

    #[test]
    fn connections_that_are_served_are_not_evicted() {
        let places = places(1, 1);
        let place = places.enter().expect("it is free");
        place.standing.reach(Stage::Served);
        assert!(places.enter().is_none());
        assert_eq!(places.metrics.shed.get(), 1);
    }

    #[test]
    fn a_valid_token_keeps_a_connection_outside_the_quota_until_its_call_ends() {
        let places = places(3, 1);
        let first = places.enter().expect("it is free");
        let trial = first.standing.trial();
        trial.vouch();
        assert!(first.standing.is_vouched());
        let second = places.enter().expect("the quota is free");
        second.standing.reach(Stage::Served);
        assert!(places.enter().is_none(), "the quota is used up");
        second.standing.reach(Stage::Vouched);
        let third = places.enter().expect("the quota is free again");
        third.standing.reach(Stage::Vouched);
        assert!(places.enter().is_none(), "all places are used up");
        drop(trial);
        assert!(!first.standing.is_vouched());
        assert!(places.enter().is_some() && first.evicted.is_cancelled());
        drop((first, second, third));
        assert_eq!(counts(&places), [0, 0]);
    }

    #[test]
    fn a_proven_connection_keeps_its_place_and_all_places_return() {
        let places = places(2, 1);
        let place = places.enter().expect("it is free");
        place.standing.trial().succeed();
        assert!(place.standing.proven.is_cancelled());
        place.standing.reach(Stage::Accepted);
        let first = places.enter().expect("one is left");
        let second = places.enter().expect("the first gives way");
        assert!(first.evicted.is_cancelled() && !place.evicted.is_cancelled());
        first.standing.trial().succeed();
        assert!(!first.standing.proven.is_cancelled(), "it is too late");
        assert_eq!(counts(&places), [3, 1], "the first has not left yet");
        second.standing.trial().succeed();
        assert!(
            places.enter().is_none(),
            "all places are held by proven ones"
        );
        let standing = second.standing.clone();
        drop((place, first, second));
        standing.trial().succeed();
        assert_eq!(counts(&places), [0, 0]);
        assert_eq!(lock(&places.table).proven, 0);
    }
}
