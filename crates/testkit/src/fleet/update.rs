//! How an agent of a fleet updates itself. It says what a real one says and is away for as long, but downloads, verifies and
//! starts nothing: the tests of fleets are about the service.

use std::time::Duration;

use serde_json::Value;
use svc_proto::v1::{Hello, UpdateOffer, UpdateState, UpdateStep};

/// In seconds: longer than the slowest machine needs for all restarts of a fleet.
pub(super) const BACK_WITHIN: i64 = 60;

/// An agent that takes offers and was offered nothing yet.
pub(super) fn ready() -> UpdateState {
    UpdateState {
        platform: "linux/x86_64".into(),
        ..UpdateState::default()
    }
}

/// What an agent becomes with this offer. `None` if it knows the release: until it has approved it, it is offered the same one
/// again with each stream.
pub(super) fn taken(known: &UpdateState, offer: &UpdateOffer) -> Option<UpdateState> {
    let manifest: Value = serde_json::from_slice(&offer.manifest).expect("a manifest is JSON");
    let serial = manifest["serial"].as_u64().expect("a serial");
    let version = manifest["version"].as_str().expect("a version");
    (serial > known.serial).then(|| UpdateState {
        step: UpdateStep::Offered.into(),
        serial,
        version: version.into(),
        ..known.clone()
    })
}

/// How long no version of the agent runs.
pub(super) fn restart() -> Duration {
    Duration::from_millis(rand::random_range(200..=1000))
}

/// Hello of the version that runs now.
pub(super) fn hello(mut hello: Hello, update: Option<UpdateState>) -> Hello {
    if let Some(update) = update.as_ref().filter(|update| update.serial > 0) {
        hello.run_id = format!("{}-{}", hello.run_id, update.version);
        hello.agent.get_or_insert_default().version = update.version.clone();
    }
    hello.update = update;
    hello
}
