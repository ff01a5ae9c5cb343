//! The work that needs the administrator's connection, in this process or as the administrator's user.
//!
//! PostgreSQL on the same machine usually lets its administrator in over a Unix socket, by the name of the calling user
//! (peer authentication), and root is not that user. So root starts this program again as that user, with the request on
//! standard input. Secrets are in neither arguments nor environment, where other users could see them.

use std::{io::Read, process::ExitCode, process::Stdio};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use svc_common::error_chain::chain;
use svc_store::{DatabaseUrl, Store, StoreOptions};
use tokio::{io::AsyncWriteExt, process::Command};
use url::Url;

use super::files::Owner;
use crate::cli::output;

const MAX_REQUEST: u64 = 64 * 1024;

/// What is to exist.
#[derive(Clone, Deserialize, Serialize)]
pub struct Request {
    pub admin_url: String,
    pub database: String,
    pub owner: Login,
    /// The console's role.
    pub web: Option<Login>,
    /// Only find out whether it could be made.
    pub check: bool,
}

#[derive(Clone, Deserialize, Serialize)]
pub struct Login {
    pub role: String,
    pub password: String,
    /// The password was generated now, so a role that exists has another.
    pub new: bool,
    /// The role was made for this installation, whose settings have the password: if it exists, it gets this one.
    pub ours: bool,
}

/// The names of what was made.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Outcome {
    pub made: Vec<String>,
}

impl Request {
    pub async fn run(&self) -> anyhow::Result<Outcome> {
        match administrator(&self.admin_url) {
            Some(user) => self.run_as(user).await,
            None => self.fulfil().await,
        }
    }

    async fn run_as(&self, user: Owner) -> anyhow::Result<Outcome> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("init-database")
            .uid(user.uid)
            .gid(user.gid)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut input = child.stdin.take().context("no pipe to the child")?;
        input.write_all(&serde_json::to_vec(self)?).await?;
        drop(input);
        let output = child.wait_with_output().await?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            let reason = reason.trim();
            bail!(
                "{}",
                reason
                    .strip_prefix("svc-ingest: ")
                    .unwrap_or(reason)
                    .to_owned()
            );
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    async fn fulfil(&self) -> anyhow::Result<Outcome> {
        let url =
            DatabaseUrl::parse(&self.admin_url).context("the administrator's connection string")?;
        let admin = Store::new(url.clone(), StoreOptions::for_commands())?;
        let shown = url.redacted();
        let made = self.make(&admin, &url).await;
        made.map_err(
            |error| match error.downcast_ref::<svc_store::StoreError>() {
                Some(failure) => anyhow::anyhow!("as administrator on {shown}: {}", chain(failure)),
                None => error,
            },
        )
    }

    async fn make(&self, admin: &Store, url: &DatabaseUrl) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome::default();
        for login in std::iter::once(&self.owner).chain(&self.web) {
            let exists = admin.role_exists(&login.role).await?;
            if exists && login.new && !login.ours {
                bail!(
                    "the role {0} exists, and its password is not known here: give the connection string of {0} \
                     (--database-url), or choose another name (--database)",
                    login.role
                );
            }
            if self.check {
                continue;
            }
            if !exists {
                admin.role_create(&login.role, &login.password).await?;
                outcome.made.push(format!("role {}", login.role));
            } else if login.ours {
                admin.role_password(&login.role, &login.password).await?;
                outcome
                    .made
                    .push(format!("a password for role {}", login.role));
            }
        }
        if self.check {
            return Ok(outcome);
        }
        if !admin.database_exists(&self.database).await? {
            let (database, owner) = (&self.database, &self.owner.role);
            admin.database_create(url, database, owner).await?;
            outcome.made.push(format!("database {database}"));
        }
        if let Some(web) = &self.web {
            admin
                .database_grant_create(&self.database, &web.role)
                .await?;
        }
        Ok(outcome)
    }
}

/// The hidden command of the child: a request on standard input, its outcome on standard output.
pub async fn answer() -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    std::io::stdin().take(MAX_REQUEST).read_to_end(&mut text)?;
    let request: Request = serde_json::from_slice(&text).context("this command is internal")?;
    let outcome = request.fulfil().await?;
    output::print(&serde_json::to_string(&outcome)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The user to become: root's way in over a Unix socket.
fn administrator(url: &str) -> Option<Owner> {
    let url = Url::parse(url).ok()?;
    let is_socket = url.host_str()?.to_ascii_lowercase().starts_with("%2f");
    let foreign = is_socket && rustix::process::geteuid().is_root() && url.username() != "root";
    foreign.then(|| Owner::of(url.username())).flatten()
}
