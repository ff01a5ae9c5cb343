//! A clone of an agent: the same key and JWT on other hardware, as after copying a disk.
//!
//! The service must refuse the clone, and the original must notice nothing.

use std::sync::Arc;

use http::HeaderValue;
use svc_proto::{
    contract::{HEARTBEAT_PATH, Reason},
    v1::HeartbeatResponse,
};
use tokio::time::{sleep, timeout};

use super::{
    Agent, CONNECT_TIMEOUT, Shared,
    connection::{Connection, Route},
    failure::Failure,
};
use crate::identity::copied_machine;

/// How often a clone returns while the service cannot tell yet whether the original is live. It can as soon as
/// the original reports.
const ATTEMPTS: u32 = 10;

impl Agent {
    /// Starts the clone of this agent, once, if the agent is within the share to be cloned.
    pub(super) fn start_copy(&mut self, share: f64) {
        let copies = f64::from(self.shared.plan.agents) * share;
        if self.copied || f64::from(self.number) >= copies {
            return;
        }
        let (Ok(route), Some(bearer)) = (self.route(), self.bearer.clone()) else {
            return;
        };
        self.copied = true;
        let host = copied_machine(self.shared.seed, self.number);
        let hello = self.hello(host, "copy");
        let shared = self.shared.clone();
        tokio::spawn(async move {
            count(&shared, open_as_copy(&route, &bearer, hello).await);
        });
    }
}

async fn open_as_copy(
    route: &Route,
    bearer: &HeaderValue,
    hello: bytes::Bytes,
) -> Result<(), Failure> {
    let mut opened = Err(Failure::Timeout);
    for _ in 0..ATTEMPTS {
        let attempt = timeout(CONNECT_TIMEOUT, open_stream(route, bearer, hello.clone()));
        opened = attempt.await.unwrap_or(Err(Failure::Timeout));
        match &opened {
            Err(failure) if failure.is(Reason::IdentityPresumedInUse) => {
                sleep(failure.retry_after().unwrap_or_default()).await;
            }
            _ => break,
        }
    }
    opened
}

async fn open_stream(
    route: &Route,
    bearer: &HeaderValue,
    hello: bytes::Bytes,
) -> Result<(), Failure> {
    let mut connection = Connection::open(route).await?;
    let call = connection.call(HEARTBEAT_PATH, Some(bearer), hello, false);
    let mut call = call.await?;
    let answer = connection.next::<HeartbeatResponse>(&mut call);
    answer.await.map(drop)
}

fn count(shared: &Arc<Shared>, opened: Result<(), Failure>) {
    shared.stats(|stats| match opened {
        Ok(()) => stats.counts.copies_welcomed += 1,
        Err(failure) if failure.is(Reason::IdentityInUse) => stats.counts.copies_refused += 1,
        Err(failure) => stats.count_error(&format!("copy: {}", failure.label())),
    });
}
