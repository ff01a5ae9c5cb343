//! A connection from the pool while it is in use, and what becomes of work that is given up.
//!
//! **Invariant:** a connection returns to the pool only after PostgreSQL has confirmed that its
//! transaction ended, and its place in the pool stays taken until the server works on it no more. So
//! an instance never has more statements running than its pool has places.
//!
//! **Danger:** the future of a call can stop at any await: an error leaves early, a deadline expires,
//! or the client disconnects and its handler is dropped. The server does not notice. If the
//! connection were closed, its statement would go on, waiting for a lock for example, while the pool
//! opens the next connection for the next statement that will wait behind the same lock.
//!
//! **Why this is safe:** a dropped `Checkout` hands its connection to a task of its own. The task
//! sends ROLLBACK, which the server reads after the current statement. If the answer comes at once,
//! the connection is clean and returns to the pool. Otherwise the task cancels the statement, waits
//! for the answer, and closes the connection: behind a pooler a cancel request may arrive late, and
//! would hit the statement of the next user. If no answer comes at all, the server or the network
//! is gone, and so are the other connections. If the task itself is dropped, at the end of the
//! runtime, `Abandoned` closes the connection.

use std::{pin::pin, time::Duration};

use tokio::{runtime::Handle, time::timeout};

use crate::{
    error::{StoreError, Unavailability},
    pool::Object,
};

/// How long an abandoned statement may run on before it is cancelled.
const PROMPT: Duration = Duration::from_millis(100);
/// How long the server may take to confirm a cancellation. A statement that cannot be cancelled ends
/// by its own limit meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Checkout {
    /// `None` only after it was given back.
    connection: Option<Object>,
}

impl Checkout {
    pub(crate) fn new(connection: Object) -> Checkout {
        let connection = Some(connection);
        Checkout { connection }
    }

    pub(crate) fn client(&self) -> Result<&tokio_postgres::Client, StoreError> {
        let connection = self.connection.as_ref();
        let lost = || StoreError::unavailable(Unavailability::ConnectionLost);
        connection.map(|object| &object.client).ok_or_else(lost)
    }

    /// Returns the connection, whose transaction has ended, to the pool.
    pub(crate) fn give_back(mut self) {
        drop(self.connection.take());
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let abandoned = Abandoned(Some(connection));
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(abandoned.reclaim());
        }
    }
}

/// A connection whose work was given up. It is closed on drop.
struct Abandoned(Option<Object>);

impl Abandoned {
    async fn reclaim(mut self) {
        let clean = match &self.0 {
            Some(connection) => rolls_back(connection).await,
            None => return,
        };
        if clean {
            drop(self.0.take());
        }
    }
}

/// Ends what the connection is doing. Returns whether another user may have it.
async fn rolls_back(connection: &Object) -> bool {
    let mut rollback = pin!(connection.client.batch_execute("ROLLBACK"));
    if let Ok(answer) = timeout(PROMPT, &mut rollback).await {
        return answer.is_ok();
    }
    let cancelled = async {
        if let Err(error) = connection.canceller.cancel().await {
            tracing::debug!(%error, "a statement could not be cancelled");
        }
        rollback.await
    };
    if timeout(PATIENCE, cancelled).await.is_err() {
        connection.servers.discard("the server does not answer");
    }
    false
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            // `take` detaches the connection from the pool; dropping it closes it.
            drop(Object::take(connection));
        }
    }
}
