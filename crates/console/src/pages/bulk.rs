//! Changes of many hosts: of a selection, or of everything that a search finds.
//!
//! Two steps. The preview names what will be hit, and fixes it: the second form carries the ids, so a
//! host that begins to match the search in between is not touched.

pub mod outcome;

use askama::Template;
use axum::extract::State;
use svc_store::{HostRecord, LabelChange, WrittenSearch};
use uuid::Uuid;

use self::outcome::{Again, Change, Work};
use crate::{
    error::AppError,
    form::Fields,
    session::Operator,
    shell::{Page, Shell, html},
    state::App,
};

/// One form carries at most this many ids.
const MOST: i64 = 5000;
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

pub async fn apply(State(app): State<App>, Operator(user): Operator, fields: Fields) -> Page {
    let change = match Action::parse(fields.get("action"))? {
        Action::Label => Change::Label(fields.labels()?),
        Action::Retire => Change::Retire,
        Action::Revoke => Change::Revoke,
    };
    let reason = match change {
        Change::Label(_) => None,
        _ => Some(fields.required_reason()?),
    };
    let ids = fields.ids("id").into_iter().map(|id| (id, None)).collect();
    let work = Work {
        change,
        actor: &user.name,
        reason: reason.as_deref(),
    };
    let outcome = work.run(&app.store, ids).await;
    let fields = ["action", "labels", "reason"].map(|name| (name, fields.get(name).to_owned()));
    let again = Again {
        path: "/hosts/bulk/apply",
        fields: fields.into(),
    };
    let change = work.change;
    outcome.page(&app, user, &change, again)
}
