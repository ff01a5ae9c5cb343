//! `svc-ingest migrate`: brings the schema and the web application's grants up to date.

use std::process::ExitCode;

use svc_store::{Store, StoreOptions};

use super::output::OutputArgs;
use crate::{
    config::Database,
    startup::{self, StartError},
};

pub async fn run(args: OutputArgs) -> anyhow::Result<ExitCode> {
    let database = Database::from_env()?;
    let store = Store::new(database.url, StoreOptions::default())?;
    let report = store.migrate().await?;
    let web_role = database.web_role;
    if let Some(role) = &web_role {
        let granted = startup::web_role_grant(&store, role).await;
        granted.map_err(StartError::into_report)?;
    }
    let value = serde_json::json!({"applied": report.applied, "web_role": web_role});
    args.output
        .print(&value, || summary(&report.applied, web_role.as_deref()))?;
    Ok(ExitCode::SUCCESS)
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
