//! Moving to another cell while the session goes on.
//!
//! 1. The agent registers in the new cell over its key. Meanwhile it sends its samples to the old one.
//! 2. Once the new cell has admitted it, it sends nothing more, and waits until the old cell has
//!    acknowledged everything that this process ever sent. So the old cell has exactly the numbers up to the
//!    watermark, and stores nothing above it later.
//! 3. It opens a stream in the new cell with that watermark in Hello. After Welcome it remembers the cell,
//!    says Goodbye to the old one, and sends what is above the watermark.
//!
//! Whatever fails before Welcome, the agent stays, sends to the old cell again, says why, and tries again
//! later. No sample is lost, because the spool keeps what no cell has acknowledged. Each is stored in one cell
//! only, with one exception: a process that was killed left reports on their way into the old cell, and the
//! next one moved before they arrived.

use std::{pin::Pin, time::Duration};

use rand::random_range;
use svc_proto::{
    contract::{Backoff, GOODBYE_MOVED},
    v1::Move,
};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Moved, PendingMove, Session, SessionEnd};
use crate::{
    agent::{
        admission::{Admission, admission},
        rounded,
    },
    caller::Caller,
    cell::Cell,
};

type Trying = Pin<Box<dyn Future<Output = Result<Admission, String>> + Send>>;

pub(super) struct ToCell {
    cell: Cell,
    step: Step,
    backoff: Backoff,
}

enum Step {
    Waiting(Instant),
    Trying(Trying),
    /// Nothing is sent; the old cell must acknowledge until then.
    Settling(Admission, Instant),
    Opening(Admission, PendingMove),
}

pub(super) enum CellEvent {
    Begin,
    Tried(Result<Admission, String>),
    Settled,
    NotSettled,
    Opened(Box<Moved>),
}

/// The next event of the move; pending forever without one. Cancel-safe: futures stay where they are.
pub(super) async fn cell_event(to: &mut Option<ToCell>, is_settled: bool) -> CellEvent {
    let Some(to) = to else {
        return std::future::pending().await;
    };
    match &mut to.step {
        Step::Waiting(until) => {
            sleep_until(*until).await;
            CellEvent::Begin
        }
        Step::Trying(trying) => CellEvent::Tried(trying.await),
        Step::Settling(..) if is_settled => CellEvent::Settled,
        Step::Settling(_, until) => {
            sleep_until(*until).await;
            CellEvent::NotSettled
        }
        Step::Opening(_, opening) => CellEvent::Opened(Box::new(opening.await)),
    }
}

impl Session<'_> {
    /// The service asks the agent to move. The first attempt comes after a time of its own, so that a crowd spreads.
    pub(super) fn asked_to_move(&mut self, order: &Move) {
        if self.agent.config.pinned_cell {
            self.says("pinned_cell is set in the configuration of this agent".into());
            return;
        }
        let cell = match Cell::named(order) {
            Ok(cell) => cell,
            Err(problem) => return self.says(problem),
        };
        if self.agent.state.cell.as_ref() == Some(&cell) {
            return;
        }
        tracing::info!(cell = cell.name, "the service asks this agent to move");
        let spread = self
            .agent
            .timing
            .cell_spread
            .mul_f64(random_range(0.0..1.0));
        self.to_cell = Some(ToCell {
            cell,
            step: Step::Waiting(Instant::now() + spread),
            backoff: Backoff::default(),
        });
    }

    /// Whether reports wait for the move to end.
    pub(super) fn is_leaving(&self) -> bool {
        let step = self.to_cell.as_ref().map(|to| &to.step);
        matches!(step, Some(Step::Settling(..) | Step::Opening(..)))
    }

    /// Whether the old cell has acknowledged all that it may still store.
    pub(super) fn is_settled(&self) -> bool {
        let (next, acked) = self.agent.recorder.numbers();
        self.in_flight.is_empty() && acked >= self.agent.highest_sent.min(next.saturating_sub(1))
    }

    pub(super) async fn cell_step(&mut self, event: CellEvent) -> Result<(), SessionEnd> {
        let Some(ToCell {
            cell,
            step,
            backoff,
        }) = self.to_cell.take()
        else {
            return Ok(());
        };
        let step = match (event, step) {
            (CellEvent::Begin, _) => Step::Trying(self.trying(&cell)),
            (CellEvent::Tried(Ok(admission)), _) => {
                Step::Settling(admission, Instant::now() + self.agent.timing.cell_settle)
            }
            (CellEvent::Settled, Step::Settling(admission, _)) => {
                let opening = self.opening(&cell, &admission);
                Step::Opening(admission, opening)
            }
            (CellEvent::Opened(opened), Step::Opening(admission, _)) => match *opened {
                Ok((call, welcome)) => {
                    self.leave_for(cell, &admission).await;
                    self.call = Some(call);
                    return self.welcomed(welcome).await;
                }
                Err(error) => return self.stays(cell, backoff, &error.to_string()),
            },
            (CellEvent::Tried(Err(problem)), _) => return self.stays(cell, backoff, &problem),
            (CellEvent::NotSettled | CellEvent::Settled | CellEvent::Opened(_), _) => {
                let problem = "samples that were sent here are not acknowledged yet";
                return self.stays(cell, backoff, problem);
            }
        };
        self.to_cell = Some(ToCell {
            cell,
            step,
            backoff,
        });
        Ok(())
    }

    fn caller_in(&self, cell: &Cell) -> Caller {
        self.agent.caller.trusting(cell.certificates())
    }

    fn trying(&self, cell: &Cell) -> Trying {
        let addresses = cell.addresses().unwrap_or_default();
        Box::pin(admission(self.caller_in(cell), addresses))
    }

    fn opening(&self, cell: &Cell, admission: &Admission) -> PendingMove {
        let mut state = self.agent.cell_state();
        state.cell.clone_from(&cell.name);
        state.problem.clear();
        state.acked_elsewhere = self.agent.recorder.numbers().1;
        let caller = self.caller_in(cell).living_in(state);
        let (address, credential) = (admission.address.clone(), admission.credential.clone());
        Box::pin(async move { caller.open(&address, &credential).await })
    }

    /// The new cell has welcomed the agent. Only now the old one is told.
    async fn leave_for(&mut self, cell: Cell, admission: &Admission) {
        tracing::info!(cell = cell.name, "this agent has moved");
        self.pending_move = None;
        self.agent.cell_problem.clear();
        let admitted = (admission.agent_id.clone(), &admission.credential);
        self.agent.enter(Some(cell), Some(admitted));
        if let Some(old) = self.call.take() {
            let goodbye = old.goodbye(GOODBYE_MOVED, None);
            drop(timeout(self.agent.timing.goodbye, goodbye).await);
        }
    }

    fn stays(&mut self, cell: Cell, mut backoff: Backoff, problem: &str) -> Result<(), SessionEnd> {
        let wait = backoff.next(self.agent.timing.cell_retry, None, random_range(0.5..1.0));
        tracing::warn!(
            cell = cell.name, problem, retry_in = ?rounded(wait),
            "this agent could not move, and stays"
        );
        self.says(format!("cell {}: {problem}", cell.name));
        self.to_cell = Some(ToCell {
            cell,
            step: Step::Waiting(Instant::now() + wait.max(Duration::from_millis(100))),
            backoff,
        });
        Ok(())
    }

    /// The next `send` says it to the service.
    fn says(&mut self, problem: String) {
        self.agent.cell_problem = problem;
        self.agent.show_cell();
    }
}
