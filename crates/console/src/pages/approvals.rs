//! What waits for a decision, and why.

use askama::Template;
use axum::{
    body::Bytes,
    extract::{Query, State},
    response::{IntoResponse, Redirect, Response},
};
use serde::Deserialize;
use svc_store::{
    AgentFilter, AgentId, AgentRecord, AgentStatus, Decision, Labels, Role, TokenId, TokenRecord,
};
use uuid::Uuid;

use super::{Page, form::Fields, html};
use crate::{
    app::App,
    auth::{Operator, User},
    error::AppError,
    view::{Shell, short},
};

const SHOWN: u32 = 200;
/// How many tokens the filter offers.
const TOKENS: u32 = 100;

/// Which of the pending agents: those of a token, or with a label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub struct Filter {
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
    base_url: String,
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
        base_url: app.web.origin(),
    };
    Ok(part.render()?)
}

impl Filter {
    pub fn trimmed(&self) -> Self {
        let cut = |text: &str| text.trim().chars().take(300).collect();
        Self {
            token: cut(&self.token),
            label: cut(&self.label),
        }
    }

    /// The live view of the filtered list.
    fn live(&self) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.append_pair("view", "approvals");
        let fields = [("token", &self.token), ("label", &self.label)];
        query.extend_pairs(fields.iter().filter(|(_, value)| !value.is_empty()));
        query.finish()
    }

    /// `None` if it cannot be understood.
    fn parse(&self) -> Option<AgentFilter> {
        let mut filter = AgentFilter {
            status: Some(AgentStatus::Pending),
            ..AgentFilter::default()
        };
        if !self.token.is_empty() {
            filter.token = Some(TokenId(Uuid::parse_str(&self.token).ok()?));
        }
        if !self.label.is_empty() {
            let labels: Labels = self.label.parse().ok()?;
            filter.labels = Some(labels).filter(|labels| !labels.is_empty())?;
        }
        Some(filter)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_is_not_taken_for_none() {
        let of = |token: &str, label: &str| Filter {
            token: token.into(),
            label: label.into(),
        };
        assert!(of("", "").parse().is_some());
        assert!(of("", "env=prod").parse().is_some());
        assert!(of("", "env").parse().is_none());
        assert!(of("813cbadc", "").parse().is_none());
    }
}
