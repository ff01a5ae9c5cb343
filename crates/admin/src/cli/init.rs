//! `svc-ingest init`: makes what a first installation needs, and says what comes next.
//!
//! It is idempotent. Whatever exists is checked and kept, and every secret is written to the settings before it is put
//! into effect, so that a run that was cut off continues where it ended. The order follows from the needs: the token needs the
//! schema, the schema the database, and the settings name everything else.

mod args;
mod authority;
mod certificates;
mod connection_string;
mod console;
mod database;
mod files;
mod peer;
mod replacement;
mod report;
mod settings;
mod step;

use std::{path::Path, path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use svc_ingest::{config::Config, startup};
use svc_store::{DatabaseUrl, NewToken, Store, StoreOptions};

use super::{Usage, actor, migrate, terminal, token};
pub use args::Args;
pub use peer::answer as database_child;
use report::{Next, Report};
use settings::Settings;
use step::Step;

const KEY_FILE: &str = "INGEST_JWT_KEY_FILE";
const DEFAULT_KEY_FILE: &str = "/var/lib/svc/jwt_key.pem";

pub async fn run(mut args: Args, env_file: &Path) -> anyhow::Result<ExitCode> {
    let mut settings = Settings::open(env_file, settings::SERVICE)?;
    let mut report = Report::default();
    for url in [&mut args.admin_url, &mut args.database_url] {
        url.take_if(|url| url.is_empty()); // Of a variable.
    }
    report.warn(database::visible_password(&args));
    ask(&mut args, &settings)?;
    check_names(&args.names)?;
    let owner = files::Owner::of(&args.user);
    let console = console::Plan::new(&args, env_file, &settings)?;
    report.add(database::ensure(&args, &mut settings, console.as_ref()).await?);
    let further = console.as_ref().and_then(|plan| plan.certificate(&args));
    report.extend(certificates::ensure(&args, &mut settings, owner, further)?);
    report.warn(match owner {
        Some(owner) => certificates::unreadable_key(&settings, certificates::KEY, owner)?,
        None => Some(format!(
            "there is no user {}: make sure that the service can read its keys",
            args.user
        )),
    });
    let console = console.map(|plan| plan.save(&mut settings)).transpose()?;
    let key_file = key_file(&args, &mut settings, owner)?;
    let config = Config::read(&|name| settings.get(name).map(Into::into))?;
    let store = Store::new(config.database.url.clone(), StoreOptions::for_commands())?;
    report.add(schema(&store, &config).await?);
    report.add(signing_key(&key_file, owner, &store).await?);
    report.add(settings.step());
    if !args.no_token
        && let Some(secret) = first_token(&store).await?
    {
        report.token(&secret);
    }
    let mut next = Next::new(env_file, &settings);
    if let Some(console) = console {
        let has_people = has_people(&console.database_url).await;
        next.console(&console, has_people);
        console
            .warnings
            .into_iter()
            .for_each(|warning| report.warn(Some(warning)));
        report.add(console.step);
    }
    report.next(next, &settings);
    args.output.print(&report, || report.text())?;
    Ok(ExitCode::SUCCESS)
}

/// Asks for what no flag and no setting says, if a person is there.
fn ask(args: &mut Args, settings: &Settings) -> anyhow::Result<()> {
    let asks = !args.yes && terminal::is_there();
    let has_database = settings.get("DATABASE_URL").is_some() || args.database_url.is_some();
    if args.admin_url.is_none() && !has_database {
        let local = database::local_administrator();
        args.admin_url = match (asks, local) {
            (true, local) => terminal::ask(
                "PostgreSQL administrator's connection string",
                local.as_deref(),
            )?,
            (false, local) => local,
        };
    }
    let has_certificate = settings.get("INGEST_TLS_CERT").is_some();
    if args.names.is_empty() && args.tls_cert.is_none() && !has_certificate {
        let here = rustix::system::uname();
        let here = here.nodename().to_string_lossy().into_owned();
        let question = "Names or addresses under which agents reach this service";
        let names = match asks {
            true => terminal::ask(question, Some(&here))?.unwrap_or(here),
            false => here,
        };
        args.names = names
            .split([',', ' '])
            .filter(|name| !name.is_empty())
            .map(Into::into)
            .collect();
    }
    Ok(())
}

/// What a certificate can name: DNS names, with a wildcard perhaps, and IP addresses.
fn check_names(names: &[String]) -> Result<(), Usage> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-.:*".contains(c);
    match names
        .iter()
        .find(|name| name.is_empty() || name.len() > 253 || !name.chars().all(allowed))
    {
        Some(name) => Err(Usage(format!(
            "--name {name:?} is neither a DNS name nor an address (and has no port)"
        ))),
        None => Ok(()),
    }
}

async fn schema(store: &Store, config: &Config) -> anyhow::Result<Step> {
    let report = migrate::migrate(store, &config.database).await;
    let report = report.map_err(startup::StartError::into_report)?;
    Ok(match report.applied.len() {
        0 => Step::kept("schema", "up to date"),
        count => Step::made("schema", format!("{count} migrations applied")),
    })
}

/// The path of the signing key in the settings, and its folder on disk.
fn key_file(
    args: &Args,
    settings: &mut Settings,
    owner: Option<files::Owner>,
) -> anyhow::Result<PathBuf> {
    let path = match (settings.get(KEY_FILE), &args.key_file) {
        (Some(known), Some(given)) if Path::new(known) != given => bail!(
            "{KEY_FILE} is {known} in the settings, and --key-file {}: change one",
            given.display()
        ),
        (Some(known), _) => PathBuf::from(known),
        (None, Some(given)) => given.clone(),
        (None, None) => DEFAULT_KEY_FILE.into(),
    };
    if path != Path::new(DEFAULT_KEY_FILE) {
        settings.set(KEY_FILE, &path.to_string_lossy())?;
    }
    if let Some(folder) = path.parent() {
        files::folder(folder, 0o700, owner)?;
    }
    Ok(path)
}

async fn signing_key(
    path: &Path,
    owner: Option<files::Owner>,
    store: &Store,
) -> anyhow::Result<Step> {
    let exists = path.exists();
    let key = startup::signing_key(path, store).await;
    let key = key.map_err(startup::StartError::into_report)?;
    let shown = format!("{}, {} bits", path.display(), key.bits());
    if exists {
        return Ok(Step::kept("signing key", shown));
    }
    files::give(path, owner)?;
    let advice = "back it up, and copy it to further instances";
    Ok(Step::made("signing key", format!("{shown}: {advice}")))
}

/// Whether somebody may sign in already. The console makes its tables itself, so there may be none yet.
async fn has_people(console_url: &str) -> bool {
    let url = DatabaseUrl::parse(console_url);
    let store = url.map(|url| Store::new(url, StoreOptions::for_commands()));
    match store {
        Ok(Ok(store)) => store.console_has_users().await.unwrap_or(false),
        _ => false,
    }
}

/// A token for one agent, if there has never been a token.
async fn first_token(store: &Store) -> anyhow::Result<Option<String>> {
    if !store.tokens_list(1).await?.rows.is_empty() {
        return Ok(None);
    }
    let new = NewToken {
        label: "first".into(),
        auto_approve: false,
        allow_reinstall: false,
        max_uses: 1,
        expires_in: Some(token::DEFAULT_LIFETIME),
        labels: Default::default(),
        created_by: actor::os_user(),
    };
    let (secret, _) = token::add(store, &new).await.context("the first token")?;
    Ok(Some(secret.expose().to_owned()))
}
