//! Moves of agents to other cells: those that people have told to move are asked over their streams, once each, and what they
//! answer is stored.
//!
//! An agent moves by itself, and only after the other cell has welcomed it. So nothing here has to be certain: an agent that
//! was not asked, because its stream ended, is asked on its next one.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use svc_store::{AgentId, CellRecord, Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::SessionTable;
use crate::{error_chain::chain, periodic::Periodic, sync::lock};

/// How many agents of this instance one pass asks. All of a drained cell at once would meet the other cell like a storm.
const ASKED_AT_ONCE: usize = 100;

/// The problems of one statement.
const BATCH: usize = 1000;

/// What handlers of streams and registrations share with the passes.
#[derive(Debug, Default)]
pub struct MoveBoard {
    /// Why agents do not move, until the next pass: at most one text for each agent with a stream here.
    problems: Mutex<HashMap<AgentId, String>>,
    /// Whether people have named a cell. Otherwise no registration asks where its agent belongs.
    cells_exist: AtomicBool,
}

impl MoveBoard {
    pub fn problem(&self, agent: AgentId, problem: String) {
        lock(&self.problems).insert(agent, problem);
    }

    pub fn cells_exist(&self) -> bool {
        self.cells_exist.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub struct Moves {
    pub store: Store,
    pub sessions: Arc<SessionTable>,
    pub board: Arc<MoveBoard>,
    /// The current id of this instance.
    pub instance: watch::Receiver<Uuid>,
    pub period: Duration,
}

impl Moves {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.period, stop.clone());
        while periodic.tick().await {
            if let Some(Err(error)) = stop.run_until_cancelled(self.pass()).await {
                let reason = chain(&error);
                tracing::warn!(reason, "moves between cells: the next pass retries");
            }
        }
        Ok(())
    }

    /// While people have named no cell, it reads an empty table and nothing else.
    async fn pass(&self) -> Result<(), StoreError> {
        self.store_problems().await?;
        let cells = self.store.cells_list().await?;
        self.board
            .cells_exist
            .store(!cells.is_empty(), Ordering::Relaxed);
        if cells.is_empty() {
            return Ok(());
        }
        let instance = *self.instance.borrow();
        let cell = |cell: CellRecord| (cell.name.clone(), Arc::new(cell));
        let cells: HashMap<String, Arc<CellRecord>> = cells.into_iter().map(cell).collect();
        let told = self.store.moves_open(instance).await?;
        let asked = told
            .iter()
            .filter_map(|told| Some((told.agent_id, cells.get(&told.cell)?)))
            .filter(|(agent, cell)| self.sessions.move_to(*agent, cell))
            .take(ASKED_AT_ONCE)
            .count();
        if asked > 0 {
            tracing::info!(agents = asked, "asked agents to move to other cells");
        }
        Ok(())
    }

    async fn store_problems(&self) -> Result<(), StoreError> {
        let said: Vec<_> = mem::take(&mut *lock(&self.board.problems))
            .into_iter()
            .collect();
        for (number, batch) in said.chunks(BATCH).enumerate() {
            if let Err(error) = self.store.moves_problems(batch).await {
                let mut waiting = lock(&self.board.problems);
                for (agent, problem) in said.iter().skip(number * BATCH) {
                    // What was said meanwhile is newer.
                    let newer = waiting.entry(*agent);
                    newer.or_insert_with(|| problem.clone());
                }
                return Err(error);
            }
        }
        Ok(())
    }
}
