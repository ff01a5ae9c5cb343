//! The record of failed attempts to come in.
//!
//! What somebody typed as a name is recorded only if a person has that name: it may be a password in the wrong field.

use std::net::IpAddr;

use svc_store::{EventKind, LoginRecord, Outcome};

use crate::{error::AppError, state::App};

/// A wrong password, an unknown name, or a link that was used.
pub async fn refused(
    app: &App,
    kind: EventKind,
    person: Option<&LoginRecord>,
    from: IpAddr,
) -> Result<(), AppError> {
    record(app, kind, Outcome::Refused, person, from).await
}

/// An attempt that was not looked at, after too many. Of an address only some are recorded: they must stay cheap.
pub async fn limited(app: &App, kind: EventKind, name: &str, from: IpAddr) -> Result<(), AppError> {
    if !app.doors.may_record(from) {
        return Ok(());
    }
    let person = app.store.console_user_login(name).await?;
    record(app, kind, Outcome::Limited, person.as_ref(), from).await
}

async fn record(
    app: &App,
    kind: EventKind,
    outcome: Outcome,
    person: Option<&LoginRecord>,
    from: IpAddr,
) -> Result<(), AppError> {
    let subject = person.map_or("", |person| person.name.as_str());
    let detail = match (kind, person) {
        (EventKind::SignIn, None) => "unknown or disabled name",
        _ => "",
    };
    let recorded = app
        .store
        .console_attempt_failed(kind, outcome, subject, from, detail);
    Ok(recorded.await?)
}
