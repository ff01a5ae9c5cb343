//! The people who may use the console: for admins.

use askama::Template;
use axum::{
    body::Bytes,
    extract::{Path, State},
    response::{IntoResponse, Redirect, Response},
};
use std::time::Duration;
use svc_store::{LinkKind, Role, UserRecord};

use super::{Page, form::Fields, html};
use crate::{
    app::App,
    auth::{Admin, link},
    error::AppError,
    secret::Secret,
    view::Shell,
};

const MISSING: AppError = AppError::NotFound("There is no such person who may sign in.");
const LINK: Duration = Duration::from_hours(24);

#[derive(Template)]
#[template(path = "people.html")]
struct PeoplePage {
    shell: Shell,
    people: Vec<UserRecord>,
    /// A new person's name and one-time link, shown once.
    created: Option<(String, String)>,
}

pub async fn page(State(app): State<App>, Admin(user): Admin) -> Page {
    let people = app.store.console_users().await?;
    html(&PeoplePage {
        shell: Shell::new(&app, user, "people"),
        people,
        created: None,
    })
}

pub async fn add(
    State(app): State<App>,
    Admin(user): Admin,
    body: Bytes,
) -> Result<Response, AppError> {
    let fields = Fields::parse(&body);
    let name = fields.get("name").to_owned();
    let role = role(&fields)?;
    let added = app.store.console_user_add(&name, role, &user.name).await;
    match added.as_ref().err().and_then(|error| error.constraint()) {
        Some("users_name_key") => {
            let message = "There is a person of this name already.";
            return Err(AppError::Conflict(message.into()));
        }
        Some("users_name_check") => {
            let message = "A name has lower-case letters, digits and . _ @ -, at most 64 of them.";
            return Err(AppError::BadRequest(message.into()));
        }
        _ => added.map(drop)?,
    }
    show_link(&app, Admin(user), name).await
}

/// Another role, disabling, or a new link. Nobody changes themselves: one slip would lock all admins
/// out.
pub async fn change(
    State(app): State<App>,
    Admin(user): Admin,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, AppError> {
    let fields = Fields::parse(&body);
    let (store, actor) = (&app.store, user.name.clone());
    if name == actor && fields.get("do") != "link" {
        let message = "You cannot change yourself. Ask another admin.";
        return Err(AppError::Conflict(message.into()));
    }
    let found = match fields.get("do") {
        "role" => {
            store
                .console_user_role(&name, role(&fields)?, &actor)
                .await?
        }
        "disable" => store.console_user_disable(&name, true, &actor).await?,
        "enable" => store.console_user_disable(&name, false, &actor).await?,
        "link" => return show_link(&app, Admin(user), name).await,
        _ => return Err(AppError::BadRequest("Choose what to do.".into())),
    };
    match found {
        true => Ok(Redirect::to("/people").into_response()),
        false => Err(MISSING),
    }
}

async fn show_link(app: &App, Admin(user): Admin, name: String) -> Result<Response, AppError> {
    let code = Secret::generate().map_err(|_| AppError::Internal("no random numbers"))?;
    let (kind, hash) = (LinkKind::SetPassword, code.hash());
    let created = app
        .store
        .console_link_create(&name, kind, &hash, LINK, &user.name);
    if !created.await? {
        return Err(MISSING);
    }
    let link = link(&app.web.base_url, &code);
    let people = app.store.console_users().await?;
    let page = PeoplePage {
        shell: Shell::new(app, user, "people"),
        people,
        created: Some((name, link)),
    };
    Ok(html(&page)?.into_response())
}

fn role(fields: &Fields) -> Result<Role, AppError> {
    let role = Role::parse(fields.get("role"));
    role.ok_or_else(|| AppError::BadRequest("Choose a role.".into()))
}
