//! The privileges of the web application's database role: it reads everything except the
//! hashes of tokens, and writes only through our functions.
//!
//! Tables are listed one by one, so that a new table with a secret is not readable by
//! default. A test fails until a new table is listed.

use tokio_postgres::types::Type;

use crate::{
    error::StoreError,
    locks,
    pool::{Bulkhead, Store},
    tx::{Param, Tx},
};

const READABLE: &[&str] = &[
    "schema_migrations",
    "ingest_instances",
    "enrolment_token_states",
    "enrolment_token_uses",
    "hosts",
    "host_identifiers",
    "agents",
    "agent_state",
    "agent_events",
    "host_overview",
    "host_metrics",
    "metric_gaps",
    "host_metrics_hourly",
    "rollup_changes",
    "rollups_due",
];

const CALLABLE: &[&str] = &[
    "approve_agent",
    "reject_agent",
    "revoke_agent",
    "reopen_agent",
    "add_enrolment_token",
    "revoke_enrolment_token",
    "retire_host",
];

/// The state of the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebRole {
    Granted,
    /// It exists but lacks privileges.
    NotGranted,
    /// It does not exist.
    Missing,
}

impl Store {
    /// Grants `role` the privileges of the web application. Idempotent.
    pub async fn web_role_grant(&self, role: &str) -> Result<WebRole, StoreError> {
        self.run("web_role_grant", Bulkhead::Maintenance, async |tx| {
            // Concurrent grants, or a grant during a migration, fail with "tuple concurrently
            // updated".
            tx.lock(locks::MIGRATE).await?;
            if !role_exists(&tx, role).await? {
                return Ok(WebRole::Missing);
            }
            for statement in grants(&tx, role).await? {
                tx.batch(&statement).await?;
            }
            Ok(WebRole::Granted)
        })
        .await
    }

    /// Whether `role` has its privileges. Changes nothing.
    pub async fn web_role_check(&self, role: &str) -> Result<WebRole, StoreError> {
        self.run("web_role_check", Bulkhead::Watch, async |tx| {
            if !role_exists(&tx, role).await? {
                return Ok(WebRole::Missing);
            }
            Ok(match is_granted(&tx, role).await? {
                true => WebRole::Granted,
                false => WebRole::NotGranted,
            })
        })
        .await
    }
}

async fn role_exists(tx: &Tx, role: &str) -> Result<bool, StoreError> {
    let sql = "-- web_role\nSELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)";
    let row = tx.query_one(sql, &[(&role, Type::TEXT)]).await?;
    Ok(row.try_get(0)?)
}

/// The GRANT statements, with names quoted by the server. USAGE on the schema is granted
/// only if the role lacks it, because often the schema has another owner.
async fn grants(tx: &Tx, role: &str) -> Result<Vec<String>, StoreError> {
    let sql = "-- web_role_grant
        SELECT format('GRANT USAGE ON SCHEMA public TO %I', $1)
         WHERE NOT has_schema_privilege($1::name, 'public', 'USAGE')
         UNION ALL
        SELECT format('GRANT SELECT ON public.%I TO %I', name, $1) FROM unnest($2::text[]) AS readable(name)
         UNION ALL
        SELECT format('GRANT SELECT (%s) ON public.enrolment_tokens TO %I', string_agg(quote_ident(attname), ', '), $1)
          FROM pg_attribute
         WHERE attrelid = 'public.enrolment_tokens'::regclass AND attnum > 0 AND NOT attisdropped
           AND attname <> 'hash'
         UNION ALL
        SELECT format('GRANT EXECUTE ON FUNCTION public.%I TO %I', name, $1) FROM unnest($3::text[]) AS callable(name)";
    let rows = tx.query(sql, &params(&role)).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

async fn is_granted(tx: &Tx, role: &str) -> Result<bool, StoreError> {
    let sql = "-- web_role_check
        SELECT has_schema_privilege($1::name, 'public', 'USAGE')
           AND (SELECT bool_and(has_table_privilege($1::name, 'public.' || quote_ident(name), 'SELECT'))
                  FROM unnest($2::text[]) AS readable(name))
           AND has_column_privilege($1::name, 'public.enrolment_tokens', 'id', 'SELECT')
           AND (SELECT bool_and(has_function_privilege($1::name, oid, 'EXECUTE'))
                  FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname = ANY ($3))";
    Ok(tx.query_one(sql, &params(&role)).await?.try_get(0)?)
}

fn params<'a>(role: &'a &str) -> [Param<'a>; 3] {
    [
        (role, Type::TEXT),
        (&READABLE, Type::TEXT_ARRAY),
        (&CALLABLE, Type::TEXT_ARRAY),
    ]
}
