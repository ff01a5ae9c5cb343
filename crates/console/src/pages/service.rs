//! The service: instances, keys, database, history.

use askama::Template;
use axum::extract::State;
use svc_store::{DatabaseState, InstanceLoad, InstanceRecord};

use super::fleet::{
    INSTANCES,
    capacity::{self, Meter},
};
use crate::{
    error::AppError,
    jwks::KeyState,
    render::render,
    session::User,
    shell::{Page, Shell, html},
    state::App,
};

#[derive(Template)]
#[template(path = "service.html")]
struct ServicePage {
    shell: Shell,
    part: String,
}

#[derive(Template)]
#[template(path = "service_part.html")]
struct ServicePart {
    instances: Vec<InstanceRecord>,
    database: DatabaseState,
    keys: KeyState,
    /// An instance refuses agents of another one whose key it does not accept.
    keys_differ: bool,
    dead_letters: i64,
    queue: Meter,
}

pub async fn page(State(app): State<App>, user: User) -> Page {
    let part = part(&app).await?;
    let shell = Shell::new(&app, user, "service").live("view=service");
    html(&ServicePage { shell, part })
}

pub async fn part(app: &App) -> Result<String, AppError> {
    let instances = app.store.instances_list(INSTANCES).await?;
    let mut live = instances.iter().filter(|instance| instance.live);
    let kids: Vec<&str> = live.clone().map(|live| live.kid.as_str()).collect();
    let loads: Vec<InstanceLoad> = live.clone().filter_map(InstanceRecord::load).collect();
    let part = ServicePart {
        keys_differ: live.any(|live| !kids.iter().all(|kid| live.accepts(kid))),
        database: app.store.console_database().await?,
        keys: app.verifier.state(),
        dead_letters: app.news.borrow().attention.dead_letters_day,
        queue: capacity::queue(&loads),
        instances,
    };
    Ok(render(&part)?)
}
