//! Orphans: sessions that the database assigns to this instance although the instance does not have them.
//!
//! They come about when a session is opened in the database while its client leaves, or while the answer
//! to this instance is lost.

use std::{collections::HashSet, sync::Arc};

use svc_store::{CloseCause, SessionClose, StoredSession};

use super::{Closer, SessionKey};

#[derive(Debug)]
pub struct Orphans {
    /// Sessions that were missing here at the last comparison.
    suspects: HashSet<SessionKey>,
    closer: Arc<Closer>,
}

impl Orphans {
    pub fn new(closer: Arc<Closer>) -> Self {
        Self {
            suspects: HashSet::new(),
            closer,
        }
    }

    /// Closes the sessions that were missing here at this comparison and at the last one. Missing once
    /// proves nothing: the session may have been opened just now, with the answer still on its way.
    pub fn close(&mut self, held: &HashSet<SessionKey>, stored: &[StoredSession]) {
        let missing: HashSet<SessionKey> = stored
            .iter()
            .map(SessionKey::of)
            .filter(|key| !held.contains(key))
            .collect();
        for key in missing.intersection(&self.suspects) {
            self.closer.close(SessionClose {
                agent_id: key.agent,
                epoch: key.epoch,
                cause: CloseCause::Lost,
            });
        }
        self.suspects = missing;
    }
}
