//! The people who may use the console: for admins.

use std::time::Duration;

use askama::Template;
use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use svc_store::{LinkKind, Role, UserRecord};

use crate::{
    error::AppError,
    form::Fields,
    secret::Secret,
    session::{Admin, User},
    shell::{Page, Shell, go_to, html},
    state::App,
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
    html(&PeoplePage {
        people: app.store.console_users().await?,
        shell: Shell::new(&app, user, "people"),
        created: None,
    })
}

pub async fn add(State(app): State<App>, Admin(user): Admin, fields: Fields) -> Page {
    let name = fields.get("name").to_owned();
    let role = role(&fields)?;
    let added = app.store.console_user_add(&name, role, user.by()).await;
    match added.as_ref().err().and_then(|error| error.constraint()) {
        Some("users_name_key") => {
            let message = "There is a person of this name already.";
            return Err(AppError::Conflict(message.into()));
        }
        Some("users_name_check") => {
            let message = "A name has lower-case letters, digits and . _ @ -, at most 64 of them.";
            return Err(AppError::bad_request(message));
        }
        _ => added.map(drop)?,
    }
    show_link(&app, user, name).await
}

/// Another role, disabling, or a new link. Admins cannot change their own account: one slip would lock all of
/// them out.
pub async fn change(
    State(app): State<App>,
    Admin(user): Admin,
    Path(name): Path<String>,
    fields: Fields,
) -> Result<Response, AppError> {
    let (store, by) = (&app.store, user.by());
    if name == user.name && fields.get("do") != "link" {
        let message = "You cannot change yourself. Ask another admin.";
        return Err(AppError::Conflict(message.into()));
    }
    let found = match fields.get("do") {
        "role" => {
            let role = role(&fields)?;
            store.console_user_role(&name, role, by).await?
        }
        "disable" => store.console_user_disable(&name, true, by).await?,
        "enable" => store.console_user_disable(&name, false, by).await?,
        "link" => return Ok(show_link(&app, user, name).await?.into_response()),
        _ => return Err(AppError::bad_request("Choose what to do.")),
    };
    match found {
        true => Ok(go_to("/people")?.into_response()),
        false => Err(MISSING),
    }
}

async fn show_link(app: &App, user: User, name: String) -> Page {
    let code = Secret::generate()?;
    let (kind, hash) = (LinkKind::SetPassword, code.hash());
    let store = &app.store;
    let created = store.console_link_create(&name, kind, &hash, LINK, user.by());
    if !created.await? {
        return Err(MISSING);
    }
    let link = code.link(&app.web.base_url);
    html(&PeoplePage {
        people: store.console_users().await?,
        shell: Shell::new(app, user, "people"),
        created: Some((name, link)),
    })
}

fn role(fields: &Fields) -> Result<Role, AppError> {
    let role = Role::parse(fields.get("role"));
    role.ok_or_else(|| AppError::bad_request("Choose a role."))
}
