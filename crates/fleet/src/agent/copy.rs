//! A clone of an agent: the same key and JWT on other hardware, as after copying a disk.
//!
//! The service must refuse the clone, and the original must notice nothing.

use std::sync::Arc;

use http::HeaderValue;
use svc_proto::{
    contract::{HEARTBEAT_PATH, Reason},
    v1::HeartbeatResponse,
};
use tokio::time::timeout;

use super::{
    Agent, CONNECT_TIMEOUT, Shared,
    connection::{Connection, Route},
    failure::Failure,
};
use crate::identity::copied_machine;

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
            let attempt = timeout(CONNECT_TIMEOUT, open_stream(&route, &bearer, hello));
            count(&shared, attempt.await.unwrap_or(Err(Failure::Timeout)));
        });
    }
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
