//! One agent: who it says it is, what it conflicts with, its events, and the decision.

use askama::Template;
use axum::extract::State;
use serde_json::Value;
use svc_store::{AgentDetail, AgentId, AgentStatus, ApprovalMode, Decision, HostRecord};

use super::form::Fields;
use crate::{
    error::AppError,
    id::{Id, Subject},
    session::{Operator, User},
    shell::{Changed, Page, Shell, go_to, html},
    state::App,
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
    /// Whether the host has an active agent, so that approval must say what becomes of it.
    held: bool,
}

/// One fact of both machines.
struct Compared {
    name: String,
    ours: String,
    theirs: String,
    same: bool,
}

pub async fn page(State(app): State<App>, user: User, Id(id): Id<AgentId>) -> Page {
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
    let shell = Shell::new(&app, user, "approvals");
    html(&AgentPage {
        shell,
        differences: rows.iter().filter(|row| !row.same).count(),
        rows,
        held: holder.is_some(),
        host,
        detail,
        other,
    })
}

/// What the person chose. Decisions go through the functions that the admin commands use too.
pub async fn decide(
    State(app): State<App>,
    Operator(user): Operator,
    Id(id): Id<AgentId>,
    fields: Fields,
) -> Changed {
    let decision = match fields.get("decision") {
        "approve" => Decision::Approve(None),
        "replace" => Decision::Approve(Some(ApprovalMode::Replace)),
        "new-host" => Decision::Approve(Some(ApprovalMode::NewHost)),
        "reject" => Decision::Reject,
        "revoke" => Decision::Revoke,
        "reopen" => Decision::Reopen,
        _ => return Err(AppError::bad_request("Choose what to do.")),
    };
    let reason = fields.reason()?;
    app.store
        .agent_decide(id, decision, &user.name, reason.as_deref())
        .await?;
    match fields.get("from") {
        "approvals" => go_to("/approvals"),
        _ => go_to(&format!("/agents/{id}")),
    }
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
