//! A copy of an agent's disk on another machine: the same key and JWT, other hardware.
//!
//! The service must refuse it, and the original must notice nothing.

use std::sync::Arc;

use http::HeaderValue;
use svc_proto::v1::HeartbeatResponse;
use tokio::time::timeout;

use super::{
    Agent, CONNECT_PATIENCE, Shared,
    link::{Line, Route},
    lost::Lost,
    open::HEARTBEAT,
};
use crate::identity::copied_machine;

impl Agent {
    /// Starts the copy of an agent that is within the share to be copied, once.
    pub(super) fn be_copied(&mut self, share: f64) {
        let copied = f64::from(self.shared.plan.agents) * share;
        if self.copied || f64::from(self.number) >= copied {
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
            let knocking = timeout(CONNECT_PATIENCE, knock(&route, &bearer, hello));
            count(&shared, knocking.await.unwrap_or(Err(Lost::Slow)));
        });
    }
}

async fn knock(route: &Route, bearer: &HeaderValue, hello: bytes::Bytes) -> Result<(), Lost> {
    let mut line = Line::open(route).await?;
    let mut call = line.call(HEARTBEAT, Some(bearer), hello, false).await?;
    line.next::<HeartbeatResponse>(&mut call).await.map(drop)
}

fn count(shared: &Arc<Shared>, knocked: Result<(), Lost>) {
    shared.tally(|tally| match knocked {
        Ok(()) => tally.counts.copies_welcomed += 1,
        Err(lost) if lost.is("IDENTITY_IN_USE") => tally.counts.copies_refused += 1,
        Err(lost) => tally.error(&format!("copy: {}", lost.reason())),
    });
}
