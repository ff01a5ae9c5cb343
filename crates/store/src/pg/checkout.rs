//! A connection from the pool while it is in use, and what becomes of work that is given up.
//!
//! **Invariants:** a connection returns to the pool only after PostgreSQL has confirmed that its
//! transaction ended, and its place in the pool stays taken until the server works on it no more. So
//! an instance never has more statements running than its pool has places. Nothing is cancelled once
//! the COMMIT of a transaction that may have written was sent.
//!
//! **Danger:** the future of a call can stop at any await: an error leaves early, a deadline expires,
//! or the client disconnects and its handler is dropped. The server does not notice. If the
//! connection were closed, its statement would go on, waiting for a lock for example, while the pool
//! opens the next connection for the next statement that will wait behind the same lock. A COMMIT may wait too, for a
//! synchronous standby. To cancel that wait would make the transaction visible although no standby has it.
//!
//! **Why this is safe:** a dropped `Checkout` hands its connection to a task of its own. The task
//! sends ROLLBACK, which the server reads after the current statement. If the answer comes at once,
//! the connection is clean and returns to the pool. Otherwise the task cancels the statement, waits
//! for the answer, and closes the connection: behind a pooler a cancel request may arrive late, and
//! would hit the statement of the next user. If no answer comes at all, the server or the network
//! is gone, and so are the other connections. If the task itself is dropped, at the end of the
//! runtime, `Abandoned` closes the connection.
//!
//! After COMMIT the task only waits. A single statement that writes is sent together with its COMMIT, so it is not
//! cancelled either; the server ends it by its own limit. The wait for a standby has no limit, and PostgreSQL
//! does not notice that its client has left. If the connection were closed, every commit would leave a server session
//! behind, up to `max_connections`. So the place stays taken, and callers fail because the pool is busy. A frozen
//! server does not answer either, but must be left: meanwhile one of the waiting tasks at a time
//! opens a new connection, to another server if there is one that accepts writes. If no server answers that, or another one does,
//! all connections are stale and are closed.

use std::{
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};

use crate::pg::{
    connections::Object,
    error::{Result, StoreError, Unavailability},
};

/// How long an abandoned statement may run on before it is cancelled.
const PROMPT: Duration = Duration::from_millis(100);
/// How long the server may take to confirm a cancellation. A statement that cannot be cancelled ends
/// by its own limit meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at a server that does not answer a COMMIT.
const LOOK: Duration = Duration::from_secs(1);
/// How long a transaction may take before other servers are asked whether one of them has become the primary.
const SLOW: Duration = Duration::from_secs(3);

pub(crate) struct Checkout {
    /// `None` only after it was given back.
    connection: Option<Object>,
    /// Whether COMMIT was sent, of a transaction that may have written.
    committing: AtomicBool,
}

impl Checkout {
    pub(crate) fn new(connection: Object) -> Checkout {
        Checkout {
            connection: Some(connection),
            committing: AtomicBool::new(false),
        }
    }

    /// COMMIT is about to be sent: from now on nothing is cancelled.
    pub(crate) fn begin_commit(&self) {
        self.committing.store(true, Ordering::Relaxed);
    }

    /// Fails if the commit that was answered did not wait for the standby, or may be on a server that was replaced.
    pub(crate) fn trusted(&self) -> Result<()> {
        self.connection
            .as_ref()
            .map_or(Ok(()), |connection| connection.trusted())
    }

    /// What the server answers to `work`, or an error once the connections to it are discarded. If that takes long, other
    /// servers are asked: a commit that waits for a standby waits for ever if that was promoted, and the deadline
    /// of the call is far.
    pub(crate) async fn answer<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let lost = || StoreError::unavailable(Unavailability::ConnectionLost);
        let connection = self.connection.as_ref().ok_or_else(lost)?;
        let looking = async {
            sleep(SLOW).await;
            loop {
                look(connection, false).await;
            }
        };
        tokio::select! {
            biased;
            answer = work => Ok(answer),
            () = connection.stale() => Err(lost()),
            () = looking => Err(lost()),
        }
    }

    pub(crate) fn client(&self) -> Result<&tokio_postgres::Client> {
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
        let committing = *self.committing.get_mut();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(abandoned.reclaim(committing));
        }
    }
}

/// A connection whose work was given up. It is closed on drop.
struct Abandoned(Option<Object>);

impl Abandoned {
    async fn reclaim(mut self, committing: bool) {
        let clean = match &self.0 {
            Some(connection) if committing => commits(connection).await,
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
    if timeout(PATIENCE, cancelled).await.is_err() && !connection.is_stale() {
        connection.servers.discard("the server does not answer");
    }
    false
}

/// Waits for the end of a transaction whose COMMIT was sent. Returns whether another user may have the connection.
async fn commits(connection: &Object) -> bool {
    // The server reads it after the COMMIT. It has an effect only if that failed.
    let mut rollback = pin!(connection.client.batch_execute("ROLLBACK"));
    loop {
        tokio::select! {
            biased;
            answer = &mut rollback => return answer.is_ok(),
            () = connection.stale() => return false,
            () = look(connection, true) => {}
        }
    }
}

/// Looks, after a while, whether another server has become the primary, or whether this one still answers. If none answers
/// and the work on this one is `given_up`, this one is left. Only one task of the store looks at a time.
async fn look(connection: &Object, given_up: bool) {
    sleep(LOOK).await;
    let Some(pool) = Object::pool(connection) else {
        return;
    };
    let manager = pool.manager();
    if !given_up && manager.url.hosts() == 1 {
        return;
    }
    let Some(_only) = connection.servers.look() else {
        return;
    };
    // If another server accepts writes, this discards the connections to the old one.
    if let Err(error) = manager.look_elsewhere().await
        && given_up
        && error.sqlstate().is_none()
    {
        connection.servers.discard("the server does not answer");
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            // `take` detaches the connection from the pool; dropping it closes it.
            drop(Object::take(connection));
        }
    }
}
