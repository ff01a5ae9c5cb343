//! One rollout: its stages, its agents, and what people decide about it.

use askama::Template;
use axum::extract::{Path, State};
use svc_store::{HostId, ReleaseRecord, RolloutDetail, RolloutState};

use crate::{
    error::AppError,
    form::Fields,
    id::Subject,
    session::{Operator, User},
    shell::{Changed, Page, Shell, go_to, html},
    state::App,
};

const RELEASES: u32 = 100;
const MISSING: AppError = AppError::NotFound("The release has no rollout.");

#[derive(Template)]
#[template(path = "rollout.html")]
struct RolloutPage {
    shell: Shell,
    detail: RolloutDetail,
    /// What may take this release back: newer ones that have no rollout.
    newer: Vec<ReleaseRecord>,
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

pub async fn change(
    State(app): State<App>,
    Operator(user): Operator,
    Path(serial): Path<i64>,
    fields: Fields,
) -> Changed {
    let (store, actor, reason) = (&app.store, &user.name, fields.required_reason()?);
    match fields.get("action") {
        "resume" => store.rollout_set(serial, true, actor, &reason).await?,
        "pause" => store.rollout_set(serial, false, actor, &reason).await?,
        "skip" => {
            let host = host(&app, fields.get("host")).await?;
            store.rollout_skip(serial, host, actor, &reason).await?;
        }
        "back" => {
            let to: Option<i64> = fields.get("to").parse().ok();
            let to = to.filter(|to| *to > serial).ok_or_else(|| {
                AppError::bad_request("Choose a higher serial: agents refuse lower ones.")
            })?;
            store.rollout_back(serial, to, actor, &reason).await?;
            return go_to(&format!("/updates/{to}"));
        }
        _ => return Err(AppError::bad_request("Choose what to do.")),
    }
    go_to(&format!("/updates/{serial}"))
}

/// A host by its name or its id.
async fn host(app: &App, name: &str) -> Result<HostId, AppError> {
    match app.store.hosts_find(name, 2).await?.rows.as_slice() {
        [host] => Ok(host.id),
        [] => Err(HostId::MISSING),
        _ => Err(AppError::bad_request(
            "Several hosts have this name: give the id, which the page of the host shows.",
        )),
    }
}
