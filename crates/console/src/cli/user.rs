//! `svc-console user`: the people who may use the console. There is no default password: a new person
//! gets a link that sets one.

use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use svc_common::actor::os_user;
use svc_store::{LinkKind, Role, Store};

use super::output::print;
use crate::{
    config::{self, Database},
    secret::Secret,
};

/// A link to set a password must reach a person; a link to sign in is used at once.
const PASSWORD_LINK: Duration = Duration::from_hours(24);
const SIGN_IN_LINK: Duration = Duration::from_mins(10);

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Add a person, and print a one-time link that sets the password
    Add {
        name: String,
        #[arg(long, value_parser = role_parser(), default_value = "viewer")]
        role: Role,
    },
    /// Print a new one-time link for a person
    Link {
        name: String,
        /// Sign in at once instead of setting a password
        #[arg(long)]
        sign_in: bool,
        /// Add the person as an admin if missing (for the sandbox of developers)
        #[arg(long, hide = true, requires = "sign_in")]
        add_admin: bool,
    },
    /// List people
    List,
    /// Keep a person from signing in, and end the person's sessions
    Disable { name: String },
    /// Let a disabled person sign in again
    Enable { name: String },
}

fn role_parser() -> impl TypedValueParser<Value = Role> {
    PossibleValuesParser::new(["viewer", "operator", "admin"])
        .try_map(|name| Role::parse(&name).ok_or("is not a role"))
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    let store = Database::from_env()?.store()?;
    store.console_migrate().await?;
    match command {
        Command::Add { name, role } => {
            add(&store, &name, role).await?;
            print_link(&store, &name, LinkKind::SetPassword).await
        }
        Command::Link {
            name,
            sign_in,
            add_admin,
        } => {
            if add_admin && store.console_user_login(&name).await?.is_none() {
                add(&store, &name, Role::Admin).await?;
            }
            let kind = match sign_in {
                true => LinkKind::SignIn,
                false => LinkKind::SetPassword,
            };
            print_link(&store, &name, kind).await
        }
        Command::List => list(&store).await,
        Command::Disable { name } => disable(&store, &name, true).await,
        Command::Enable { name } => disable(&store, &name, false).await,
    }
}

async fn add(store: &Store, name: &str, role: Role) -> anyhow::Result<()> {
    let actor = os_user();
    let added = store.console_user_add(name, role, actor.as_str()).await;
    match added.as_ref().err().and_then(|error| error.constraint()) {
        Some("users_name_key") => Err(anyhow!("there is a person named {name} already")),
        Some("users_name_check") => Err(anyhow!(
            "{name:?} is not a name: use lower-case letters, digits and . _ @ -, at most 64"
        )),
        _ => Ok(added.map(drop)?),
    }
}

async fn print_link(store: &Store, name: &str, kind: LinkKind) -> anyhow::Result<()> {
    let base_url = config::base_url()?;
    let code = Secret::generate().map_err(|_| anyhow!("no random numbers"))?;
    let life = match kind {
        LinkKind::SetPassword => PASSWORD_LINK,
        LinkKind::SignIn => SIGN_IN_LINK,
    };
    let hash = code.hash();
    let actor = os_user();
    let created = store.console_link_create(name, kind, &hash, life, actor.as_str());
    ensure!(
        created.await?,
        "there is no person named {name} who may sign in"
    );
    print(&format!("{}\n", code.link(&base_url)));
    Ok(())
}

async fn list(store: &Store) -> anyhow::Result<()> {
    let mut people = store.console_users().await?;
    people.sort_by(|one, other| one.name.cmp(&other.name));
    for user in people {
        let state = match (user.disabled_at.is_some(), user.has_password) {
            (true, _) => "disabled",
            (false, true) => "active",
            (false, false) => "no password yet",
        };
        let role = user.role.as_str();
        print(&format!("{:24} {role:9} {state}\n", user.name));
    }
    Ok(())
}

async fn disable(store: &Store, name: &str, disabled: bool) -> anyhow::Result<()> {
    let actor = os_user();
    let found = store
        .console_user_disable(name, disabled, actor.as_str())
        .await;
    ensure!(
        found.context("cannot change the person")?,
        "there is no person named {name}"
    );
    Ok(())
}
