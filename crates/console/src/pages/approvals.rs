//! What waits for a decision, and why.

use askama::Template;
use axum::{
    extract::{Query, State},
    response::{IntoResponse, Response},
};
use svc_store::{AgentId, AgentRecord, Decision, PendingReason, Role, TokenRecord};

use super::form::Fields;
use crate::{
    error::AppError,
    live::Filter,
    render::render,
    session::{Operator, User},
    shell::{Page, Shell, go_to, html},
    state::App,
    view::short,
};

const SHOWN: u32 = 200;
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
    filtered: bool,
}

#[derive(Template)]
#[template(path = "approvals_part.html")]
struct ApprovalsPart {
    rows: Vec<AgentRecord>,
    truncated: bool,
    operator: bool,
    filtered: bool,
    /// The filter cannot be read, so nothing is shown: showing everything would lead to wrong approvals.
    misunderstood: bool,
}

#[derive(Template)]
#[template(path = "approve_many.html")]
struct ApproveMany {
    shell: Shell,
    rows: Vec<AgentRecord>,
    skipped: usize,
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
        misunderstood: wanted.is_none(),
    };
    Ok(render(&part)?)
}

/// Approves a selection: first a page that says what will happen, then, confirmed, the decisions.
pub async fn approve(
    State(app): State<App>,
    Operator(user): Operator,
    fields: Fields,
) -> Result<Response, AppError> {
    let ids = fields.ids("id");
    if ids.is_empty() {
        return Err(AppError::bad_request("Select at least one agent."));
    }
    let reason = fields.reason()?;
    if fields.get("confirmed") == "yes" {
        for id in ids {
            approve_one(&app, AgentId(id), &user.name, reason.as_deref()).await?;
        }
        return Ok(go_to("/approvals")?.into_response());
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

/// Leaves an agent alone that another person has decided about meanwhile.
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
    let chosen = matches!(
        agent.pending_reason,
        Some(PendingReason::Conflict | PendingReason::Clone)
    );
    agent.status.is_pending() && !chosen
}
