//! The privileges of a role that runs the service without owning its tables: it reads and writes
//! rows and calls functions, but changes no table.
//!
//! Everything that the owner of our tables has in our schema is granted, so that a new table
//! cannot be forgotten. Partitions are reached through their parents and need no grants; one that
//! is detached may be dropped at any moment. Trigger functions are left out: a role that may call
//! one may attach it to a table of its own.

use crate::{prelude::*, statements::locks};

const MISSING: &str = "-- runtime_role
    WITH history AS (
        SELECT relnamespace AS namespace, relowner AS owner FROM pg_class
         WHERE relnamespace = quote_ident(current_schema())::regnamespace AND relname = 'schema_migrations'),
    wanted AS (
        SELECT oid, privilege FROM pg_class, history,
               unnest(CASE relname WHEN 'schema_migrations' THEN ARRAY['SELECT']
                                   ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'] END) AS privilege
         WHERE relnamespace = namespace AND relowner = owner AND relkind IN ('r', 'p', 'v') AND NOT relispartition
           AND relname !~ '^(samples_open|sample_chunks|host_rollups)_[0-9]+$')
    SELECT format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), $1)
     WHERE NOT has_schema_privilege($1::name, current_schema(), 'USAGE')
     UNION ALL
    SELECT format('GRANT %s ON %s TO %I', string_agg(privilege, ', '), oid::regclass, $1) FROM wanted
     WHERE NOT has_table_privilege($1::name, oid, privilege) GROUP BY oid
     UNION ALL
    SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', oid::regprocedure, $1) FROM pg_proc, history
     WHERE pronamespace = namespace AND proowner = owner AND prorettype <> 'trigger'::regtype
       AND NOT has_function_privilege($1::name, oid, 'EXECUTE')";

impl Store {
    /// The role that this store connects as.
    pub async fn role(&self) -> Result<String> {
        let sql = "-- role\nSELECT current_user::text";
        self.run_value("role", Watch, sql, &[]).await
    }

    /// Grants `role` what the service needs at run time. Writes nothing if it has that already.
    pub async fn runtime_role_grant(&self, role: &str) -> Result<()> {
        self.run("runtime_role_grant", Watch, async |tx| {
            if missing(&tx, role).await?.is_empty() {
                return Ok(());
            }
            tx.lock(locks::SCHEMA).await?;
            tx.execute_rows(MISSING, &params![role]).await
        })
        .await
    }

    /// Whether `role` has what the service needs at run time. Changes nothing.
    pub async fn runtime_role_check(&self, role: &str) -> Result<bool> {
        self.run("runtime_role_check", Watch, async |tx| {
            Ok(missing(&tx, role).await?.is_empty())
        })
        .await
    }
}

/// The GRANT statements for the privileges that the role lacks.
async fn missing(tx: &Tx, role: &str) -> Result<Vec<String>> {
    let rows = tx.query(MISSING, &params![role]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
