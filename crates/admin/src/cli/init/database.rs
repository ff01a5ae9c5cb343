//! The role and the database of the service: taken from the settings or a flag, or made with an administrator's help.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use anyhow::{Context, bail};
use rustix::process::geteuid;
use svc_common::error_chain::chain;
use svc_store::{DatabaseUrl, Store, StoreError, StoreOptions};
use url::Url;

use super::{
    args::{self, Args},
    connection_string::{decoded, login_of, new_password, service_url},
    console,
    files::Owner,
    peer::{Login, Outcome, Request},
    settings::Settings,
    step::Step,
};
use crate::cli::Usage;

const VARIABLE: &str = "DATABASE_URL";
const DEFAULT_NAME: &str = "svc";
/// PostgreSQL's code of a login that it refuses.
const WRONG_PASSWORD: &str = "28P01";
/// Where distributions put PostgreSQL's socket. Not `/tmp`, where some builds have it: every user can put one there.
const SOCKETS: &str = "/var/run/postgresql";

/// The administrator of PostgreSQL on this machine, if it runs here.
pub fn local_administrator() -> Option<String> {
    let postgres = Owner::of("postgres").map(|owner| owner.uid);
    is_trusted(Path::new(SOCKETS), postgres).then(|| {
        let folder = SOCKETS.replace('/', "%2F");
        format!("postgres://postgres@{folder}/postgres")
    })
}

/// Whether a socket in this folder is PostgreSQL's: nobody but root, PostgreSQL's user and we could have put it there.
fn is_trusted(folder: &Path, postgres: Option<u32>) -> bool {
    let known = |uid| uid == 0 || Some(uid) == postgres || uid == geteuid().as_raw();
    let is_theirs = |path: &Path| {
        let found = fs::symlink_metadata(path.canonicalize()?)?;
        Ok::<_, io::Error>(known(found.uid()) && (!found.is_dir() || found.mode() & 0o002 == 0))
    };
    let both = [folder.to_owned(), folder.join(".s.PGSQL.5432")];
    both.iter().all(|path| is_theirs(path).unwrap_or(false))
}

/// Other users see arguments.
pub fn visible_password(args: &Args) -> Option<String> {
    let urls = [
        ("--admin-url", args::ADMIN_URL, &args.admin_url),
        ("--database-url", args::DATABASE_URL, &args.database_url),
    ];
    let visible = urls.into_iter().find(|(_, variable, url)| {
        let url = url.as_ref().and_then(|url| Url::parse(url).ok());
        std::env::var_os(variable).is_none() && url.is_some_and(|url| url.password().is_some())
    });
    visible.map(|(option, variable, _)| {
        format!("the process list showed the password of {option}: use {variable}")
    })
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
        if refused.is_none() && has_web_role(console).await {
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
        None => {
            let name = args.database.as_deref().unwrap_or(DEFAULT_NAME);
            service_url(&admin_url, name, &new_password(), name)?
        }
    };
    let ours = settings.get("INGEST_WEB_ROLE");
    let request = request(admin_url, &url, known.is_none(), console, ours)?;
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
    let path = settings.path().display();
    let known = match (settings.get(VARIABLE), &args.database_url) {
        (Some(known), Some(given)) if known != given => {
            bail!("{path} has another {VARIABLE}: change it there, or leave out --database-url")
        }
        (Some(known), _) => known.to_owned(),
        (None, given) => return Ok(given.clone()),
    };
    if let (Some(given), Ok(url)) = (&args.database, Url::parse(&known)) {
        let name = decoded(url.path().trim_start_matches('/'))?;
        if name != *given {
            bail!(
                "the {VARIABLE} in {path} is of the database {name}, and --database says {given}: leave the option out"
            );
        }
    }
    Ok(Some(known))
}

fn request(
    admin_url: String,
    url: &str,
    new: bool,
    console: Option<&console::Plan>,
    web_role: Option<&str>,
) -> anyhow::Result<Request> {
    let parsed = Url::parse(url).context("DATABASE_URL must have the form postgres://…")?;
    let owner = Login {
        new,
        ..login_of(&parsed)?
    };
    let web = console
        .map(|console| console.login(&owner.role, web_role))
        .transpose()?;
    Ok(Request {
        admin_url,
        database: decoded(parsed.path().trim_start_matches('/'))?,
        owner,
        web,
        check: false,
    })
}

/// Whether the console, if there is one, has a role with the password of its settings. After a purge of the console's package
/// its password is gone, and its role is still there.
async fn has_web_role(console: Option<&console::Plan>) -> bool {
    let Some(console) = console else {
        return true;
    };
    let Some(url) = console.database_url() else {
        return false;
    };
    let refused = login(&url).await.err();
    refused.is_none_or(|error| error.sqlstate() != Some(WRONG_PASSWORD))
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_socket_is_believed_only_where_nobody_else_could_have_put_it() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join(".s.PGSQL.5432");
        let allow = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode));
        assert!(!is_trusted(folder.path(), None), "there is no socket");
        fs::write(&socket, "").unwrap();
        assert!(is_trusted(folder.path(), None));
        allow(0o1777).unwrap();
        assert!(!is_trusted(folder.path(), None), "as /tmp");
        allow(0o775).unwrap();
        assert!(is_trusted(folder.path(), None));
        let stranger = std::os::unix::fs::lchown(&socket, Some(4321), None);
        if stranger.is_ok() {
            assert!(!is_trusted(folder.path(), None), "only root can try this");
            assert!(is_trusted(folder.path(), Some(4321)));
        }
    }
}
