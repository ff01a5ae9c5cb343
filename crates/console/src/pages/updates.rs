//! Releases of the agent and their rollouts, and the start of a rollout, after a preview.

use std::time::Duration;

use askama::Template;
use axum::extract::State;
use svc_common::settings::parse::duration;
use svc_store::{
    Hours, Labels, NewRollout, ReleaseRecord, RolloutPreview, RolloutRecord, Stage, stages,
};

use crate::{
    error::AppError,
    form::Fields,
    session::{Operator, User},
    shell::{Changed, Page, Shell, go_to, html},
    state::App,
};

const SHOWN: u32 = 100;
const LONGEST_SOAK: Duration = Duration::from_hours(24 * 30);
/// What a rollout is started with. The preview passes it on as it was written.
const FIELDS: [&str; 6] = ["serial", "labels", "all", "stages", "soak", "hours"];

#[derive(Template)]
#[template(path = "updates.html")]
struct UpdatesPage {
    shell: Shell,
    rollouts: Vec<RolloutRecord>,
    releases: Vec<ReleaseRecord>,
    fields: Fields,
    preview: Option<RolloutPreview>,
}

impl UpdatesPage {
    fn startable(&self) -> Vec<&ReleaseRecord> {
        let releases = self.releases.iter();
        releases.filter(|one| one.state.is_none()).collect()
    }

    /// What the form shows: what was written, or what is usual.
    fn shown<'a>(&'a self, name: &str, usual: &'a str) -> &'a str {
        let written = self.fields.get(name);
        if written.is_empty() { usual } else { written }
    }
}

/// A rollout as the form describes it.
struct Wanted {
    serial: i64,
    selector: Labels,
    stages: Vec<Stage>,
    soak: Duration,
    hours: Hours,
}

pub async fn page(State(app): State<App>, user: User, fields: Fields) -> Page {
    let preview = match user.may_operate() && !fields.get("serial").is_empty() {
        true => {
            let Wanted {
                serial, selector, ..
            } = wanted(&fields)?;
            let found = app.store.rollout_preview(serial, &selector).await?;
            Some(found.ok_or(AppError::NotFound("There is no release with this serial."))?)
        }
        false => None,
    };
    html(&UpdatesPage {
        rollouts: app.store.rollouts_list(SHOWN).await?.rows,
        releases: app.store.releases_list(SHOWN).await?.rows,
        shell: Shell::new(&app, user, "updates"),
        fields,
        preview,
    })
}

pub async fn start(State(app): State<App>, Operator(user): Operator, fields: Fields) -> Changed {
    let wanted = wanted(&fields)?;
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

/// Whom an update reaches is never left to a default.
fn wanted(fields: &Fields) -> Result<Wanted, AppError> {
    let wrong = |problem: String| AppError::BadRequest(format!("This is not accepted: {problem}."));
    let labels = fields.labels()?;
    let all = fields.get("all") == "yes";
    if !labels.removed.is_empty() || labels.added.is_empty() != all {
        return Err(AppError::bad_request(
            "Name the labels of the hosts, or choose all hosts: one of the two.",
        ));
    }
    let serial = fields.get("serial").parse();
    let soak = duration(fields.get("soak"), Duration::ZERO, LONGEST_SOAK);
    let hours = fields.get("hours").parse::<Hours>();
    Ok(Wanted {
        serial: serial.map_err(|_| AppError::bad_request("The serial is a number."))?,
        selector: labels.added,
        stages: stages(fields.get("stages")).map_err(|problem| wrong(problem.to_string()))?,
        soak: soak.map_err(|problem| wrong(format!("the soak {problem}")))?,
        hours: hours.map_err(|problem| wrong(problem.to_string()))?,
    })
}
