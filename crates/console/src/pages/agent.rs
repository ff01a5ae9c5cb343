//! One agent: who it says it is, what it conflicts with, its events, and the decision.

use askama::Template;
use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use serde_json::Value;
use svc_store::{
    AgentDetail, AgentId, AgentStatus, AgentTrust, ApprovalMode, Decision, HostRecord,
};

use crate::{
    error::AppError,
    form::Fields,
    id::{Id, Subject},
    live::Filter,
    session::{Operator, User},
    shell::{Page, Shell, html},
    state::App,
    view::address_query,
};

#[derive(Template)]
#[template(path = "agent.html")]
struct AgentPage {
    shell: Shell,
    detail: AgentDetail,
    /// The agent that holds the machine now, if the decision must say what becomes of it.
    other: Option<AgentDetail>,
    rows: Vec<Compared>,
    differences: usize,
    host: Option<HostRecord>,
    trust: Option<AgentTrust>,
    /// Whether the host has an active agent, so that approval must say what becomes of it.
    held: bool,
    /// Why a decision was refused.
    problem: String,
}

/// One fact of both machines.
struct Compared {
    name: String,
    ours: String,
    theirs: String,
    same: bool,
}

pub async fn page(State(app): State<App>, user: User, Id(id): Id<AgentId>) -> Page {
    show(&app, user, id, String::new()).await
}

/// What a decision compares (`seen`) is read first: what is read after it may be newer, never older.
async fn show(app: &App, user: User, id: AgentId, problem: String) -> Page {
    let detail = app.store.agent_show(id).await?;
    let detail = detail.ok_or(AgentId::MISSING)?;
    let host = app.store.host_show(detail.agent.host_id).await?;
    let host = host.map(|found| found.host);
    let holder = host.as_ref().and_then(|host| host.agent_id);
    let other = holder
        .or(detail.agent.conflict_with)
        .or(detail.agent.cloned_from);
    let other = match other.filter(|other| *other != detail.agent.id) {
        Some(other) if detail.agent.status == AgentStatus::Pending => {
            app.store.agent_show(other).await?
        }
        _ => None,
    };
    let rows = compare(&detail.facts, other.as_ref().map(|other| &other.facts));
    html(&AgentPage {
        shell: Shell::new(app, user, "approvals"),
        differences: rows.iter().filter(|row| !row.same).count(),
        rows,
        held: holder.is_some(),
        problem,
        host,
        trust: app.store.agent_trust(id).await?,
        detail,
        other,
    })
}

/// What the person chose. Decisions go through the functions that the admin commands use too. The list has a button for
/// each agent that needs no choice, whose value is what was shown. If that has changed, the page says so and shows the agent
/// as it is now.
pub async fn decide(
    State(app): State<App>,
    Operator(user): Operator,
    Id(id): Id<AgentId>,
    fields: Fields,
) -> Result<Response, AppError> {
    let (name, seen) = match fields.get("approve") {
        "" => (fields.get("decision"), fields.get("seen")),
        seen => ("approve", seen),
    };
    let decision = match name {
        "approve" => Decision::Approve(None),
        "replace" => Decision::Approve(Some(ApprovalMode::Replace)),
        "new-host" => Decision::Approve(Some(ApprovalMode::NewHost)),
        "reject" => Decision::Reject,
        "revoke" => Decision::Revoke,
        "reopen" => Decision::Reopen,
        _ => return Err(AppError::bad_request("Choose what to do.")),
    };
    let reason = match decision {
        Decision::Revoke => Some(fields.required_reason()?),
        _ => fields.reason()?,
    };
    let (actor, reason) = (&user.name, reason.as_deref());
    let decided = app
        .store
        .agent_decide_seen(id, decision, Some(seen), actor, reason);
    match decided.await.map_err(AppError::from) {
        Ok(_) => {}
        Err(AppError::Conflict(problem)) => {
            let page = show(&app, user, id, problem).await?;
            return Ok((StatusCode::CONFLICT, page).into_response());
        }
        Err(error) => return Err(error),
    }
    let next = match fields.get("from") {
        "approvals" => {
            let query = address_query(&Filter::of(&fields).fields());
            format!("/approvals?{query}").trim_end_matches('?').into()
        }
        _ => format!("/agents/{id}"),
    };
    Ok(Redirect::to(&next).into_response())
}

/// The facts of one machine, or of two side by side.
fn compare(ours: &Value, theirs: Option<&Value>) -> Vec<Compared> {
    let mut rows = Vec::new();
    for (name, value) in ours.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(kinds) => {
                for (kind, value) in kinds {
                    let theirs = theirs.map(|facts| &facts[name][kind]);
                    rows.push(row(&format!("{kind} identifier"), value, theirs));
                }
            }
            None => rows.push(row(
                &name.replace('_', " "),
                value,
                theirs.map(|facts| &facts[name]),
            )),
        }
    }
    rows
}

fn row(name: &str, ours: &Value, theirs: Option<&Value>) -> Compared {
    Compared {
        name: name.to_owned(),
        ours: text(ours),
        theirs: theirs.map(text).unwrap_or_default(),
        same: theirs.is_none_or(|theirs| theirs == ours),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_two_machines_are_marked() {
        let ours = serde_json::json!({"hostname": "a", "cpu_count": 4, "identifiers": {"machine": ["x", "y"]}});
        let theirs =
            serde_json::json!({"hostname": "b", "cpu_count": 4, "identifiers": {"machine": ["x"]}});
        let rows = compare(&ours, Some(&theirs));
        let differing: Vec<&str> = rows
            .iter()
            .filter(|row| !row.same)
            .map(|row| row.name.as_str())
            .collect();
        assert_eq!(differing, ["hostname", "machine identifier"]);
        assert_eq!(
            compare(&ours, None).iter().filter(|row| !row.same).count(),
            0
        );
    }
}
