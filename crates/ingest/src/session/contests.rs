//! Contests: another machine presents the identity of an agent that counts as online.
//!
//! Whether that is a clone, or the agent itself after its machine failed over, only the instance that holds the
//! agent's stream can tell: it knows when the stream last brought a message. A heartbeat does not write that to the
//! database. So the instance that meets the other machine marks the agent as contested and lets the machine wait. The
//! instance that holds the stream finds the mark when it compares its sessions with the database, and answers with
//! the time. Contests are rare, so this costs nothing in general.

use svc_store::{SessionHeard, Store, StoreError, StoredSession};

use super::{SessionKey, SessionTable};

/// Answers for the contested sessions of this instance. A stream that has brought nothing since its Hello needs no
/// answer: the database knows when it was opened.
pub async fn answer(
    store: &Store,
    sessions: &SessionTable,
    stored: &[StoredSession],
) -> Result<(), StoreError> {
    let contested = stored.iter().filter(|session| session.contested);
    let heard: Vec<SessionHeard> = contested
        .filter_map(|session| {
            Some(SessionHeard {
                agent_id: session.agent_id,
                epoch: session.epoch,
                at: sessions.heard_at(SessionKey::of(session))?,
            })
        })
        .collect();
    match heard.is_empty() {
        true => Ok(()),
        false => store.sessions_heard(&heard).await,
    }
}
