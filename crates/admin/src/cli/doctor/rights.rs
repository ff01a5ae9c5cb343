//! The checks of the server, the schema and the rights of the roles in it.

use svc_ingest::{config::Database, startup};
use svc_store::{ServerFacts, Store, StoreError, WebRole};

use super::{Check, Finding, fail, ok, warn};

/// The roles that are configured beside the owner of the tables.
pub(super) async fn check_roles(
    database: &Database,
    owner: &Store,
    store: &Store,
) -> Result<Vec<Check>, StoreError> {
    let mut checks = Vec::new();
    if let Some(role) = &database.web_role {
        let finding = check_web_role(owner, role).await?;
        checks.push(Check::new("web role", finding));
    }
    if database.owner_url.is_some() {
        let finding = check_runtime_role(owner, &store.role().await?).await?;
        checks.push(Check::new("runtime role", finding));
    }
    Ok(checks)
}

pub(super) fn check_server(facts: &ServerFacts) -> Finding {
    if let Some(problem) = startup::server_problem(facts) {
        return fail(problem);
    }
    let (version, schema) = (&facts.version, facts.schema.as_deref().unwrap_or_default());
    let finding = format!("PostgreSQL {version}, schema {schema:?}");
    match facts.anyone_may_create {
        false => ok(finding),
        true => warn(format!(
            "{finding}: every role may create objects in it, and could interfere with the service: REVOKE CREATE ON SCHEMA {schema:?} FROM PUBLIC"
        )),
    }
}

async fn check_web_role(owner: &Store, role: &str) -> Result<Finding, StoreError> {
    let grants = owner.web_role_check(role).await?;
    Ok(match grants {
        WebRole::Missing => fail(format!("there is no role {role:?}: create it")),
        WebRole::NotGranted => warn(format!(
            "{role:?} lacks grants: run `svc-ingest migrate` with INGEST_WEB_ROLE set"
        )),
        WebRole::Granted if owner.role_may_create(role).await? => warn(format!(
            "{role:?} may create objects in the schema, and could interfere with the service: REVOKE CREATE ON SCHEMA … FROM {role:?} and from PUBLIC"
        )),
        WebRole::Granted => ok(format!("{role:?} has its grants, and creates nothing")),
    })
}

async fn check_runtime_role(owner: &Store, role: &str) -> Result<Finding, StoreError> {
    Ok(match owner.runtime_role_check(role).await? {
        true => ok(format!("{role:?} has its grants")),
        false => warn(format!("{role:?} lacks grants: run `svc-ingest migrate`")),
    })
}
