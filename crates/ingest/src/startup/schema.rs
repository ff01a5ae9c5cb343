//! The server, the schema and the rights in it: checked before anything is changed, and brought up to date if
//! this instance may do that.
//!
//! Two roles may share the work. The owner of the tables migrates, grants, and makes and drops partitions. The role
//! of DATABASE_URL does everything else, and needs no right to change a table. Without
//! INGEST_OWNER_DATABASE_URL both are one role.

use std::time::Duration;

use svc_store::{SchemaError, SchemaState, ServerFacts, Store, StoreError, WebRole};
use tokio::time::Instant;

use super::StartError;
use crate::{
    config::{Database, Problems},
    error_chain::chain,
};

const WEB_ROLE: &str = "INGEST_WEB_ROLE";

/// The first version with everything that the schema uses, such as DETACH PARTITION CONCURRENTLY.
const OLDEST_SERVER: i32 = 140_000;

/// The owner uses one connection at a time.
const OWNER_CONNECTIONS: usize = 3;

/// A store that connects as the owner of the tables: `store` itself unless another role is configured.
pub fn owner(store: &Store, database: &Database) -> Result<Store, Problems> {
    let Some(url) = &database.owner_url else {
        return Ok(store.clone());
    };
    let options = database.store_options(OWNER_CONNECTIONS);
    Store::new(url.clone(), options)
        .map_err(|error| Problems::one(database.owner_variable(), chain(&error)))
}

/// Fails if the server, its schema or the rights in it do not fit. Changes nothing.
pub async fn server(owner: &Store, database: &Database) -> Result<(), StartError> {
    let facts = owner.server_facts().await?;
    if let Some(problem) = server_problem(&facts) {
        return Err(Problems::one(database.owner_variable(), problem).into());
    }
    if facts.anyone_may_create {
        let schema = facts.schema.unwrap_or_default();
        tracing::warn!(
            schema,
            "every role may create objects in the schema, and could interfere with the service: REVOKE CREATE ON SCHEMA … FROM PUBLIC"
        );
    }
    Ok(())
}

/// What a person must fix, and how.
pub fn server_problem(facts: &ServerFacts) -> Option<String> {
    let (version, role) = (&facts.version, &facts.role);
    if facts.version_number < OLDEST_SERVER {
        return Some(format!(
            "PostgreSQL {version} is too old: version 14 or later is needed"
        ));
    }
    let Some(schema) = &facts.schema else {
        return Some(format!(
            "role {role:?} has no current schema: create a schema of its search_path, or set search_path to an existing one"
        ));
    };
    if facts.foreign_history {
        return Some(format!(
            "schema {schema:?} has the table schema_migrations of another program: create a schema for svc-ingest alone, and set search_path to it"
        ));
    }
    match (&facts.home, &facts.owner) {
        (Some(home), _) if home != schema => Some(format!(
            "the tables are in schema {home:?}, but the current schema is {schema:?}: set search_path so that {home:?} comes first"
        )),
        (_, Some(owner)) if !facts.owns => Some(format!(
            "role {role:?} does not own the tables in schema {schema:?}: connect as {owner:?}, or set INGEST_OWNER_DATABASE_URL to a connection as {owner:?}"
        )),
        _ if !facts.may_create => Some(format!(
            "role {role:?} may not create tables in schema {schema:?}: GRANT USAGE, CREATE ON SCHEMA {schema:?} TO {role:?}"
        )),
        _ => None,
    }
}

/// Migrates the schema, or waits for another process to migrate it.
pub async fn schema(
    owner: &Store,
    database: &Database,
    patience: Duration,
) -> Result<(), StartError> {
    server(owner, database).await?;
    if !database.auto_migrate {
        wait_for_schema(owner, patience).await?;
        return server(owner, database).await;
    }
    let report = owner.migrate().await?;
    if !report.applied.is_empty() {
        let applied = report.applied.join(", ");
        tracing::info!(applied, "the schema was migrated");
    }
    Ok(())
}

async fn wait_for_schema(store: &Store, patience: Duration) -> Result<(), StartError> {
    let deadline = Instant::now() + patience;
    loop {
        let missing = match store.schema_check().await? {
            SchemaState::Current | SchemaState::Ahead { .. } => return Ok(()),
            SchemaState::Behind { missing } => missing.join(", "),
            SchemaState::Altered { migration } => {
                return Err(StoreError::Schema(SchemaError::Altered { migration }).into());
            }
            SchemaState::Unreleased => {
                return Err(StoreError::Schema(SchemaError::Unreleased).into());
            }
        };
        if Instant::now() >= deadline {
            let message =
                format!("is false, and the schema lacks {missing}: run `svc-ingest migrate`");
            return Err(Problems::one("INGEST_AUTO_MIGRATE", message).into());
        }
        tracing::warn!(missing, "waiting for the schema to be migrated");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Makes sure that the role of `store` has what it needs, where it does not own the tables.
pub async fn runtime_role(
    owner: &Store,
    store: &Store,
    database: &Database,
) -> Result<(), StartError> {
    if database.owner_url.is_none() {
        return Ok(());
    }
    if database.auto_migrate {
        return runtime_role_grant(owner, store).await;
    }
    let role = store.role().await?;
    if owner.runtime_role_check(&role).await? {
        return Ok(());
    }
    let message = format!(
        "role {role:?} lacks rights: run `svc-ingest migrate` with INGEST_OWNER_DATABASE_URL set"
    );
    Err(Problems::one("DATABASE_URL", message).into())
}

pub async fn runtime_role_grant(owner: &Store, store: &Store) -> Result<(), StartError> {
    let role = store.role().await?;
    Ok(owner.runtime_role_grant(&role).await?)
}

/// Grants the web application's role its rights, if this instance may change the schema.
pub async fn web_role(owner: &Store, database: &Database) -> Result<(), StartError> {
    let Some(role) = &database.web_role else {
        return Ok(());
    };
    if database.auto_migrate {
        return web_role_grant(owner, role).await;
    }
    match owner.web_role_check(role).await? {
        WebRole::Missing => Err(no_role(role).into()),
        WebRole::Granted => Ok(()),
        WebRole::NotGranted => {
            tracing::warn!(
                role,
                "the web application's role lacks grants: run `svc-ingest migrate` with INGEST_WEB_ROLE set"
            );
            Ok(())
        }
    }
}

pub async fn web_role_grant(owner: &Store, role: &str) -> Result<(), StartError> {
    match owner.web_role_grant(role).await {
        Ok(WebRole::Missing) => Err(no_role(role).into()),
        Err(error) if error.sqlstate() == Some("42501") => {
            let reason = error.server_message().unwrap_or_default();
            let message = format!(
                "{role:?} cannot be granted its rights ({reason}): run `svc-ingest migrate` as the owner of the tables"
            );
            Err(Problems::one(WEB_ROLE, message).into())
        }
        granted => Ok(granted.map(drop)?),
    }
}

fn no_role(role: &str) -> Problems {
    let message = format!("there is no PostgreSQL role {role:?}: create it, or leave this unset");
    Problems::one(WEB_ROLE, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> ServerFacts {
        ServerFacts {
            version_number: 140_000,
            version: "14.0".into(),
            role: "app".into(),
            schema: Some("public".into()),
            may_create: true,
            anyone_may_create: false,
            home: None,
            owner: None,
            owns: true,
            foreign_history: false,
        }
    }

    #[test]
    fn postgresql_14_is_accepted_and_13_is_refused() {
        assert_eq!(server_problem(&good()), None);
        let old = ServerFacts {
            version_number: 130_015,
            version: "13.15".into(),
            ..good()
        };
        let problem = server_problem(&old);
        assert!(problem.is_some_and(|text| text.starts_with("PostgreSQL 13.15 is too old")));
    }
}
