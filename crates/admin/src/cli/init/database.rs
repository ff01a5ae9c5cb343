//! The role and the database of the service: taken from the settings or a flag, or made with an administrator's help.

use std::path::Path;

use anyhow::{Context, bail};
use svc_common::error_chain::chain;
use svc_store::{DatabaseUrl, Store, StoreError, StoreOptions};
use url::Url;

use super::{
    args::Args,
    connection_string::{decoded, login_of, new_password, service_url},
    console,
    peer::{Login, Outcome, Request},
    settings::Settings,
    step::Step,
};
use crate::cli::Usage;

const VARIABLE: &str = "DATABASE_URL";
/// Where distributions put PostgreSQL's socket, and its administrator's connection string there.
const SOCKETS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// The administrator of PostgreSQL on this machine, if it runs here.
pub fn local_administrator() -> Option<String> {
    let runs = |folder: &&str| Path::new(folder).join(".s.PGSQL.5432").exists();
    let folder = SOCKETS.into_iter().find(runs)?;
    Some(format!(
        "postgres://postgres@{}/postgres",
        folder.replace('/', "%2F")
    ))
}

/// Ends with a connection string in the settings that works.
pub async fn ensure(
    args: &Args,
    settings: &mut Settings,
    console: Option<&console::Plan>,
) -> anyhow::Result<Step> {
    let known = known(args, settings)?;
    let admin_url = args.admin_url.clone().or_else(local_administrator);
    if let Some(url) = &known {
        let refused = login(url).await.err();
        if refused.is_none() && console.is_none_or(console::Plan::has_role) {
            settings.set(VARIABLE, url)?;
            return Ok(Step::kept("database", shown(url)));
        }
        if let (Some(error), None) = (refused, &admin_url) {
            return Err(not_accepted(url, &error));
        }
    }
    let Some(admin_url) = admin_url else {
        let message = "this needs an administrator's connection string (--admin-url), because no PostgreSQL runs on this machine; \
                       or give --database-url";
        return Err(Usage(message.into()).into());
    };
    let url = match &known {
        Some(url) => url.clone(),
        None => service_url(&admin_url, &args.database, &new_password(), &args.database)?,
    };
    let request = request(admin_url, &url, known.is_none(), console)?;
    let check = Request {
        check: true,
        ..request.clone()
    };
    check.run().await?;
    settings.set(VARIABLE, &url)?;
    if let Some(console) = console {
        console.keep_password(&request)?;
    }
    let Outcome { made } = request.run().await?;
    login(&url)
        .await
        .map_err(|error| not_accepted(&url, &error))?;
    Ok(match made.as_slice() {
        [] => Step::kept("database", shown(&url)),
        made => Step::made("database", format!("{}: {}", shown(&url), made.join(", "))),
    })
}

fn known(args: &Args, settings: &Settings) -> anyhow::Result<Option<String>> {
    match (settings.get(VARIABLE), &args.database_url) {
        (Some(known), Some(given)) if known != given => bail!(
            "{} has another {VARIABLE}: change it there, or leave out --database-url",
            settings.path().display()
        ),
        (Some(known), _) => Ok(Some(known.to_owned())),
        (None, given) => Ok(given.clone()),
    }
}

fn request(
    admin_url: String,
    url: &str,
    new: bool,
    console: Option<&console::Plan>,
) -> anyhow::Result<Request> {
    let parsed = Url::parse(url).context("DATABASE_URL must have the form postgres://…")?;
    let owner = Login {
        new,
        ..login_of(&parsed)?
    };
    let web = console
        .map(|console| console.login(&owner.role))
        .transpose()?;
    Ok(Request {
        admin_url,
        database: decoded(parsed.path().trim_start_matches('/'))?,
        owner,
        web,
        check: false,
    })
}

async fn login(url: &str) -> Result<(), StoreError> {
    let Ok(url) = DatabaseUrl::parse(url) else {
        return Ok(()); // `Config` reports it by name.
    };
    Store::new(url, StoreOptions::for_commands())?.ping().await
}

fn not_accepted(url: &str, error: &StoreError) -> anyhow::Error {
    anyhow::anyhow!(
        "{VARIABLE} ({}) does not work: {}",
        shown(url),
        chain(error)
    )
}

fn shown(url: &str) -> String {
    DatabaseUrl::parse(url).map_or_else(|_| VARIABLE.into(), |url| url.redacted())
}
