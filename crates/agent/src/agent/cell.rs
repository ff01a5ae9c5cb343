//! In which cell the agent lives: the one that its configuration names, or one that a service has told it to move to.
//!
//! The state file has the cell and its JWT together, so a crash leaves both or none. A JWT of another cell would do no harm: the
//! cell refuses it, and the agent registers again over its key.
//!
//! **If the cell is lost**, the agent keeps trying it. After hours (`Timing::cell_lost`) it asks the addresses of its
//! configuration, which admit it and tell it again where to go, or take it back. If they do not admit it, it returns to the cell.

use std::mem;

use svc_proto::v1::{CellState, Move};
use tokio::time::Instant;

use super::{Agent, Next, admission::admission};
use crate::{
    cell::Cell,
    config::Config,
    state::State,
    wire::{Address, Addresses, Credential},
};

/// The addresses of a cell, or those of the configuration.
pub(super) fn addresses(cell: Option<&Cell>, config: &Config) -> Vec<Address> {
    let known = cell.and_then(|cell| cell.addresses().ok());
    let known = known.filter(|known| !known.is_empty());
    known.unwrap_or_else(|| config.addresses.clone())
}

impl Agent {
    /// What the next Hello says. Until this cell has welcomed the agent, it does not know what another one has acknowledged.
    pub(super) fn cell_state(&self) -> CellState {
        CellState {
            cell: cell_name(&self.state).to_owned(),
            problem: self.cell_problem.clone(),
            acked_elsewhere: match self.state.came_from_elsewhere {
                true => self.recorder.numbers().1,
                false => 0,
            },
        }
    }

    /// Lives in this cell from now on; `None`: where the configuration says.
    pub(super) fn enter(&mut self, cell: Option<Cell>, admitted: Option<(String, &Credential)>) {
        self.addresses = Addresses::new(addresses(cell.as_ref(), &self.config));
        let certificates = cell.as_ref().map(Cell::certificates);
        self.caller = self.caller.trusting(Vec::new());
        let anchors = self.caller.anchors();
        anchors.live_in(certificates.unwrap_or_default());
        self.state.cell = cell;
        self.state.came_from_elsewhere = true;
        match admitted {
            None => self.state.forget_credential(),
            Some((agent_id, credential)) => {
                self.state.agent_id = Some(agent_id);
                self.state.set_credential(credential);
            }
        }
        self.unreachable_since = None;
        self.backoff.reset();
        self.save_state();
        self.show_cell();
    }

    /// This cell has welcomed the agent, with a watermark that covers what another one has acknowledged.
    pub(super) fn lives_here(&mut self) {
        self.state.came_from_elsewhere = false;
        self.state.other_cell = None;
        self.unreachable_since = None;
    }

    /// The cell did not answer, or not as a cell that works.
    pub(super) fn missed(&mut self) {
        let since = *self.unreachable_since.get_or_insert_with(Instant::now);
        let has_two = self.state.cell.is_some() || self.state.other_cell.is_some();
        if has_two && since.elapsed() >= self.timing.cell_lost {
            self.ask_elsewhere();
        }
    }

    /// Changes between the cell and the addresses of the configuration.
    pub(super) fn ask_elsewhere(&mut self) {
        let other = self.state.other_cell.take();
        self.state.other_cell = mem::take(&mut self.state.cell);
        let name = other.as_ref().map_or("", |cell| &cell.name);
        tracing::warn!(cell = name, "asking elsewhere where this agent belongs");
        self.enter(other, None);
    }

    /// The service admits the agent and says that it belongs elsewhere, which it has forgotten. `None`: it stays here.
    pub(super) async fn register_elsewhere(&mut self, order: &Move) -> Option<Next> {
        let cell = Cell::named(order).ok();
        let cell =
            cell.filter(|cell| !self.config.pinned_cell && self.state.cell.as_ref() != Some(cell))?;
        let caller = self.caller.trusting(cell.certificates());
        let trying = admission(caller, cell.addresses().ok()?);
        let stop = self.stop.clone();
        let Some(tried) = stop.run_until_cancelled(trying).await else {
            return Some(Next::Stop);
        };
        let admission = tried.ok()?;
        self.enter(Some(cell), None);
        Some(self.admitted(admission.agent_id, &admission.credential))
    }

    pub(super) fn show_cell(&self) {
        let cell = Some(cell_name(&self.state).to_owned()).filter(|name| !name.is_empty());
        let problem = Some(self.cell_problem.clone()).filter(|problem| !problem.is_empty());
        self.board.change(|status| {
            status.agent_id.clone_from(&self.state.agent_id);
            status.jwt_expires_at = self.state.jwt_expires_at();
        });
        self.board.change_rare(|rare| {
            rare.cell = cell;
            rare.cell_problem = problem;
        });
    }
}

pub(super) fn cell_name(state: &State) -> &str {
    state.cell.as_ref().map_or("", |cell| &cell.name)
}
