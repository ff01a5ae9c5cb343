//! Changes of many, batch by batch, and the page that says what was done, what was not, and why.
//!
//! Each batch is committed. If one of its items does not allow the change, its items are changed one by one, so that only
//! that one is left out. An error of another kind, or a lack of time, ends the work; what is left can be sent again.

use std::{fmt::Write, time::Duration};

use askama::Template;
use svc_store::{LabelChange, Store, StoreError};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    error::AppError,
    form::Picked,
    session::User,
    shell::{Page, Shell, html},
    state::App,
};

/// How many one statement changes, so that it ends within its time limit.
const BATCH: usize = 250;
/// No batch begins after this time: with the time limit of the last one, the answer comes before the request's deadline.
const BUDGET: Duration = Duration::from_secs(10);
/// How many that were refused are listed.
const LISTED: usize = 100;

#[derive(Clone, Debug)]
pub enum Change {
    /// Of agents. The others are changes of hosts.
    Approve,
    Label(LabelChange),
    Retire,
    Revoke,
}

/// Who changes what, and why.
pub struct Work<'a> {
    pub change: Change,
    pub actor: &'a str,
    pub reason: Option<&'a str>,
}

#[derive(Debug, Default)]
pub struct Outcome {
    done: usize,
    refused: Vec<(Uuid, String)>,
    left: Vec<Picked>,
    /// Why something is left.
    stopped: String,
}

/// Where the rest is sent to, as a form with these fields.
pub struct Again {
    pub path: &'static str,
    pub fields: Vec<(&'static str, String)>,
}

#[derive(Template)]
#[template(path = "bulk_done.html")]
struct Done {
    shell: Shell,
    summary: String,
    list: &'static str,
    subject: &'static str,
    outcome: Outcome,
    unlisted: usize,
    again: Again,
}

impl Work<'_> {
    /// Changes the items in the order of their ids, in which all decisions lock them.
    pub async fn run(&self, store: &Store, mut items: Vec<Picked>) -> Outcome {
        items.sort_unstable();
        let (began, mut rest) = (Instant::now(), items.as_slice());
        let (mut outcome, mut singly) = (Outcome::default(), 0);
        while !rest.is_empty() {
            if began.elapsed() > BUDGET {
                outcome.stopped = "One request takes no longer than this.".into();
                break;
            }
            let size = if singly > 0 { 1 } else { rest.len().min(BATCH) };
            let (batch, later) = rest.split_at(size);
            match self.apply(store, batch).await.map_err(AppError::from) {
                Ok(()) => outcome.done += size,
                Err(error) if error.is_refusal() && size > 1 => {
                    singly = size;
                    continue;
                }
                Err(error) if error.is_refusal() => {
                    outcome.refused.push((batch[0].0, error.message()));
                }
                Err(error) => {
                    outcome.stopped = error.message();
                    let cause = format!("{:#}", anyhow::Error::from(error));
                    tracing::warn!(cause, "a change of many has stopped");
                    break;
                }
            }
            singly = singly.saturating_sub(1);
            rest = later;
        }
        outcome.left = rest.to_vec();
        outcome
    }

    async fn apply(&self, store: &Store, batch: &[Picked]) -> Result<(), StoreError> {
        let (actor, reason) = (self.actor, self.reason);
        let (ids, seen): (Vec<Uuid>, Vec<Option<String>>) = batch.iter().cloned().unzip();
        match &self.change {
            Change::Approve => store.agents_approve(&ids, &seen, actor, reason).await,
            Change::Label(change) => {
                let labelled = store.console_hosts_label(&ids, change, actor).await;
                labelled.map(drop)
            }
            Change::Retire => {
                let retired = store.console_hosts_retire(&ids, actor, reason).await;
                retired.map(drop)
            }
            Change::Revoke => {
                let revoked = store.console_hosts_revoke(&ids, actor, reason).await;
                revoked.map(drop)
            }
        }
    }
}

impl Outcome {
    /// The result page. Ids that are left are added to the fields of `again` unless a filter finds them again.
    pub fn page(mut self, app: &App, user: User, change: &Change, mut again: Again) -> Page {
        let (verb, list, subject) = match change {
            Change::Approve => ("approved", "/approvals", "agents"),
            Change::Label(_) => ("labelled", "/hosts", "hosts"),
            Change::Retire => ("retired", "/hosts", "hosts"),
            Change::Revoke => ("without an active agent now", "/hosts", "hosts"),
        };
        let counted = match self.done {
            1 => subject.trim_end_matches('s'),
            _ => subject,
        };
        let mut summary = format!("{} {counted} {verb}", self.done);
        for (count, what) in [(self.refused.len(), "refused"), (self.left.len(), "left")] {
            if count > 0 {
                let _ = write!(summary, ", {count} {what}");
            }
        }
        if again.fields.iter().all(|(name, _)| *name != "scope") {
            let ids = self.left.iter().map(|(id, seen)| match seen {
                Some(seen) => ("id", format!("{id}~{seen}")),
                None => ("id", id.to_string()),
            });
            again.fields.extend(ids);
        }
        let unlisted = self.refused.len().saturating_sub(LISTED);
        self.refused.truncate(LISTED);
        html(&Done {
            shell: Shell::new(app, user, list.trim_start_matches('/')),
            summary,
            list,
            subject,
            unlisted,
            outcome: self,
            again,
        })
    }
}
