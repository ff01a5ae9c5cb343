//! Releases of the agent and their rollouts, and the start of a rollout, after a preview.

use std::time::Duration;

use askama::Template;
use axum::extract::{Query, State};
use serde::Deserialize;
use svc_common::{settings::parse::duration, text::is_hidden};
use svc_store::{
    Hours, Labels, NewRollout, ReleaseRecord, RolloutPreview, RolloutRecord, Stage, stages,
};

use super::form::Fields;
use crate::{
    error::AppError,
    session::{Operator, User},
    shell::{Changed, Page, Shell, go_to, html},
    state::App,
};

const SHOWN: u32 = 100;
const LONGEST_SOAK: Duration = Duration::from_hours(24 * 30);

/// A rollout as people write it, in the address of its preview.
#[derive(Deserialize)]
#[serde(default)]
pub struct Asked {
    serial: String,
    labels: String,
    all: String,
    stages: String,
    soak: String,
    hours: String,
}

impl Default for Asked {
    fn default() -> Self {
        let none = String::new;
        Self {
            serial: none(),
            labels: none(),
            all: none(),
            stages: "5,1%,10%,100%".into(),
            soak: "30m".into(),
            hours: none(),
        }
    }
}

/// What it means.
struct Wanted {
    serial: i64,
    selector: Labels,
    stages: Vec<Stage>,
    soak: Duration,
    hours: Hours,
}

#[derive(Template)]
#[template(path = "updates.html")]
struct UpdatesPage {
    shell: Shell,
    rollouts: Vec<RolloutRecord>,
    releases: Vec<ReleaseRecord>,
    asked: Asked,
    preview: Option<RolloutPreview>,
}

impl UpdatesPage {
    fn startable(&self) -> Vec<&ReleaseRecord> {
        let releases = self.releases.iter();
        releases.filter(|one| one.state.is_none()).collect()
    }
}

pub async fn page(State(app): State<App>, user: User, Query(asked): Query<Asked>) -> Page {
    let preview = match user.may_operate() && !asked.serial.is_empty() {
        true => Some(preview(&app, &asked.wanted()?).await?),
        false => None,
    };
    html(&UpdatesPage {
        rollouts: app.store.rollouts_list(SHOWN).await?.rows,
        releases: app.store.releases_list(SHOWN).await?.rows,
        shell: Shell::new(&app, user, "updates"),
        asked,
        preview,
    })
}

async fn preview(app: &App, wanted: &Wanted) -> Result<RolloutPreview, AppError> {
    let found = app
        .store
        .rollout_preview(wanted.serial, &wanted.selector)
        .await?;
    found.ok_or(AppError::NotFound("There is no release with this serial."))
}

pub async fn start(State(app): State<App>, Operator(user): Operator, fields: Fields) -> Changed {
    let field = |name: &str| fields.get(name).to_owned();
    let asked = Asked {
        serial: field("serial"),
        labels: field("labels"),
        all: field("all"),
        stages: field("stages"),
        soak: field("soak"),
        hours: field("hours"),
    };
    let wanted = asked.wanted()?;
    let rollout = NewRollout {
        serial: wanted.serial,
        selector: &wanted.selector,
        stages: &wanted.stages,
        soak: wanted.soak,
        hours: wanted.hours,
        undoes: None,
    };
    app.store.rollout_start(&rollout, &user.name).await?;
    go_to(&format!("/updates/{}", wanted.serial))
}

impl Asked {
    /// Whom an update reaches is never left to a default.
    fn wanted(&self) -> Result<Wanted, AppError> {
        let wrong = |what: &str, why: String| AppError::BadRequest(format!("{what} {why}."));
        if self.labels.contains(is_hidden) {
            return Err(AppError::bad_request(
                "Labels have no invisible characters.",
            ));
        }
        let selector: Labels = self
            .labels
            .parse()
            .map_err(|problem| wrong("These labels are not accepted:", format!("{problem}")))?;
        if selector.is_empty() != (self.all == "yes") {
            return Err(AppError::bad_request(
                "Name the labels of the hosts, or choose all hosts: one of the two.",
            ));
        }
        let serial = self.serial.trim().parse();
        let stages = stages(&self.stages);
        let soak = duration(self.soak.trim(), Duration::ZERO, LONGEST_SOAK);
        let hours = self.hours.parse();
        Ok(Wanted {
            serial: serial.map_err(|_| AppError::bad_request("The serial is a number."))?,
            selector,
            stages: stages.map_err(|problem| wrong("The stages:", problem.to_string()))?,
            soak: soak.map_err(|problem| wrong("The soak", problem))?,
            hours: hours.map_err(|problem: svc_store::RolloutError| {
                wrong("The hours:", problem.to_string())
            })?,
        })
    }
}
