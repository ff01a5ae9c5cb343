//! What waits for a decision, and why.

use askama::Template;
use axum::{
    extract::{Query, State},
    response::Redirect,
};
use jiff::Timestamp;
use svc_store::{AgentId, AgentRecord, Role, TokenRecord, WaitingAgent};
use uuid::Uuid;

use super::bulk::outcome::{Again, Change, Work};
use crate::{
    error::AppError,
    form::Fields,
    live::Filter,
    render::render,
    session::{Operator, User},
    shell::{Page, Shell, html},
    state::App,
    view::short,
};

const SHOWN: u32 = 200;
/// How many of a filter are approved at once: what the database finds within its time limit.
const MOST: i64 = 100_000;
/// How many of a filter the preview names.
const NAMED: usize = 50;
/// How many tokens the filter offers.
const TOKENS: u32 = 100;

#[derive(Template)]
#[template(path = "approvals.html")]
struct ApprovalsPage {
    shell: Shell,
    part: String,
    /// Ids and names to choose from.
    tokens: Vec<(String, String)>,
    token: String,
    label: String,
    key: String,
    filtered: bool,
}

#[derive(Template)]
#[template(path = "approvals_part.html")]
struct ApprovalsPart {
    rows: Vec<AgentRecord>,
    truncated: bool,
    operator: bool,
    filter: Filter,
    filtered: bool,
    /// The filter cannot be read, so nothing is shown: showing everything would lead to wrong approvals.
    misunderstood: bool,
}

#[derive(Template)]
#[template(path = "approve_many.html")]
struct ApproveMany {
    shell: Shell,
    /// Those that are named: the selected ones, or the first of a filter.
    rows: Vec<Named>,
    total: usize,
    skipped: usize,
    /// The filter, and the time up to which it counts.
    all: Option<(Filter, String)>,
}

struct Named {
    /// The value of its field, if it is one of a selection.
    picked: Option<String>,
    hostname: String,
    key: String,
}

pub async fn page(State(app): State<App>, user: User, Query(asked): Query<Filter>) -> Page {
    let filter = asked.trimmed();
    let part = part(&app, user.role, &filter).await?;
    let shell = Shell::new(&app, user, "approvals").live(filter.live());
    html(&ApprovalsPage {
        shell,
        part,
        tokens: tokens(&app, &filter.token).await?,
        filtered: filter != Filter::default(),
        token: filter.token,
        label: filter.label,
        key: filter.key,
    })
}

/// The newest tokens, and the one that is chosen.
async fn tokens(app: &App, chosen: &str) -> Result<Vec<(String, String)>, AppError> {
    let listed = app.store.tokens_list(TOKENS).await?.rows;
    let name = |token: &TokenRecord| match token.label.as_str() {
        "" => short(&token.id),
        label => label.chars().take(40).collect(),
    };
    let pairs = listed
        .iter()
        .map(|token| (token.id.to_string(), name(token)));
    let mut pairs: Vec<(String, String)> = pairs.collect();
    if !chosen.is_empty() && pairs.iter().all(|(id, _)| id != chosen) {
        pairs.push((chosen.to_owned(), short(&chosen)));
    }
    Ok(pairs)
}

pub async fn part(app: &App, role: Role, filter: &Filter) -> Result<String, AppError> {
    let (mut rows, mut truncated) = (Vec::new(), false);
    let wanted = filter.parse();
    if let Some(wanted) = &wanted {
        let page = app.store.agents_list(wanted, SHOWN).await?;
        (rows, truncated) = (page.rows, page.truncated);
    }
    // The oldest first: what is new appears at the end, and nothing moves under the cursor.
    rows.sort_by_key(|row| (row.created_at, row.id));
    let part = ApprovalsPart {
        rows,
        truncated,
        operator: role >= Role::Operator,
        filtered: *filter != Filter::default(),
        filter: filter.clone(),
        misunderstood: wanted.is_none(),
    };
    Ok(render(&part)?)
}

/// Approves a selection, or everything that waits under a filter: first a page that says what will happen, then, confirmed,
/// the decisions. What registers after the preview is not among them.
pub async fn approve(State(app): State<App>, Operator(user): Operator, fields: Fields) -> Page {
    let reason = fields.reason()?;
    let filter = Filter::of(&fields);
    let until = fields.get("until").parse();
    let until = until
        .ok()
        .and_then(|at| Timestamp::from_microsecond(at).ok());
    let all = fields.get("scope") == "all";
    if fields.get("confirmed") != "yes" {
        return match all {
            true => preview_all(&app, user, filter).await,
            false => preview(&app, user, &fields.ids("id")).await,
        };
    }
    let (items, again) = match all {
        true => {
            let until = until.ok_or_else(|| AppError::bad_request("Open the list again."))?;
            let waiting = waiting(&app, &filter, Some(until)).await?;
            let plain = waiting.into_iter().filter(|agent| agent.plain);
            let items = plain.map(|agent| (agent.id.0, None)).collect();
            let mut again = vec![("scope", "all".into()), ("until", written(until))];
            let filter = filter
                .fields()
                .map(|(name, value)| (name, value.to_owned()));
            again.extend(filter);
            (items, again)
        }
        false => (fields.picked("id"), Vec::new()),
    };
    let work = Work {
        change: Change::Approve,
        actor: &user.name,
        reason: reason.as_deref(),
    };
    let outcome = work.run(&app.store, items).await;
    let again = Again {
        path: "/approvals/approve",
        fields: again
            .into_iter()
            .chain([("confirmed", "yes".into())])
            .chain(reason.map(|reason| ("reason", reason)))
            .collect(),
    };
    outcome.page(&app, user, &Change::Approve, again)
}

pub async fn list_page() -> Redirect {
    Redirect::to("/approvals")
}

async fn preview(app: &App, user: User, ids: &[Uuid]) -> Page {
    if ids.is_empty() {
        return Err(AppError::bad_request("Select at least one agent."));
    }
    let mut rows = Vec::new();
    for id in ids {
        let found = app.store.agent_show(AgentId(*id)).await?;
        let agent = found.map(|detail| detail.agent);
        rows.extend(agent.filter(|agent| agent.plain).map(|agent| Named {
            picked: Some(format!("{id}~{}", agent.seen.unwrap_or_default())),
            hostname: agent.hostname,
            key: agent.key,
        }));
    }
    html(&ApproveMany {
        shell: Shell::new(app, user, "approvals"),
        total: rows.len(),
        skipped: ids.len() - rows.len(),
        rows,
        all: None,
    })
}

async fn preview_all(app: &App, user: User, filter: Filter) -> Page {
    let waiting = waiting(app, &filter, None).await?;
    let until = waiting.iter().map(|agent| agent.since).max();
    let until = until.ok_or_else(|| AppError::bad_request("Nothing waits that matches."))?;
    let plain = waiting.iter().filter(|agent| agent.plain);
    let total = plain.clone().count();
    html(&ApproveMany {
        shell: Shell::new(app, user, "approvals"),
        total,
        skipped: waiting.len() - total,
        rows: plain
            .take(NAMED)
            .map(|agent| Named {
                picked: None,
                hostname: agent.hostname.clone(),
                key: agent.key.clone(),
            })
            .collect(),
        all: Some((filter, written(until))),
    })
}

async fn waiting(
    app: &App,
    filter: &Filter,
    until: Option<Timestamp>,
) -> Result<Vec<WaitingAgent>, AppError> {
    let wanted = filter.parse();
    let wanted = wanted.ok_or_else(|| AppError::bad_request("This filter is not understood."))?;
    Ok(app.store.agents_waiting(&wanted, until, MOST).await?)
}

fn written(at: Timestamp) -> String {
    at.as_microsecond().to_string()
}
