//! `svc-ingest migrate`: brings the schema and the grants in it up to date.

use std::process::ExitCode;

use svc_ingest::{
    config::Database,
    startup::{self, StartError},
};
use svc_store::{MigrationReport, Store, StoreOptions};

use super::output::OutputArgs;

pub async fn run(args: OutputArgs) -> anyhow::Result<ExitCode> {
    let database = Database::from_env()?;
    let store = Store::new(database.url.clone(), StoreOptions::default())?;
    let report = migrate(&store, &database).await;
    let report = report.map_err(StartError::into_report)?;
    let web_role = database.web_role;
    let value = serde_json::json!({"applied": report.applied, "web_role": web_role});
    args.output
        .print(&value, || summary(&report.applied, web_role.as_deref()))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn migrate(
    store: &Store,
    database: &Database,
) -> Result<MigrationReport, StartError> {
    let owner = startup::owner(store, database)?;
    startup::server(&owner, database).await?;
    let report = owner.migrate().await?;
    if database.owner_url.is_some() {
        startup::runtime_role_grant(&owner, store).await?;
    }
    if let Some(role) = &database.web_role {
        startup::web_role_grant(&owner, role).await?;
    }
    Ok(report)
}

fn summary(applied: &[String], web_role: Option<&str>) -> String {
    let schema = match applied {
        [] => "the schema is up to date".to_owned(),
        applied => format!("applied {}", applied.join(", ")),
    };
    match web_role {
        Some(role) => format!("{schema}\nthe web application's role {role:?} has its grants"),
        None => schema,
    }
}
