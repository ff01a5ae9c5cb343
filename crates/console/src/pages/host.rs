//! One host: its vitals, plots, timeline, facts, identifiers, agents and books.

use askama::Template;
use axum::extract::{Query, State};
use jiff::{Timestamp, ToSpan};
use svc_store::{AgentSettingsView, EventMark, HostDetail, HostId, RolloutAgent, UpdateStep};
use uuid::Uuid;

use super::plots::{Asked, RANGES, Range};
use crate::{
    error::AppError,
    form::Fields,
    id::{Id, Subject},
    render,
    session::{Operator, User},
    shell::{Changed, Page, Shell, go_to, html},
    state::App,
};

const NOTE_BYTES: usize = 500;

#[derive(Template)]
#[template(path = "host.html")]
struct HostPage {
    shell: Shell,
    detail: HostDetail,
    /// How many agents retiring the host would revoke or reject.
    current: usize,
    part: String,
    /// How far its agent is with its update, if it takes any.
    update: Option<RolloutAgent>,
    /// What its agent is to run, and what it says.
    settings: Option<AgentSettingsView>,
    events: Vec<EventMark>,
    /// Of the plots.
    range: &'static Range,
}

/// What changes while one looks.
#[derive(Template)]
#[template(path = "host_part.html")]
struct HostPart {
    detail: HostDetail,
}

pub async fn page(
    State(app): State<App>,
    user: User,
    Id(id): Id<HostId>,
    Query(asked): Query<Asked>,
) -> Page {
    let detail = find(&app, id).await?;
    let now = Timestamp::now();
    let year = now - (365 * 24).hours();
    let events = app.store.console_host_events(detail.host.id, year).await?;
    let (update, settings) = match detail.host.agent_id {
        Some(agent) => (
            app.store.agent_update(agent).await?,
            app.store.settings_of(agent).await?,
        ),
        None => (None, None),
    };
    let part = render(detail.clone())?;
    let shell = Shell::new(&app, user, "hosts").live(format!("view=host&ids={id}"));
    let agents = detail.agents.iter();
    html(&HostPage {
        shell,
        range: asked.range().unwrap_or_else(|| opening(&detail, now)),
        current: agents.filter(|agent| agent.status.is_current()).count(),
        detail,
        part,
        update,
        settings,
        events,
    })
}

/// A host has reported since its first agent was approved, as a rule.
fn opening(detail: &HostDetail, now: Timestamp) -> &'static Range {
    let approved = detail.agents.iter().filter_map(|agent| agent.decided_at);
    let began = approved.min().unwrap_or(detail.host.created_at);
    Range::opening(began, detail.host.vitals_at, now)
}

pub async fn part(app: &App, id: Uuid) -> Result<String, AppError> {
    render(find(app, HostId(id)).await?)
}

pub async fn note(
    State(app): State<App>,
    Operator(user): Operator,
    Id(id): Id<HostId>,
    fields: Fields,
) -> Changed {
    let note = fields.text("note", NOTE_BYTES, "The note")?;
    let note = note.ok_or_else(|| AppError::bad_request("The note is empty."))?;
    app.store
        .console_note_add(id, None, &user.name, &note)
        .await?;
    go_to(&format!("/hosts/{id}"))
}

pub async fn labels(
    State(app): State<App>,
    Operator(user): Operator,
    Id(id): Id<HostId>,
    fields: Fields,
) -> Changed {
    let change = fields.labels()?;
    app.store
        .console_hosts_label(&[id.0], &change, &user.name)
        .await?;
    go_to(&format!("/hosts/{id}"))
}

pub async fn retire(
    State(app): State<App>,
    Operator(user): Operator,
    Id(id): Id<HostId>,
    fields: Fields,
) -> Changed {
    let reason = fields.required_reason()?;
    app.store.host_retire(id, &user.name, Some(&reason)).await?;
    go_to(&format!("/hosts/{id}"))
}

async fn find(app: &App, id: HostId) -> Result<HostDetail, AppError> {
    let found = app.store.host_show(id).await?;
    found.ok_or(HostId::MISSING)
}

fn render(detail: HostDetail) -> Result<String, AppError> {
    Ok(render::render(&HostPart { detail })?)
}
