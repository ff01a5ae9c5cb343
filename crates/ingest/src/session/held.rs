//! Sessions that this instance holds although the database does not have them under its id.
//!
//! They come about when the instance was fenced and has a new id; when the answer to an open took so long that the session
//! was closed as an orphan; or when a standby took over that had not received the open yet.
//!
//! **Invariant.** A session is claimed only while its stream is here. The caller reads what is held before it reads what is
//! stored, and a session enters the table after its open was committed; so one that is held and not stored was changed from
//! outside. **Danger.** The stream may end between the look into the table and the statement, and its close may be
//! written first. Then the agent counts as online without a stream. **Why this is safe.** No instance holds that session, so the
//! next two comparisons find it and close it (`orphans`).

use svc_store::{AgentId, Store, StoreError};
use uuid::Uuid;

/// Sessions, or agents, in one statement. An instance may hold any number, and a statement has 5 s.
pub const BATCH: usize = 1000;

/// Stores those of the sessions for this instance whose epoch is still the newest, and that no other live instance has.
/// Returns how many.
pub async fn claim(
    store: &Store,
    instance: Uuid,
    held: &[(AgentId, i64)],
) -> Result<usize, StoreError> {
    let mut claimed = 0;
    for batch in held.chunks(BATCH) {
        claimed += store.sessions_reclaim(instance, batch).await?.len();
    }
    Ok(claimed)
}
