//! What waits for a decision, and why.

use std::collections::BTreeMap;

use askama::Template;
use axum::{
    body::Bytes,
    extract::{Query, State},
    response::{IntoResponse, Redirect, Response},
};
use serde::Deserialize;
use svc_store::{AgentFilter, AgentId, AgentRecord, AgentStatus, Decision, Role, TokenId};
use uuid::Uuid;

use super::{Page, form::Fields, html};
use crate::{
    app::App,
    auth::{Operator, User},
    error::AppError,
    view::Shell,
};

const SHOWN: u32 = 200;

#[derive(Deserialize)]
pub struct Asked {
    #[serde(default)]
    token: String,
    #[serde(default)]
    label: String,
}

#[derive(Template)]
#[template(path = "approvals.html")]
struct ApprovalsPage {
    shell: Shell,
    part: String,
    token: String,
    label: String,
    filtered: bool,
}

#[derive(Template)]
#[template(path = "approvals_part.html")]
struct ApprovalsPart {
    rows: Vec<AgentRecord>,
    truncated: bool,
    operator: bool,
    filtered: bool,
    base_url: String,
}

#[derive(Template)]
#[template(path = "approve_many.html")]
struct ApproveMany {
    shell: Shell,
    rows: Vec<AgentRecord>,
    skipped: usize,
}

pub async fn page(State(app): State<App>, user: User, Query(asked): Query<Asked>) -> Page {
    let filtered = !asked.token.is_empty() || !asked.label.is_empty();
    let part = render(&app, &filter(&asked), user.role, filtered).await?;
    let shell = Shell::new(&app, user, "approvals");
    let shell = match filtered {
        true => shell,
        false => shell.live("view=approvals"),
    };
    html(&ApprovalsPage {
        shell,
        part,
        token: asked.token,
        label: asked.label,
        filtered,
    })
}

pub async fn part(app: &App, role: Role) -> Result<String, AppError> {
    render(app, &AgentFilter::default(), role, false).await
}

async fn render(
    app: &App,
    filter: &AgentFilter,
    role: Role,
    filtered: bool,
) -> Result<String, AppError> {
    let filter = AgentFilter {
        status: Some(AgentStatus::Pending),
        ..filter.clone()
    };
    let page = app.store.agents_list(&filter, SHOWN).await?;
    let mut rows = page.rows;
    // The oldest first: what is new appears at the end, and nothing moves under the cursor.
    rows.sort_by_key(|row| (row.created_at, row.id));
    let part = ApprovalsPart {
        rows,
        truncated: page.truncated,
        operator: role >= Role::Operator,
        filtered,
        base_url: app.web.origin(),
    };
    Ok(part.render()?)
}

fn filter(asked: &Asked) -> AgentFilter {
    let label = asked.label.split_once('=');
    AgentFilter {
        token: Uuid::parse_str(&asked.token).ok().map(TokenId),
        labels: label
            .map(|(name, value)| BTreeMap::from([(name.trim().into(), value.trim().into())]))
            .unwrap_or_default(),
        ..AgentFilter::default()
    }
}

/// Approves a selection: first a page that says what will happen, then, confirmed, the decisions.
pub async fn approve(
    State(app): State<App>,
    Operator(user): Operator,
    body: Bytes,
) -> Result<Response, AppError> {
    let fields = Fields::parse(&body);
    let ids = fields.ids("id");
    if ids.is_empty() {
        return Err(AppError::BadRequest("Select at least one agent.".into()));
    }
    let reason = fields.reason()?;
    if fields.get("confirmed") == "yes" {
        for id in ids {
            approve_one(&app, AgentId(id), &user.name, reason.as_deref()).await?;
        }
        return Ok(Redirect::to("/approvals").into_response());
    }
    let mut rows = Vec::new();
    for id in &ids {
        let found = app.store.agent_show(AgentId(*id)).await?;
        rows.extend(found.map(|detail| detail.agent).filter(is_plain));
    }
    let page = ApproveMany {
        shell: Shell::new(&app, user, "approvals"),
        skipped: ids.len() - rows.len(),
        rows,
    };
    Ok(html(&page)?.into_response())
}

/// An agent that somebody else decided about meanwhile is left alone.
async fn approve_one(
    app: &App,
    id: AgentId,
    actor: &str,
    reason: Option<&str>,
) -> Result<(), AppError> {
    let decided = app
        .store
        .agent_decide(id, Decision::Approve(None), actor, reason);
    match decided.await.map_err(AppError::from) {
        Ok(_) | Err(AppError::Conflict(_) | AppError::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether approval needs no choice between replacing and a new host.
fn is_plain(agent: &AgentRecord) -> bool {
    let chosen = matches!(agent.pending_reason.as_deref(), Some("conflict" | "clone"));
    agent.status == AgentStatus::Pending && !chosen
}
