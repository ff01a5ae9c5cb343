//! Changes of many hosts: of a selection, or of everything that a search finds.
//!
//! Two steps. The preview names what will be hit, and fixes it: the second form carries the ids, so a
//! host that begins to match the search in between is not touched.

use askama::Template;
use axum::extract::State;
use svc_store::{HostRecord, LabelChange, WrittenSearch};
use uuid::Uuid;

use super::form::Fields;
use crate::{
    error::AppError,
    session::Operator,
    shell::{Changed, Page, Shell, go_to, html},
    state::App,
};

/// One form carries at most this many ids.
const MOST: i64 = 5000;
/// How many hosts one statement changes, so that it ends within its time limit.
const BATCH: usize = 250;
/// How many are named in the preview.
const NAMED: usize = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Label,
    Retire,
    Revoke,
}

impl Action {
    fn parse(name: &str) -> Result<Self, AppError> {
        match name {
            "label" => Ok(Self::Label),
            "retire" => Ok(Self::Retire),
            "revoke" => Ok(Self::Revoke),
            _ => Err(AppError::bad_request("Choose what to do.")),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Retire => "retire",
            Self::Revoke => "revoke",
        }
    }
}

#[derive(Template)]
#[template(path = "bulk.html")]
struct Preview {
    shell: Shell,
    action: &'static str,
    ids: Vec<Uuid>,
    named: Vec<HostRecord>,
    online: i64,
    total: i64,
    too_many: bool,
    labels: String,
    change: LabelChange,
    search: String,
}

pub async fn preview(State(app): State<App>, Operator(user): Operator, fields: Fields) -> Page {
    let (action, change) = (Action::parse(fields.get("action"))?, fields.labels()?);
    if action == Action::Label && change == LabelChange::default() {
        return Err(AppError::bad_request("Write at least one label."));
    }
    let search = WrittenSearch::parse(fields.get("q"));
    let mut ids = match fields.get("scope") {
        "all" if !search.unknown.is_empty() => {
            let words = search.unknown.join(" ");
            let message = format!("The search has words that are not understood: {words}");
            return Err(AppError::BadRequest(message));
        }
        "all" => app.store.console_host_ids(&search.search, MOST + 1).await?,
        _ => fields.ids("id"),
    };
    if ids.is_empty() {
        return Err(AppError::bad_request("Select at least one host."));
    }
    let most = usize::try_from(MOST).unwrap_or(usize::MAX);
    let too_many = ids.len() > most;
    ids.truncate(most);
    let first = &ids[..ids.len().min(NAMED)];
    let named = app.store.console_hosts_by_id(first).await?;
    let online = app.store.console_hosts_online(&ids).await?;
    html(&Preview {
        shell: Shell::new(&app, user, "hosts"),
        action: action.name(),
        online,
        total: i64::try_from(ids.len()).unwrap_or(i64::MAX),
        named,
        ids,
        too_many,
        labels: fields.get("labels").to_owned(),
        change,
        search: search.text,
    })
}

pub async fn apply(State(app): State<App>, Operator(user): Operator, fields: Fields) -> Changed {
    let action = Action::parse(fields.get("action"))?;
    let (ids, reason) = (fields.ids("id"), fields.reason()?);
    let change = fields.labels()?;
    let (store, actor, reason) = (&app.store, user.name.as_str(), reason.as_deref());
    for batch in ids.chunks(BATCH) {
        let _changed = match action {
            Action::Label => i64::from(store.console_hosts_label(batch, &change, actor).await?),
            Action::Retire => store.console_hosts_retire(batch, actor, reason).await?,
            Action::Revoke => store.console_hosts_revoke(batch, actor, reason).await?,
        };
    }
    go_to("/activity")
}
