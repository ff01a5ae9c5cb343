//! One rollout: its stages, its agents, and what people decide about it.

use askama::Template;
use axum::extract::{Path, State};
use svc_store::{HostId, HostRecord, ReleaseRecord, RolloutAgent, RolloutDetail, RolloutState};
use uuid::Uuid;

use super::form::Fields;
use crate::{
    error::AppError,
    session::{Operator, User},
    shell::{Changed, Page, Shell, go_to, html},
    state::App,
};

const RELEASES: u32 = 100;
const MISSING: AppError = AppError::NotFound("The release has no rollout.");
const NO_HOST: AppError = AppError::NotFound("There is no such host.");

#[derive(Template)]
#[template(path = "rollout.html")]
struct RolloutPage {
    shell: Shell,
    detail: RolloutDetail,
    /// What may take this release back: newer ones that have no rollout.
    newer: Vec<ReleaseRecord>,
}

impl RolloutPage {
    fn may_pause(&self) -> bool {
        self.detail.rollout.state != RolloutState::Paused
    }

    fn may_resume(&self) -> bool {
        let state = self.detail.rollout.state;
        matches!(state, RolloutState::Paused | RolloutState::Halted)
    }

    fn logs(&self) -> impl Iterator<Item = &RolloutAgent> {
        let agents = self.detail.agents.iter();
        agents.filter(|agent| !agent.log_tail.is_empty())
    }
}

pub async fn page(State(app): State<App>, user: User, Path(serial): Path<i64>) -> Page {
    let detail = app.store.rollout_show(serial).await?.ok_or(MISSING)?;
    let mut newer = app.store.releases_list(RELEASES).await?.rows;
    newer.retain(|release| release.serial > serial && release.state.is_none());
    html(&RolloutPage {
        shell: Shell::new(&app, user, "updates"),
        detail,
        newer,
    })
}

pub async fn set(
    State(app): State<App>,
    Operator(user): Operator,
    Path(serial): Path<i64>,
    fields: Fields,
) -> Changed {
    let running = match fields.get("state") {
        "running" => true,
        "paused" => false,
        _ => return Err(AppError::bad_request("Choose what to do.")),
    };
    let reason = fields.required_reason()?;
    app.store
        .rollout_set(serial, running, &user.name, &reason)
        .await?;
    go_to(&format!("/updates/{serial}"))
}

pub async fn skip(
    State(app): State<App>,
    Operator(user): Operator,
    Path(serial): Path<i64>,
    fields: Fields,
) -> Changed {
    let reason = fields.required_reason()?;
    let host = host(&app, fields.get("host")).await?;
    app.store
        .rollout_skip(serial, host, &user.name, &reason)
        .await?;
    go_to(&format!("/updates/{serial}"))
}

/// A host by its id, or by its name if no other host has it.
async fn host(app: &App, name: &str) -> Result<HostId, AppError> {
    if let Ok(id) = Uuid::parse_str(name) {
        return Ok(HostId(id));
    }
    let found: Vec<HostRecord> = app.store.hosts_find(name, 2).await?.rows;
    let mut named = found.iter().filter(|host| host.hostname == name);
    match (named.next(), named.next()) {
        (Some(host), None) => Ok(host.id),
        (None, _) => Err(NO_HOST),
        _ => Err(AppError::bad_request(
            "Several hosts have this name: give the host's id, which its page shows.",
        )),
    }
}

pub async fn back(
    State(app): State<App>,
    Operator(user): Operator,
    Path(serial): Path<i64>,
    fields: Fields,
) -> Changed {
    let reason = fields.required_reason()?;
    let to: Option<i64> = fields.get("to").parse().ok().filter(|to| *to > serial);
    let to = to.ok_or_else(|| {
        AppError::bad_request("Choose a release with a higher serial: agents refuse lower ones.")
    })?;
    app.store
        .rollout_back(serial, to, &user.name, &reason)
        .await?;
    go_to(&format!("/updates/{to}"))
}
